"""What the options of an exercise must achieve: the laws that its file names.

Each function runs what it needs and says whether the law holds, and what it saw. Where theory has a value, it
has to hold for that as well as for the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsgd.labs.lab_file import Finding
from dsgd.labs.quantities import Value, shown
from dsgd.labs.trial import Trial
from dsgd.theory.predictions import predict
from dsgd.theory.quadratics import largest_stable_step


def at_least(trial: Trial, *, quantity: str, value: float, of: Mapping[str, Any] | None = None) -> Finding:
    """Check that a quantity of the run is at least `value`."""
    found = trial.value(quantity, of)
    return Finding(all(x >= value for x in found.known), f"{shown(found)}; needed: at least {value:g}")


def at_most(trial: Trial, *, quantity: str, value: float, of: Mapping[str, Any] | None = None) -> Finding:
    """Check that a quantity of the run is at most `value`."""
    found = trial.value(quantity, of)
    return Finding(all(x <= value for x in found.known), f"{shown(found)}; needed: at most {value:g}")


def no_smaller_would_do(trial: Trial, *, option: str, quantity: str, value: float) -> Finding:
    """Check that with the chosen option one smaller the quantity would be below `value`."""
    smaller = trial.options[option] - 1
    if smaller < 1:
        return Finding(True, f"{option} cannot be smaller")
    found = trial.value(quantity, **{option: smaller})
    seen = f"with {option} {smaller:g} {shown(found)}; needed there: below {value:g}"
    return Finding(all(x < value for x in found.known), seen)


def near_the_best(trial: Trial, *, option: str, among: Sequence[Any], share: float) -> Finding:
    """Check that with the chosen option gradients come at `share` of the highest rate or more.

    The option makes that many gradients an update. Theory says which value is the best; that one is run too.
    """
    rates = {value: value / predict(trial.configured(**{option: value}))["s_per_update"] for value in among}
    best = max(rates, key=lambda value: rates[value])
    ours = trial.value("gradients_per_s")
    theirs = trial.value("gradients_per_s", **{option: best})
    assert ours.theory is not None
    holds = ours.measured >= share * theirs.measured and ours.theory >= share * rates[best]
    needed = Value(share * theirs.measured, share * rates[best])
    return Finding(holds, f"{shown(ours)}; needed, at least {share:.0%} of the best: {shown(needed)}")


def at_most_times(
    trial: Trial, *, quantity: str, times: float, than: Mapping[str, Any], of: Mapping[str, Any] | None = None
) -> Finding:
    """Check that a quantity is at most so many times what it is with other options."""
    ours, theirs = trial.value(quantity, of).measured, trial.value(quantity, of, **than).measured
    other = ", ".join(f"{option} {value}".replace("_", " ") for option, value in than.items())
    return Finding(
        ours <= times * theirs,
        f"measured {ours:.4g}; needed: at most {times:g} times the {theirs:.4g} of {other}",
    )


def is_stable(trial: Trial, *, start: float) -> Finding:
    """Check that ASGD with constant times on a quadratic ends nearer to its optimum, 0, than it started."""
    lr, end = trial.options["lr"], abs(trial.value("final_weight").measured)
    most = largest_stable_step(trial.options["num_workers"] - 1)
    seen = f"it starts at {start:g} and ends at {end:.3g}, with lr {lr:g}; needed: to end below {start:g}, "
    return Finding(end < start and lr < most, f"{seen}with an lr below {most:.4g} as theory says")


def a_larger_step_is_not_stable(trial: Trial, *, start: float, times: float) -> Finding:
    """Check that with a step so many times as large it ends further from 0 than it started."""
    lr = times * trial.options["lr"]
    end = abs(trial.value("final_weight", lr=lr).measured)
    most = largest_stable_step(trial.options["num_workers"] - 1)
    seen = f"with lr {lr:.4g} it ends at {end:.3g}; needed there: to end above {start:g}"
    return Finding(end > start and lr > most, f"{seen}, with an lr above {most:.4g} as theory says")
