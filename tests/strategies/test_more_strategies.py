"""Laws of the strategies that wait for some, discard or correct stale gradients, or adapt as they go."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.config import AsynchronousConfig
from dsgd.core.protocol import Done
from dsgd.core.rules import Arrived, ByStaleness, DelayedNesterov, Descend, Momentum, chain
from dsgd.core.tasks import LocalAdamW, Task, gradient
from dsgd.core.time_laws import parse_law
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Vector, Weights, mean
from dsgd.data import make_workload
from dsgd.engines.sim.sim import SimCluster
from dsgd.running.quick_run import QuickRun, assert_close, config, run, same_bytes
from dsgd.strategies.train_dssp import extra_steps

EXPONENTIAL: dict[str, Any] = {"workload": "none", "num_workers": 8, "compute_time": "exponential:1"}

laws = st.sampled_from(["exponential:1", "pareto:1.2,1", "uniform:0,1", "constant:1"])
rests = st.sampled_from(["cancel", "ignore"])
slowdowns = st.sampled_from(["", "0=10"])


def wasted(outcome: QuickRun) -> tuple[int, int]:
    """Return the run's mini-batches that were ignored, and those that were cancelled."""
    counts = outcome.tally.summary(outcome.cluster)["wasted"]
    return counts["ignored"], counts["cancelled"]


# --- One worker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dssp", "kasync", "dcasgd", "ringmaster"])
def test_one_worker_has_nothing_stale_to_weigh(mode: str) -> None:
    """With P = 1 every gradient is fresh, so --staleness-lr changes nothing, bit for bit."""
    options: dict[str, Any] = {"num_workers": 1, "steps": 40, "momentum": 0.9}
    assert same_bytes(run(mode, **options, staleness_lr="inverse"), run(mode, **options))


# --- K-sync, Rennala ----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    num_workers=st.integers(1, 7),
    k=st.integers(1, 7),
    rest=rests,
    count=st.sampled_from(["workers", "gradients"]),
    seed=st.integers(0, 1000),
    law=laws,
    slow=slowdowns,
)
def test_k_sync_applies_k_fresh_gradients_and_counts_the_others(
    num_workers: int, k: int, rest: str, count: str, seed: int, law: str, slow: str
) -> None:
    """Whatever --rest and --count: K fresh gradients an update, and all others are counted as wasted."""
    k = min(k, num_workers)
    outcome = run(
        "ksync", k=k, rest=rest, count=count, num_workers=num_workers, steps=20, seed=seed, workload="none",
        compute_time=law, slowdown=slow,
    )  # fmt: skip
    n = len(outcome.updates)
    assert set(outcome.staleness) == {0}
    assert all(len(update.dones) == k for update in outcome.updates)
    if count == "workers":
        assert all(len({done.worker for done in update.dones}) == k for update in outcome.updates)
    late = [update.staleness(done) for update in outcome.updates for done in update.ignored]
    assert min(late, default=1) >= 1
    idle = k if count == "workers" else 1  # workers that wait when the K-th gradient comes
    if rest == "cancel":
        assert wasted(outcome) == (0, n * (num_workers - idle))
    else:
        assert wasted(outcome) == (len(late), 0)


def test_k_sync_ignores_what_comes_late() -> None:
    """With K = 3 of 4, a worker 2.25 times slower than the others delivers every 2.25 s, and is discarded."""
    options: dict[str, Any] = {
        "workload": "none",
        "num_workers": 4,
        "k": 3,
        "steps": 15,
        "slowdown": "0=2.25",
    }
    ignore, cancel = run("ksync", rest="ignore", **options), run("ksync", **options)
    assert len(ignore.updates) == len(cancel.updates) == 20
    assert wasted(ignore) == (int(20 / 2.25), 0)
    assert wasted(cancel) == (0, 20)
    assert cancel.cluster.cancelled == [20, 0, 0, 0]
    assert cancel.cluster.cancelled_s == [20, 0, 0, 0]


