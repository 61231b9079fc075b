"""Where descent ends among workers that lie, on quadratics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dsgd.theory.robustness import ipm_decay, lower_bound, mimic_fixed_point, signflip_fixed_point
from gate.row import Row, exactly, iterates, quadratic

_OPTIMA = (0.0, 1.0, 2.0, 5.0, -3.0, 4.0, 8.0)
_LIARS = 2  # the last ones


def rows() -> Iterator[Row]:
    """Yield the rows of the mean, and of the trimmed mean."""
    honest, liars = _OPTIMA[:-_LIARS], _OPTIMA[-_LIARS:]
    yield exactly(
        "the mean, 2 of 7 flip the sign: last iterate",
        "(sum of honest x_i - sum of the liars' x_i)/(n - 2 f)",
        signflip_fixed_point(honest, liars),
        lambda seed: _among_liars(_OPTIMA, "lie:5,6=signflip"),
        tolerance=1e-4,
    )
    yield exactly(
        "the mean, 2 of 7 mimic the first: last iterate",
        "(sum of honest x_i + f x_1)/n",
        mimic_fixed_point(honest, _LIARS),
        lambda seed: _among_liars(_OPTIMA, "lie:5,6=mimic"),
        tolerance=1e-4,
    )
    for size in (1.0, 2.0, 3.0):
        yield exactly(
            f"the mean, 2 of 7 send -{size:g} times the honest mean: decay of the distance an update",
            "1 - lr (n - f - size f)/n",
            ipm_decay(0.1, len(honest), _LIARS, size),
            partial(_ipm_decay, size),
            tolerance=1e-5,
        )
    for n, f in ((5, 1), (7, 2), (9, 4)):
        yield exactly(
            f"trimmed mean, {f} of {n} lie as well as they can: squared error over spread",
            "f/(n - 2 f): no aggregator does better",
            lower_bound(n, f),
            partial(_worst_split, n, f),
            tolerance=1e-5,
        )


def _among_liars(optima: Sequence[float], faults: str, **options: Any) -> float:
    """Return where SSGD with these optima and liars ends."""
    text = ",".join(map(str, optima))
    return float(quadratic("ssgd", len(optima), 200, 0, lr=0.2, optima=text, faults=faults, **options).w[0])


def _ipm_decay(size: float, seed: int) -> float:
    optima = [x + 2 for x in _OPTIMA]  # weights start at 1, which is the honest mean of _OPTIMA
    text = ",".join(map(str, optima))
    outcome = quadratic("ssgd", len(optima), 10, 0, lr=0.1, optima=text, faults=f"lie:5,6=ipm*{size}")
    distance = iterates(outcome)[:, 0] - np.mean(optima[:-_LIARS])
    return float((distance[-1] / distance[0]) ** (1 / (len(distance) - 1)))


def _worst_split(n: int, f: int, seed: int) -> float:
    """Return the squared error over the spread where f honest optima are 1, the others 0, and liars mimic a
    worker at 0.
    """
    honest = [0.0] * (n - 2 * f) + [1.0] * f
    liars = ",".join(map(str, range(n - f, n)))
    w = _among_liars([*honest, *[9.0] * f], f"lie:{liars}=mimic", aggregate=f"trimmed:{f}")
    return float((w - np.mean(honest)) ** 2 / np.var(honest))
