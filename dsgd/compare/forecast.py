"""How long an experiment would take, found without running it or writing into its folder.

A simulated run: tiny runs of each variant are timed here and now, start to record, and scaled to the budget.
A run on Ray: the simulator gives the length of its schedule; a start and a message cost a constant.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console

from dsgd.compare.experiment_file import Experiment, PlannedRun, described
from dsgd.compare.finished_runs import is_kept
from dsgd.compare.pool import Pool, cores
from dsgd.compare.runner import check_data
from dsgd.compare.worker import Outcome
from dsgd.config import ComputeConfig, DataConfig, OutputConfig, TrainConfig, option_fields, options
from dsgd.process.outcomes import is_result
from dsgd.records.reader import read_summary
from dsgd.show.terminal.cli import UsageError
from dsgd.strategies import tuned_by

# Measured on a machine with 2 cores (see docs/experiments.md); their errors are small compared with a run.
_RAY_CONNECT_S = 3.0
_RAY_START_S, _RAY_START_A_WORKER_S = 1.5, 0.7
_RAY_MESSAGE_S, _RAY_GRADIENT_S = 0.0005, 0.001
_REPORT_S, _REPORT_A_RUN_S = 3.0, 0.04
_ENOUGH_S = 0.2  # of computing, beyond the shortest tiny run's
_SIMULATED_GRADIENTS = 20_000  # at most, of a run on Ray: its schedule goes on at the same rate


class Forecast(NamedTuple):
    """Predicted wall seconds."""

    by_variant: Mapping[str, float]
    """Of one run."""
    total_s: float
    """Of all that is still to be run, on so many processes, without the report."""


def forecast(pending: Sequence[PlannedRun], processes: int) -> Forecast:
    """Predict how long the pending runs take.

    Raises UsageError for a run that cannot be.
    """
    began_s = time.perf_counter()
    simulated = [run for run in pending if run.cfg.engine == "sim"]
    real = [run for run in pending if run.cfg.engine == "ray"]
    with Pool(processes) as pool:
        pool.grow(pending)
        check_data(pending)
        ready_s = pool.wait() - began_s
        alike = _alike(simulated)
        of_each = _simulated_s(pool, list(dict.fromkeys(alike.values())))
        by_variant = {variant: of_each[run.variant] for variant, run in alike.items()}
        by_variant |= _real_s(pool, _one_each(real))
    total_s = 0.0
    if simulated:
        times_s = [by_variant[run.variant] for run in simulated]
        total_s += ready_s + max(max(times_s), sum(times_s) / processes)
    if real:
        total_s += _RAY_CONNECT_S + sum(by_variant[run.variant] for run in real)
    return Forecast(by_variant, total_s)


def _one_each(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    return list({run.variant: run for run in reversed(runs)}.values())


def _alike(runs: Sequence[PlannedRun]) -> dict[str, PlannedRun]:
    """Return for each variant a run that takes as long as its own: step sizes and the like do not matter."""
    first: dict[str, PlannedRun] = {}
    alike = {}
    for run in _one_each(runs):
        left_out = {"seed", "lr", *tuned_by(run.cfg), *option_fields(OutputConfig)}
        timed = {name: value for name, value in options(run.cfg).items() if name not in left_out}
        alike[run.variant] = first.setdefault(repr(timed), run)
    return alike


def print_forecast(experiment: Experiment, console: Console, processes: int | None) -> None:
    """List the experiment's runs, what differs, and the time each would take."""
    processes = processes or cores()
    tuning_runs = experiment.tuning_runs()
    kept = {run.path for run in tuning_runs if is_kept(run)}
    # Which options the variants of a tuned experiment will have is not known before its tuning.
    runs = experiment.runs()
    kept |= {run.path for run in runs if not experiment.tuning and is_kept(run)}
    pending = [run for run in (*tuning_runs, *runs) if run.path not in kept]
    predicted = forecast(pending, processes)
    own = {v.name: v.own for v in experiment.variants}
    if experiment.tuning:
        own |= {v.name: v.own for tried in experiment.tuning.tried.values() for v in tried}
    rows = [("run", "seconds", "what differs")]
    for run in (*tuning_runs, *runs):
        stage = "tuning/" if run in tuning_runs else ""
        seconds = "kept" if run.path in kept else f"{predicted.by_variant[run.variant]:.2g}"
        rows.append(
            (stage + run.name, seconds, " ".join(described(*item) for item in own[run.variant].items()))
        )
    width = max(len(name) for name, _, _ in rows)
    for name, seconds, differs in rows:
        console.print(f"{name:{width}}  {seconds:>7}  {differs}", soft_wrap=True, markup=False)
    count = len(tuning_runs) + len(runs)
    total_s = predicted.total_s + _REPORT_S + _REPORT_A_RUN_S * len(runs)
    console.print(
        f"{count} runs, {count - len(pending)} of them kept; about {total_s:.0f} s in all with "
        f"{processes} processes, the report included; into {experiment.folder}",
        soft_wrap=True,
    )