@settings(max_examples=30, deadline=None)
@given(
    num_workers=st.integers(1, 7),
    batches=st.integers(1, 12),
    seed=st.integers(0, 1000),
    law=laws,
    slow=slowdowns,
)
def test_rennala_never_applies_a_stale_gradient(
    num_workers: int, batches: int, seed: int, law: str, slow: str
) -> None:
    """However slow a worker is, S gradients at the current weights make an update, and others are ignored."""
    outcome = run(
        "rennala", batches=batches, num_workers=num_workers, steps=20, seed=seed, workload="none",
        compute_time=law, slowdown=slow,
    )  # fmt: skip
    assert set(outcome.staleness) == {0}
    assert all(len(update.dones) == batches for update in outcome.updates)
    late = [update.staleness(done) for update in outcome.updates for done in update.ignored]
    assert min(late, default=1) >= 1
    assert wasted(outcome) == (len(late), 0)


# --- K-async ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["exponential:1", "constant:1", "pareto:2,1"])
@pytest.mark.parametrize(
    ("mode", "options", "aged"),
    [
        ("asgd", {}, 7),
        *(("kasync", {"k": k}, 8 - k) for k in (1, 3, 4, 8)),
        *(("kasync", {"k": k, "count": "gradients"}, 7) for k in (1, 3, 4, 12)),
    ],
)
def test_staleness_is_that_of_the_others(mode: str, options: dict[str, Any], aged: int, law: str) -> None:
    """Each of n updates ages the tasks in flight by one: P - 1 in ASGD and K-batch-async, P - K in K-async.
    So the staleness of what was applied and the ages of what is in flight add up to n times that, exactly.
    """
    outcome = run(mode, **EXPONENTIAL | {"compute_time": law}, **options, steps=30 * options.get("k", 4))
    n, read = len(outcome.updates), dict.fromkeys(range(8), 0)
    waits = "count" not in options  # else all but the last have begun with the weights before
    for update in outcome.updates:
        read |= {done.worker: update.weights.version - (not waits) for done in update.dones}
        read[update.dones[-1].worker] = update.weights.version
    assert sum(outcome.staleness) + sum(n - version for version in read.values()) == n * aged


# --- DSSP ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    num_workers=st.integers(1, 7),
    low=st.integers(0, 5),
    more=st.integers(0, 6),
    seed=st.integers(0, 1000),
    law=laws,
    slow=slowdowns,
)
def test_dssp_keeps_between_its_two_bounds(
    num_workers: int, low: int, more: int, seed: int, law: str, slow: str
) -> None:
    """A worker at most slack_low ahead never waits, none starts more than slack_high ahead, so staleness
    stays within SSP's bound for slack_high.
    """
    high, clocks = low + more, [0] * num_workers

    def look(cluster: Any, update: Any) -> None:
        clocks[update.dones[0].worker] += 1
        for worker in range(num_workers):
            ahead = clocks[worker] - min(clocks)
            assert ahead <= high if worker in cluster.in_flight else low < ahead <= high + 1

    outcome = run(
        "dssp", look, slack_low=low, slack_high=high, num_workers=num_workers, steps=40, seed=seed,
        workload="none", compute_time=law, slowdown=slow,
    )  # fmt: skip
    assert outcome.tally.clock_gap_max <= high + 1
    assert max(outcome.staleness) <= (num_workers - 1) * (2 * high + 1)


def test_dssp_runs_on_to_meet_the_slowest() -> None:
    """Last seen at 5 s, with 1 s a step, the fastest meets the slowest's push expected at 8 s after 3 more
    steps. Without room for them it goes as near as it can; it waits at once if that is nearest.
    """
    assert extra_steps((4.0, 5.0), (0.0, 4.0), most=10) == 3
    assert extra_steps((4.0, 5.0), (0.0, 4.0), most=2) == 2
    assert extra_steps((4.0, 5.0), (1.0, 3.0), most=10) == 0


