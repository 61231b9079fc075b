"""What the options of an exercise must achieve: the laws that its file names.

Each function runs what it needs and says whether the law holds, and what it saw. Where theory has a value, it
has to hold for that as well as for the measurement; the value itself is in `Finding.theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsgd.config import TrainConfig
from dsgd.running.predict.predictions import predict
from dsgd.teach.labs.controller import Controller, controller
from dsgd.teach.labs.lab_run import Trial
from dsgd.teach.labs.quantities import Value
from dsgd.teach.labs.wording import Finding, words
from dsgd.theory.quadratics import largest_stable_step


def at_least(trial: Trial, *, quantity: str, value: float, of: Mapping[str, Any] | None = None) -> Finding:
    """Check that a quantity of the run is at least `value`."""
    return _compared(trial.value(quantity, of), lambda x: x >= value, f"at least {value:g}")


def at_most(trial: Trial, *, quantity: str, value: float, of: Mapping[str, Any] | None = None) -> Finding:
    """Check that a quantity of the run is at most `value`."""
    return _compared(trial.value(quantity, of), lambda x: x <= value, f"at most {value:g}")


def no_smaller_would_do(trial: Trial, *, option: str, quantity: str, value: float) -> Finding:
    """Check that with the chosen option one smaller the quantity would be below `value`."""
    smaller = trial.options[option] - 1
    if smaller < 1:
        return Finding(True, f"{option} cannot be smaller")
    changed: dict[str, Any] = {option: smaller}
    found = _compared(trial.value(quantity, **changed), lambda x: x < value, f"below {value:g}", there=True)
    return found._replace(seen=f"with {option} {smaller:g} {found.seen}")


def near_the_best(trial: Trial, *, option: str, share: float) -> Finding:
    """Check that with the chosen option gradients come at `share` of the highest rate or more.

    The option makes that many gradients an update, at most one of each worker. Theory says which value is the
    best; that one is run too.
    """
    among = range(1, trial.configured().num_workers + 1)
    times = {value: predict(trial.configured(**{option: value})).get("s_per_update") for value in among}
    rates = {value: value / time_s for value, time_s in times.items() if time_s}
    if len(rates) < len(times):
        raise ValueError("near_the_best needs times whose order statistics have a closed form")
    best = max(rates, key=lambda value: rates[value])
    ours = trial.value("gradients_per_s")
    at_best: dict[str, Any] = {option: best}
    theirs = trial.value("gradients_per_s", **at_best)
    assert ours.theory is not None
    needed = share * theirs.measured
    holds = ours.measured >= needed and ours.theory >= share * rates[best]
    seen = f"measured {ours.measured:.4g}; needed, at least {share:.0%} of the best: {needed:.4g}"
    if ours.measured >= needed and not holds:
        seen += "; in theory it is less than that"
    return Finding(holds, seen, f"theory {ours.theory:.4g}, needed {share * rates[best]:.4g}")


def at_most_times(
    trial: Trial, *, quantity: str, times: float, than: Mapping[str, Any], of: Mapping[str, Any] | None = None
) -> Finding:
    """Check that a quantity is at most so many times what it is with other options."""
    ours, theirs = trial.value(quantity, of).measured, trial.value(quantity, of, **than).measured
    seen = f"measured {ours:.4g}; needed: at most {times:g} times the {theirs:.4g} of {words('than', than)}"
    return Finding(ours <= times * theirs, seen)


def is_stable(trial: Trial, *, start: float) -> Finding:
    """Check that a run on a quadratic ends nearer to its optimum, 0, than it started.

    For ASGD with constant times and whole gradients, theory knows the largest step; it has to agree.
    """
    lr, end = trial.configured().lr, abs(trial.value("final_weight").measured)
    most = _largest_stable(trial)
    seen = f"it starts at {start:g} and ends at {end:.3g}, with lr {lr:g}; needed: to end below {start:g}"
    if most is None:
        return Finding(end < start, seen)
    if end < start and lr >= most:
        seen += "; in theory, in a longer run, it does not"
    return Finding(end < start and lr < most, seen, f"theory: the lr must be below {most:.4g}")


def a_larger_step_is_not_stable(trial: Trial, *, start: float, times: float) -> Finding:
    """Check that with a step so many times as large it ends further from 0 than it started."""
    lr = times * trial.configured().lr
    end = abs(trial.value("final_weight", lr=lr).measured)
    most = _largest_stable(trial)
    seen = f"with lr {lr:.4g} it ends at {end:.3g}; needed there: to end above {start:g}"
    if most is None:
        return Finding(end > start, seen)
    if end > start and lr <= most:
        seen += "; in theory, in a longer run, it does not"
    return Finding(end > start and lr > most, seen, f"theory: that lr must be above {most:.4g}")


def settles(trial: Trial, *, most: float) -> Finding:
    """Check that the MaxVio of a router's versions stays at `most` or below; see `quantities.max_violation`.

    Where theory knows the largest stable rate, it has to agree.
    """
    found, own = trial.value("max_violation"), controller(trial.configured())
    seen = f"MaxVio of one version is {found.measured:.3g}; needed: at most {most:g}"
    if own is None:
        return Finding(found.measured <= most, seen)
    if found.measured <= most and not own.settles:
        seen += "; in theory, in a longer run, it is not"
    return Finding(found.measured <= most and own.settles, seen, _largest_rate(own, trial.configured()))


def a_larger_rate_does_not_settle(trial: Trial, *, most: float, times: float) -> Finding:
    """Check that with a balance_rate so many times as large it does not."""
    options: dict[str, Any] = {"balance_rate": times * trial.options["balance_rate"]}
    found, own = trial.value("max_violation", **options), controller(trial.configured(**options))
    rate = options["balance_rate"]
    seen = f"with balance_rate {rate:.4g} it is {found.measured:.3g}; needed there: above {most:g}"
    if own is None:
        return Finding(found.measured > most, seen)
    if found.measured > most and own.settles:
        seen += "; in theory, in a longer run, it is not"
    holds = found.measured > most and not own.settles
    return Finding(holds, seen, _largest_rate(own, trial.configured(**options)))


def _largest_rate(own: Controller, cfg: TrainConfig) -> str:
    return f"theory: rates below {own.largest_stable_step / cfg.lr:.4g} are stable"


def _largest_stable(trial: Trial) -> float | None:
    """Return the lr below which a run on a quadratic of curvature 1 is stable; None where it is not known."""
    cfg: Any = trial.configured()
    plain = cfg.mode == "asgd" and cfg.compression.results is None
    return largest_stable_step(cfg.num_workers - 1, cfg.momentum) if plain else None


def _compared(found: Value, holds: Callable[[float], bool], rule: str, there: bool = False) -> Finding:
    """Hold what is measured, and what theory says, to a rule. there: the rule is of another run."""
    seen = f"measured {found.measured:.4g}; needed{' there' * there}: {rule}"
    if found.theory is None:
        return Finding(holds(found.measured), seen)
    if holds(found.measured) and not holds(found.theory):
        seen += "; in theory it is not"
    return Finding(holds(found.measured) and holds(found.theory), seen, f"theory {found.theory:.4g}")
