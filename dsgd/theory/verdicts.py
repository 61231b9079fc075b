"""Whether a measurement agrees with theory, and how that is said, on terminals and pages alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from dsgd.theory.uncertainty import Estimate, pooled, standard_errors_allowed

BOUNDS = ("staleness_max", "clock_gap_max")
"""Of these, theory gives a bound; of all else, the value."""

Verdict = Literal[
    "agrees",
    "may be chance",
    "differs",
    "differs by real time",
    "kept",
    "broken",
    "too short to compare",
    "too heavy a tail to compare",
    "never settles",
    "diverged",
    "failed",
    "workers were lost",
]
"""`agrees`: within two standard errors. `may be chance`: farther, but chance alone does that more than once in
1,000 runs. `differs`: a contradiction. `differs by real time`: one that Ray's messages and real computing
explain, where the formula counts the drawn times only. `kept`, `broken`: of bounds. The others say why the
two are not compared."""

CONTRADICTIONS: tuple[Verdict, ...] = ("differs", "broken")
COMPARED: tuple[Verdict, ...] = get_args(Verdict)[:6]

_PLAINLY = 2.0  # standard errors that nobody wonders about
_ROUNDING = 1e-9


def judged(
    name: str,
    theory: float,
    estimate: Estimate,
    *,
    fixed: bool,
    not_compared: Verdict | None,
    needs_updates: int | None,
    of_drawn_times: bool,
) -> dict[str, Any]:
    """Return an entry of `theory` in summary.json.

    fixed: whether no chance is in the value. not_compared: why, if it is not. of_drawn_times: whether the
    formula knows only of drawn compute times, on Ray.
    """
    measured, bound = estimate.mean, name in BOUNDS
    verdict: Verdict
    if bound:
        verdict = "kept" if measured <= theory else "broken"
    elif fixed:
        verdict = "agrees" if measured == theory else "differs"
    elif not_compared:
        verdict = not_compared
    else:
        verdict = verdict_on(theory, estimate, of_drawn_times=of_drawn_times)
    return {
        "theory": theory,
        "measured": measured,
        "relative_difference": (measured - theory) / theory if theory and not bound else None,
        "standard_error": None if bound or not_compared else estimate.standard_error,
        "batches": estimate.batches,
        "verdict": verdict,
        "needs_updates": needs_updates,
    }


def verdict_on(theory: float, estimate: Estimate, *, of_drawn_times: bool = False) -> Verdict:
    """Return whether a mean agrees with its theory.

    >>> [verdict_on(7.0, Estimate(x, 0.1, 20)) for x in (6.9, 6.7, 6.5)]
    ['agrees', 'may be chance', 'differs']
    """
    off = abs(estimate.mean - theory) - _ROUNDING * abs(theory)
    if off <= _PLAINLY * estimate.standard_error:
        return "agrees"
    if off <= standard_errors_allowed(estimate.batches) * estimate.standard_error:
        return "may be chance"
    return "differs by real time" if of_drawn_times else "differs"
