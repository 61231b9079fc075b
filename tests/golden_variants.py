"""Runs of every mode and variant on every workload: what is kept of them is their weights and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from golden_left import Left, left, tolerance

from dsgd.conformance.restart import SCENARIOS
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.running.quick_run import QuickRun
from dsgd.strategies import modes
from dsgd.strategies.conformance import Options

# What each strategy declares: two variants run different code. Options are named as on the command line.
VARIANTS: Mapping[str, Sequence[Options]] = {mode: Subject(mode).laws.variants for mode in modes()}

WORKLOADS: Mapping[str, dict[str, Any]] = {
    "xor mlp": {"workload": "xor", "lr": 0.05},
    "digits logistic": {"workload": "digits", "hidden": "none", "lr": 0.02},
    "quadratic": {"workload": "quadratic", "dim": 3, "grad_noise": 0.5, "lr": 2**-6},
}


def name(*parts: str | Mapping[str, Any]) -> str:
    """Return the name of a run in the file."""
    return " | ".join(p if isinstance(p, str) else " ".join(f"{k}={v}" for k, v in p.items()) for p in parts)


RUNS: Mapping[str, partial[QuickRun]] = {
    name(mode, variant, workload, scenario): partial(
        Subject(mode).run, **{"num_workers": 5, "steps": 24, **learned, **times, **variant}
    )
    for mode, variants in VARIANTS.items()
    for variant in variants
    for workload, learned in WORKLOADS.items()
    for scenario, times in SCENARIOS.items()
    if scenario != "network" or workload == "xor mlp"
}


def tolerance_of(run: str) -> float:
    """Return by how much a run's sums may differ between processors; 0: no bit may."""
    options = RUNS[run].keywords
    return tolerance(options["workload"], run.partition(" ")[0], options.get("inner", ""))


def made(run: str) -> Left:
    """Make a run, and return what it has left: its weights, and the order of updates and tasks."""
    outcome = RUNS[run]()
    events = "".join(
        repr((update.weights.version, done.worker, done.step, done.read, done.started_s, done.finished_s))
        for update in outcome.updates
        for done in (*update.dones, *update.ignored)
    ).encode()
    weights = np.ascontiguousarray(outcome.w).tobytes()
    files = {"weights": (weights, None), "events": (events, events)}
    return left("", files, outcome.eval_loss, outcome.w)