# --- DC-ASGD ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_dcasgd_with_the_exact_hessian_undoes_the_delay(
    momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a quadratic the correction is exact: six workers make the steps of one, up to rounding."""
    monkeypatch.setattr("dsgd.core.rules.hessian", lambda g: np.full_like(g, 0.5))
    options: dict[str, Any] = {
        "workload": "quadratic",
        "dim": 3,
        "curvatures": "0.5",
        "optima": "0.3",
        "compute_time": "exponential:1",
        "momentum": momentum,
        "lr": 0.2,
    }
    many = run("dcasgd", compensation=1.0, num_workers=6, steps=20, **options)
    plain = run("ssgd", num_workers=1, steps=120, **options)
    for a, b in zip(many.updates, plain.updates, strict=True):
        assert_close(a.weights.vector, b.weights.vector)
    late = run("asgd", num_workers=6, steps=20, **options)  # without the correction they do not
    assert abs(late.updates[9].weights.vector - plain.updates[9].weights.vector).max() > 0.01


@pytest.mark.parametrize("adaptive", [False, True])
def test_dcasgd_applies_the_corrected_gradient(adaptive: bool) -> None:
    """Every step is lr (g + lambda g g (w - w_read)), lambda divided by the root mean square if adaptive."""
    outcome = run(
        "dcasgd", num_workers=5, steps=20, compensation=2.0, adaptive=adaptive, lr=0.2,
        workload="quadratic", optima="0,.5,1,-1,3", dim=4, compute_time="exponential:1",
    )  # fmt: skip
    vectors = [make_workload(outcome.cfg).objective.initial_weights(0)]
    square = np.zeros(4)
    for update in outcome.updates:
        done, w = update.dones[0], vectors[-1]
        square = 0.95 * square + 0.05 * done.value**2
        scale = 2 / np.sqrt(square + 1e-7) if adaptive else 2
        g = done.value + scale * done.value**2 * (w - vectors[done.read])
        assert_close(update.weights.vector, w - 0.2 * g)
        vectors.append(update.weights.vector)


# --- AdaComm ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    first=st.integers(1, 20),
    interval_s=st.sampled_from([0.1, 3.0, 20.0, math.inf]),
    decay=st.floats(0.05, 0.95),
    lr=st.sampled_from([0.01, 0.3]),
    seed=st.integers(0, 1000),
)
def test_adacomm_never_averages_more_rarely(
    first: int, interval_s: float, decay: float, lr: float, seed: int
) -> None:
    """The number of local steps starts at tau_0, never rises and never falls below 1."""
    outcome = run(
        "adacomm", local_steps=first, interval_s=interval_s, decay=decay, lr=lr, seed=seed,
        num_workers=3, steps=60, workload="quadratic", grad_noise=1.0, compute_time="exponential:1",
    )  # fmt: skip
    local_steps = [update.dones[0].batches for update in outcome.updates]
    assert local_steps[0] == first
    assert all(a >= b >= 1 for a, b in pairwise(local_steps))
    assert sum(local_steps) == 60


def test_adacomm_follows_the_root_of_the_loss() -> None:
    """At each interval tau = ceil(sqrt(F/F_0) tau_0) if that is lower, and ceil(gamma tau) if not."""
    outcome = run(
        "adacomm", local_steps=40, interval_s=0.5, decay=0.9, lr=0.02, num_workers=4, steps=400,
        workload="quadratic", grad_noise=0.5, dim=8,
    )  # fmt: skip
    losses = [np.mean([done.loss for done in update.dones]) for update in outcome.updates]
    tau, rules = 40, set()
    for update, loss in zip(outcome.updates[:-1], losses, strict=False):
        assert update.dones[0].batches == tau
        by_loss = math.ceil(math.sqrt(loss / losses[0]) * 40)
        rules.add(by_loss < tau)
        tau = by_loss if by_loss < tau else math.ceil(0.9 * tau)
    assert rules == {True, False}


def test_adacomm_decays_once_an_interval_where_the_loss_does_not_fall() -> None:
    """Without any loss, the number of local steps halves when an interval has passed, and not before."""
    outcome = run("adacomm", local_steps=8, interval_s=20.0, num_workers=2, steps=60, workload="none")
    local_steps = [update.dones[0].batches for update in outcome.updates]
    assert local_steps == [8] * 3 + [4] * 5 + [2] * 8  # until 24 s, the end of a round, then 44 s


# --- Ringmaster ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    num_workers=st.integers(1, 8),
    bound=st.integers(1, 10),
    rest=rests,
    seed=st.integers(0, 1000),
    law=laws,
    slow=slowdowns,
)
def test_ringmaster_never_breaks_its_bound(
    num_workers: int, bound: int, rest: str, seed: int, law: str, slow: str
) -> None:
    """No staleness reaches R; what is ignored has reached it, and none is where it would be cancelled."""
    outcome = run(
        "ringmaster", delay_bound=float(bound), rest=rest, num_workers=num_workers, steps=30, seed=seed,
        workload="none", compute_time=law, slowdown=slow,
    )  # fmt: skip
    assert max(outcome.staleness) < bound
    late = [update.staleness(done) for update in outcome.updates for done in update.ignored]
    assert min(late, default=bound) >= bound
    ignored, cancelled = wasted(outcome)
    assert ignored == len(late)
    assert (ignored if rest == "cancel" else cancelled) == 0


@pytest.mark.parametrize("rest", ["cancel", "ignore"])
def test_ringmaster_that_bounds_nothing_wastes_nothing(rest: str) -> None:
    """Equal workers that take turns have staleness P - 1: R = P throws nothing away, R = P - 1 does, and what
    is used unless it is given suits any number of them.
    """
    options: dict[str, Any] = {"workload": "none", "num_workers": 6, "steps": 30, "rest": rest}
    assert wasted(run("ringmaster", delay_bound=6.0, **options)) == (0, 0)
    assert sum(wasted(run("ringmaster", delay_bound=5.0, **options))) > 0
    assert wasted(run("ringmaster", **(options | {"num_workers": 200, "steps": 3}))) == (0, 0)


# --- Staleness and the step size ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        ("none", {0: 1.0, 1: 1.0, 100: 1.0}),
        ("inverse", {0: 1.0, 1: 1.0, 2: 0.5, 4: 0.25, 100: 0.01}),
        ("threshold:0", {0: 1.0, 1: 1.0, 2: 0.5, 100: 0.01}),
        ("threshold:4", {0: 1.0, 1: 1.0, 4: 1.0, 5: 0.8, 8: 0.5, 100: 0.04}),
    ],
)
def test_staleness_lr_weighs_a_gradient(rule: str, weights: dict[int, float]) -> None:
    """A gradient of staleness t counts 1/max(1, t), or min(1, T/t) beyond a threshold T."""
    cfg = AsynchronousConfig(mode="asgd", engine="sim", staleness_lr=rule)
    found = {t: ByStaleness(cfg.full_weight_until).weight(t) for t in weights}
    assert found == pytest.approx(weights)


@pytest.mark.parametrize(
    ("mode", "options", "gradients"),
    [
        ("asgd", {}, 1),
        ("ssp", {"slack": 2.0}, 1),
        ("dssp", {}, 1),
        ("dcasgd", {"compensation": 0.0}, 1),
        ("ringmaster", {"delay_bound": 5.0}, 1),
        ("kasync", {"k": 3}, 3),
        ("kasync", {"k": 3, "count": "gradients"}, 3),
    ],
)
def test_each_gradient_moves_the_weights_as_it_should(
    mode: str, options: dict[str, Any], gradients: int
) -> None:
    """With --lr-scaling workers and inverse weights, K gradients move w by lr/P sum of g_i/max(1, tau_i)."""
    outcome = run(
        mode, **options, lr_scaling="workers", staleness_lr="inverse", lr=0.4, num_workers=6, steps=20,
        workload="quadratic", optima="0,1,2,3,4,5", dim=3, compute_time="exponential:1",
    )  # fmt: skip
    for before, update in pairwise(outcome.updates):
        assert len(update.dones) == gradients
        moved = mean(done.value / np.float32(max(1, update.staleness(done))) for done in update.dones)
        step = 0.4 * gradients / 6 * moved
        assert_close(update.weights.vector, before.weights.vector - step)


def next_of(cluster: SimCluster) -> Done:
    """Return the next finished task of a cluster whose members stay."""
    done = cluster.next_done()
    assert done
    return done


# --- Cancelling ---------------------------------------------------------------------------------------------


def test_a_cancelled_worker_is_idle_at_once_and_skips_its_mini_batch() -> None:
    """After `cancel` no result comes, the worker can be started, and its next task has the next step."""
    workload = make_workload(
        config("ssgd", num_workers=2, workload="quadratic", compute_time="exponential:1")
    )
    times = ComputeTimes(parse_law("exponential:1"), 0)
    cluster = SimCluster(workload, times)
    w = Weights(np.ones(1, np.float32))
    cluster.start(0, gradient, w)
    cluster.cancel(0)
    assert not cluster.in_flight
    assert cluster.cancelled == [1, 0]
    cluster.start(0, gradient, w)
    assert set(cluster.in_flight) == {0}
    done = next_of(cluster)
    assert (done.worker, done.step) == (0, 1)
    assert done.finished_s == times.seconds(0, 1)
    assert not cluster.in_flight
    with pytest.raises(AssertionError, match="nothing can finish"):
        cluster.next_done()


def test_a_cancelled_task_counts_the_seconds_it_ran() -> None:
    """`cancelled_s` is the time from a task's start to its cancelling."""
    workload = make_workload(config("ssgd", num_workers=2, workload="none"))
    cluster = SimCluster(workload, ComputeTimes(parse_law("constant:2"), 0, {1: 4.0}))
    w = Weights(np.zeros(0, np.float32))
    for worker in (0, 1):
        cluster.start(worker, gradient, w)
    assert next_of(cluster).finished_s == 2
    cluster.cancel(1)
    assert cluster.cancelled_s == [0, 2]
    cluster.start(1, gradient, w)
    done = next_of(cluster)
    assert (done.worker, done.step, done.started_s, done.finished_s) == (1, 1, 2, 10)


