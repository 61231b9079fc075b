"""The runs whose weights are kept in golden/, as hashes: every mode and variant on every workload."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

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
    "quadratic": {"workload": "quadratic", "dim": 3, "grad_noise": 0.5, "lr": 0.02},
}


class Golden(NamedTuple):
    """What is kept of a run."""

    weights: str
    """sha256 of the last version's weights."""
    events: str
    """sha256 of the order of updates and tasks, with their times."""
    loss: float
    """Of the last weights, on held-out samples."""


def golden(outcome: QuickRun) -> Golden:
    """Return what is kept of a run."""
    events = hashlib.sha256()
    for update in outcome.updates:
        for done in (*update.dones, *update.ignored):
            times = done.started_s, done.finished_s
            events.update(repr((update.weights.version, done.worker, done.step, done.read, *times)).encode())
    weights = hashlib.sha256(np.ascontiguousarray(outcome.w).tobytes()).hexdigest()
    return Golden(weights, events.hexdigest(), outcome.eval_loss)


def name(*parts: str | Mapping[str, Any]) -> str:
    """Return the name of a run in the file."""
    return " | ".join(p if isinstance(p, str) else " ".join(f"{k}={v}" for k, v in p.items()) for p in parts)


def simulated(mode: str) -> dict[str, Golden]:
    """Run all variants of a mode in the simulator."""
    found = {}
    for variant in VARIANTS[mode]:
        for workload, learned in WORKLOADS.items():
            for scenario, times in SCENARIOS.items():
                if scenario == "network" and workload != "xor mlp":
                    continue
                options = {"num_workers": 5, "steps": 24, **learned, **times, **variant}
                found[name(mode, variant, workload, scenario)] = golden(Subject(mode).run(**options))
    return found
