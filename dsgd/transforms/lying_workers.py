"""Workers that lie, around any engine: faults of kind `lie` (docs/faults.md).

Labels are turned round where the task starts; every other lie replaces a result where results are combined.
Which results are lies follows from the results alone (what they read, their steps, when they came in), so a
replay and a run that goes on have the same. What a strategy measures of the values, like drift, is of what
the workers have really computed: the laboratory knows it, the server does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Done, Engine
from dsgd.core.rules import Rule
from dsgd.core.tasks import Task
from dsgd.core.weights import Vector, Weights, is_left_out
from dsgd.scenario.attacks import Attack
from dsgd.scenario.fault import Fault, named
from dsgd.transforms.mislabelled import LabelsFlipped
from dsgd.transforms.wrapped_engine import WrappedEngine


@dataclass
class _Begun:
    """A lie that has begun: when the first came in, at which version, after how many tasks; and how often so
    far.
    """

    t_s: float
    update: int
    came_in: int
    results: int = 0
    over: list[int] = field(default_factory=list)
    """The workers that are honest again."""


class Lying(WrappedEngine):
    """Has workers lie as `lies` say; of several that concern a result, the first.

    seed: of the run. classes: of the labels, None where there are none.
    """

    def __init__(self, inner: Engine, lies: Sequence[Fault], *, seed: int, classes: int | None) -> None:
        super().__init__(inner)
        self._lies, self._seed = named(lies), seed
        self._came_in = 0
        self._begun: dict[str, _Begun] = {}
        self._flips = [lie for lie in lies if _attack(lie).name == "labelflip"]
        if self._flips and classes is None:
            raise ValueError(
                f"--faults {self._flips[0]}: the data have no labels to turn round; use xor, digits or a "
                "workload with classes, or another lie"
            )
        self._classes = classes or 0

    def start(self, worker: int, task: Task, w: Weights) -> None:
        for lie in self._flips:
            if worker not in lie.workers:
                continue
            first, end = lie.trigger.at, _end(lie)
            if lie.trigger.of == "step":
                task = LabelsFlipped(task, self._classes, int(first), None if end is None else int(end))
                break
            now = self.inner.now_s if lie.trigger.of == "t" else w.version
            if now >= first and (end is None or now < end):
                task = LabelsFlipped(task, self._classes)
                break
        self.inner.start(worker, task, w)

    def next_done(self) -> Done | None:
        done = self.inner.next_done()
        self._came_in += done is not None
        return done

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        lies = [self._lie_of(done, w.version) for done in dones]
        if any(lie is not None and _attack(self._lies[lie]).name != "labelflip" for lie in lies):
            dones = self._with_lies(rule, w, dones, lies)
        return self.inner.combine(rule, w, dones)

    def _lie_of(self, done: Done, version: int) -> str | None:
        """Return which lie a result is, noting those that begin and end; None: it is honest."""
        found = None
        for name, lie in self._lies.items():
            if done.worker not in lie.workers:
                continue
            position = _position(lie, done, version)
            if position == "during" and found is None:
                begun = self._begun.setdefault(name, _Begun(self.inner.now_s, version, self._came_in))
                begun.results += 1
                found = name
            elif position == "after" and name in self._begun:
                self._ends(name, done.worker)
        return found

    def _ends(self, name: str, worker: int) -> None:
        begun, lie = self._begun[name], self._lies[name]
        if worker not in begun.over:
            begun.over.append(worker)
        if len(begun.over) == len(lie.workers):
            self.inner.note(self._seen(name)._replace(recovered_s=self.inner.now_s - begun.t_s))
            del self._begun[name]

    def _seen(self, name: str) -> FaultSeen:
        begun, lie = self._begun[name], self._lies[name]
        text = f"{lie.says} in {begun.results} result{'s' * (begun.results != 1)}"
        return FaultSeen(begun.t_s, "lie", lie.workers, True, begun.update, begun.came_in, text)

    def _with_lies(
        self, rule: Rule, w: Weights, dones: Sequence[Done], lies: Sequence[str | None]
    ) -> list[Done]:
        """Return the results as the server gets them."""
        of_weights = getattr(rule, "of_weights", False)
        own: list[Vector] = [d.value - d.origin.vector if of_weights else d.value for d in dones]
        honest = [v for v, lie in zip(own, lies, strict=True) if lie is None] or own
        liars = sum(lie is not None for lie in lies)
        sent = []
        for done, direction, lie in zip(dones, own, lies, strict=True):
            if lie is not None:
                draw = (self._seed, done.worker, w.version)
                value = _attack(self._lies[lie]).lie(direction, honest, liars, draw)
                value = np.where((value == 0) & is_left_out(direction), direction, value)
                done = done._replace(value=done.origin.vector + value if of_weights else value)
            sent.append(done)
        return sent

    def ended(self) -> Sequence[str]:
        never = self.inner.ended()
        for name in self._begun:
            self.inner.note(self._seen(name))
        self._begun.clear()
        return never

    def state(self) -> ClusterState:
        state = self.inner.state()
        faults = state.faults or {"given": [], "losses": []}
        begun = [[name, {**vars(lie), "over": list(lie.over)}] for name, lie in self._begun.items()]
        return replace(state, faults={**faults, "lies": begun})

    def restore(self, state: ClusterState) -> None:
        self.inner.restore(state)
        self._came_in = state.came_in
        faults: Mapping[str, Any] = state.faults or {}
        numbers = dict(enumerate(self._lies))  # they stood for the lies in older checkpoints
        self._begun = {
            numbers.get(name, name): _Begun(**{**lie, "over": list(lie["over"])})
            for name, lie in faults.get("lies", ())
        }


def _attack(lie: Fault) -> Attack:
    assert lie.says
    return lie.says


def _end(lie: Fault) -> float | None:
    return None if lie.counts is None else lie.trigger.at + lie.counts


def _position(lie: Fault, done: Done, version: int) -> Literal["before", "during", "after"]:
    """Return where a result is with respect to a lie.

    version: of the weights that it is combined with. Whether labels were wrong was decided at its start.
    """
    at_start = _attack(lie).name == "labelflip"
    match lie.trigger.of:
        case "t":
            first = last = done.started_s if at_start else done.finished_s
        case "update":
            first = last = done.read if at_start else version
        case "step":
            first, last = done.step, done.step + done.batches - 1
    end = _end(lie)
    if last < lie.trigger.at:
        return "before"
    return "during" if end is None or first < end else "after"
