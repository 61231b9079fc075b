"""Laws that every strategy keeps: each `train_<mode>.py` is found and tested by this table."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.data import make_workload
from dsgd.execution.quick import assert_close, config, run, same_bytes
from dsgd.strategies import load, modes

ROOT = Path(__file__).parents[1]
each_mode = pytest.mark.parametrize("mode", modes())

# Convex, noisy and spread over workers that differ in speed: every mode has something to get wrong.
CONVEX: dict[str, Any] = {
    "dataset": "digits",
    "model": "logistic",
    "num_workers": 4,
    "compute_time": "exponential:1",
    "slowdown": "0=3",
    "momentum": 0.0,
    "lr": 0.05,
}

# Where a mode is plain SGD for P = 1 with options of its own only.
PLAIN: dict[str, dict[str, Any]] = {
    "diloco": {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0},
    "easgd": {"moving_rate": 1e-9},  # of the worker's weights: its centre stays
}


@each_mode
def test_spends_the_budget(mode: str) -> None:
    """Every mode spends num_workers x steps mini-batches, exceeded by less than one update."""
    outcome = run(mode, num_workers=3, steps=17, dataset="none", compute_time="exponential:1")
    last = sum(done.batches for done in outcome.updates[-1].dones)
    assert 51 <= outcome.tally.gradients < 51 + last


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd"])
def test_the_first_four_spend_the_budget_exactly(mode: str) -> None:
    """Where an update's size divides the budget, or the last round may be shorter, not one is added."""
    outcome = run(mode, num_workers=3, steps=17, dataset="none", compute_time="exponential:1")
    assert outcome.tally.gradients == 51


@each_mode
def test_versions_count_updates(mode: str) -> None:
    """The k-th update yields version k, and no task reads a version from the future."""
    outcome = run(mode, num_workers=4, steps=30, compute_time="exponential:1")
    assert [u.weights.version for u in outcome.updates] == list(range(1, len(outcome.updates) + 1))
    assert min(outcome.staleness) >= 0


@each_mode
def test_every_worker_takes_part_and_its_steps_follow_each_other(mode: str) -> None:
    """A worker's tasks follow each other, and only cancelled ones leave gaps in its mini-batches."""
    outcome = run(mode, num_workers=5, steps=24, dataset="none", compute_time="exponential:1")
    for worker in range(5):
        tasks = sorted(d for d in outcome.finished if d.worker == worker)
        assert tasks, f"worker {worker} took no part"
        gaps = [b.step - a.step - a.batches for a, b in pairwise(tasks)] + [tasks[0].step]
        assert min(gaps) >= 0
        assert sum(gaps) <= outcome.cluster.cancelled[worker]
        assert all(a.finished_s <= b.started_s for a, b in pairwise(tasks))


@each_mode
def test_the_same_seed_gives_the_same_run(mode: str) -> None:
    """Twice the same configuration: the same weights at every version, bit for bit, and the same times."""
    options: dict[str, Any] = {"num_workers": 7, "steps": 20, "compute_time": "lognormal:1,.5"}
    a, b = run(mode, **options), run(mode, **options)
    assert same_bytes(a, b)
    assert [d[6:9] for d in a.dones] == [d[6:9] for d in b.dones]
    assert not same_bytes(a, run(mode, **options, seed=1))


@each_mode
def test_one_worker_is_plain_sgd(mode: str) -> None:
    """With P = 1 every mode is plain SGD, up to rounding, with momentum too where it is the server's."""
    local = mode in ("localsgd", "adacomm", "diloco", "easgd")
    momentum = 0.0 if local else 0.9
    ours = run(mode, num_workers=1, steps=40, momentum=momentum, **PLAIN.get(mode, {}))
    workload = make_workload(ours.cfg)
    import torch

    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = workload.objective.initial_weights(0)
    v = np.zeros_like(w)
    for step in range(40):
        _, g = workload.objective.loss_and_gradient(torch.from_numpy(w[None]), [shard], [step])
        v = np.float32(momentum) * v + g[0].numpy()
        w = w - np.float32(ours.cfg.lr) * v
    assert_close(ours.dones[-1].value if mode == "easgd" else ours.w, w)


