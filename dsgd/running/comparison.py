"""The simulator compared with reality: the same configuration on both engines."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dsgd.config import TrainConfig
from dsgd.process.files import Writing
from dsgd.process.outcomes import EXIT_CODES
from dsgd.records.reader import read_record, read_summary
from dsgd.records.schema import Difference, Distance, EngineComparison, Summary
from dsgd.records.writer import write_file
from dsgd.running.execute import Ended
from dsgd.scenario.timing_options import TimingConfig


def measured_timing(timing: TimingConfig, ray_record: Path, *, limited_links: bool = False) -> TimingConfig:
    """Return the scenario for the simulator: the law, plus the overhead that the run on Ray had here.

    The overhead of a task, all of its time but computing, becomes latency, half of it each way. With
    `limited_links` most of it is waiting for links, as in the simulator: the latency stays as it was. Where
    the law is `none`, real compute times cannot be drawn: those of the run on Ray are replayed by worker.
    """
    record = read_record(ray_record)
    tasks = [task for update in record.updates() for task in update.gradients]
    if not tasks:
        raise ValueError("--engine both: the run on Ray has made no update")
    overhead_s = fmean(task.finished_s - task.started_s - task.compute_s for task in tasks)
    if not limited_links:
        timing = replace(timing, latency_s=max(0.0, overhead_s / 2))
    if timing.compute_time != "none":
        return timing
    trace = ray_record.parent / "compute-times.csv"
    measured = dict[int, list[float]]()
    for task in tasks:
        measured.setdefault(task.worker, []).extend([task.compute_s / task.batches] * task.batches)
    of_all = [seconds for own in measured.values() for seconds in own]
    with Writing(trace), trace.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["worker", "seconds"])
        for worker in range(record.config["num_workers"]):
            # In a short run without a barrier a worker may have had no part: it is as fast as the others.
            writer.writerows([worker, seconds] for seconds in measured.get(worker, of_all))
    # The slowdown is in the measured times already.
    return replace(timing, compute_time=f"trace:{trace}", slowdown="")


def write_comparison(folder: Path) -> EngineComparison:
    """Compare the records `ray` and `sim` in `folder`; write and return comparison.json.

    By name: ray, sim, and the relative difference (sim - ray)/ray. For the staleness distributions there is
    their distance in total variation, half the sum of absolute differences: 0 if equal, 1 if disjoint.
    """
    ray, sim = (read_summary(folder / engine) for engine in ("ray", "sim"))

    def difference(measure: Callable[[Summary], float | None]) -> Difference:
        a, b = measure(ray), measure(sim)
        return Difference(ray=a, sim=b, relative_difference=(b - a) / a if a and b is not None else None)

    found = EngineComparison(
        s_per_update=difference(lambda s: s.clock_s / s.updates),
        staleness_mean=difference(lambda s: s.staleness.mean),
        staleness_p95=difference(lambda s: s.staleness.p95),
        idle_share=difference(lambda s: s.idle_share),
        loss_at_the_end=difference(lambda s: s.eval.loss),
        staleness_distance=Distance(
            total_variation=_total_variation(ray.staleness.counts, sim.staleness.counts)
        ),
    )
    write_file(folder / "comparison.json", found)
    return found


def _total_variation(a: Mapping[int, int], b: Mapping[int, int]) -> float:
    """Return the distance of two distributions given as counts by value.

    >>> _total_variation({0: 1, 1: 1}, {0: 2})
    0.5
    """
    total_a, total_b = sum(a.values()), sum(b.values())
    return sum(abs(a.get(k, 0) / total_a - b.get(k, 0) / total_b) for k in {*a, *b}) / 2


class Both(NamedTuple):
    """A run on Ray, the same in the simulator, and how far the two differ."""

    ended: Ended
    """The run that ended last: in the simulator or, if that on Ray was not completed, on Ray."""
    compared: EngineComparison | None
    """None if one was not completed."""


def execute_both(cfg: TrainConfig, folder: Path, run_one: Callable[[TrainConfig], Ended]) -> Both:
    """Run on Ray, then in the simulator with this machine's overhead, and compare the two.

    folder: gets the records `ray` and `sim`, and comparison.json.
    run_one: executes one of them, with a record.
    Raises ValueError if the run on Ray made no update.
    """
    output = replace(cfg.output, out=str(folder))
    ended = run_one(replace(cfg, engine="ray", ray=cfg.ray.on("ray"), output=replace(output, run_name="ray")))
    if EXIT_CODES[ended.stopped_by]:
        return Both(ended, None)
    try:
        limited = cfg.timing.server_bytes_per_s < math.inf or not cfg.network.only_servers_link
        timing = measured_timing(cfg.timing, folder / "ray", limited_links=limited)
    except ValueError as error:
        raise ValueError(f"{error}; give the run more --steps") from None
    output = replace(output, run_name="sim")
    ended = run_one(replace(cfg, engine="sim", ray=cfg.ray.on("sim"), timing=timing, output=output))
    if EXIT_CODES[ended.stopped_by]:
        return Both(ended, None)
    return Both(ended, write_comparison(folder))