# --- EASGD --------------------------------------------------------------------------------------------------

EXCHANGES = pytest.mark.parametrize("exchange", ["sync", "async"])


@EXCHANGES
@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_easgd_follows_its_recursion(exchange: str, local_steps: int, momentum: float) -> None:
    """On a quadratic, workers and centre move as the paper's recursion says, a worker at a time or all."""
    lr, alpha, workers, curvature = 0.3, 0.2, 3, [1.0, 0.5, 2.0]
    ours = run(
        "easgd",
        num_workers=workers,
        steps=4 * local_steps,
        exchange=exchange,
        local_steps=local_steps,
        moving_rate=alpha,
        momentum=momentum,
        lr=lr,
        workload="quadratic",
        curvatures="1,0.5,2",
        optima="0,1,-1",
    )
    optima = [0.0, 1.0, -1.0]
    x, v, centre = [1.0] * workers, [0.0] * workers, 1.0  # weights start at 1

    def advance(i: int, pull: float) -> None:
        for h in range(local_steps):
            g = curvature[i] * (x[i] + momentum * v[i] - optima[i])
            v[i] = momentum * v[i] - lr * g
            x[i] += v[i] - (pull if h == 0 else 0.0)

    centres = []
    for i in range(workers):
        advance(i, 0.0)  # x_i and the centre are the same, and draw each other by nothing
    for _ in range(4):
        pulls = []
        for i in range(workers):
            pulls.append(alpha * (x[i] - centre))
            if exchange == "async":
                centre += pulls[i]
                centres.append(centre)
                advance(i, pulls[i])
        if exchange == "sync":
            centre += sum(pulls)
            centres.append(centre)
            for i in range(workers):
                advance(i, pulls[i])
    np.testing.assert_allclose([u.weights.vector[0] for u in ours.updates], centres, rtol=1e-5)


