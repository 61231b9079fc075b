"""Measures how long a mini-batch takes where a question has seconds in it, and nobody has said that.

A simulated mini-batch lasts 1 virtual second unless `--compute-time` says otherwise; beside a real link, that
of a module that takes milliseconds would make the network look as if it were free.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

from dsgd.compare.experiment import Experiment, Variant
from dsgd.config import TrainConfig, lacks_compute_time
from dsgd.core.option_rules import options
from dsgd.core.tasks import gradient
from dsgd.data import make_workload
from dsgd.engines.task_values import compute_alone
from dsgd.records.reader import read_options
from dsgd.records.schema import RecordError

_MINI_BATCHES = 3  # that are timed, after a first one


def in_need(experiment: Experiment) -> list[Variant]:
    """Return the variants whose mini-batches are to be measured: those of a workload of one's own, simulated,
    with anything in seconds but the time of a mini-batch.
    """
    lacking = [v for v in experiment.variants if "compute_time" not in v.options]
    own = [v for v in lacking if v.cfg.data.workload.endswith(".py")]
    return [v for v in own if lacks_compute_time(options(v.cfg))]


def with_measured_times(experiment: Experiment) -> Experiment:
    """Return an experiment in which variants in need have the time of their mini-batch, in `measured_s` too.

    The runs that are there already say what was measured then, so that the same command goes on with them.
    """
    measured: dict[str, float] = {}
    of_what: dict[Any, float] = {}
    for variant in in_need(experiment):
        seconds = _before(experiment, variant)
        if seconds is None:
            what = variant.cfg.data, variant.cfg.batch_size, variant.cfg.compute
            seconds = of_what[what] = of_what.get(what) or _seconds_of_a_batch(variant.cfg)
        measured[variant.name] = seconds
    variants = [timed(v, measured.get(v.name)) for v in experiment.variants]
    if tuning := experiment.tuning:
        tried = {name: [timed(v, measured.get(name)) for v in some] for name, some in tuning.tried.items()}
        tuning = replace(tuning, tried=tried)
    return replace(experiment, variants=variants, tuning=tuning)


def timed(variant: Variant, seconds: float | None) -> Variant:
    """Return the variant with a mini-batch's measured seconds as its compute time; as it is without any."""
    if not seconds:
        return variant
    timing = replace(variant.cfg.timing, compute_time=f"constant:{seconds:g}")
    return replace(variant, cfg=replace(variant.cfg, timing=timing), measured_s=seconds)


def _before(experiment: Experiment, variant: Variant) -> float | None:
    """Return what was measured for runs that a variant has already; 0 if they had 1 virtual second."""
    runs = [variant.run(seed, experiment.folder) for seed in experiment.seeds]
    if tuning := experiment.tuning:
        tried = tuning.tried.get(variant.name, ())
        runs += [v.run(seed, experiment.folder / "tuning") for v in tried for seed in tuning.seeds]
    for run in runs:
        with suppress(RecordError, KeyError, ValueError):
            return float(str(read_options(run.path)["compute_time"]).partition(":")[2] or 0)
    return None


def _seconds_of_a_batch(cfg: TrainConfig) -> float:
    """Return the seconds of a mini-batch here, the median of three; 0 where it fails: the run says why."""
    import torch

    device, threads = "cuda" if cfg.ray.device == "cuda" else "cpu", torch.get_num_threads()
    torch.set_num_threads(1)  # as workers have it
    try:
        workload = make_workload(cfg)
        shard = workload.shards[0].on_device([workload.shards[0].alone()], device)[0]
        workload.objective.try_out(shard)
        objective = workload.objective.for_gradients()
        w, took = objective.initial_weights(cfg.seed), list[float]()
        for step in range(1 + _MINI_BATCHES):
            began_s = time.perf_counter()
            compute_alone(gradient, objective, shard, step, w, None, device)
            took.append(time.perf_counter() - began_s)
    except ValueError:
        return 0.0
    finally:
        torch.set_num_threads(threads)
    return float(f"{median(took[1:]):.2g}")
