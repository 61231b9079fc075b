"""What a student's strategy must satisfy: the laws that a lab's file names.

Five are laws of all strategies (`main.py check`). The others look at the runs that the lab asks for;
they raise `Broken` with what they saw, and return how many cases they have looked at.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dsgd.config import AsynchronousConfig
from dsgd.conformance import differences, laws_of_runs
from dsgd.conformance.strategy_on_trial import Broken
from dsgd.core.option_rules import option_fields
from dsgd.core.protocol import Done, Update
from dsgd.core.rules import ByStaleness
from dsgd.core.weights import Weights
from dsgd.running.quick_run import QuickRun, run
from dsgd.strategies import load
from dsgd.strategies.optimizers import server_rule
from dsgd.teach.labs.student_strategy import Work

OF_ALL_STRATEGIES = (
    laws_of_runs.spends_the_budget,
    laws_of_runs.versions_count_updates,
    laws_of_runs.every_worker_takes_part,
    laws_of_runs.each_task_is_in_one_update,
    laws_of_runs.the_same_seed_gives_the_same_run,
)
_ROUNDING = 1e-6  # largest difference of two weights that only the order of float32 arithmetic makes
_NOT_NEEDED = ("eval", "exec", "open", "__import__", "globals", "locals", "vars", "getattr", "setattr")


def is_only_its_algorithm(work: Work, *, allowed: Sequence[str], forbidden: Sequence[str] = ()) -> int:
    """Check that it imports only `allowed` modules, and uses nothing private or `forbidden`, nor ways
    round that.
    """
    for node in ast.walk(ast.parse(work.subject.path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=aliases) if other := {alias.name for alias in aliases}.difference(allowed):
                raise Broken(f"line {node.lineno} imports {min(other)}; needed: only {', '.join(allowed)}")
            case ast.ImportFrom(module=name, level=level) if level or name not in allowed:
                module = f"{'.' * level}{name or ''}"
                raise Broken(f"line {node.lineno} imports {module}; needed: only {', '.join(allowed)}")
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name) if name in forbidden:
                raise Broken(f"line {node.lineno} uses {name}; needed: your own code for that")
            case ast.Name(id=name) if name in _NOT_NEEDED:
                raise Broken(f"line {node.lineno} uses {name}; needed: nothing like it")
            case ast.Attribute(attr=name) if name.startswith("_") and name != "__post_init__":
                raise Broken(f"line {node.lineno} uses {name}, which is private; needed: nothing private")
    return 1


def ends(work: Work) -> int:
    """Check that no run breaks off."""
    return len(work.runs)


def nobody_starts_too_far_ahead(work: Work) -> int:
    """Check that no task starts on a worker that is more than the slack ahead of the slowest."""
    looked = 0
    for options, found, _ in work.runs:
        for done, before in _started(found):
            ahead, slack = _ahead(found, before)[done.worker], options["slack"]
            if ahead > slack:
                seen = f"worker {done.worker} was started {ahead} ahead, after gradient {before}"
                raise Broken(f"{seen}; needed: at most {slack:g} ahead", options)
            looked += before > 0
    return looked


def nobody_waits_in_vain(work: Work) -> int:
    """Check that every worker that may start has been started whenever an update is yielded."""
    for options, found, idle_at in work.runs:
        for k, idle in enumerate(idle_at, start=1):
            for worker in idle:
                ahead, slack = _ahead(found, k)[worker], options["slack"]
                if ahead <= slack:
                    seen = f"worker {worker} had no task at update {k}, though it was {ahead} ahead"
                    needed = f"to start it before the yield: {ahead} is not above {slack:g}"
                    raise Broken(f"{seen}; needed: {needed}", options)
    return len(work.runs)


def reads_the_newest(work: Work) -> int:
    """Check that a task starts with the newest version, of which each finished task has made one."""
    looked = 0
    for options, found, _ in work.runs:
        for done, before in _started(found):
            if done.read != before:
                seen = f"worker {done.worker} was started with version {done.read}"
                raise Broken(f"{seen}; needed: version {before}, for so many gradients had come", options)
            looked += before > 0
    return looked


def moves_by_its_share(work: Work) -> int:
    """Check that each gradient moves the weights by lr/P, in the runs without `staleness_lr`."""
    return _steps(work, weighed=False)


def leaves_out_the_own_update(work: Work) -> int:
    """Check that a stale gradient moves them by less, its own update not counted, in the runs with it."""
    return _steps(work, weighed=True)


def equals(work: Work, *, mode: str, slack: float | None = None) -> int:
    """Check that it makes the weights of a mode of this suite, bit for bit.

    slack: only the runs with this one are looked at.
    """
    looked, known = 0, option_fields(load(mode).Config)
    for options, found, _ in work.runs:
        if slack is None or options["slack"] == slack:
            theirs = run(mode, **{o: value for o, value in options.items() if o in known}).updates
            looked += len(theirs)
            needed = [update.weights.vector for update in theirs]
            if seen := differences.of_vectors(found.updates, needed, exactly=True):
                close = not differences.of_vectors(found.updates, needed, exactly=False)
                hint = " (this is rounding: leave the arithmetic to SGD)" if close else ""
                raise Broken(f"{seen}{hint}", options)
    return looked


def _started(found: QuickRun) -> Iterator[tuple[Done, int]]:
    """Yield each finished task, and how many others had finished when it was started."""
    ends = [done.finished_s for done in found.dones]
    for done in found.dones:
        yield done, bisect_right(ends, done.started_s)


def _ahead(found: QuickRun, gradients: int) -> dict[int, int]:
    """Return by how many mini-batches each worker was ahead of the slowest after so many gradients."""
    clocks = dict.fromkeys(range(found.cfg.num_workers), 0)
    for done in found.dones[:gradients]:
        clocks[done.worker] += done.batches
    return {worker: clock - min(clocks.values()) for worker, clock in clocks.items()}


def _steps(work: Work, *, weighed: bool) -> int:
    """Compare the length of each step with what it has to be, in the runs with or without `staleness_lr`."""
    looked = 0
    for options, found, _ in work.runs:
        cfg = found.cfg
        if not isinstance(cfg, AsynchronousConfig):
            raise Broken("Config is none of AsynchronousConfig; needed: to derive it from that")
        if (cfg.staleness_lr != "none") != weighed:
            continue
        rule = server_rule(cfg, gradients=1)
        for before, update in ((a.weights, b) for a, b in pairwise(found.updates) if len(b.dones) == 1):
            done = update.dones[0]
            staleness = before.version - done.read
            needed = rule.step(before, [done]).vector
            off = np.linalg.norm(update.weights.vector - needed)
            if off > 1e-3 * np.linalg.norm(needed - before.vector) + _ROUNDING:
                seen = (
                    f"update {update.weights.version}, of a gradient g with staleness {staleness}, moved the "
                    f"weights by {_step_size(before, update):.4g} g"
                )
                raise Broken(f"{seen}; needed: {_needed_step(cfg, staleness):.4g} g", options)
            looked += 1
    return looked


def _needed_step(cfg: AsynchronousConfig, staleness: int) -> float:
    """Return the step that a gradient of this staleness has to take."""
    weight = ByStaleness(cfg.full_weight_until).weight(staleness)
    return weight * (cfg.lr / cfg.num_workers if cfg.lr_scaling == "workers" else cfg.lr)


def _step_size(before: Weights, update: Update) -> float:
    """Return the step down its gradient that an update took."""
    g = update.dones[0].value.astype(np.float64)
    moved = before.vector.astype(np.float64) - update.weights.vector
    return float(moved @ g / (g @ g))