@EXCHANGES
def test_easgds_worker_that_the_centre_does_not_draw_is_plain_sgd(exchange: str) -> None:
    """With P = 1 and moving rate -> 0 the worker's own weights are those of SSGD, and the centre stays."""
    options: dict[str, Any] = {"num_workers": 1, "steps": 40}
    ours = run("easgd", exchange=exchange, moving_rate=1e-9, **options)
    assert_close(ours.dones[-1].value, run("ssgd", **options).w)
    assert_close(ours.w, make_workload(ours.cfg).objective.initial_weights(0))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_easgd_with_one_worker_is_the_same_with_and_without_a_barrier(momentum: float) -> None:
    """P = 1: synchronous EASGD is asynchronous EASGD, up to rounding."""
    options: dict[str, Any] = {"num_workers": 1, "steps": 30, "momentum": momentum, "lr": 0.05}
    a, b = (run("easgd", exchange=exchange, **options) for exchange in ("sync", "async"))
    for x, y in zip(a.updates, b.updates, strict=True):
        assert_close(x.weights.vector, y.weights.vector)


@EXCHANGES
def test_the_centre_of_easgd_slows_the_workers_by_its_mass(exchange: str) -> None:
    """The error falls by 1 - lr a P/(P + 1) a step: the centre has a worker's mass, but no gradient."""
    workers, steps, lr, curvature = 4, 4000, 0.1, 0.01
    ours = run(
        "easgd",
        num_workers=workers,
        steps=steps,
        exchange=exchange,
        local_steps=1,
        lr=lr,
        workload="quadratic",
        curvatures=str(curvature),
    )
    half = len(ours.updates) // 2
    fallen = math.log(ours.updates[half - 1].weights.vector[0] / ours.updates[-1].weights.vector[0])
    expected = steps / 2 * lr * curvature * workers / (workers + 1)
    assert fallen == pytest.approx(expected, rel=0.01)


