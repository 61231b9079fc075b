"""The first difference between two runs of a strategy, in words: which update, which worker, which weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsgd.core.protocol import Done, Update
from dsgd.core.weights import Vector, Weights

RELATIVE, ABSOLUTE = 1e-4, 1e-6  # what only the order of float32 arithmetic makes


def of_runs(ours: Sequence[Update], needed: Sequence[Update]) -> str:
    """Return where the updates of two runs first differ, bit for bit; empty if nowhere."""
    for a, b in zip(ours, needed, strict=False):
        found = _of_tasks(a, b) or of_weights(a, b.weights)
        if found:
            return found
    return of_length(ours, needed)


def of_vectors(ours: Sequence[Update], needed: Sequence[Vector], *, exactly: bool) -> str:
    """Return where the weights of a run first differ from vectors (D,); empty if nowhere.

    exactly: bit for bit; else up to rounding.
    """
    for update, vector in zip(ours, needed, strict=False):
        if found := _of_vector(update.weights.vector, vector, exactly=exactly):
            return f"{named(update)}: {found}"
    return of_length(ours, needed)


def of_length(ours: Sequence[object], needed: Sequence[object]) -> str:
    """Return how many updates there are, if not as many as needed."""
    return "" if len(ours) == len(needed) else f"{len(ours)} updates, needed {len(needed)}"


def named(update: Update) -> str:
    """Return an update's number and whose results made it, like `update 3 (of worker 1)`."""
    workers = list(dict.fromkeys(done.worker for done in update.dones))
    shown = ", ".join(map(str, workers[:6])) + (", ..." if len(workers) > 6 else "")
    return f"update {update.weights.version} (of worker{'s' if len(workers) > 1 else ''} {shown})"


def of_weights(ours: Update, needed: Weights) -> str:
    """Return in what an update's weights differ, slots and `kept` among them; empty if in nothing."""
    w = ours.weights
    found = _of_vector(w.vector, needed.vector, exactly=True)
    for name in sorted(w.slots.keys() | needed.slots.keys()):
        if not found and (name not in w.slots or name not in needed.slots):
            found = f"the slot {name} is {'one too many' if name in w.slots else 'missing'}"
        if not found:
            found = _of_vector(w.slots[name], needed.slots[name], exactly=True, of=f"the slot {name} at ")
    if not found and not _equal(w.kept, needed.kept):
        found = f"kept is {_short(w.kept)}, needed {_short(needed.kept)}"
    return found and f"{named(ours)}: {found}"


def _equal(a: Any, b: Any) -> bool:
    """Whether two values that a strategy keeps are the same, arrays bit for bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _of_tasks(a: Update, b: Update) -> str:
    if a.weights.version != b.weights.version:
        return f"an update has version {a.weights.version}, needed {b.weights.version}"
    for what, ours, needed in (("", a.dones, b.dones), ("discarded ", a.ignored, b.ignored)):
        for x, y in zip(ours, needed, strict=False):
            if _facts(x) != _facts(y):
                return f"update {a.weights.version}: a {what}result is {_task(x)}, needed {_task(y)}"
        if len(ours) != len(needed):
            return f"update {a.weights.version}: {len(ours)} {what}results, needed {len(needed)}"
    return ""


def _facts(done: Done) -> tuple[object, ...]:
    value = done.value.tobytes()
    return done.worker, done.step, done.batches, done.read, done.loss, done.started_s, done.finished_s, value


def _task(done: Done) -> str:
    at = f"{done.started_s:.6g} to {done.finished_s:.6g} s"
    batches = "" if done.batches == 1 else f", {done.batches} mini-batches"
    return f"worker {done.worker}'s from its mini-batch {done.step}{batches} at version {done.read}, {at}"


def _of_vector(ours: Vector, needed: Vector, *, exactly: bool, of: str = "") -> str:
    if ours.shape != needed.shape:
        return f"{of}the weights have shape {ours.shape}, needed {needed.shape}"
    if exactly:
        if ours.tobytes() == needed.tobytes():
            return ""
        differ = ours.view(np.uint32) != needed.view(np.uint32)
    else:
        differ = ~np.isclose(ours, needed, rtol=RELATIVE, atol=ABSOLUTE)
        if not differ.any():
            return ""
    place = int(np.argmax(differ))
    a, b = float(ours[place]), float(needed[place])
    digits = 9 if exactly or f"{a:.4g}" == f"{b:.4g}" else 4
    numbers = f"{a:.{digits}g}, needed {b:.{digits}g}"
    return f"{of}weight {place} is {numbers} ({int(differ.sum())} of {len(ours)} differ)"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
