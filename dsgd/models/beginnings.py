"""What a run began with, so that another process can see whether `make()` returns the same there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dsgd.models.objectives.module_objective import ModuleObjective

_SAMPLES, _MOST_WEIGHTS = 2, 1 << 20
_ROUNDED = 1e-3
"""By how much numbers of the same beginning may differ between processors."""


def beginning(objective: ModuleObjective) -> dict[str, float | None]:
    """Return `weights`, a projection of the initial weights divided by their norm, and `loss`, of a few
    training samples in eval mode; None if it is not finite, or fails, which a trial says.
    """
    from dsgd.core.problem import take
    from dsgd.models.objectives.means import of_all
    from dsgd.models.objectives.module_copy import copied
    from dsgd.models.objectives.process_wide import seeded

    problem, w = objective.problem, objective.initial_weights(0)
    some = w[:: -(-len(w) // _MOST_WEIGHTS)].astype(np.float64)
    # By sums: the threads of a product of numpy would be in the way of those of torch for 40 ms and more.
    size = math.sqrt(np.square(some).sum()) or 1.0
    loss = math.nan
    with suppress(Exception, SystemExit), seeded(0):
        few = take(problem.train, objective.looked_at(_SAMPLES))
        found = objective.value_of(problem.loss, copied(problem.module).eval(), few)
        loss = of_all([(1.0, found)], "loss")
    return {
        "weights": float((np.cos(np.arange(len(some))) * some).sum()) / size,
        "loss": loss if math.isfinite(loss) else None,
    }


def other_beginnings(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what two processes, or runs with the same seed, did not begin with alike, in words.

    was, now: what their records have of the workload. What one of them lacks, as older ones do, is not
    compared.
    """
    found = [
        f"other {words}"
        for name, words in (("train", "training data"), ("test", "test data"))
        if any(_differ(was, now, name, key) for key in ("samples", "sha256"))
    ]
    if _differ(was, now, "first", "weights"):
        found.append("other initial weights")
    if not found and _differ(was, now, "first", "loss"):
        found.append(f"another loss of the same {_SAMPLES} samples")
    return found


def _differ(was: Mapping[str, Any], now: Mapping[str, Any], name: str, key: str) -> bool:
    """Return whether both have an entry, and not the same; numbers are rounded."""
    parts = [part for part in (was.get(name), now.get(name)) if isinstance(part, Mapping)]
    then, here = [part.get(key) for part in parts] if len(parts) == 2 else (None, None)
    if isinstance(then, float) and isinstance(here, float):
        return not math.isclose(then, here, rel_tol=_ROUNDED, abs_tol=_ROUNDED * (key == "weights"))
    return None not in (then, here) and then != here


def not_the_same(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in a line what `make()` returns here that is not what a run began with, if anything is."""
    found = other_beginnings(was, now)
    if not found:
        return ()
    remedy = "sort what it lists, and draw from torch, numpy or random, which are seeded"
    return (f"make() gives {' and '.join(found)} here than when the run began; {remedy}",)
