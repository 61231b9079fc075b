"""The laws of all strategies that are seen in runs: what is spent, who takes part, what the weights are."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.conformance import differences
from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.data import make_workload
from dsgd.running.predict.predictions import predict
from dsgd.running.quick_run import Workers, run
from dsgd.strategies.conformance import Limit, Options

# Convex, noisy and spread over workers that differ in speed: every mode has something to get wrong.
CONVEX: Options = {
    "workload": "digits",
    "hidden": "none",
    "num_workers": 4,
    "compute_time": "exponential:1",
    "slowdown": "0=3",
    "momentum": 0.0,
    "lr": 0.05,
}
# From one worker to many, from no time at all to a tail without a mean, with and without a network.
SCENARIOS: tuple[Options, ...] = (
    {"num_workers": 1, "steps": 1, "compute_time": "none"},
    {"num_workers": 1, "steps": 7, "compute_time": "exponential:1", "latency_s": 0.5},
    {"num_workers": 2, "steps": 5, "compute_time": "constant:0", "server_time": "constant:.3"},
    {"num_workers": 3, "steps": 25, "compute_time": "constant:2", "slowdown": "1=5"},
    {"num_workers": 5, "steps": 11, "compute_time": "markov:1,9,.2,.2", "latency_s": 0.5},
    {"num_workers": 9, "steps": 3, "compute_time": "pareto:1.1,1", "server_time": "constant:.3"},
    {"num_workers": 8, "steps": 20, "compute_time": "exponential:1", "slowdown": "0=10"},
)


def spends_the_budget(subject: Subject) -> None:
    """A run applies exactly num_workers x steps mini-batches; with exact_budget=False in LAWS, less than
    one update more.

    Where an update takes what is left of the budget (`cluster.given` and `next_round` help), nothing has to
    be declared; where each one takes a fixed number of results, say exact_budget=False.
    """
    options: Options = {"num_workers": 3, "steps": 17, "workload": "none", "compute_time": "exponential:1"}
    outcome, budget = subject.run(**options), 3 * 17
    last, spent = outcome.updates[-1], outcome.tally.gradients
    most = budget if subject.laws.exact_budget else budget + sum(done.batches for done in last.dones) - 1
    if not budget <= spent <= most:
        raise Broken(f"{differences.named(last)} makes {spent} mini-batches, needed {budget}", options)


def versions_count_updates(subject: Subject) -> None:
    """The k-th update yields version k, and no task reads a version that is not yet made.

    `cluster.combine` and `Weights.replaced` make the next version; yield an Update for each of them.
    """
    options: Options = {"num_workers": 4, "steps": 30, "compute_time": "exponential:1"}
    for k, update in enumerate(subject.run(**options).updates, start=1):
        if update.weights.version != k:
            raise Broken(f"update {k} has version {update.weights.version}, needed {k}", options)
        for done in update.dones:
            if update.staleness(done) < 0:
                seen = f"worker {done.worker}'s result read version {done.read}"
                raise Broken(f"{differences.named(update)}: {seen}, needed {k - 1} or earlier", options)


def every_worker_takes_part(subject: Subject) -> None:
    """Every worker takes part; its tasks follow each other, and only cancelled ones leave gaps.

    Start each idle worker again; `start_idle`, `start_all` and `run_all` do.
    """
    options: Options = {"num_workers": 5, "steps": 24, "workload": "none", "compute_time": "exponential:1"}
    outcome = subject.run(**options)
    for worker in range(5):
        tasks = sorted((d for d in outcome.finished if d.worker == worker), key=lambda done: done.step)
        if not tasks:
            raise Broken(f"worker {worker} took no part", options)
        gaps = tasks[0].step
        for a, b in pairwise(tasks):
            if a is b or b.step < a.step + a.batches or a.finished_s > b.started_s:
                seen = f"worker {worker}'s mini-batch {b.step} is in two results"
                raise Broken(f"{seen}, or they overlap in time", options)
            gaps += b.step - a.step - a.batches
        if gaps > outcome.cluster.cancelled[worker]:
            cancelled = f"{outcome.cluster.cancelled[worker]} were cancelled"
            raise Broken(f"{gaps} mini-batches of worker {worker} are missing, and {cancelled}", options)


def each_task_is_in_one_update(subject: Subject) -> None:
    """Every finished task is in exactly one update, applied or discarded.

    Update(w, dones) has those that made the version; those that were taken and not used go into `ignored`.
    """
    options: Options = {"num_workers": 4, "steps": 24, "workload": "none", "compute_time": "exponential:1"}
    outcome = subject.run(**options)
    seen: dict[tuple[int, int], int] = {}
    for update in outcome.updates:
        for done in (*update.dones, *update.ignored):
            key = (done.worker, done.step)
            if before := seen.setdefault(key, update.weights.version) - update.weights.version:
                first = update.weights.version + before
                task = f"worker {done.worker}'s mini-batch {done.step}"
                raise Broken(f"{differences.named(update)}: {task} was in update {first} already", options)
    finished = sum(outcome.cluster.clocks[worker] for worker in outcome.cluster.workers)
    used = sum(done.batches for done in outcome.finished)
    if used != finished:
        raise Broken(f"{finished} mini-batches were finished, {used} are in updates", options)


def the_same_seed_gives_the_same_run(subject: Subject) -> None:
    """The same seed gives the same run, bit for bit; another seed gives another.

    Keep nothing outside `train`, and do not depend on the order of a set.
    """
    options: Options = {"num_workers": 7, "steps": 20, "compute_time": "lognormal:1,.5"}
    first = subject.run(**options)
    if found := differences.of_runs(subject.run(**options).updates, first.updates):
        raise Broken(f"repeated: {found}", options)
    if not differences.of_runs(subject.run(**options, seed=1).updates, first.updates):
        raise Broken("--seed 1 makes the run of --seed 0", options)


def one_worker_is_plain_sgd(subject: Subject, options: Options) -> None:
    """With P = 1 it is plain SGD, up to rounding, with the options that `plain_sgd` in LAWS gives.

    If it never is, because a step is not the gradient's (like a sign), say plain_sgd=None.
    """
    import torch

    options = {"num_workers": 1, "steps": 40, "momentum": 0.9} | dict(options)
    ours = subject.run(**options)
    workload = make_workload(ours.cfg)
    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = workload.objective.initial_weights(0)
    v, needed = np.zeros_like(w), dict[int, Any]()  # by mini-batches
    for step in range(40):
        _, g = workload.objective.loss_and_gradient(torch.from_numpy(w[None]), [shard], [step])
        v = np.float32(ours.cfg.momentum) * v + g[0].numpy()
        w = needed[step + 1] = w - np.float32(ours.cfg.lr) * v
    spent = 0
    for update in ours.updates:  # each may be of several local steps
        spent += sum(done.batches for done in update.dones)
        if spent not in needed:
            raise Broken(
                f"{differences.named(update)} makes {spent} mini-batches, needed 40 at most", options
            )
        if found := differences.of_vectors([update], [needed[spent]], exactly=False):
            raise Broken(found, options)


def reaches_the_loss_of_plain_sgd(subject: Subject, options: Options) -> None:
    """With as many samples it ends within a tenth of plain SGD's loss on a convex problem, or below it, with
    the options that `convex` in LAWS gives.

    Steps of another size need another lr: say convex={"lr": ...}. If it does not converge there, say
    convex=None.
    """
    plain = run("ssgd", **{**CONVEX, "num_workers": 1, "slowdown": "", "steps": 600})
    options = {**CONVEX, "steps": 600, **options}
    ours = subject.run(**options).eval_loss
    if not ours < plain.eval_loss * 1.1:
        raise Broken(f"the loss ends at {ours:.4g}, needed {plain.eval_loss * 1.1:.4g} or less", options)


def does_not_depend_on_who_is_faster(subject: Subject, options: Options) -> None:
    """The weights do not depend on which worker is faster, with the options that `deterministic` in LAWS
    gives.

    Combine results in worker order (`run_all`, `in_worker_order`); if the order in which they come matters,
    say deterministic=None.
    """
    options = {"num_workers": 4, "steps": 20, **options}
    steady = subject.run(**options, compute_time="constant:1")
    for slower in ({"slowdown": "0=3"}, {"compute_time": "pareto:1.5,1", "slowdown": "2=2"}):
        other = {**options, "compute_time": "exponential:1", **slower}
        needed = [update.weights.vector for update in steady.updates]
        if found := differences.of_vectors(subject.run(**other).updates, needed, exactly=True):
            raise Broken(f"{found} where all are equally fast", other)


def is_another(subject: Subject, limit: Limit) -> None:
    """In each of the `limits` in LAWS it makes the weights of another strategy, from tasks that end at the
    same times.

    exactly=False in a Limit allows rounding; a case that is not a limit is taken out.
    """
    common: Options = {
        "num_workers": 5,
        "steps": 40,
        "compute_time": "exponential:1",
        "slowdown": "0=3",
        "momentum": 0.9,
        "lr": 0.02,
    }
    other = subject if limit.mode == subject.mode else Subject(limit.mode)
    options = {**common, **limit.options}
    a, b = subject.run(**options), other.run(**{**common, **limit.others})
    needed = [update.weights.vector for update in b.updates]
    if found := differences.of_vectors(a.updates, needed, exactly=limit.exactly):
        raise Broken(found, options)
    for x, y in zip(*(sorted(d.finished_s for d in outcome.dones) for outcome in (a, b)), strict=True):
        if x != y:
            raise Broken(f"a task ends at {x:.6g} s, needed {y:.6g} s", options)


def what_theory_bounds_is_never_passed(subject: Subject) -> None:
    """In every scenario its `theory` gives numbers, or nothing, and no run passes its bounds.

    A closed form raises ValueError where it does not apply; `timed(cfg)` and `equal_workers(cfg)` do.
    """
    for law in ("none", "constant:1", "exponential:1", "pareto:1.5,1"):
        for network in ({}, {"latency_s": 0.5}, {"server_time": "exponential:.1"}):
            for slowdown in ("", "0=4"):
                options: Options = {"num_workers": 3, "steps": 20, "workload": "none"}
                options = {**options, "compute_time": law, "slowdown": slowdown, **network}
                outcome = subject.run(**options)
                with subject.may_break(options):
                    predicted = predict(outcome.cfg)
                seen = {
                    "staleness_max": max(outcome.staleness),
                    "clock_gap_max": outcome.tally.clock_gap_max,
                }
                for name, value in predicted.items():
                    if not math.isfinite(value):
                        raise Broken(f"theory says that {name} is {value}", options)
                    if seen.get(name, -math.inf) > value:
                        raise Broken(f"{name} is {seen[name]}, and theory says {value:g}", options)


def no_scenario_breaks_it(subject: Subject) -> None:
    """Whatever the scenario, a run ends, time never runs backwards, and a task takes the time it computes.

    The defaults of its options must suit any number of workers from 1 on; every task that is started must be
    waited for or cancelled.
    """
    for scenario in SCENARIOS:
        holds_in(subject, {"workload": "none", **scenario})


def holds_in(subject: Subject, options: Options) -> None:
    """Hold it to `no_scenario_breaks_it` in one scenario."""
    outcome = subject.run(**options)
    before_s = 0.0
    for update in outcome.updates:
        if update.finished_s < before_s:
            seen = f"ends at {update.finished_s:.6g} s, the update before at {before_s:.6g} s"
            raise Broken(f"{differences.named(update)} {seen}", options)
        before_s = update.finished_s
        for done in update.dones:
            took_s = done.finished_s - done.started_s
            if done.started_s < 0 or took_s < 0 or done.compute_s > took_s + 1e-9 * (1 + done.finished_s):
                seen = f"{took_s:.6g} s from {done.started_s:.6g} s, and computed for {done.compute_s:.6g} s"
                raise Broken(f"{differences.named(update)}: worker {done.worker} took {seen}", options)


ON_REAL_WORKERS: Options = {
    "engine": "ray",
    "device": "cpu",
    "num_workers": 2,
    "steps": 10,
    "workload": "quadratic",
    "grad_noise": 0.5,
}


def runs_on_real_workers(subject: Subject, workers: Workers | None = None) -> None:
    """On Ray it spends the same budget, with the simulator's weights where it claims to be `deterministic`.

    Ray's workers do not have the file: a task is a frozen dataclass, and what it needs stands in its fields.
    """
    options = {**ON_REAL_WORKERS, **(subject.laws.deterministic or {})}
    real, sim = subject.run(workers, **options), subject.run(**{**options, "engine": "sim"})
    if subject.laws.deterministic is not None:
        needed = [update.weights.vector for update in sim.updates]
        if found := differences.of_vectors(real.updates, needed, exactly=True):
            raise Broken(f"{found} in the simulator", options)
