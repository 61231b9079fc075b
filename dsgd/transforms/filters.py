"""Filters: which results an asynchronous server does not apply, because they may be lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsgd.core.option_forms import Form, number, parsed, whole
from dsgd.core.rules import Slots, TaskResult
from dsgd.core.weights import Vector, Weights


@dataclass(frozen=True)
class Kardam:
    """Applies no gradient that has changed too fast since the last one, nor one worker's too often.

    With g' and x' the last gradient that was applied and the weights at which it was computed, a gradient g
    at x has the Lipschitz coefficient K = |g - g'|/|x - x'|. It counts if

        K is among the n - f smallest of the workers' newest coefficients, and
        none of the last 2 f that were applied is its worker's.

    Of any 2 f + 1 that are applied one after another, no two are one worker's, so f + 1 at least are honest.
    With f = 0 all count. Damaskinos et al. 2018, "Asynchronous Byzantine machine learning (the case of SGD)",
    and the authors' code (LPD-EPFL/kardam), which has the first of the two filters. Two differences: K is
    compared with the workers' newest K, as Xie et al. do in the code of Zeno++, where the authors take what
    workers find between their own last two gradients; and where x is x', as for all but the first gradient at
    the start, K is infinite. The paper's dampening of stale gradients is `ByStaleness`.

    It is not elementwise: its norms are those of whole vectors. A gradient that does not count leaves the
    weights where they are, and is an update all the same.
    """

    f: int
    workers: int = 0
    """How many there are; 0 is not known yet."""
    slots: ClassVar[tuple[str, ...]] = ("filter_gradient", "filter_weights", "filter_seen")
    """The last is no vector of D: each worker's coefficient, then the workers of the last 2 f."""

    @property
    def least(self) -> int:
        """How many workers it needs."""
        return 3 * self.f + 1

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        nothing = np.full(self.workers + 2 * self.f, np.nan, np.float32)
        seen = slots.get("filter_seen", nothing).copy()
        coefficients, applied = seen[: self.workers], seen[self.workers :]
        x = result.origin.vector
        counts = bool(np.isfinite(g).all()) and result.worker not in applied
        if "filter_gradient" in slots and np.isfinite(g).all():
            moved = _distance(x, slots["filter_weights"])
            if moved > 0:
                coefficient = np.float32(_distance(g, slots["filter_gradient"]) / moved)
                coefficients[result.worker] = coefficient
                counts = counts and int((coefficients < coefficient).sum()) < self.workers - self.f
            else:
                counts = counts and not self.f
        if counts:
            applied[:-1] = applied[1:]
            applied[-1:] = result.worker
            slots["filter_gradient"], slots["filter_weights"] = g.copy(), x
        slots["filter_seen"] = seen
        return (g, scale) if counts else (np.zeros_like(g), 0.0)


@dataclass(frozen=True)
class ZenoPlusPlus:
    """Applies a gradient only where the newest one of a trusted worker says that it leads down.

    v is the newest gradient of worker 0, which counts as it is. Another one, g, gets the length of v, and
    counts if the loss falls enough along it, by the estimate of v:

        g <- |v|/|g| g,    <v, g> - rho |g|^2 >= -epsilon

    With epsilon = 0, if its cosine with v is at least rho. Until v is there, no other counts. It needs no
    bound on the number of liars, but worker 0 must not be one.

    Xie, Koyejo and Gupta 2020, "Zeno++: robust fully asynchronous SGD" (arXiv 1903.07020), and the authors'
    code (xcgoner/iclr2020_zeno_async), whose rho is this one times the step size. There the server computes
    v, on separate data, after every few updates; here a worker does, like the validators of their later
    zeno_ps. Their code has |g|^2 in the second term as it was before g was scaled.

    It is not elementwise: its norms are those of whole vectors.
    """

    rho: float
    epsilon: float = 0.0
    slots: ClassVar[tuple[str, ...]] = ("filter_gradient",)
    least: ClassVar[int] = 2

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        if result.worker == 0:
            slots["filter_gradient"] = g.copy()
            return g, scale
        if "filter_gradient" in slots and 0 < (length := _length(g)) < math.inf:
            v = slots["filter_gradient"]
            scaled: Vector = np.float32(_length(v) / length) * g
            falls = float(v.astype(np.float64) @ scaled) - self.rho * _length(v) ** 2
            if falls >= -self.epsilon:
                return scaled, scale
        return np.zeros_like(g), 0.0


Filter: TypeAlias = Kardam | ZenoPlusPlus


def _distance(a: Vector, b: Vector) -> float:
    return _length(a.astype(np.float64) - b)


def _length(x: NDArray[np.floating]) -> float:
    exact = x.astype(np.float64, copy=False)
    return math.sqrt(float(exact @ exact))


def _zeno(rho: float, epsilon: float | None = None) -> ZenoPlusPlus:
    if epsilon is None and rho >= 1:
        raise ValueError("RHO alone is the least cosine, so must be below 1; or give zeno:RHO,EPSILON")
    return ZenoPlusPlus(rho, epsilon or 0.0)


_FILTERS: Mapping[str, Form[Filter]] = {
    "kardam": Form(Kardam, (whole("F", 0),), "kardam:1"),
    "zeno": Form(
        _zeno,
        (
            number("RHO", "of at least 0", lambda rho: 0 <= rho < math.inf),
            number("EPSILON", "of at least 0", lambda epsilon: 0 <= epsilon < math.inf, optional=True),
        ),
        "zeno:.1 or zeno:.1,.01",
    ),
}


def parse_filter(text: str) -> Filter | None:
    """Return the filter that an option's text names, if any. Raises ValueError with the rule.

    >>> parse_filter("none"), parse_filter("zeno:.01")
    (None, ZenoPlusPlus(rho=0.01, epsilon=0.0))
    """
    return parsed(text, _FILTERS, "none")
