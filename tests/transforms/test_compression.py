"""Compression at the exchange: laws of its memory, its bytes and its limits, on both engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from conftest import CommandLine
from test_ray_allreduce import Interrupt

from dsgd.conformance.restart import goes_on_from_any_update
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.protocol import Done
from dsgd.core.rules import Arrived, Descend, chain
from dsgd.core.tasks import Task
from dsgd.core.weights import Vector, Weights
from dsgd.data import make_workload
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import QuickRun, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import modes
from dsgd.theory.compressed_gradients import largest_stable_step_with_feedback, with_feedback
from dsgd.transforms.codecs import Sign, TopK, kept, parse_codec
from dsgd.transforms.compress_options import codec_or_dgc
from dsgd.transforms.compressed import Compressed, Compression, ErrorFeedback

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Objective
    from dsgd.core.shards import Shard

RESULTS = [mode for mode in modes() if mode != "easgd" and config(mode).traits.has_server]
WITH_BARRIER = ["adacomm", "diloco", "easgd", "localsgd", "ssgd"]
OF_WEIGHTS = ["adacomm", "diloco", "localsgd", "streaming"]
# On it, a few steps of size 1/2 or 1/4 are exact in float32: nothing is rounded.
DYADIC: dict[str, Any] = {
    "workload": "quadratic", "optima": "0,.5,-.25,1", "dim": 6, "lr": 0.25, "num_workers": 4, "steps": 4,
}  # fmt: skip
PLAIN_OUTER = {"inner": "sgd", "outer_lr": 0.5, "outer_momentum": 0.5}


def dyadic(mode: str, **options: Any) -> dict[str, Any]:
    """Return options with which a mode computes without rounding."""
    own: dict[str, dict[str, Any]] = {
        "diloco": {**PLAIN_OUTER, "local_steps": 2},
        "streaming": {**PLAIN_OUTER, "local_steps": 2},
        "localsgd": {"local_steps": 2},
        "easgd": {"moving_rate": 0.25},
    }
    return {**DYADIC, **own.get(mode, {}), **options}


# --- What is lost, and what is not --------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["topk:1", "randk:1", "randk:1,scaled"])
@pytest.mark.parametrize("mode", [mode for mode in RESULTS if mode not in OF_WEIGHTS])
def test_sending_all_numbers_is_sending_them_plainly(mode: str, text: str) -> None:
    """With k = D a mode of gradients has the weights that it has without compression, bit for bit."""
    options: dict[str, Any] = {"num_workers": 3, "steps": 8, "compute_time": "exponential:1"}
    assert same_bytes(run(mode, **options), run(mode, compress=text, **options))


@pytest.mark.parametrize("mode", OF_WEIGHTS)
def test_sending_all_that_moved_is_sending_the_weights(mode: str) -> None:
    """With k = D a mode of weights has those that it has without compression: bit for bit where differences
    are exact, else up to rounding.
    """
    plain, whole = run(mode, **dyadic(mode)), run(mode, compress="topk:1", **dyadic(mode))
    assert same_bytes(plain, whole)
    a, b = run(mode, steps=16), run(mode, steps=16, compress="topk:1")
    np.testing.assert_allclose(a.w, b.w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", WITH_BARRIER)
def test_sending_all_that_is_new_is_sending_the_weights(mode: str) -> None:
    """With k = D on the way down, every version that a worker reads is the server's."""
    assert same_bytes(run(mode, **dyadic(mode)), run(mode, compress_down="topk:1", **dyadic(mode)))


def gradients_of(done: Done) -> Vector:
    """Return the exact gradient of a task of DYADIC, whose curvatures are 1."""
    optimum = np.float32([0, 0.5, -0.25, 1][done.worker])
    return done.origin.vector - optimum


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ksync", "kasync"])
@pytest.mark.parametrize("text", ["topk:.3", "randk:.5"])
def test_error_feedback_loses_nothing(mode: str, text: str) -> None:
    """All that a worker has sent and its memory are together all that it has computed, bit for bit; tasks
    that were cancelled, whose results never came, are in neither.
    """
    own: dict[str, Any] = {"k": 2} if mode in ("ksync", "kasync") else {}
    options: dict[str, Any] = {**DYADIC, **own, "compute_time": "exponential:1", "lr": 0.5, "steps": 3}
    ran = run(mode, compress=text, **options)
    memories = ran.cluster.state().states
    assert mode != "ksync" or sum(ran.cluster.cancelled) > 0
    assert any(memory.any() for memory in memories.values())
    for worker in {done.worker for done in ran.finished}:
        own_dones = [done for done in ran.finished if done.worker == worker]
        sent = np.sum([done.value for done in own_dones], axis=0, dtype=np.float32)
        computed = np.sum([gradients_of(done) for done in own_dones], axis=0, dtype=np.float32)
        np.testing.assert_array_equal(sent + memories[worker][0], computed)