@each_mode
def test_reaches_the_loss_of_plain_sgd_on_a_convex_problem(mode: str) -> None:
    """With as many samples, every mode ends within a tenth of plain SGD's loss, or below it."""
    plain = run("ssgd", **CONVEX | {"num_workers": 1, "slowdown": "", "steps": 600})
    # In EASGD the centre has a worker's mass but no gradient of its own: P/(P+1) of the step size is felt.
    lr = CONVEX["lr"] * (5 / 4 if mode == "easgd" else 1)
    ours = run(mode, **CONVEX | {"lr": lr}, steps=600)
    assert ours.eval_loss < plain.eval_loss * 1.1


@each_mode
def test_adds_no_bytes(mode: str) -> None:
    """A task moves its weights to the worker and a vector of the same size back."""
    outcome = run(mode, num_workers=3, steps=16, padding_mb=0.001)
    size, n = 4 * 65 + 1000, len(outcome.finished)
    counted = outcome.tally.summary(outcome.cluster)["bytes"]
    assert counted == {"to_workers": size * n, "to_server": size * n}


@each_mode
@settings(max_examples=25, deadline=None)
@given(
    num_workers=st.integers(1, 9),
    steps=st.integers(1, 25),
    seed=st.integers(0, 2**40),
    law=st.sampled_from(
        ["none", "constant:0", "constant:2", "exponential:1", "pareto:1.1,1", "markov:1,9,.2,.2"]
    ),
    latency_s=st.sampled_from([0.0, 0.5]),
    server=st.sampled_from(["none", "constant:.3"]),
)
def test_no_scenario_breaks_a_strategy(
    mode: str, num_workers: int, steps: int, seed: int, law: str, latency_s: float, server: str
) -> None:
    """Whatever the scenario: the run ends, time never runs backwards, and no worker idles for good."""
    outcome = run(
        mode,
        num_workers=num_workers,
        steps=steps,
        seed=seed,
        dataset="none",
        compute_time=law,
        latency_s=latency_s,
        server_time=server,
    )
    assert outcome.tally.gradients >= num_workers * steps
    finished = [max(d.finished_s for d in u.dones) for u in outcome.updates]
    assert finished == sorted(finished)
    assert all(0 <= d.started_s <= d.finished_s for d in outcome.dones)
    assert all(d.started_s + d.compute_s <= d.finished_s + 1e-9 * (1 + d.finished_s) for d in outcome.dones)


@each_mode
def test_a_strategy_is_only_its_algorithm(mode: str) -> None:
    """A strategy imports no engine, no clock, no randomness and no metrics, and is under 80 lines."""
    text = Path(str(load(mode).__file__)).read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    forbidden = {
        "ray",
        "time",
        "random",
        "metrics",
        "cluster.ray",
        "cluster.sim",
        "cluster.timing",
        "rng",
        "torch",
    }
    assert not imported & forbidden
    assert len(text.splitlines()) < 80


@each_mode
def test_a_strategy_says_where_it_comes_from(mode: str) -> None:
    """Each strategy cites its source, its limiting cases and its differences, and has a page."""
    doc = load(mode).__doc__ or ""
    for part in ("Source:", "Limits:", "How this differs from the paper"):
        assert part in doc
    assert (ROOT / "docs" / "strategies" / f"{mode}.md").exists()


def test_options_have_unique_names() -> None:
    """No two groups of options share a name, so that config.yaml can be flat; each option is documented."""
    from dataclasses import fields, is_dataclass

    for mode in modes():
        names: list[str] = []
        cfg = config(mode)
        for f in fields(cfg):
            value = getattr(cfg, f.name)
            names += [g.name for g in fields(value)] if is_dataclass(value) else [f.name]
        assert len(names) == len(set(names))
