"""Laws that every strategy keeps: each `train_<mode>.py` is found and held to them.

    pytest tests/test_conformance.py --strategy-file my/train_mine.py     # your own strategy

What concerns one strategy only, its limiting cases and the options with which a law holds, its file declares
in `LAWS` (dsgd.strategies.conformance).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.config import TrainConfig, options
from dsgd.data import make_workload
from dsgd.execution.quick import QuickRun, assert_close, config, run, same_bytes
from dsgd.strategies import Strategy, configured, load, mode_of, modes
from dsgd.strategies.conformance import Laws, Limit
from dsgd.theory.predictions import predict

ROOT = Path(__file__).parents[1]

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


class Subject(NamedTuple):
    """A strategy that is held to the laws: a mode of the repository, or a user's file."""

    mode: str
    file: str | None = None

    @property
    def strategy(self) -> Strategy:
        return load(self.mode, self.file)

    @property
    def laws(self) -> Laws:
        laws: Laws = getattr(self.strategy, "LAWS", Laws())
        return laws

    def config(self, **options: Any) -> TrainConfig:
        return config(self.mode, strategy_file=self.file, **options)

    def run(self, **options: Any) -> QuickRun:
        return run(self.mode, strategy_file=self.file, **options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hold the file of --strategy-file to the laws, or else all modes."""
    file = metafunc.config.getoption("--strategy-file")
    subjects = [Subject(mode_of(file), file)] if file else [Subject(mode) for mode in modes()]
    if "limit" in metafunc.fixturenames:
        cases = [(subject, limit) for subject in subjects for limit in subject.laws.limits]
        metafunc.parametrize(("subject", "limit"), cases, ids=[f"{s.mode} {limit}" for s, limit in cases])
    elif "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", subjects, ids=[subject.mode for subject in subjects])


def test_spends_the_budget(subject: Subject) -> None:
    """Every mode spends num_workers x steps mini-batches, exceeded by less than one update."""
    outcome = subject.run(num_workers=3, steps=17, dataset="none", compute_time="exponential:1")
    last = sum(done.batches for done in outcome.updates[-1].dones)
    assert 51 <= outcome.tally.gradients < 51 + last


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd"])
def test_the_first_four_spend_the_budget_exactly(mode: str) -> None:
    """Where an update's size divides the budget, or the last round may be shorter, not one is added."""
    outcome = run(mode, num_workers=3, steps=17, dataset="none", compute_time="exponential:1")
    assert outcome.tally.gradients == 51


def test_versions_count_updates(subject: Subject) -> None:
    """The k-th update yields version k, and no task reads a version from the future."""
    outcome = subject.run(num_workers=4, steps=30, compute_time="exponential:1")
    assert [u.weights.version for u in outcome.updates] == list(range(1, len(outcome.updates) + 1))
    assert min(outcome.staleness) >= 0


def test_every_worker_takes_part_and_its_steps_follow_each_other(subject: Subject) -> None:
    """A worker's tasks follow each other, and only cancelled ones leave gaps in its mini-batches."""
    outcome = subject.run(num_workers=5, steps=24, dataset="none", compute_time="exponential:1")
    for worker in range(5):
        tasks = sorted(d for d in outcome.finished if d.worker == worker)
        assert tasks, f"worker {worker} took no part"
        gaps = [b.step - a.step - a.batches for a, b in pairwise(tasks)] + [tasks[0].step]
        assert min(gaps) >= 0
        assert sum(gaps) <= outcome.cluster.cancelled[worker]
        assert all(a.finished_s <= b.started_s for a, b in pairwise(tasks))


def test_the_same_seed_gives_the_same_run(subject: Subject) -> None:
    """Twice the same configuration: the same weights at every version, bit for bit, and the same times."""
    options: dict[str, Any] = {"num_workers": 7, "steps": 20, "compute_time": "lognormal:1,.5"}
    a, b = subject.run(**options), subject.run(**options)
    assert same_bytes(a, b)
    assert [d[6:9] for d in a.dones] == [d[6:9] for d in b.dones]
    assert not same_bytes(a, subject.run(**options, seed=1))


def test_one_worker_is_plain_sgd(subject: Subject) -> None:
    """With P = 1 a strategy is plain SGD, up to rounding, with the options that `plain_sgd` says."""
    if subject.laws.plain_sgd is None:
        pytest.skip("its LAWS say plain_sgd=None")
    ours = subject.run(**{"num_workers": 1, "steps": 40, "momentum": 0.9} | dict(subject.laws.plain_sgd))
    workload = make_workload(ours.cfg)
    import torch

    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = workload.objective.initial_weights(0)
    v = np.zeros_like(w)
    for step in range(40):
        _, g = workload.objective.loss_and_gradient(torch.from_numpy(w[None]), [shard], [step])
        v = np.float32(ours.cfg.momentum) * v + g[0].numpy()
        w = w - np.float32(ours.cfg.lr) * v
    assert_close(ours.w, w)


def test_reaches_the_loss_of_plain_sgd_on_a_convex_problem(subject: Subject) -> None:
    """With as many samples, a strategy ends within a tenth of plain SGD's loss, or below it."""
    plain = run("ssgd", **CONVEX | {"num_workers": 1, "slowdown": "", "steps": 600})
    ours = subject.run(**CONVEX | {"steps": 600} | dict(subject.laws.convex))
    assert ours.eval_loss < plain.eval_loss * 1.1


def test_in_its_limit_a_strategy_is_another(subject: Subject, limit: Limit) -> None:
    """In its limiting cases a strategy makes the weights of another, bit for bit or up to rounding, from
    tasks that end at the same times.
    """
    common: dict[str, Any] = {
        "num_workers": 5,
        "steps": 40,
        "compute_time": "exponential:1",
        "slowdown": "0=3",
        "momentum": 0.9,
        "lr": 0.02,
    }
    other = subject if limit.mode == subject.mode else Subject(limit.mode)
    a, b = subject.run(**common | dict(limit.options)), other.run(**common | dict(limit.others))
    if limit.exactly:
        assert same_bytes(a, b)
    else:
        for x, y in zip(a.updates, b.updates, strict=True):
            assert_close(x.weights.vector, y.weights.vector)
    assert sorted(d.finished_s for d in a.dones) == sorted(d.finished_s for d in b.dones)


def test_adds_no_bytes(subject: Subject) -> None:
    """A task moves its weights to the worker and a vector of the same size back."""
    outcome = subject.run(num_workers=3, steps=16, padding_mb=0.001)
    size, n = 4 * 65 + 1000, len(outcome.finished)
    counted = outcome.tally.summary(outcome.cluster)["bytes"]
    assert counted == {"to_workers": size * n, "to_server": size * n}


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
    subject: Subject, num_workers: int, steps: int, seed: int, law: str, latency_s: float, server: str
) -> None:
    """Whatever the scenario: the run ends, time never runs backwards, and no worker idles for good."""
    outcome = subject.run(
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


@pytest.mark.parametrize("law", ["none", "constant:1", "exponential:1", "pareto:1.5,1"])
@pytest.mark.parametrize("network", [{}, {"latency_s": 0.5}, {"server_time": "exponential:.1"}])
def test_what_theory_bounds_is_never_passed(subject: Subject, law: str, network: dict[str, Any]) -> None:
    """A strategy's `theory` gives numbers, or none, in every scenario, and no run passes its bounds."""
    for slowdown in ("", "0=4"):
        outcome = subject.run(
            num_workers=3, steps=20, dataset="none", compute_time=law, slowdown=slowdown, **network
        )
        predicted = predict(outcome.cfg)
        assert all(math.isfinite(value) for value in predicted.values())
        assert max(outcome.staleness) <= predicted.get("staleness_max", math.inf)
        assert outcome.tally.clock_gap_max <= predicted.get("clock_gap_max", math.inf)


# Clocks, randomness, metrics and engines are not a strategy's: the run has them.
NOT_A_STRATEGYS = ("time", "random", "ray", "dsgd.metrics", "dsgd.cluster.ray", "dsgd.cluster.sim",
                   "dsgd.cluster.timing", "dsgd.work.rng")  # fmt: skip
MOST_LINES = 25  # of code in train: it fits a slide


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the modules that statements import."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_a_strategy_is_only_its_algorithm(subject: Subject) -> None:
    """A strategy imports no engine, clock, randomness or metrics, and torch at most where a task computes."""
    tree = ast.parse(Path(str(subject.strategy.__file__)).read_text())
    assert not imports(ast.walk(tree)) & set(NOT_A_STRATEGYS)
    assert "torch" not in imports(tree.body), "it makes --help slow; import torch in the task's __call__"


def test_train_fits_a_slide(subject: Subject) -> None:
    """`train` has at most 25 lines of code."""
    text = Path(str(subject.strategy.__file__)).read_text()
    (train,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "train")
    assert isinstance(train, ast.FunctionDef)
    lines = text.splitlines()[train.body[0].lineno - 1 : train.end_lineno]
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= MOST_LINES


def test_a_strategy_says_where_it_comes_from(subject: Subject) -> None:
    """Each strategy cites its source, its limiting cases and its differences, and has a page."""
    doc = subject.strategy.__doc__ or ""
    for part in ("Source:", "Limits:", "How this differs from the paper"):
        assert part in doc
    pages = Path(subject.file).parent if subject.file else ROOT / "docs" / "strategies"
    assert (pages / f"{subject.mode}.md").exists()


def test_its_options_make_the_same_configuration(subject: Subject) -> None:
    """The flat options of a configuration, as config.yaml has them, make that configuration again."""
    cfg = subject.config(num_workers=5, lr=0.3, slowdown="0=4", target_loss=0.1, run_name="a")
    assert configured(options(cfg)) == cfg
    with pytest.raises(ValueError, match="no_such: there is no such option in --mode"):
        configured(options(cfg) | {"no_such": 1})


def test_options_have_unique_names(subject: Subject) -> None:
    """No two groups of options share a name, so that config.yaml can be flat."""
    names: list[str] = []
    cfg = subject.config()
    for f in fields(cfg):
        value = getattr(cfg, f.name)
        names += [g.name for g in fields(value)] if is_dataclass(value) else [f.name]
    assert len(names) == len(set(names))
