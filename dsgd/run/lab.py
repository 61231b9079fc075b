"""Runs of strategies from Python, without options, records or a terminal: for tests, figures and notebooks.

>>> run("asgd", num_workers=4, steps=10, dataset="none").tally.updates
40
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from dsgd.cluster import Engine, Update
from dsgd.cluster.open import open_cluster
from dsgd.config import (
    DataConfig,
    LiveConfig,
    OutputConfig,
    RayConfig,
    StopConfig,
    TimingConfig,
    TrainConfig,
    option_fields,
)
from dsgd.data import make_workload
from dsgd.metrics import Tally
from dsgd.strategies import load
from dsgd.work.optim import Vector, Weights

GROUPS: Mapping[str, type] = {
    "data": DataConfig,
    "timing": TimingConfig,
    "stop": StopConfig,
    "ray": RayConfig,
    "output": OutputConfig,
    "live": LiveConfig,
}


class Outcome(NamedTuple):
    """What a run did."""

    cfg: TrainConfig
    updates: list[Update]
    tally: Tally
    cluster: Engine

    @property
    def w(self) -> Vector:
        return self.updates[-1].weights.vector

    @property
    def dones(self) -> list[Any]:
        return [done for update in self.updates for done in update.dones]

    @property
    def finished(self) -> list[Any]:
        """All finished tasks, those that were thrown away among them."""
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
    grouped = {
        group: cls(**{k: options.pop(k) for k in option_fields(cls) if k in options})
        for group, cls in GROUPS.items()
    }
    return load(mode).Config(**{"engine": "sim", "mode": mode} | grouped | options)


def run(
    mode: str, on_update: Callable[[Engine, Update], None] = lambda cluster, update: None, **options: Any
) -> Outcome:
    """Run a strategy until its budget is spent; in the simulator unless `engine="ray"`."""
    cfg = config(mode, **options)
    workload = make_workload(cfg)
    tally, updates = Tally(cfg.num_workers, workload.samples_per_batch), []
    with ExitStack() as stack:
        cluster = stack.enter_context(open_cluster(cfg, workload))
        w = Weights(workload.objective.initial_weights(cfg.seed))
        for update in load(mode).train(cluster, w, cfg):
            updates.append(update)
            tally.add(update)
            on_update(cluster, update)
            if tally.gradients >= cfg.budget:
                break
        return Outcome(cfg, updates, tally, cluster)


def same_bytes(a: Outcome, b: Outcome) -> bool:
    """Whether two runs made the same weights at every version, bit for bit."""
    return len(a.updates) == len(b.updates) and all(
        x.weights.vector.tobytes() == y.weights.vector.tobytes()
        for x, y in zip(a.updates, b.updates, strict=True)
    )


def assert_close(a: Vector, b: Vector) -> None:
    """Assert that two vectors differ by rounding only."""
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
