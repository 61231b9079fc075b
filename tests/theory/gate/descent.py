"""Effects of staleness, averaging and noise on the iterates, on quadratics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dsgd.core import rules as parts
from dsgd.running.quick_run import QuickRun
from dsgd.theory.quadratics import (
    easgd_decay,
    easgd_largest_stable_alpha,
    largest_stable_step,
    local_sgd_fixed_point,
    momentum_from_asynchrony,
    noise_floor,
)
from gate.row import Row, exactly, iterates, quadratic

_NOISY: dict[str, Any] = {"grad_noise": 1.0, "dim": 20}
_PLAIN_OUTER: dict[str, Any] = {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}


def rows() -> Iterator[Row]:
    """Yield the rows of delays, of local steps and of EASGD."""
    yield from _of_delays()
    yield exactly(
        "LocalSGD, equal quadratics, noise: iterate after 64 steps, H=8 less H=1",
        "0: independent of H",
        0.0,
        lambda seed: _apart(*(quadratic("localsgd", 4, 64, seed, local_steps=h, **_NOISY) for h in (8, 1))),
    )
    for h in (1, 4, 200):
        yield exactly(
            f"LocalSGD, curvatures 1 and 5, optima 0 and 1, step .1, H={h}: fixed point",
            "sum q_i x_i / sum q_i",
            local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], h),
            partial(_fixed_point, h),
        )
    yield from _of_elastic_averaging()
    yield exactly(
        "DiLoCo, outer lr 1, outer momentum 0, inner SGD, H=7: last iterate less that of LocalSGD",
        "0: LocalSGD",
        0.0,
        lambda seed: _apart(
            quadratic("diloco", 4, 63, 0, local_steps=7, lr=0.1, **_PLAIN_OUTER, **_NOISY),
            quadratic("localsgd", 4, 63, 0, local_steps=7, lr=0.1, **_NOISY),
        ),
    )
    yield exactly(
        "DC-ASGD with the exact Hessian, delay 3: last iterate less that without delay",
        "0: the zero-delay trajectory",
        0.0,
        _exact_compensation,
    )


def _of_delays() -> Iterator[Row]:
    for tau in (0, 1, 3, 7, 15):
        yield exactly(
            f"ASGD, constant times, P={tau + 1} (delay {tau}): largest stable step",
            "2 sin(pi/(2(2 tau + 1)))",
            largest_stable_step(tau),
            partial(_stability_limit, tau),
            tolerance=0.002,  # of the bisection, and of what 400 steps can show
        )
    for tau in (0, 3):
        yield exactly(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), momentum .5: largest stable step",
            "2 (1 + m); 2 sin(phi/2) |e^(i phi) - m|",
            largest_stable_step(tau, 0.5),
            partial(_stability_limit, tau, momentum=0.5),
            tolerance=0.002,
        )
    for workers in (1, 16):
        yield Row(
            f"SSGD, step .1, unit noise, P={workers}: mean square",
            "lr s^2/(P a (2 - lr a))",
            noise_floor(0.1, 1.0, 1.0, num_workers=workers),
            partial(_noise, "ssgd", workers, 400, 100),
        )
    for tau in (1, 3, 7):
        yield Row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), step .1, unit noise: mean square",
            "stationary variance of w - lr w_{-tau} - lr noise",
            noise_floor(0.1, 1.0, 1.0, delay=tau),
            partial(_noise, "asgd", tau + 1, 1200 // (tau + 1), 400),
        )
    yield Row(
        "ASGD, exponential, P=8: momentum of the mean iterate",
        "1 - 1/M",
        momentum_from_asynchrony(8),
        _implicit_momentum,
        seeds=12,
    )


def _of_elastic_averaging() -> Iterator[Row]:
    for eta in (0.5, 1.0, 1.5):
        yield exactly(
            f"EASGD, a worker and the centre, lr * curvature {eta:g}: largest stable alpha",
            "(4 - 2 eta)/(4 - eta)",
            easgd_largest_stable_alpha(eta),
            partial(_largest_stable_alpha, eta),
            tolerance=0.002,  # of the bisection, and of what 600 steps can show
        )
    yield exactly(
        "EASGD in turn, P=4, lr * curvature 1, alpha .99 of the largest: centre after 400 exchanges each",
        "0: stable",
        0.0,
        lambda seed: float(_easgd(4, 400, 1.0, 0.99 * easgd_largest_stable_alpha(1.0)).w[0]),
    )
    for workers in (1, 4, 16):
        yield exactly(
            f"EASGD at a barrier, P={workers}, lr * curvature .1, alpha .9/P: decay of the centre an update",
            "spectral radius of the recursion",
            easgd_decay(0.1, 0.9 / workers, workers),
            partial(_decay, workers),
        )


def bisect(stable: Callable[[float], bool], high: float, low: float = 0.0, precision: float = 1e-3) -> float:
    """Return the parameter, between `low` and `high`, up to which runs are stable."""
    with np.errstate(over="ignore", invalid="ignore"):
        while high - low > precision:
            middle = (low + high) / 2
            low, high = (middle, high) if stable(middle) else (low, middle)
    return (low + high) / 2


def _apart(one: QuickRun, other: QuickRun) -> float:
    return float(np.abs(one.w - other.w).max())


def _stability_limit(tau: int, seed: int, **options: Any) -> float:
    """Return the step at which ASGD with P = tau + 1 equal workers stops converging."""
    return bisect(
        lambda lr: _converges(quadratic("asgd", tau + 1, 400, 0, lr=lr, **options)), 3.5 if options else 2.5
    )


def _noise(mode: str, workers: int, steps: int, skip: int, seed: int) -> float:
    """Return the mean square of the weights after the first `skip` updates, with unit noise."""
    outcome = quadratic(mode, workers, steps, seed, grad_noise=1.0, lr=0.1, dim=50)
    return float(np.mean(iterates(outcome)[skip:] ** 2))


def _easgd(
    workers: int, exchanges: int, eta: float, alpha: float | None, exchange: str = "async"
) -> QuickRun:
    return quadratic(
        "easgd", workers, exchanges, 0, lr=eta, moving_rate=alpha, exchange=exchange, local_steps=1
    )


def _converges(outcome: QuickRun) -> bool:
    """Whether a run's first weight was smaller in the second half than in the first quarter."""
    w = np.abs(iterates(outcome)[:, 0])
    half = len(w) // 2
    return bool(np.isfinite(w).all() and w[half:].max() <= w[: half // 2].max())


def _fixed_point(h: int, seed: int) -> float:
    """Return where LocalSGD of two workers with different curvatures ends."""
    apart: dict[str, Any] = {"curvatures": "1,5", "optima": "0,1", "local_steps": h, "lr": 0.1}
    return float(quadratic("localsgd", 2, max(200, 5 * h), seed, **apart).w[0])


def _largest_stable_alpha(eta: float, seed: int) -> float:
    return bisect(lambda alpha: _converges(_easgd(1, 600, eta, alpha)), 1.0)


def _decay(workers: int, seed: int) -> float:
    """Return the factor by which EASGD's centre falls in an update, in the long run."""
    w = iterates(_easgd(workers, 150, 0.1, None, "sync"))[:, 0]
    return float((w[-1] / w[len(w) // 2]) ** (1 / (len(w) - 1 - len(w) // 2)))


def _implicit_momentum(seed: int) -> float:
    """Estimate the momentum mu from E w_{t+1} - E w_t = mu (E w_t - E w_{t-1}) - (1 - mu) lr E w_t.

    Source: Mitliagkas et al. 2016 (arXiv 1605.09774), theorem 3; the means are over independent runs.
    """
    lr, runs = 0.05, 60
    paths = [
        iterates(quadratic("asgd", 8, 8, 1000 * seed + k, lr=lr, compute_time="exponential:1"))[:, 0]
        for k in range(runs)
    ]
    w = np.concatenate([[1.0], np.mean(paths, axis=0)])
    d = np.diff(w)
    # d[t+1] + lr w[t+1] = mu (d[t] + lr w[t+1]): a ratio of sums, which noise in the means does not bias as
    # it does least squares; over the first updates, where all terms have one sign.
    x, y = d[:-1] + lr * w[1:-1], d[1:] + lr * w[1:-1]
    return float(y[:20].sum() / x[:20].sum())


def _exact_compensation(seed: int) -> float:
    outer_product = parts.hessian
    parts.hessian = lambda g: np.full_like(g, 2.0)
    try:
        delayed = quadratic("dcasgd", 4, 20, 0, lr=0.1, compensation=1.0, curvatures="2")
    finally:
        parts.hessian = outer_product
    fresh = quadratic("asgd", 1, 80, 0, lr=0.1, curvatures="2")
    return float(np.abs(iterates(delayed) - iterates(fresh)).max())
