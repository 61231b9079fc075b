"""What a student's strategy must satisfy: the laws that a lab's file names.

Each function looks at all runs of the strategy and says whether the law holds, and what it saw. A law that
was not broken is open if one of the runs did not test it. They are the laws of
tests/strategies/test_conformance.py and of the strategy's own tests, with an answer that helps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dsgd.config import AsynchronousConfig, option_fields
from dsgd.core.protocol import Update
from dsgd.core.rules import ByStaleness
from dsgd.core.weights import Weights
from dsgd.running.quick_run import run
from dsgd.strategies import load
from dsgd.strategies.optimizers import server_rule
from dsgd.teach.labs.student_strategy import Attempt, Work
from dsgd.teach.labs.wording import Finding

_ROUNDING = 1e-6  # largest difference of two weights that only the order of float32 arithmetic makes
_NOT_NEEDED = ("eval", "exec", "open", "__import__", "globals", "locals", "vars", "getattr", "setattr")


def is_only_its_algorithm(work: Work, *, allowed: Sequence[str], forbidden: Sequence[str] = ()) -> Finding:
    """Check that it imports only `allowed` modules, and uses nothing private or `forbidden`, nor ways
    round that.
    """
    seen = set()
    for node in ast.walk(work.tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                for name in _imported(node):
                    seen.add(name)
                    if name not in allowed:
                        return Finding(
                            False, f"line {node.lineno} imports {name}; needed: only {', '.join(allowed)}"
                        )
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name) if name in forbidden:
                return Finding(False, f"line {node.lineno} uses {name}; needed: your own code for that")
            case ast.Name(id=name) if name in _NOT_NEEDED:
                return Finding(False, f"line {node.lineno} uses {name}; needed: nothing like it")
            case ast.Attribute(attr=name) if name.startswith("_") and name != "__post_init__":
                return Finding(
                    False, f"line {node.lineno} uses {name}, which is private; needed: nothing private"
                )
    return Finding(True, f"it imports {', '.join(sorted(seen))}")


def ends(work: Work) -> Finding:
    """Check that no run stops early."""
    for attempt in work.attempts:
        if attempt.broke_off:
            seen = f"the strategy broke off after update {len(attempt.updates)}: {attempt.broke_off}"
            return Finding(False, f"{seen} ({attempt})", run=attempt.number)
    seen = f"{len(work.attempts)} runs completed"
    return _kept(seen, ((attempt, len(attempt.updates)) for attempt in work.attempts))


def spends_the_budget(work: Work) -> Finding:
    """Check that each run applies num_workers x steps mini-batches."""
    for attempt in work.attempts:
        if attempt.gradients != attempt.cfg.budget:
            how = "broke off" if attempt.broke_off else "ended"
            seen = f"train {how} after {attempt.gradients} mini-batches"
            return _broken(attempt, seen, str(attempt.cfg.budget))
    return Finding(True, f"{work.attempts[0].cfg.budget} mini-batches in the first run, as needed")


def counts_each_task_once(work: Work) -> Finding:
    """Check that the updates have the tasks that came back, each once, in the order in which they came."""
    for attempt in work.attempts:
        applied = [done for update in attempt.updates for done in update.dones]
        for place, (one, came) in enumerate(zip(applied, attempt.taken, strict=False), start=1):
            if one is not came:
                seen = f"task {place} of the updates is mini-batch {one.step} of worker {one.worker}"
                needed = f"what came as number {place}, mini-batch {came.step} of worker {came.worker}"
                return _broken(attempt, seen, needed)
        if len(applied) != len(attempt.taken) and not attempt.broke_off:
            return _broken(
                attempt, f"{len(applied)} tasks are in updates", f"all {len(attempt.taken)} finished"
            )
    looked = ((attempt, len(attempt.updates)) for attempt in work.attempts)
    return _kept("each task that came back is in one update", looked)


def versions_count_updates(work: Work) -> Finding:
    """Check that the k-th update has version k."""
    for attempt in work.attempts:
        for k, update in enumerate(attempt.updates, start=1):
            if update.weights.version != k:
                return _broken(attempt, f"update {k} has version {update.weights.version}", str(k))
    looked = ((attempt, len(attempt.updates)) for attempt in work.attempts)
    return _kept(f"versions 1 to {len(work.attempts[0].updates)}", looked)


def everyone_takes_part(work: Work) -> Finding:
    """Check that mini-batches of each worker are applied."""
    looked = []
    for attempt in work.attempts:
        seen = {done.worker for update in attempt.updates for done in update.dones}
        missing = sorted(set(range(attempt.cfg.num_workers)) - seen)
        if missing and not attempt.broke_off:
            return _broken(attempt, f"no gradient of worker {missing[0]} was applied", "some of each worker")
        looked.append((attempt, not missing))
    return _kept("gradients of every worker", looked)


def nobody_starts_too_far_ahead(work: Work) -> Finding:
    """Check that no task starts on a worker that is more than the slack ahead of the slowest."""
    furthest = []
    for attempt in work.attempts:
        slack = attempt.options["slack"]
        for start in attempt.starts:
            if start.ahead > slack:
                seen = f"worker {start.worker} was started {start.ahead} ahead, after gradient {start.taken}"
                return _broken(attempt, seen, f"at most {slack:g} ahead")
        furthest.append(f"{max((start.ahead for start in attempt.starts), default=0)} of {slack:g}")
    return _kept(f"furthest starts: {', '.join(dict.fromkeys(furthest))} mini-batches ahead", _restarts(work))


def nobody_waits_in_vain(work: Work) -> Finding:
    """Check that every worker that may start has been started whenever an update is yielded."""
    waits = 0
    for attempt in work.attempts:
        slack = attempt.options["slack"]
        for k, idle in enumerate(attempt.idle, start=1):
            for worker, ahead in idle.items():
                if ahead <= slack:
                    seen = f"worker {worker} had no task at update {k}, though it was {ahead} ahead"
                    needed = f"to start it before the yield: {ahead} is not above {slack:g}"
                    return _broken(attempt, seen, needed)
            waits += len(idle)
    looked = ((attempt, len(attempt.idle)) for attempt in work.attempts)
    return _kept(f"a worker waited at an update {waits} times, each time as required", looked)


def reads_the_newest(work: Work) -> Finding:
    """Check that a task starts with the newest version, of which each finished task has made one."""
    for attempt in work.attempts:
        for start in attempt.starts:
            if start.read != start.taken:
                seen = f"worker {start.worker} was started with version {start.read}"
                return _broken(attempt, seen, f"version {start.taken}, for so many gradients had come")
    return _kept(f"{sum(len(attempt.starts) for attempt in work.attempts)} starts", _restarts(work))


def moves_by_its_share(work: Work) -> Finding:
    """Check that each gradient moves the weights by lr/P, in the runs without `staleness_lr`."""
    return _steps(work, weighed=False)


def leaves_out_the_own_update(work: Work) -> Finding:
    """Check that a stale gradient moves them by less, its own update not counted, in the runs with it."""
    return _steps(work, weighed=True)


def is_the_same_again(work: Work, *, run: int) -> Finding:
    """Check that the run of that number, from 1, gives the same weights when repeated, bit for bit."""
    first = work.attempts[run - 1]
    again = work.attempt(first.scenario, first.number)
    if not again.was_run:
        return _kept("", [(again, 0)])
    place = _differ([u.weights for u in first.updates], [u.weights for u in again.updates])
    if place is None:
        return _kept(f"{len(again.updates)} versions are the same", [(first, len(again.updates))])
    seen = f"on repetition the weights differ from update {place} on"
    return _broken(first, seen, "the same; what is kept outside train?")


def equals(work: Work, *, mode: str, slack: float | None = None) -> Finding:
    """Check that it makes the weights of a mode of this suite, bit for bit.

    slack: only the runs with this one are looked at.
    """
    looked = []
    for attempt in work.attempts:
        if slack is not None and attempt.options["slack"] != slack:
            continue
        ours, theirs = [u.weights for u in attempt.updates], _reference(attempt, mode)
        place = _differ(ours, theirs)
        if place is not None and place > min(len(ours), len(theirs)):
            if attempt.broke_off:  # the same as far as it went
                return _kept("", [(attempt, 0)])
            return _broken(attempt, f"{len(ours)} updates", str(len(theirs)))
        if place is not None:
            gap = float(np.abs(ours[place - 1].vector - theirs[place - 1].vector).max())
            needed = "0 (this is rounding: leave the arithmetic to SGD)" if gap < _ROUNDING else "0"
            return _broken(attempt, f"from update {place} on a weight is off by {gap:.2g}", needed)
        looked.append((attempt, len(theirs)))
    return _kept(f"{sum(number for _, number in looked)} versions are the same", looked)


def _kept(seen: str, looked: Iterable[tuple[Attempt, int]]) -> Finding:
    """Say that a law holds, or is open if a run did not test it.

    looked: the runs, and how many cases each had.
    """
    looked = list(looked)
    for attempt, number in looked:
        if not number:
            return Finding(None, f"not tested: the run stopped too early ({attempt})")
    return Finding(True, seen) if looked else Finding(None, "not tested: the lab has no run for this")


def _restarts(work: Work) -> list[tuple[Attempt, int]]:
    """Return how many tasks each run started after its first came back; before that all may start."""
    return [(attempt, sum(start.taken > 0 for start in attempt.starts)) for attempt in work.attempts]


def _broken(attempt: Attempt, seen: str, needed: str) -> Finding:
    return Finding(False, f"{seen}; needed: {needed} ({attempt})", run=attempt.number)


def _steps(work: Work, *, weighed: bool) -> Finding:
    """Compare the length of each step with what it has to be, in the runs with or without `staleness_lr`."""
    looked = []
    for attempt in work.attempts:
        cfg = attempt.cfg
        if not isinstance(cfg, AsynchronousConfig):
            return Finding(False, "Config is none of AsynchronousConfig; needed: to derive it from that")
        if (cfg.staleness_lr != "none") != weighed:
            continue
        rule, compared = server_rule(cfg, gradients=1), 0
        for before, update in _pairs(attempt):
            done = update.dones[0]
            staleness = before.version - done.read
            needed = rule.step(before, [done]).vector
            off = np.linalg.norm(update.weights.vector - needed)
            if off > 1e-3 * np.linalg.norm(needed - before.vector) + _ROUNDING:
                seen = (
                    f"update {update.weights.version}, of a gradient g with staleness {staleness}, moved the "
                    f"weights by {_step_size(before, update):.4g} g"
                )
                return _broken(attempt, seen, f"{_needed_step(cfg, staleness):.4g} g")
            compared += 1
        looked.append((attempt, compared))
    return _kept(f"{sum(number for _, number in looked)} steps of the right length", looked)


def _needed_step(cfg: AsynchronousConfig, staleness: int) -> float:
    """Return the step that a gradient of this staleness has to take."""
    weight = ByStaleness(cfg.full_weight_until).weight(staleness)
    return weight * (cfg.lr / cfg.num_workers if cfg.lr_scaling == "workers" else cfg.lr)


def _pairs(attempt: Attempt) -> Iterator[tuple[Weights, Update]]:
    """Yield the weights before each update of one gradient, and the update."""
    if not attempt.updates:
        return
    before = attempt.first
    for update in attempt.updates:
        if len(update.dones) == 1:
            yield before, update
        before = update.weights


def _step_size(before: Weights, update: Update) -> float:
    """Return the step down its gradient that an update took."""
    g = update.dones[0].value.astype(np.float64)
    moved = before.vector.astype(np.float64) - update.weights.vector
    return float(moved @ g / (g @ g))


def _reference(attempt: Attempt, mode: str) -> list[Weights]:
    """Return the weights that a mode of this suite makes with the same options."""
    known = option_fields(load(mode).Config)
    options = {option: value for option, value in attempt.options.items() if option in known}
    return [update.weights for update in run(mode, **options).updates]


def _differ(ours: Sequence[Weights], theirs: Sequence[Weights]) -> int | None:
    """Return the number of the first update whose weights differ, from 1; None if none does."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False), start=1):
        if a.vector.tobytes() != b.vector.tobytes():
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs)) + 1


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{'.' * node.level}{node.module or ''}"]
