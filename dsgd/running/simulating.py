"""Simulated runs that go on when they are asked to, many in one process; and schedules, without any gradient.

Runs of the same data share them: to start one takes less than a millisecond. `dsgd.simulation` and
`dsgd.schedule` make them of options.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.model import Workload
from dsgd.core.protocol import Update
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.process.outcomes import StoppedBy
from dsgd.running.keeper import RunKeeper, Watcher
from dsgd.running.resuming import stores_of
from dsgd.running.run import Run

_SHARED = 8  # the data of so many workloads stay in memory
_shared: OrderedDict[Any, Workload] = OrderedDict()


def shared_workload(cfg: TrainConfig) -> Workload:
    """Return what a run computes; runs with the same data, seed and workers share it, as it is a value.

    That of a user's own file is made anew: the file may have changed.
    """
    if cfg.data.workload.endswith(".py"):
        return make_workload(cfg)
    key = cfg.data, cfg.seed, cfg.num_workers, cfg.batch_size, cfg.compute, cfg.group, cfg.ray.device
    if key not in _shared:
        _shared[key] = make_workload(cfg)
    _shared.move_to_end(key)
    while len(_shared) > _SHARED:
        _shared.popitem(last=False)
    return _shared[key]


def simulation(cfg: TrainConfig, watchers: Sequence[Watcher] = (), *, evaluate: bool = True) -> RunKeeper:
    """Return a run in the simulator, kept in memory, that has not begun.

    Raises ValueError as `execute` does.
    """
    assert cfg.engine == "sim"
    workload = shared_workload(cfg)
    with open_cluster(cfg, workload) as engine:  # a simulated one needs no closing
        run = Run(cfg, workload, engine, places=stores_of(cfg))
    return RunKeeper(run, watchers=watchers, evaluate=evaluate)


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What the schedule of a run says of it; times are virtual seconds."""

    cfg: TrainConfig = field(repr=False)
    stopped_by: StoppedBy
    updates: int
    gradients: int
    """Mini-batches applied."""
    clock_s: float
    computing: float
    """Share of the workers' time in which they compute what is applied or ignored."""
    sending: float
    """Share in which messages of tasks that are applied are under way, there and back."""
    staleness: Mapping[int, int]
    """How many results had each staleness, in updates."""
    order: str
    """Equal where the same results meet the same versions: two settings of one rule then train alike."""


def schedule(cfg: TrainConfig) -> Scheduled:
    """Return the schedule of a simulated run, in milliseconds where it has no weights (`--workload none`)."""
    order = hashlib.sha256()

    def see(update: Update) -> None:
        order.update(repr([(done.worker, update.staleness(done)) for done in update.dones]).encode())

    keeper = simulation(cfg, evaluate=False)
    keeper.run.on_update.append(see)
    stopped_by, tally = keeper.advance(), keeper.run.tally
    assert stopped_by
    worked_s = tally.last_update_s * cfg.num_workers or 1.0
    return Scheduled(
        cfg=cfg,
        stopped_by=stopped_by,
        updates=tally.updates,
        gradients=tally.gradients,
        clock_s=tally.last_update_s,
        computing=sum(tally.busy_s) / worked_s,
        sending=tally.exchange_s / worked_s,
        staleness=dict(sorted(tally.staleness_counts.items())),
        order=order.hexdigest()[:16],
    )