# --- DiLoCo -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["sgd", "adamw"])
def test_diloco_with_one_worker_is_the_same_with_and_without_a_barrier(inner: str) -> None:
    """P = 1: delayed Nesterov is Nesterov, up to rounding."""
    options: dict[str, Any] = {"num_workers": 1, "steps": 30, "local_steps": 4, "inner": inner, "lr": 0.01}
    a, b = (run("diloco", exchange=exchange, **options) for exchange in ("sync", "async"))
    for x, y in zip(a.updates, b.updates, strict=True):
        assert_close(x.weights.vector, y.weights.vector)


def _torch_trajectory(optimizer: Any, steps: int, **options: Any) -> np.ndarray:
    """Return the weights after `steps` mini-batches of the only shard under one of torch's optimizers."""
    import torch

    workload = make_workload(config("ssgd", num_workers=1, **options))
    shard = workload.shards[0].on_device(workload.shards, "cpu")[0]
    w = torch.nn.Parameter(torch.from_numpy(workload.objective.initial_weights(0)))
    optimizer = optimizer([w])
    for step in range(steps):
        w.grad = workload.objective.loss_and_gradient(w.data[None], [shard], [step])[1][0]
        optimizer.step()
    return w.detach().numpy()


@EXCHANGES
def test_the_inner_optimizers_moments_stay_with_the_worker(exchange: str) -> None:
    """One worker that only ever copies itself is torch's AdamW, or SGD with momentum, across all rounds."""
    import torch

    options: dict[str, Any] = {"num_workers": 1, "steps": 30, "local_steps": 7, "exchange": exchange}
    plain: dict[str, Any] = {"outer_lr": 1.0, "outer_momentum": 0.0}
    adamw = run("diloco", lr=0.01, **plain, **options)
    assert_close(adamw.w, _torch_trajectory(lambda w: torch.optim.AdamW(w, lr=0.01), 30))
    sgd = run("diloco", inner="sgd", momentum=0.9, lr=0.1, **plain, **options)
    assert_close(sgd.w, _torch_trajectory(lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9), 30))


def test_delayed_nesterov_is_nesterov_after_each_round() -> None:
    """After each N equal gradients, delayed Nesterov is where Nesterov is after one."""
    rng = np.random.default_rng(0)
    delayed = chain(DelayedNesterov(0.9, every=4), Descend(0.3))
    nesterov = chain(Momentum(0.9, nesterov=True), Descend(0.3))
    a = b = Weights(np.ones(3, np.float32))
    for _ in range(5):
        g = rng.standard_normal(3).astype(np.float32)
        b = nesterov.step(b, [Arrived(g, b)])
        for _ in range(4):
            a = delayed.step(a, [Arrived(g, a)])
        assert_close(a.vector, b.vector)


def test_a_cancelled_task_leaves_the_workers_state_alone() -> None:
    """A task that was cancelled, even after it was computed, has not moved the moments its worker keeps."""
    cfg = config("diloco", num_workers=2)
    workload, task = make_workload(cfg), LocalAdamW(batches=3, lr=0.01)
    w = Weights(workload.objective.initial_weights(0))

    def first_value(cancelled: Task, other: Task) -> Vector:
        cluster = SimCluster(workload, ComputeTimes(parse_law("constant:1"), 0, {0: 9.0}))
        for _ in range(3 // cancelled.batches):
            cluster.start(0, cancelled, w)
            cluster.start(1, other, w)
            assert next_of(cluster).worker == 1  # all that is in flight is computed at once
            cluster.cancel(0)
        cluster.start(0, task, w)
        return next_of(cluster).value

    np.testing.assert_array_equal(first_value(task, task), first_value(gradient, gradient))
