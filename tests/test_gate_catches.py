"""A gate that cannot fail is worth nothing: each classic mistake, planted, turns it red.

The mistakes are those that public suites of this kind have shipped. Each is planted into a copy of a
strategy's source, or into the count that it concerns; the rows (of report/theory_table.py) or the laws named
beside it must then fail. Without the mistake they hold: tests/test_theory.py.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_conformance
import test_record
from conftest import CommandLine

from dsgd import metrics, strategies
from dsgd.cluster import Update
from dsgd.execution import execute, quick
from dsgd.theory.gate import rows
from dsgd.work.tasks import LocalSGD

Plant = Callable[[pytest.MonkeyPatch], None]


def in_strategy(mode: str, right: str, wrong: str) -> Plant:
    """Return what replaces a strategy by a copy in which `right` reads `wrong`."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        original = strategies.load(mode)
        source = Path(str(original.__file__)).read_text()
        assert source.count(right) == 1, f"train_{mode}.py no longer has: {right}"
        mutant = types.ModuleType(str(original.__name__))  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, mutant.__name__, mutant)
        exec(compile(source.replace(right, wrong), f"mutant of {mode}", "exec"), mutant.__dict__)

        def load(wanted: str) -> Any:
            return mutant if wanted == mode else strategies.load(wanted)

        for module in (quick, execute):
            monkeypatch.setattr(module, "load", load)

    return plant


def in_place(target: Any, name: str, wrong: Any) -> Plant:
    """Return what replaces an attribute by a wrong one."""
    return lambda monkeypatch: monkeypatch.setattr(target, name, wrong, raising=False)


MISTAKES: list[tuple[str, Plant, list[str]]] = [
    (
        "the update count is logged as staleness",
        in_place(Update, "staleness", lambda update, done: update.weights.version),
        ["ASGD, exponential:1, P=8: mean", "SSGD, exponential, P=8: greatest"],
    ),
    (
        "the gradient's own update is counted, so a fresh one is 1 stale",
        in_place(Update, "staleness", lambda update, done: update.weights.version - done.read),
        ["ASGD, exponential:1, P=8: mean", "ASGD, exponential, P=8: P(staleness = 0)"],
    ),
    (
        "no start barrier: the others begin when worker 0 has had half of the run",
        in_strategy(
            "asgd",
            "    while True:\n        done = cluster.next_done()",
            "    for worker in list(cluster.workers)[1:]:\n        cluster.cancel(worker)\n"
            "    alone = cfg.budget // 2\n"
            "    while True:\n"
            "        if w.version == alone:\n"
            "            for worker in list(cluster.workers)[1:]:\n"
            "                cluster.start(worker, gradient, w)\n"
            "        done = cluster.next_done()",
        ),
        ["ASGD, exponential:1, P=8: s an update", "ASGD, exponential:1, P=8: mean"],
    ),
    (
        "SSP one too strict: slack 0 deadlocks",
        in_strategy("ssp", "limit = clocks.slowest + cfg.slack", "limit = clocks.slowest + cfg.slack - 1"),
        ["SSP, exponential, P=8, slack 0: mean", "SSP, exponential, P=8, slack 3: steps a second"],
    ),
    (
        "SSP one too lax",
        in_strategy("ssp", "limit = clocks.slowest + cfg.slack", "limit = clocks.slowest + cfg.slack + 1"),
        ["SSP, exponential, P=8, slack 0: mean", "SSP, P=2, slack 2, times that attain it: clock gap"],
    ),
    (
        "SSP never blocks",
        in_strategy("ssp", "if clock > limit:", "if False:"),
        ["SSP, exponential, P=8, slack 1: mean", "4 times slower, slack 3: s a step"],
    ),
    (
        "a task of H local steps meets the stragglers of one step only",
        in_place(LocalSGD, "batches", property(lambda task: 1, lambda task, value: None)),
        ["LocalSGD, exponential, P=8, H=8: s a local step"],
    ),
    (
        "gradients are summed, so that P changes the step",
        in_strategy("ssgd", "mean(done.value for done in dones)", "sum(done.value for done in dones)"),
        ["SSGD, step .1, unit noise, P=16: mean square"],
    ),
    (
        "delay compensation copies the weights just before it uses them",
        in_strategy("dcasgd", "(w.vector - read[done.worker].vector)", "(w.vector - w.vector)"),
        ["DC-ASGD with the exact Hessian"],
    ),
    (
        "K-sync takes whoever comes, however old",
        in_strategy("ksync", "fresh = done.read == w.version", "fresh = True"),
        ["K-sync, K=4, rest ignored, exponential, P=8: greatest"],
    ),
    (
        "the pushers of K-async do not wait",
        in_strategy("kasync", 'and cfg.count == "gradients"', ""),
        ["K-async, exponential, P=8, K=4: mean"],
    ),
    (
        "EASGD's workers are drawn to the centre after it has moved",
        in_strategy(
            "easgd",
            "cfg.task(h), Weights(centre.vector, w.version))\n        average",
            "cfg.task(h), w)\n        average",
        ),
        ["EASGD at a barrier, P=4"],
    ),
    (
        "so is the one that comes by itself",
        in_strategy(
            "easgd",
            "cfg.task(h), Weights(centre.vector, w.version))\n        yield",
            "cfg.task(h), w)\n        yield",
        ),
        ["EASGD, a worker and the centre, lr * curvature 0.5"],
    ),
    (
        "DiLoCo's outer momentum does not wait for its option",
        in_strategy("diloco", "momentum=cfg.outer_momentum, nesterov=True", "momentum=0.9, nesterov=True"),
        ["DiLoCo, outer lr 1, outer momentum 0"],
    ),
]


@pytest.mark.parametrize(("mistake", "plant", "caught_by"), MISTAKES, ids=[m for m, _, _ in MISTAKES])
def test_a_planted_mistake_turns_the_gate_red(
    mistake: str, plant: Plant, caught_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row named fails: by its verdict, or because the run cannot even end."""
    chosen = [
        next(row for row in rows() if row.what.startswith(what) or what in row.what) for what in caught_by
    ]
    plant(monkeypatch)
    for row in chosen:
        try:
            holds = row.check().holds
        except AssertionError:  # the simulator: nothing can finish
            holds = False
        assert not holds, f"'{mistake}' was not caught by '{row.what}'"


def test_a_budget_in_updates_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where --steps means updates in one mode and rounds in another, budgets differ: the law fails."""
    monkeypatch.setattr("dsgd.config.TrainConfig.budget", property(lambda cfg: cfg.steps))
    with pytest.raises(AssertionError):
        test_conformance.test_spends_the_budget("asgd")


def test_the_first_loss_reported_as_the_last_is_caught(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary that gives the initial loss as the final one disagrees with the updates: the law fails."""
    summary = metrics.Tally.summary

    def wrong(tally: metrics.Tally, cluster: Any) -> dict[str, Any]:
        found = summary(tally, cluster)
        return found | {"loss": {"first": found["loss"]["first"], "last": found["loss"]["first"]}}

    monkeypatch.setattr(metrics.Tally, "summary", wrong)
    with pytest.raises(AssertionError):
        test_record.test_the_summary_agrees_with_the_updates(cli, "ssgd")
