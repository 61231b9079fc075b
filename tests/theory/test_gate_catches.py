"""A gate that cannot fail is worth nothing: each classic mistake, when planted, makes it fail.

The mistakes are those that public suites of this kind have shipped. Each is planted into a copy of a
strategy's source, or into the count that it concerns; the rows (of tests/theory/gate) or the laws
named given with it must then fail. Without the mistake they hold: tests/theory/test_theory.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_record
from conftest import CommandLine
from gate.__main__ import rows

from dsgd import metrics, strategies
from dsgd.conformance.laws_of_runs import spends_the_budget
from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.core.protocol import Update
from dsgd.core.tasks import LocalSGD
from dsgd.models.moe import mixture

Plant = Callable[[pytest.MonkeyPatch], None]


def in_source(module: Any, right: str, wrong: str) -> Plant:
    """Return what replaces a module by a copy in which `right` reads `wrong`."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        source = Path(str(module.__file__)).read_text()
        assert source.count(right) == 1, f"{module.__name__} no longer has: {right}"
        mutant = types.ModuleType(module.__name__)
        mutant.__file__ = module.__file__
        monkeypatch.setitem(sys.modules, mutant.__name__, mutant)  # classes look for their module there
        planted = compile(source.replace(right, wrong), f"mutant of {module.__name__}", "exec")
        exec(planted, mutant.__dict__)  # noqa: S102 - the module with a mistake

    return plant


def in_strategy(mode: str, right: str, wrong: str) -> Plant:
    """Return what does that to a strategy."""
    return in_source(strategies.load(mode), right, wrong)


RULE = "    rule = server_rule(cfg, gradients=1)\n"


def starting(body: str) -> str:
    """Return a strategy's first line followed by a `start_idle` in the place of the suite's."""
    return f"{RULE}\n    def start_idle(cluster, task, w, ahead=float('inf')):\n        {body}\n\n"


def in_place(target: Any, name: str, wrong: Any) -> Plant:
    """Return what replaces an attribute by a wrong one."""
    return lambda monkeypatch: monkeypatch.setattr(target, name, wrong, raising=False)


MISTAKES: dict[str, tuple[Plant, list[str]]] = {
    "the update count is logged as staleness": (
        in_place(Update, "staleness", lambda update, done: update.weights.version),
        ["ASGD, exponential:1, P=8: mean", "SSGD, exponential, P=8: greatest"],
    ),
    "the gradient's own update is counted, so a fresh one is 1 stale": (
        in_place(Update, "staleness", lambda update, done: update.weights.version - done.read),
        ["ASGD, exponential:1, P=8: mean", "ASGD, exponential, P=8: P(staleness = 0)"],
    ),
    "no start barrier: the others begin when worker 0 has had half of the run": (
        in_strategy(
            "asgd",
            RULE,
            starting(
                "for i in list(cluster.idle):\n"
                "            if i == 0 or 2 * w.version >= cfg.budget:\n"
                "                cluster.start(i, task, w)"
            ),
        ),
        ["ASGD, exponential:1, P=8: s an update", "ASGD, exponential:1, P=8: mean"],
    ),
    "SSP one too strict: slack 0 deadlocks": (
        in_strategy("ssp", RULE, starting("globals()['start_idle'](cluster, task, w, ahead - 1)")),
        ["SSP, exponential, P=8, slack 0: mean", "SSP, exponential, P=8, slack 3: steps a second"],
    ),
    "SSP one too lax": (
        in_strategy("ssp", RULE, starting("globals()['start_idle'](cluster, task, w, ahead + 1)")),
        ["SSP, exponential, P=8, slack 0: mean", "SSP, P=2, slack 2, times that attain it: clock gap"],
    ),
    "SSP never blocks": (
        in_strategy("ssp", RULE, starting("globals()['start_idle'](cluster, task, w)")),
        ["SSP, exponential, P=8, slack 1: mean", "4 times slower, slack 3: s a step"],
    ),
    "a task of H local steps meets the stragglers of one step only": (
        in_place(LocalSGD, "batches", property(lambda task: 1, lambda task, value: None)),
        ["LocalSGD, exponential, P=8, H=8: s a local step"],
    ),
    "gradients are summed, so that P changes the step": (
        in_strategy(
            "ssgd",
            "server_rule(cfg, gradients=cfg.num_workers)",
            "server_rule(__import__('dataclasses').replace(cfg, lr=cfg.lr * cfg.num_workers), 1)",
        ),
        ["SSGD, step .1, unit noise, P=16: mean square"],
    ),
    "delay compensation copies the weights just before it uses them": (
        in_strategy("dcasgd", "rule, w, [done])", "rule, w, [done._replace(origin=w)])"),
        ["DC-ASGD with the exact Hessian"],
    ),
    "K-sync takes any gradient, however old": (
        in_strategy("ksync", "done.read == w.version", "True"),
        ["K-sync, K=4, rest ignored, exponential, P=8: greatest"],
    ),
    "the pushers of K-async do not wait": (
        in_strategy("kasync", 'cfg.count == "gradients" or not (dones or cluster.in_flight)', "True"),
        ["K-async, exponential, P=8, K=4: mean"],
    ),
    "EASGD's workers are drawn to the centre after it has moved": (
        in_strategy("easgd", "cfg.task(h), before(w))", "cfg.task(h), w)"),
        ["EASGD at a barrier, P=4"],
    ),
    "so is the one that comes by itself": (
        in_strategy("easgd", 'return w.in_slot("before")', "return w"),
        ["EASGD, a worker and the centre, lr * curvature 0.5"],
    ),
    "DiLoCo's outer momentum does not wait for its option": (
        in_strategy("diloco", "Momentum(cfg.outer_momentum, nesterov=True)", "Momentum(0.9, nesterov=True)"),
        ["DiLoCo, outer lr 1, outer momentum 0"],
    ),
    "a worker of ASGD goes on with the weights before its own gradient: one update more of delay": (
        in_strategy(
            "asgd",
            "w = cluster.combine(rule, w, [done])\n            start_idle(cluster, gradient, w)",
            "start_idle(cluster, gradient, w)\n            w = cluster.combine(rule, w, [done])",
        ),
        ["ASGD, constant times, P=4 (delay 3): largest stable step"],
    ),
    "an expert's load is compared with the mean of the others: a slope E/(E - 1) times as large": (
        in_source(mixture, "(share - 1 / count)", "(share - (1 - share) / (count - 1))"),
        ["shares of the load of drawn tokens: slope by the bias"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_turns_the_gate_red(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row named fails: by its verdict, or because the run cannot even end."""
    plant, caught_by = MISTAKES[mistake]
    chosen = [next(row for row in rows() if what in row.what) for what in caught_by]
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
    with pytest.raises(Broken, match="makes 17 mini-batches, needed 51"):
        spends_the_budget(Subject("asgd"))


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