def _simulated_s(pool: Pool, runs: Sequence[PlannedRun]) -> dict[str, float]:
    """Return by variant how long its run takes, from tiny runs that grow
    until the time of their mini-batches is measurable apart from that of their start.
    """
    timed: dict[str, list[tuple[int, float]]] = {run.variant: [] for run in runs}
    _try(pool, [_shortened(run, 1) for run in runs])  # the first runs load what is loaded only once
    steps = {run.variant: _first_steps(run.cfg) for run in runs}
    waiting = list(runs)
    while waiting:
        for run, outcome in _try(pool, [_shortened(run, steps[run.variant]) for run in waiting]):
            timed[run.variant].append((run.cfg.steps, outcome.cpu_s))
        waiting = [
            run
            for run in waiting
            if timed[run.variant][-1][0] < run.cfg.steps
            and timed[run.variant][-1][1] - timed[run.variant][0][1] < _ENOUGH_S
        ]
        steps = {variant: 3 * count for variant, count in steps.items()}
    return {run.variant: _extended_s(timed[run.variant], run.cfg.steps) for run in runs}


def _first_steps(cfg: TrainConfig) -> int:
    """Return the steps of a variant's first tiny run, which has to contain of everything a little."""
    return max(cfg.stop.eval_every, getattr(cfg, "local_steps", 1), 128 // cfg.num_workers)


def _shortened(run: PlannedRun, steps: int) -> PlannedRun:
    try:
        return replace(run, cfg=replace(run.cfg, steps=min(run.cfg.steps, steps)))
    except ValueError:  # some options ask for a budget
        return run


def _extended_s(timed: Sequence[tuple[int, float]], steps: int) -> float:
    """Draw a line through the shortest and the longest run."""
    (short, short_s), (long, long_s) = timed[0], timed[-1]
    if long == short:
        return long_s * steps / long
    return long_s + max(0.0, long_s - short_s) / (long - short) * (steps - long)


def _real_s(pool: Pool, runs: Sequence[PlannedRun]) -> dict[str, float]:
    """Return by variant what its run on Ray takes: its start, and its schedule's time as simulated."""
    found = {}
    scheduled = [_scheduled(run) for run in runs]
    with TemporaryDirectory() as folder:
        for run, _ in _try(pool, scheduled, folder):
            summary = read_summary(Path(folder) / run.name)
            found[run.variant] = summary.clock_s, summary.stopped_by, run.cfg.steps
    predicted = {}
    for run in runs:
        clock_s, stopped_by, steps = found[run.variant]
        clock_s *= 1 if stopped_by == "seconds" else run.cfg.steps / steps
        processes = run.cfg.num_workers * run.cfg.group.ranks_per_worker
        predicted[run.variant] = _RAY_START_S + _RAY_START_A_WORKER_S * processes + clock_s
    return predicted


def _scheduled(run: PlannedRun) -> PlannedRun:
    """Return a run on Ray as the simulator can play its schedule, without its gradients."""
    cfg = run.cfg
    law = f"constant:{_RAY_GRADIENT_S}" if cfg.timing.compute_time == "none" else cfg.timing.compute_time
    simulated = replace(
        cfg,
        engine="sim",
        batch_size=TrainConfig.batch_size,
        data=DataConfig(dataset="none"),
        compute=ComputeConfig(),
        group=replace(cfg.group, expert_parallel=False, checkpoint_activations=False),
        ray=cfg.ray.on("sim"),
        stop=replace(cfg.stop, target_loss=None),
        timing=replace(cfg.timing, compute_time=law, latency_s=_RAY_MESSAGE_S),
    )
    return _shortened(replace(run, cfg=simulated), math.ceil(_SIMULATED_GRADIENTS / cfg.num_workers))


def _try(
    pool: Pool, runs: Sequence[PlannedRun], folder: str | None = None
) -> list[tuple[PlannedRun, Outcome]]:
    """Run all, with their records in a folder that is not kept; raises UsageError if one cannot be run."""
    with TemporaryDirectory() as own:
        out = folder or own
        tiny = [replace(run, cfg=replace(run.cfg, output=replace(run.cfg.output, out=out))) for run in runs]
        outcomes = list(pool.outcomes(tiny))
    for run, outcome in outcomes:
        if not is_result(outcome.stopped_by):
            raise UsageError(f"variant {run.variant}: {outcome.error}")
    return outcomes