ROWS = """
import torch
from dsgd import Problem
def loss(module, ids, y):
    return (module(ids)[:, 0] - y).square().mean()
def make():
    ids = torch.arange(64) % 5
    return Problem(torch.nn.Embedding(10, 1), loss, (ids, ids.float()), (ids, ids.float()))
"""


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "localsgd"])
def test_rows_that_no_sample_uses_hardly_move(mode: str, tmp_path: Path) -> None:
    """By signs alone, without a memory, they once walked by half of a step each time."""
    (tmp_path / "rows.py").write_text(ROWS)
    options: dict[str, Any] = {"workload": str(tmp_path / "rows.py"), "batch_size": 8, "lr": 0.05}
    options |= {"steps": 400, "num_workers": 2, "error_feedback": "none"}
    walked = []
    for codec in ("sign", "sign:positive"):
        ran = run(mode, compress=codec, **options)
        first = make_workload(ran.cfg).objective.initial_weights(0)
        walked.append(float(np.abs(ran.w - first)[5:].max()))
    assert walked[0] < 0.1 * walked[1]


@dataclass(frozen=True)
class Bounded:
    """Numbers of a norm of at most 1, drawn anew for each mini-batch."""

    batches: ClassVar[int] = 1
    state_rows: ClassVar[int] = 0

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        g = np.stack([np.random.default_rng(step).standard_normal(w.shape[1]) for step in steps])
        g /= np.linalg.norm(g, axis=1, keepdims=True)
        return w.new_zeros(len(steps)), torch.from_numpy(g.astype(np.float32)), state


def alone(task: Task, how: Compression, steps: int, dim: int = 50) -> tuple[list[Vector], Vector]:
    """Compute a compressed task so often, alone; return what was sent and the memory at the end."""
    import torch

    cfg = config("ssgd", workload="quadratic", dim=dim, num_workers=1)
    workload, compressed = make_workload(cfg), Compressed(task=task, how=how, seed=0)
    shards = [*workload.shards[0].on_device(workload.shards, "cpu")]
    w, state, sent = torch.ones(1, dim), torch.zeros(1, compressed.state_rows, dim), []
    for step in range(steps):
        _, value, state = compressed(workload.objective, shards, [step], w, state)
        sent.append(value[0].numpy())
    return sent, state[0].numpy()


@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
def test_the_memory_stays_small(share: float) -> None:
    """||e||^2 <= 4 (1 - d)/d^2 G^2 with d = k/D and gradients of a norm of at most G: Karimireddy et al. 2019
    (arXiv 1901.09847), lemma 3.
    """
    delta, how = kept(share, 50) / 50, Compression.of(TopK(share))
    for steps in (1, 7, 60):
        _, memory = alone(Bounded(), how, steps)
        assert np.square(memory[0]).sum() <= 4 * (1 - delta) / delta**2


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
def test_feedback_is_stable_up_to_its_largest_step(share: float) -> None:
    """The matrix of random-k with error feedback has a spectral radius of 1 at 2 q/(2 - q), less below and
    more above; and top-k with feedback, which is late in the same way, converges below it.
    """
    limit = largest_stable_step_with_feedback(share)
    matrices = [with_feedback(factor * limit, share) for factor in (0.99, 1.0, 1.01)]
    below, at, above = (float(np.abs(np.linalg.eigvals(matrix)).max()) for matrix in matrices)
    assert at == pytest.approx(1)
    assert below < 1 < above
    options: dict[str, Any] = {"workload": "quadratic", "dim": 100, "num_workers": 1, "steps": 400}
    ran = run("ssgd", compress=f"topk:{share}", lr=0.8 * limit, **options)
    assert np.abs(ran.w).max() < 0.1


