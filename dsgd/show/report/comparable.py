"""Which runs can be compared: those that differ in the strategy alone; and which are the same twice."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dsgd.config import DataConfig
from dsgd.core.option_rules import option_fields
from dsgd.models.workloads import name_of
from dsgd.records.listing import ListedRun, Listing
from dsgd.records.reader import Record
from dsgd.records.variants import differing, of_workload, option_text, printable
from dsgd.scenario.group_options import GroupConfig
from dsgd.scenario.network_options import LINKS
from dsgd.scenario.timing_options import TimingConfig
from dsgd.show.report.frames import Frames
from dsgd.show.report.written_numbers import plural


def identical(frames: Frames) -> list[list[str]]:
    """Return the variants whose runs are the same with every seed: same weights, times and evaluations."""
    classes: dict[object, list[str]] = {}
    for variant in frames.variants:
        key = tuple(_of_a_run(record) for record in frames.of(variant))
        classes.setdefault(key, []).append(variant)
    return [variants for variants in classes.values() if len(variants) > 1]


def _of_a_run(record: Record) -> tuple[object, ...]:
    summary = record.summary
    evaluations = tuple((e.version, e.t_s, e.loss) for e in record.evals)
    counts = tuple(sorted(summary.staleness.counts.items()))
    return summary.seed, summary.weights_sha256, summary.clock_s, summary.gradients, counts, evaluations


_WORKLOAD = (*option_fields(DataConfig), "batch_size")
_RANKS = tuple(option for option in option_fields(GroupConfig) if option != "recompute_activations")
_SCENARIO = ("num_workers", *_RANKS, *option_fields(TimingConfig), *LINKS)
_BUDGET = ("steps", "max_seconds", "target_loss")
SHARED = (*_WORKLOAD, "engine", *_SCENARIO, *_BUDGET)
"""The options that comparable runs share, beside those of their workload's file."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that can be compared, the newest first."""

    runs: Sequence[ListedRun]

    @property
    def engine(self) -> str:
        return self.runs[0].engine

    @cached_property
    def title(self) -> str:
        """What the runs share, without defaults, like `digits · simulator, 8 workers, compute_time=… · …`."""
        run = self.runs[0]
        given = run.given()

        def texts(options: Iterable[str]) -> list[str]:
            return [f"{o}={option_text(given[o])}" for o in options if o in given]

        workload = [
            name_of(run.config),
            *texts(o for o in (*_WORKLOAD, *of_workload(run.config)) if o != "workload"),
        ]
        engine = "simulator" if run.engine == "sim" else "Ray" + f" on {run.device}" * bool(run.device)
        scenario = [f"{engine}, {plural(run.num_workers, 'worker')}", *texts(_SCENARIO)]
        budget = [plural(int(run.config["steps"]), "step"), *texts(_BUDGET[1:])]
        return printable(" · ".join(", ".join(part) for part in (workload, scenario, budget)))

    @cached_property
    def slug(self) -> str:
        """The name of the folder of its report, the same when runs are added."""
        run = self.runs[0]
        digest = hashlib.sha256(repr(_key(run)).encode()).hexdigest()[:8]
        return f"{name_of(run.config)}-{run.engine}-w{run.num_workers}-{digest}"

    @cached_property
    def varied(self) -> Sequence[str]:
        """The options in which the runs of one mode differ; `seed` is none of them."""
        modes = {run.mode: [r.config for r in self.runs if r.mode == run.mode] for run in self.runs}
        return list(dict.fromkeys(option for configs in modes.values() for option in differing(configs)))

    def best(self) -> dict[str, float]:
        """Return the best value of each column that ranks the runs: loss, s.

        Seconds count where a run did all that was asked of it: it spent its budget or reached its target.
        Nothing is best where all are equal.
        """
        ended = [run.result for run in self.runs if run.result and run.is_result]
        target = self.runs[0].config.get("target_loss") is not None
        columns = {
            "loss": [r.eval.loss for r in ended if r.eval.loss is not None and r.stopped_by != "diverged"],
            "s": [r.clock_s for r in ended if r.stopped_by == ("target-loss" if target else "budget")],
        }
        return {name: min(values) for name, values in columns.items() if values and min(values) < max(values)}


def groups(runs: Sequence[ListedRun]) -> list[Group]:
    """Return the runs by what they share, the largest group first, then the one with the newest run."""
    found: dict[tuple[str, ...], list[ListedRun]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    return sorted((Group(runs=same) for same in found.values()), key=lambda group: -len(group.runs))


def are_one_comparison(listing: Listing) -> bool:
    """Whether one report can draw all runs: one group, or each variant in each of several scenarios.

    The scenarios may differ in one option, like the number of workers. Cut-off runs do not count.
    """
    runs = [run for run in listing.runs if run.is_result]
    if listing.folders or not runs:
        return not listing.folders
    varied = differing(run.config for run in runs)
    of_one = {*SHARED, *(option for run in runs for option in of_workload(run.config))}
    shared = [option for option in varied if option in of_one]
    if not shared:
        return len({_key(run) for run in runs}) == 1
    if len(shared) > 1 or shared[0] not in _SCENARIO:
        return False
    own = [option for option in varied if option not in shared]
    scenarios: dict[str, set[tuple[str, ...]]] = {}
    for run in runs:
        variant = tuple(option_text(run.config.get(option)) for option in own)
        scenarios.setdefault(option_text(run.config.get(shared[0])), set()).add(variant)
    variants = list(scenarios.values())
    return all(other == variants[0] for other in variants)


def _key(run: ListedRun) -> tuple[str, ...]:
    device = run.device if run.engine == "ray" else ""
    own = (f"{option}={_text(run.config.get(option))}" for option in of_workload(run.config))
    return (*(_text(run.config.get(option)) for option in SHARED), *own, device)


def _text(value: Any) -> str:
    """Return a value as one text, however config.yaml writes it."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    return option_text(value)
