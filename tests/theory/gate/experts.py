"""Balancing of 8 experts, of which a token is given to 2; scores are uniform."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dsgd.running.quick_run import QuickRun, run
from dsgd.theory.balancing import (
    bias_variance,
    curvature,
    expected_shares,
    largest_stable_rate,
    max_violation,
    measured_swing,
    updates_a_swing,
)
from gate.descent import bisect
from gate.row import Row, exactly, iterates

_EXPERTS, _TOP_K, _TOKENS = 8, 2, 256
_APART = 0.02  # of the first biases: little, for shares are linear in the biases only near balance


def rows() -> Iterator[Row]:
    """Yield the rows of the slope, of the largest stable rates, of swings and of noise."""
    slope = curvature(_EXPERTS, _TOP_K)
    yield Row(
        "shares of the load of drawn tokens: slope by the bias",
        "E/(K (E - 1))",
        slope,
        _slope_of_shares,
    )
    of_delay = "2 sin(pi/(2(2 tau + 1))) K (E - 1)/(lr E)"
    limits: list[tuple[str, str, str, int, dict[str, Any]]] = [
        ("SSGD, P=4", "2 K (E - 1)/(lr E)", "ssgd", 4, {}),
        ("LocalSGD, P=2, H=4", "2 K (E - 1)/(lr E): for any H", "localsgd", 2, {"local_steps": 4}),
        ("ASGD, constant times, P=2 (delay 1)", of_delay, "asgd", 2, {}),
        ("ASGD, constant times, P=4 (delay 3)", of_delay, "asgd", 4, {}),
        ("ASGD, constant times, P=8 (delay 7)", of_delay, "asgd", 8, {}),
        (
            "ASGD, constant times, P=4 (delay 3), momentum .5",
            "2 sin(phi/2) |e^(i phi) - m| K (E - 1)/(lr E)",
            *("asgd", 4, {"momentum": 0.5}),
        ),
    ]
    for who, formula, mode, workers, options in limits:
        delay = workers - 1 if mode == "asgd" else 0
        limit = largest_stable_rate(1.0, slope, delay=delay, momentum=options.get("momentum", 0.0))
        yield exactly(
            f"{who}, expected loads: largest stable rate",
            formula,
            limit,
            partial(_largest_stable_rate, mode, workers, limit, **options),
            tolerance=0.005 * limit,  # of the bisection, and of what 100 steps can show
        )
    for tau in (0, 3):
        yield exactly(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), expected loads, 1.1 times it: updates a swing",
            "2 (2 tau + 1)",
            updates_a_swing(tau),
            partial(_updates_a_swing, tau + 1, 1.1 * largest_stable_rate(1.0, slope, delay=tau)),
            tolerance=0.02 * updates_a_swing(tau),  # far from balance a swing takes a little longer
        )
    for tau in (0, 3):
        rate = 0.5 * largest_stable_rate(1.0, slope, delay=tau)
        variance = bias_variance(rate, slope, _EXPERTS, _TOP_K, _TOKENS, delay=tau)
        yield Row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), half of that rate, {_TOKENS} tokens: MaxVio",
            "E sqrt(E/(E - 1)) curvature sd(bias) E[largest of E normals]",
            max_violation(_EXPERTS, slope**2 * variance),
            partial(_max_violation, tau + 1, rate),
            seeds=8,
            tolerance=0.004,  # shares are linear in the biases only near balance
        )


def _router(mode: str, num_workers: int, rate: float, **options: Any) -> QuickRun:
    """Run a strategy on the balancing biases alone, with lr 1 and unit steps of time."""
    return run(
        mode,
        workload="router",
        experts=_EXPERTS,
        top_k=_TOP_K,
        balance_rate=rate,
        num_workers=num_workers,
        compute_time="constant:1",
        lr=1.0,
        **options,
    )


_apart = partial(_router, expected=True, unbalanced=_APART, batch_size=1, steps=100)


def _slope_of_shares(seed: int) -> float:
    """Return the least-squares slope of the shares by the first biases, which are a little apart."""
    outcome = _router("ssgd", 1, 1.0, steps=1, batch_size=32_768, unbalanced=0.1, seed=seed)
    bias = np.linspace(-0.05, 0.05, _EXPERTS)
    return float((bias - outcome.w) @ bias / (bias @ bias))


def _largest_stable_rate(mode: str, num_workers: int, near: float, seed: int, **options: Any) -> float:
    """Return the rate at which the biases stop settling; they begin a little apart."""

    def settles(rate: float) -> bool:
        bias = np.abs(rate * iterates(_apart(mode, num_workers, rate, **options))[:, 0])
        return bool(bias[len(bias) // 2 :].max() <= _APART / 2)  # growth would end by itself, far away

    return bisect(settles, 1.5 * near, 0.5 * near, 0.005 * near)


def _updates_a_swing(num_workers: int, rate: float, seed: int) -> float:
    """Return the mean updates from one swing of the first bias to the next, once they have grown."""
    biases = iterates(_apart("asgd", num_workers, rate))
    return measured_swing(biases[len(biases) // 2 :, 0])


def _max_violation(num_workers: int, rate: float, seed: int) -> float:
    """Return the mean MaxVio of one version, by its expected loads, after a while."""
    outcome = _router("asgd", num_workers, rate, batch_size=_TOKENS, steps=400 // num_workers, seed=seed)
    biases = rate * iterates(outcome)[80:]
    return float(np.mean([_EXPERTS * expected_shares(bias, _TOP_K).max() - 1 for bias in biases]))