@dataclass(frozen=True)
class TwoSlopes:
    """A subgradient of |x + y|/2 + |x - y|: its sign is (1, -1) or (-1, 1) wherever x and y differ."""

    batches: ClassVar[int] = 1
    state_rows: ClassVar[int] = 0

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        along, across = (w[:, 0] + w[:, 1]).sign() / 2, (w[:, 0] - w[:, 1]).sign()
        g = w.new_zeros(w.shape)
        g[:, 0], g[:, 1] = along + across, along - across
        return w.new_zeros(len(steps)), g, state


def _followed(memory: str, steps: int = 400) -> Vector:
    """Return where scaled signs of TwoSlopes lead from (1, .5)."""
    import torch

    workload = make_workload(config("ssgd", workload="quadratic", dim=2, num_workers=1))
    task = Compressed(task=TwoSlopes(), how=Compression.of(Sign(), memory), seed=0)
    w, state = Weights(np.array([1.0, 0.5], np.float32)), torch.zeros(1, task.state_rows, 2)
    for step in range(steps):
        read = torch.from_numpy(w.vector.copy())[None]
        _, value, state = task(workload.objective, workload.shards, [step], read, state)
        w = chain(Descend(0.01)).step(w, [Arrived(value[0].numpy(), w)])
    return w.vector


def test_signs_alone_never_get_there_and_with_feedback_they_do() -> None:
    """Karimireddy et al. 2019, counterexample 2: signs leave x + y as it is, so the loss stays above
    |x + y|/2, and with error feedback they reach the minimum at (0, 0).
    """
    without, with_feedback = _followed("none"), _followed("ef")
    assert without.sum() == pytest.approx(1.5, abs=1e-4)
    assert np.abs(with_feedback).max() < 0.05


# --- EF21, deep gradient compression ------------------------------------------------------------------------


def test_ef21_that_sends_all_is_gradient_descent() -> None:
    """With k = D, EF21 is SSGD: bit for bit where differences are exact."""
    plain = run("ssgd", **DYADIC)
    assert same_bytes(plain, run("ssgd", compress="topk:1", error_feedback="ef21", **DYADIC))


def test_ef21_converges_linearly_where_optima_differ() -> None:
    """f(x_t) - f* <= (1 - lr mu)^t Psi_0, for the largest step size of Richtarik et al. 2021 (arXiv
    2106.05203), theorem 2, with top-k on quadratics; without memory top-k ends elsewhere.
    """
    curvatures, optima, dim, share, steps = "1,2,4", "1,-1,3", 10, 0.2, 400
    a, x = np.array([1.0, 2.0, 4.0]), np.array([1.0, -1.0, 3.0])
    best, mu, smooth = (a * x).sum() / a.sum(), a.mean(), math.sqrt((a**2).mean())
    theta = 1 - math.sqrt(1 - share)
    beta = (1 - share) / theta
    lr = float(min(1 / (mu + smooth * math.sqrt(2 * beta / theta)), theta / (2 * mu)))
    options: dict[str, Any] = {
        "workload": "quadratic", "curvatures": curvatures, "optima": optima, "dim": dim, "lr": lr,
        "num_workers": 3, "steps": steps, "compress": f"topk:{share}",
    }  # fmt: skip
    ran = run("ssgd", error_feedback="ef21", **options)
    gaps = [
        mu / 2 * np.square(update.weights.vector - best, dtype=np.float64).sum() for update in ran.updates
    ]
    # g_0 = 0 here: G_0 is the mean of the first gradients' squares.
    first = [np.square(a_i * (1 - x_i)) * dim for a_i, x_i in zip(a, x, strict=True)]
    psi = mu / 2 * dim * (1 - best) ** 2 + lr / theta * float(np.mean(first))
    for t, gap in enumerate(gaps, 1):
        assert gap <= (1 - lr * mu) ** t * psi + 1e-9
    assert gaps[-1] < 1e-5 * psi
    forgetful = run("ssgd", error_feedback="none", **options)
    assert mu / 2 * np.square(forgetful.w - best).sum() > 100 * gaps[-1]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_deep_compression_that_sends_all_is_sgd_with_momentum(momentum: float) -> None:
    """With share 1 and one worker it is SGD with momentum, bit for bit; with more, where sums are exact."""
    one: dict[str, Any] = {"num_workers": 1, "steps": 20}
    assert same_bytes(run("ssgd", momentum=momentum, **one), run("ssgd", compress=f"dgc:1,{momentum}", **one))
    if momentum <= 0.5:
        whole = run("ssgd", compress=f"dgc:1,{momentum}", **DYADIC)
        assert same_bytes(run("ssgd", momentum=momentum, **DYADIC), whole)


