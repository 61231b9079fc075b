"""Whether a measurement agrees with theory, and how that is said, on terminals and pages alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from dsgd.theory.uncertainty import Estimate, standard_errors_allowed

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
"""`agrees`: within two standard errors. `may be chance`: farther, but chance alone does that more than once
in 1,000 comparisons. `differs`: a contradiction. `differs by real time`: one that Ray's messages and real
computing explain, as the formula counts the drawn times only. `kept`, `broken`: of bounds. The others say why
the two are not compared."""

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
    error = estimate.standard_error
    off = abs(estimate.mean - theory) - _ROUNDING * abs(theory)
    if off <= _PLAINLY * error:
        return "agrees"
    if error and off <= standard_errors_allowed(estimate.batches) * error:
        return "may be chance"
    return "differs by real time" if of_drawn_times else "differs"


def in_words(verdict: str, theory: float, estimate: Estimate) -> str:
    """Return a verdict as people read it; empty for records from before there were any.

    >>> in_words("agrees", 7.0, Estimate(6.97, 0.06, 20)), in_words("agrees", 7.0, Estimate(7.0, 0.0, 20))
    ('agrees', 'exact')
    >>> in_words("differs", 7.0, Estimate(6.5, 0.1, 20))
    'DIFFERS by 5.0 standard errors'
    """
    error, off = estimate.standard_error, abs(estimate.mean - theory)
    errors_off = f"{off / error:.1f} standard errors" if error else ""
    match verdict:
        case "agrees":
            return "agrees" if error else "exact"
        case "may be chance":
            return f"{errors_off} off: may be chance"
        case "differs":
            return f"DIFFERS by {errors_off}" if error else "DIFFERS"
        case "differs by real time":
            return f"{100 * (estimate.mean - theory) / theory:+.1f}%: messages and computing take time too"
        case "broken":
            return "BROKEN"
        case "diverged" | "failed":
            return f"not compared: the run {verdict}"
        case "workers were lost":
            return "not compared: workers were lost"
        case "never settles":
            return "not compared: its times never forget their start"
    return verdict


def line(name: str, entry: Mapping[str, Any]) -> str:
    """Return an entry of `theory` in summary.json as a line of the terminal's summary.

    >>> line("staleness_mean", {"theory": 7.0, "measured": 6.973, "standard_error": 0.0612, "batches": 20,
    ...                         "relative_difference": -0.0039, "verdict": "agrees"})
    '7 mean staleness, measured 6.973 ± 0.061 (agrees)'
    """
    theory, measured, error = entry["theory"], entry["measured"], entry.get("standard_error")
    noise = f" ± {error:.2g}" if error else ""
    estimate = Estimate(measured, error or 0.0, entry.get("batches", 0))
    words = in_words(entry.get("verdict", ""), theory, estimate)
    if not words and entry["relative_difference"] is not None:
        words = f"{entry['relative_difference']:+.1%}".replace("-0.0%", "+0.0%")
    return f"{theory:.4g} {_NAMES[name]}, measured {measured:.4g}{noise}{f' ({words})' if words else ''}"


def lines(compared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return all entries as lines, and how long a run must be where this one is too short."""
    found = [line(name, entry) for name, entry in compared.items()]
    short = [
        entry["needs_updates"]
        for entry in compared.values()
        if entry.get("verdict") == "too short to compare"
    ]
    return [*found, f"a run of {max(short):,} updates is long enough to compare"] if short else found


_NAMES = {
    "s_per_update": "s an update",
    "staleness_mean": "mean staleness",
    "staleness_p0": "of gradients are fresh",
    "staleness_max": "staleness at most",
    "clock_gap_max": "clock gap at most",
    "run_s": "s in all",
}
