"""Runs in memory that keep every update whole: for tests, labs and the theory gate. Users call `dsgd.run`.

>>> run("asgd", num_workers=4, steps=10, workload="none").tally.updates
40
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.option_rules import from_options
from dsgd.core.protocol import Engine, Update
from dsgd.core.weights import Vector
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.metrics import Tally
from dsgd.running.execute import opened
from dsgd.running.keeper import RunKeeper
from dsgd.running.run import Run
from dsgd.strategies import config_of


@dataclass(frozen=True)
class QuickRun:
    """What a run did."""

    cfg: TrainConfig
    updates: list[Update] = field(repr=False)
    tally: Tally = field(repr=False)
    cluster: Engine = field(repr=False)

    @property
    def w(self) -> Vector:
        return self.updates[-1].weights.vector

    @property
    def dones(self) -> list[Any]:
        return [done for update in self.updates for done in update.dones]

    @property
    def finished(self) -> list[Any]:
        """All finished tasks, including those that were discarded."""
        return [done for update in self.updates for done in (*update.dones, *update.ignored)]

    @property
    def staleness(self) -> list[int]:
        return [update.staleness(done) for update in self.updates for done in update.dones]

    @property
    def s_per_update(self) -> float:
        return self.tally.last_update_s / self.tally.updates

    @property
    def eval_loss(self) -> float:
        evaluation = make_workload(self.cfg).evaluate(self.w)
        assert evaluation is not None
        return evaluation.loss


def config(mode: str, **options: Any) -> TrainConfig:
    """Return the configuration of a run; options are named flat, as on the command line."""
    config_type = config_of(mode, options.get("strategy_file"), options.get("workload"))
    return from_options(config_type, {"engine": "sim", "mode": mode} | options)


def run(mode: str, on_update: Callable[[Engine, Update], None] | None = None, **options: Any) -> QuickRun:
    """Run a strategy until its budget is spent; in the simulator unless `engine="ray"`.

    Raises the error that ended the run. Nothing is evaluated, and nothing is written.
    """
    with opened(config(mode, **options)) as run:
        return _followed(run, on_update)


def _followed(run: Run, on_update: Callable[[Engine, Update], None] | None) -> QuickRun:
    updates: list[Update] = []

    def see(update: Update) -> None:
        run.fetch()  # they are looked at when the engine is gone
        updates.append(update)
        if on_update:
            on_update(run.engine, update)

    run.on_update.append(see)
    RunKeeper(run, evaluate=False).advance()
    run.engine.ended()
    run.faults.take()
    return QuickRun(run.cfg, updates, run.tally, run.engine)


class Workers:
    """Real workers for several runs, one after another: processes start, and import torch, only once.

    options: of the problem, the workers, hosts and faults, the same in all of these runs. A run's `cluster`
    can be looked at until the next begins. Use it as a context manager.
    """

    def __init__(self, **options: Any) -> None:
        self.options: dict[str, Any] = {"engine": "ray", **options}
        cfg = config("ssgd", **self.options)
        with ExitStack() as opened:
            self._engine = opened.enter_context(open_cluster(cfg, make_workload(cfg)))
            self._first = self._engine.state()
            self._opened = opened.pop_all()

    def run(
        self, mode: str, on_update: Callable[[Engine, Update], None] | None = None, **options: Any
    ) -> QuickRun:
        """Run a strategy on these workers, as `run` does."""
        with opened(config(mode, **{**self.options, **options}), engine=self.fresh()) as run:
            return _followed(run, on_update)

    def fresh(self) -> Engine:
        """Return the engine as it was at first; tasks that it still has are stopped, and what it saw is
        forgotten.
        """
        self._engine.ended()  # an error may have ended the run before
        self._engine.restore(self._first)
        cast("list[FaultSeen]", self._engine.faults_seen).clear()
        return self._engine

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def same_bytes(a: QuickRun, b: QuickRun) -> bool:
    """Whether two runs made the same weights at every version, bit for bit."""
    return len(a.updates) == len(b.updates) and all(
        x.weights.vector.tobytes() == y.weights.vector.tobytes()
        for x, y in zip(a.updates, b.updates, strict=True)
    )


def assert_close(a: Vector, b: Vector) -> None:
    """Assert that two vectors differ by rounding only."""
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