def test_what_was_sent_loses_its_momentum() -> None:
    """After a message, momentum and memory are 0 where it had something, and at least there only."""
    how = config("ssgd", compress="dgc:.2,.9").compression.of_results(1)
    assert how
    sent, memory = alone(Bounded(), how, 5)
    assert not memory[:, sent[-1] != 0].any()
    assert memory[:, sent[-1] == 0].all()


def test_a_long_gradient_is_clipped_before_the_momentum() -> None:
    """Of P workers each gradient is at most CLIP / sqrt(P) long."""
    how = config("ssgd", compress="dgc:1,0,0,.5").compression.of_results(4)
    assert how
    sent, _ = alone(Bounded(), how, 3)
    assert [float(np.linalg.norm(x)) for x in sent] == pytest.approx([0.25] * 3, rel=1e-4)


def test_the_warm_up_sends_a_quarter_then_a_sixteenth() -> None:
    """In each quarter of the warm-up four times fewer numbers are sent, down to the share."""
    ran = run("ssgd", compress="dgc:.002,.9,8", workload="quadratic", dim=1000, num_workers=2, steps=12)
    sizes = [TopK(0.25 ** min(1 + step // 2, 4)).num_bytes(1000) for step in range(8)]
    expected = sizes + [TopK(0.002).num_bytes(1000)] * 4
    assert [update.dones[0].bytes_to_server for update in ran.updates] == expected


# --- Weights on their way down ------------------------------------------------------------------------------


def test_workers_read_what_they_hold_and_it_comes_nearer() -> None:
    """What is read is h <- h + C(w - h), from h_0 = w_0, for all workers alike."""
    ran = run("ssgd", compress_down="topk:.1", num_workers=3, steps=12)
    codec = TopK(0.1)
    w = h = make_workload(ran.cfg).objective.initial_weights(0)
    for update in ran.updates:
        move, k = w - h, kept(codec.share, len(w))
        chosen = np.argsort(-np.abs(move), kind="stable")[:k]
        h = h.copy()
        h[chosen] += move[chosen]
        for done in update.dones:
            np.testing.assert_array_equal(done.origin.vector, h)
            assert done.read == update.weights.version - 1
        w = update.weights.vector


def test_what_was_not_sent_down_is_not_lost_where_weights_are_averaged() -> None:
    """LocalSGD with one local step is SSGD: it goes on from w, though its workers begin at h."""
    options: dict[str, Any] = {"num_workers": 3, "steps": 12, "compress_down": "topk:.1"}
    local, plain = run("localsgd", local_steps=1, momentum=0.0, **options), run("ssgd", **options)
    np.testing.assert_allclose(local.w, plain.w, rtol=0, atol=1e-6)


def test_bytes_down_are_the_closed_form() -> None:
    """First all weights, then num_bytes(D) a version; padding comes on top."""
    ran = run("ssgd", compress_down="int8", compress="sign", num_workers=3, steps=6, padding_mb=0.001)
    num_weights = len(ran.w)
    down, up = parse_codec("int8"), parse_codec("sign")
    assert down
    assert up
    for update in ran.updates:
        first = update.weights.version == 1
        assert {done.bytes_to_worker for done in update.dones} == {
            1000 + (4 * num_weights if first else down.num_bytes(num_weights))
        }
        assert {done.bytes_to_server for done in update.dones} == {1000 + up.num_bytes(num_weights)}
    ups, downs = 6 * 3 * up.num_bytes(num_weights), 3 * (4 * num_weights + 5 * down.num_bytes(num_weights))
    sent = ran.cluster.traffic.by_direction
    assert (sent["to_workers"], sent["to_server"]) == (downs + 18_000, ups + 18_000)


def test_a_worker_that_missed_versions_gets_all_of_them() -> None:
    """A member that joins gets all weights; one that was away gets what it missed, if that is less."""
    options: dict[str, Any] = {"num_workers": 3, "steps": 8, "faults": "leave:2@step=2; join:2@t=5.5"}
    ran = run("ssgd", compress_down="topk:.05", compute_time="constant:1", **options)
    one, whole = TopK(0.05).num_bytes(len(ran.w)), 4 * len(ran.w)
    away = [done for done in ran.dones if done.worker == 2]
    sizes = [done.bytes_to_worker for done in away]
    missed = [b.read - a.read for a, b in pairwise(away)]
    assert max(missed) > 1
    assert sizes == [whole, *(min(whole, one * count) for count in missed)]


# --- Both engines, faults, restarts, records ----------------------------------------------------------------

STATEFUL = [
    {"compress": "topk:.1"},
    {"compress": "sign", "error_feedback": "ef21"},
    {"compress": "powersgd:2", "compress_down": "topk:.1"},
    {"compress": "randk:.1"},
    {"compress": "dgc:.05,.9,12"},
]


def fitting(mode: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options as far as a mode has them; None if nothing is left."""
    chosen = dict(options)
    if mode not in RESULTS or (mode in OF_WEIGHTS and str(chosen.get("compress")).startswith("dgc")):
        chosen = {name: value for name, value in chosen.items() if name == "compress_down"}
    if mode not in WITH_BARRIER:
        chosen.pop("compress_down", None)
    return chosen or None


@pytest.mark.crossing
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param(mode, chosen, id=f"{mode} {' '.join(map(str, chosen.values()))}")
        for number, mode in enumerate(modes())
        for options in (STATEFUL[number % 5], STATEFUL[(number + 2) % 5])
        if (chosen := fitting(mode, options))
    ],
)
def test_a_compressed_run_goes_on_from_any_update(mode: str, options: dict[str, Any]) -> None:
    """From a checkpoint at any update, the memories of both ends included, it goes on bit for bit."""
    goes_on_from_any_update(Subject(mode), options, "network")


@pytest.mark.parametrize("options", STATEFUL, ids=str)
def test_a_lost_process_changes_nothing(options: dict[str, Any]) -> None:
    """A task that is repeated on another process has the same memory, so every version is the same."""
    network: dict[str, Any] = {
        "num_workers": 3,
        "steps": 10,
        "compute_time": "exponential:1",
        "latency_s": 0.1,
    }
    plain = run("ssgd", **network, **options)
    lost = run("ssgd", **network, **options, faults="kill:1@t=2; kill:0@update=4; pause:2=3@t=5", spares=1)
    assert sum(lost.cluster.restarts) == 2
    assert same_bytes(plain, lost)


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "diloco", "ksync"])
@pytest.mark.parametrize("options", STATEFUL[:3], ids=str)
def test_a_replay_is_the_run(mode: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A recorded run, computed again from its record, has the same weights, bytes and times."""
    cfg = config(
        mode,
        num_workers=3,
        steps=8,
        compute_time="exponential:1",
        out=str(tmp_path),
        **fitting(mode, options) or {},
    )
    ended = execute(cfg, [], record=RunRecord(cfg))
    assert ended.path
    again = compared(recorded_run(ended.path))
    assert (again.differs, again.same_weights) == (None, True)


@pytest.mark.parametrize("memory", ["ef", "ef21"])
def test_tasks_that_are_started_again_are_compressed_once(memory: str, tmp_path: Path) -> None:
    """Back at a checkpoint, tasks in flight are compressed, and their labels turned round, as they were."""
    cfg = config(
        "asgd",
        num_workers=3,
        steps=10,
        compute_time="exponential:1",
        compress="topk:.05",
        error_feedback=memory,
        faults="driver@t=4+2; lie:1=labelflip",
        checkpoint_every="1",
        out=str(tmp_path),
    )
    ended = execute(cfg, [], record=RunRecord(cfg))
    assert ended.path
    assert ended.stopped_by == "budget"
    run = recorded_run(ended.path)
    assert [fault.back_to for fault in run.faults if fault.kind == "driver"] > [0]
    again = compared(run)
    assert (again.differs, again.same_weights) == (None, True)


def exchanged(ran: QuickRun) -> tuple[int, int]:
    return sum(d.bytes_to_worker for d in ran.dones), sum(d.bytes_to_server for d in ran.dones)


@pytest.fixture
def real(ray_cluster: object) -> dict[str, Any]:
    """Return the options of short runs on Ray, in which nothing is rounded differently."""
    return {"workload": "quadratic", "optima": "0,.5", "dim": 40, "num_workers": 2, "steps": 5}


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.parametrize(("options", "padding_mb"), [(STATEFUL[1], 0.0), (STATEFUL[2], 0.1)], ids=str)
def test_both_engines_send_and_decode_alike(
    options: dict[str, Any], padding_mb: float, real: dict[str, Any]
) -> None:
    """On Ray, where only a codec's bytes travel, the weights and the bytes are the simulator's, bit for bit,
    whether messages are small or large.
    """
    both = [run("ssgd", engine=e, **real, **options, padding_mb=padding_mb) for e in ("ray", "sim")]
    assert same_bytes(*both)
    assert exchanged(both[0]) == exchanged(both[1])
    text = options["compress"]
    codec = parse_codec(text)
    assert codec
    assert exchanged(both[0])[1] == 10 * (codec.num_bytes(40) + int(padding_mb * 1_000_000))


@pytest.mark.thorough
@pytest.mark.ray
def test_a_killed_process_changes_nothing_on_ray(real: dict[str, Any]) -> None:
    """SIGKILL of a worker's process between two updates: its memory survives, and so do all bytes."""
    options: dict[str, Any] = {**real, "compress": "topk:.1", "local_steps": 1}
    killed = run("diloco", engine="ray", **options, faults="kill:1@update=2", on_loss="rehost")
    assert list(killed.cluster.restarts) == [0, 1]
    assert same_bytes(killed, run("diloco", engine="sim", **options))


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.parametrize(
    ("transport", "codec", "padding_mb", "hosts"), [("local", "topk:.1", 0.0, 2), ("ray", "int8", 0.1, 1)]
)
def test_weights_go_down_as_messages(
    transport: str,
    codec: str,
    padding_mb: float,
    hosts: int,
    real: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is handed to the workers' links is what is recorded, which is the formula: first all weights, then
    a message a version; all is the simulator's, bit for bit.
    """
    from dsgd.engines.ray.driver.news import Sent
    from dsgd.engines.ray.driver.sent_tasks import SentTasks
    from dsgd.engines.ray.transport.messages import SentVector

    sent_weights, sent = SentTasks._sent_weights, list[int]()

    def note(tasks: SentTasks, task: Sent) -> tuple[SentVector, int]:
        found = sent_weights(tasks, task)
        sent.append(len(found[0].small) or found[0].padded_bytes)
        return found

    monkeypatch.setattr(SentTasks, "_sent_weights", note)
    options = {**real, "compress_down": codec, "padding_mb": padding_mb, "momentum": 0.9}
    ran = run("ssgd", engine="ray", transport=transport, hosts=hosts, **options)
    simulated = run("ssgd", engine="sim", **options)
    assert same_bytes(ran, simulated)
    down, padding = parse_codec(codec), int(padding_mb * 1_000_000)
    assert down
    formula = 2 * (4 * 40 + 4 * down.num_bytes(40)) + 10 * padding
    assert (
        sum(sent) == sum(ran.cluster.traffic.to_worker) == sum(simulated.cluster.traffic.to_worker) == formula
    )


@pytest.mark.thorough
@pytest.mark.ray
def test_a_process_that_has_not_heard_gets_all_weights(real: dict[str, Any], tmp_path: Path) -> None:
    """SIGKILL of a process in its task: the one that repeats it is sent the whole vector, and messages from
    then on, as in the simulator; so is everybody after the driver was lost, and what was sent before that
    counts, though its record has no checkpoint. No version differs from the run without a fault.
    """
    options: dict[str, Any] = {**real, "steps": 8, "compress_down": "topk:.1", "compress": "sign"}
    one, whole, fault = TopK(0.1).num_bytes(40), 4 * 40, "kill:1@step=3"
    simulated = run("ssgd", engine="sim", **options, faults=fault)
    assert simulated.cluster.traffic.to_worker == [whole + 7 * one, 2 * whole + 7 * one]
    asked = {**options, "engine": "ray", "faults": fault, "out": str(tmp_path), "run_name": "a"}
    cfg = config("ssgd", **asked)
    assert execute(cfg, [Interrupt(at=6)], record=RunRecord(cfg)).cluster.traffic.to_worker == [
        whole + 5 * one,
        2 * whole + 5 * one,
    ]
    ended = execute(cfg, record=RunRecord(cfg, resume=True), resume="interrupted")
    assert ended.weights.vector.tobytes() == run("ssgd", engine="sim", **options).w.tobytes()
    assert ended.cluster.traffic.to_worker == [2 * whole + 6 * one, 3 * whole + 6 * one]


# --- Options ------------------------------------------------------------------------------------------------


def test_deep_compression_s_numbers() -> None:
    """SHARE, MOMENTUM, WARMUP and CLIP, of which all but the first may be left out."""
    assert codec_or_dgc("dgc:.01") == (0.01, 0.9, 0, math.inf)
    assert codec_or_dgc("dgc:.01,.5,20,1") == (0.01, 0.5, 20, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compress": "gzip"}, "--compress gzip: must be none, topk:SHARE"),
        ({"error_feedback": "ef"}, "--error-feedback ef: has no effect without --compress"),
        ({"compress": "qsgd:4", "error_feedback": "ef"}, "--error-feedback ef: needs a codec that"),
        (
            {"compress": "dgc:.1", "error_feedback": "ef"},
            "--error-feedback ef: --compress dgc:.1 has a memory",
        ),
        ({"compress": "dgc:.1", "momentum": 0.5}, "--momentum 0.5: --compress dgc:.1 has a momentum"),
        ({"compress": "dgc:.1", "optimizer": "adamw"}, "--compress dgc:.1: needs a mode whose workers send"),
        ({"mode": "localsgd", "compress": "dgc:.1"}, "--compress dgc:.1: needs a mode whose workers send"),
        ({"mode": "easgd", "compress": "sign"}, "--compress sign: the server of --mode easgd needs"),
        (
            {"mode": "asgd", "compress_down": "sign"},
            "--compress-down sign: needs a mode in which every update",
        ),
        (
            {"mode": "diloco", "exchange": "async", "compress_down": "sign"},
            "--compress-down sign: needs a mode",
        ),
        ({"mode": "rennala", "compress_down": "sign"}, "--compress-down sign: needs a mode"),
        ({"mode": "dpsgd", "compress_down": "sign"}, "--compress-down sign: needs a mode"),
        ({"mode": "dpsgd", "compress": "sign"}, "--compress sign: is for results on their way to a server"),
        ({"mode": "streaming", "compress_down": "sign"}, "--compress-down sign: has no effect with --mode"),
        ({"compress_down": "qsgd:4"}, "--compress-down qsgd:4: must bring workers closer"),
        ({"workload": "none", "compress": "sign"}, "--compress sign: has no effect with --workload none"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    """Each is refused in one line that names the option and the remedy."""
    with pytest.raises(ValueError, match=r"^--") as error:
        config(options.pop("mode", "ssgd"), **options)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_command_line_knows_it(cli: CommandLine) -> None:
    """The bytes of a record are those of the messages."""
    ran = cli("--mode ssgd --engine sim --num-workers 2 --steps 4 --compress sign --quiet")
    num_weights = len(np.load(ran.record / "weights.npy"))
    sent = ran.summary["bytes"]
    assert sent["to_server"] == 8 * Sign().num_bytes(num_weights)
    assert sent["to_workers"] == 8 * 4 * num_weights


def test_a_memory_of_zeros_is_where_a_worker_begins() -> None:
    """Of the first message, all that was not sent is remembered."""
    sent, memory = alone(Bounded(), Compression(codec=TopK(0.1), memory=ErrorFeedback()), 1)
    g = np.random.default_rng(0).standard_normal(50)
    np.testing.assert_array_equal(sent[0] + memory[0], (g / np.linalg.norm(g)).astype(np.float32))
