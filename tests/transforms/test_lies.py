"""Workers that lie: which results are lies, what they say, and what aggregators make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import CommandLine

from dsgd.conformance.restart import goes_on_from_any_update
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.protocol import ClusterError
from dsgd.core.rules import Arrived
from dsgd.core.tasks import LocalSGD, gradient
from dsgd.core.weights import Vector, Weights
from dsgd.data import make_workload
from dsgd.running.quick_run import QuickRun, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.scenario.attacks import Attack, alie_z
from dsgd.scenario.faults_text import parse_faults
from dsgd.theory.robustness import BOUNDS, kappa_mixed
from dsgd.transforms.filters import ZenoPlusPlus
from dsgd.transforms.mislabelled import LabelsFlipped, num_classes

VALUES = ("signflip", "gaussian*10", "alie", "ipm", "mimic")
"""Attacks that replace a result; labelflip replaces the data."""


def sent_instead(attack: str, own: Vector, honest: Vector, liars: int = 1) -> Vector:
    return Attack.parse(attack).lie(own, list(honest), liars, (0, 1, 2))


def test_what_liars_say() -> None:
    """Each attack is its formula, of the liar's own direction or of the honest ones."""
    rng = np.random.default_rng(0)
    own, honest = rng.standard_normal(50).astype(np.float32), rng.standard_normal((6, 50)).astype(np.float32)
    centre, deviation = honest.mean(0), honest.std(0)
    assert sent_instead("signflip", own, honest).tobytes() == (-own).tobytes()
    assert sent_instead("signflip*3", own, honest) == pytest.approx(-3 * own)
    assert sent_instead("ipm*.5", own, honest) == pytest.approx(-0.5 * centre, abs=1e-6)
    assert sent_instead("alie*1.5", own, honest) == pytest.approx(centre - 1.5 * deviation, abs=1e-6)
    assert sent_instead("alie", own, honest, 2) == pytest.approx(centre - alie_z(8, 2) * deviation, abs=1e-6)
    assert sent_instead("mimic", own, honest).tobytes() == honest[0].tobytes()
    assert sent_instead("labelflip", own, honest).tobytes() == own.tobytes()
    noise = sent_instead("gaussian*10", np.zeros(100_000, np.float32), honest)
    assert np.std(noise) == pytest.approx(10, rel=0.02)
    assert abs(np.mean(noise)) < 0.2


def test_a_little_is_what_a_majority_still_covers() -> None:
    """With z of `alie`, s honest workers are farther out than the liars: together they have a majority. Where
    the liars are the majority, they need nobody.
    """
    for n in range(3, 40):
        for f in range(1, n // 2 + 1):
            supporters = n // 2 + 1 - f
            assert supporters + f > n / 2
            share = (n - f - supporters) / (n - f)
            if share > 0.5:
                draws = np.random.default_rng(n).standard_normal(20_000)
                assert np.mean(draws < alie_z(n, f)) == pytest.approx(share, abs=0.015)
    assert alie_z(5, 4) > 3


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("lie:2,5=signflip", "lie:2,5=signflip@t=0"),
        ("lie:3=gaussian*10@update=50", "lie:3=gaussian*10@update=50"),
        ("lie:0=alie@step=4+20", "lie:0=alie@step=4+20"),
        ("lie:0=ipm*.5@t=2.5+1.5", "lie:0=ipm*0.5@t=2.5+1.5"),
        ("lie:1=labelflip", "lie:1=labelflip@t=0"),
    ],
)
def test_a_lie_is_written_as_it_is_read(text: str, read: str) -> None:
    """A lie without a trigger is from the start; its text gives the same lie again."""
    (fault,) = parse_faults(text)
    assert str(fault) == read
    assert parse_faults(read) == (fault,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"faults": "lie:1"}, "a lie is signflip, gaussian, alie, ipm, mimic, labelflip"),
        ({"faults": "lie:1=fib"}, "a lie is signflip"),
        ({"faults": "lie:1=mimic*2"}, "may have a size, as in ipm*0.5"),
        ({"faults": "lie:1=ipm*0"}, "the size of a lie must be a finite number above 0"),
        ({"faults": "lie:1=ipm@update=3+1.5"}, "a lie lasts for a number of what its trigger counts"),
        ({"faults": "lie:=ipm"}, "name the workers"),
        ({"faults": "lie:9=ipm"}, "workers are numbered 0 to 3"),
        ({"faults": "lie:1=ipm@update=999"}, "the run makes at most"),
        ({"faults": "kill:1"}, "is not a fault"),
        ({"faults": "lie:1=labelflip", "workload": "quadratic"}, "--workload quadratic has no labels"),
        ({"faults": "lie:1=ipm", "workload": "none"}, "--workload none has no results"),
        ({"faults": "lie:1=ipm", "mode": "dpsgd"}, "--mode dpsgd has no server to lie to"),
    ],
    ids=lambda value: str(value.get("faults")) if isinstance(value, dict) else "",
)
def test_lies_that_cannot_be_told_are_refused(options: dict[str, Any], words: str) -> None:
    """A mistake in a lie is one line, before the run."""
    with pytest.raises(ValueError, match=r"^--faults") as refused:
        config(**{"mode": "ssgd", "num_workers": 4, "steps": 9, **options})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


QUADRATIC: dict[str, Any] = {
    "workload": "quadratic", "dim": 3, "num_workers": 5, "optima": "-2,0,1,2,5", "steps": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("when", "lies_in"),
    [
        ("", range(1, 21)),
        ("@update=8", range(9, 21)),
        ("@update=8+4", range(9, 13)),
        ("@step=3+2", range(4, 6)),
        ("@t=6+3", range(6, 9)),
    ],
)
def test_a_lie_begins_and_ends_when_its_trigger_says(when: str, lies_in: range) -> None:
    """An update moves the weights by the mean of what was sent, lies in exactly the updates that are named;
    the run's one fault says in how many results.
    """
    ran = run("ssgd", faults=f"lie:1,3=signflip{when}", lr=0.1, **QUADRATIC)
    before = np.ones(3, np.float32)
    for version, update in enumerate(ran.updates, start=1):
        signs = np.array([-1 if d.worker in (1, 3) and version in lies_in else 1 for d in update.dones])
        sent = np.stack([done.value for done in update.dones]) * signs[:, None]
        assert update.weights.vector == pytest.approx(before - 0.1 * sent.mean(0), abs=1e-6)
        before = update.weights.vector
    ran.cluster.ended()
    (seen,) = ran.cluster.faults_seen
    assert (seen.kind, seen.workers, seen.asked) == ("lie", (1, 3), True)
    assert seen.text == f"signflip in {2 * len(lies_in)} results"
    assert (seen.recovered_s is None) == ("+" not in when)
    assert seen.update == lies_in[0] - 1


def test_one_liar_moves_the_mean_anywhere() -> None:
    """What one of five sends a million times larger takes the mean as far, and no median."""

    def distance(**options: Any) -> float:
        ran = run("ssgd", faults="lie:2=gaussian*1e6", lr=0.5, **QUADRATIC, **options)
        return float(np.abs(ran.updates[-1].weights.vector).max())

    assert distance() > 1e4
    for aggregate in ("median", "trimmed:1", "krum:1", "geometric", "clip:1"):
        assert distance(aggregate=aggregate) < 60


OPTIMA = [-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 4.0, 30.0, -30.0]


@pytest.mark.parametrize("mix", ["", "nnm:2+"])
@pytest.mark.parametrize("aggregate", ["median", "geometric", "trimmed:2", "krum:2"])
@pytest.mark.parametrize("attack", VALUES)
def test_where_workers_differ_the_error_is_kappa_zeta_squared(attack: str, aggregate: str, mix: str) -> None:
    """On quadratics of curvature 1 and optima x_i, gradient descent among f liars ends at most
    kappa zeta^2 from the honest workers' optimum, zeta^2 the mean of |x_i - x|^2 (Allouah et al. 2023,
    arXiv 2302.01772, with Definition 2: the aggregate is 0 where it ends).
    """
    n, f, dim = len(OPTIMA), 2, 2
    of_workers: dict[str, Any] = {"num_workers": n, "dim": dim, "optima": ",".join(map(str, OPTIMA))}
    with_lies: dict[str, Any] = {"faults": f"lie:7,8={attack}", "aggregate": mix + aggregate}
    ran = run("ssgd", workload="quadratic", steps=60, lr=0.3, **of_workers, **with_lies)
    honest = np.array(OPTIMA[: n - f])
    zeta2 = dim * float(honest.var())
    kappa = BOUNDS[aggregate.partition(":")[0]][1](n, f)
    kappa = kappa_mixed(kappa, n, f) if mix else kappa
    tail = [update.weights.vector.astype(np.float64) for update in ran.updates[-10:]]
    assert max(float(((w - honest.mean()) ** 2).sum()) for w in tail) <= kappa * zeta2


def test_local_weights_lie_about_how_they_have_moved() -> None:
    """Where workers send weights, a sign flip turns round what they have moved by, not the weights."""
    ran = run("localsgd", faults="lie:1=signflip", local_steps=4, lr=0.1, **QUADRATIC)
    before = np.ones(3, np.float32)
    for update in ran.updates:
        moves = [(-1 if d.worker == 1 else 1) * (d.value - before) for d in update.dones]
        assert update.weights.vector == pytest.approx(before + np.mean(moves, axis=0), abs=1e-5)
        before = update.weights.vector
    drift = [update.measured["drift"] for update in ran.updates]
    plain = [d.value for d in ran.updates[-1].dones]
    expected = np.mean([np.linalg.norm(value - np.mean(plain, axis=0)) for value in plain])
    assert drift[-1] == pytest.approx(expected, rel=1e-5)  # of what was computed, not of what was sent


@pytest.mark.parametrize("data", ["xor", "digits"])
def test_turned_labels_are_those_of_other_data(data: str) -> None:
    """A gradient on turned labels is, bit for bit, the gradient on data whose classes are C - 1 - y; only in
    the mini-batches that are named.
    """
    cfg = config("ssgd", workload=data, num_workers=2)
    workload = make_workload(cfg)
    classes = num_classes(workload.objective)
    assert classes == (2 if data == "xor" else 10)
    shards: list[Any] = list(workload.shards[0].on_device(workload.shards, "cpu"))
    turned: list[Any] = list(workload.shards[0].on_device(workload.shards, "cpu"))
    for shard in turned:
        shard.y = classes - 1 - shards[0].y
    w = torch.from_numpy(workload.objective.initial_weights(0)).repeat(2, 1)
    w += 0.1 * torch.randn(w.shape, generator=torch.Generator().manual_seed(0))
    state = w.new_zeros(2, 0, w.shape[1])
    for task in (gradient, LocalSGD(batches=3, lr=0.1)):
        lying = LabelsFlipped(task, classes)
        expected = task(workload.objective, turned, [4, 7], w, state)
        found = lying(workload.objective, shards, [4, 7], w, state)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    some = LabelsFlipped(gradient, classes, first=5, end=8)(workload.objective, shards, [4, 7], w, state)
    honest, lies = (gradient(workload.objective, of, [4, 7], w, state)[1] for of in (shards, turned))
    assert torch.equal(some[1][0], honest[0])
    assert torch.equal(some[1][1], lies[1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_modules_labels_are_turned_round_too(ranks: int) -> None:
    """A workload with classes can be lied about; its liar's gradients change, and nobody else's."""
    options: dict[str, Any] = {"workload": "digits_cnn", "num_workers": 2, "steps": 1, "batch_size": 8}
    options |= {"ranks_per_worker": ranks}
    honest, lying = run("ssgd", **options), run("ssgd", faults="lie:1=labelflip", **options)
    same = [
        a.value.tobytes() == b.value.tobytes()
        for a, b in zip(honest.updates[0].dones, lying.updates[0].dones, strict=True)
    ]
    assert same == [True, False]


LIES = "lie:1=signflip@update=2+6; lie:2=labelflip@step=3+5; lie:3=alie@t=4; lie:0=gaussian@update=9"


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("ssp", {"filter": "zeno:.1"}),
        ("ssgd", {"aggregate": "clip:1"}),
        ("localsgd", {"aggregate": "bucketing:2+median", "local_steps": 2}),
        ("kasync", {"k": 3, "aggregate": "geometric"}),
        ("asgd", {}),
        ("dcasgd", {"filter": "kardam:1", "adaptive": True}),
    ],
)
def test_a_run_with_liars_goes_on_from_any_update(mode: str, options: dict[str, Any]) -> None:
    """What lies and aggregators remember is in the weights and in the cluster: started again at any update,
    a run goes on bit for bit.
    """
    goes_on_from_any_update(Subject.of(mode), {"faults": LIES, **options}, "exponential")


@pytest.mark.parametrize("mode", ["ssgd", "kasync", "easgd"])
def test_a_record_with_liars_can_be_replayed(mode: str, cli: CommandLine) -> None:
    """A replay has the same lies and the same bytes; each lie is a line of faults.jsonl."""
    ran = cli(
        f"--engine sim --mode {mode} --num-workers 4 --steps 20 --compute-time exponential:1 --quiet "
        f"--aggregate median --trace-last 5 {'--local-steps 1' * (mode == 'easgd')}", "--faults", LIES
    )  # fmt: skip
    assert ran.code == 0, ran.err
    again = compared(recorded_run(ran.record))
    assert (again.differs, again.same_weights) == (None, True)
    seen = ran.lines("faults.jsonl")
    assert sorted(tuple(line["workers"]) for line in seen) == [(0,), (1,), (2,), (3,)]
    assert {line["kind"] for line in seen} == {"lie"}
    assert "lie" in (ran.record / "trace.json").read_text()


def test_a_run_with_liars_that_is_cut_off_goes_on(cli: CommandLine) -> None:
    """Killed by `driver` and gone on from a checkpoint, a run with liars ends with the bytes of one that was
    not, and its lies are those.
    """
    text = "--engine sim --mode ssgd --num-workers 4 --steps 20 --compute-time exponential:1 --quiet"
    plain = cli(text, "--faults", LIES)
    cut = cli(f"{text} --checkpoint-every 2", "--faults", f"{LIES}; driver@update=7+3")
    assert cut.code == plain.code == 0, cut.err
    assert cut.summary["weights_sha256"] == plain.summary["weights_sha256"]


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_lies_are_the_same_on_both_engines() -> None:
    """A synchronous run with every lie about results, and an aggregator, has the same bytes on Ray."""
    lies = "lie:0=signflip@update=3+4; lie:1=gaussian@step=2; lie:2=alie@update=5; lie:2=mimic; lie:3=ipm"

    def ran(engine: str, **more: Any) -> QuickRun:
        options = {**QUADRATIC, "steps": 12, "aggregate": "nnm:2+geometric", "faults": lies, **more}
        return run("ssgd", engine=engine, **options)

    real, simulated = ran("ray", hosts=1), ran("sim")  # one process carries all
    assert same_bytes(real, simulated)
    for one in (real, simulated):
        one.cluster.ended()
    texts = [[(f.workers, f.text, f.update) for f in one.cluster.faults_seen] for one in (real, simulated)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 5


FILTERED: dict[str, Any] = {**QUADRATIC, "grad_noise": 0.5, "steps": 60, "compute_time": "exponential:1"}


@pytest.mark.parametrize("mode", ["asgd", "ssp", "dcasgd", "ringmaster", "dssp"])
def test_a_filter_for_no_liars_lets_all_through(mode: str) -> None:
    """With F = 0 every gradient is among those that count: the bytes are those of a run without a filter."""
    assert same_bytes(run(mode, **FILTERED), run(mode, filter="kardam:0", **FILTERED))


def test_a_filter_keeps_a_liar_out() -> None:
    """Gradients that differ a thousand times as much as others are not applied; of those that are, no worker
    has two of three in a row. Honest workers lose some too, but reach their optimum.
    """
    options = {**FILTERED, "lr": 0.05, "optima": "1", "steps": 200}
    honest = {**options, "filter": "kardam:1"}
    lies = "lie:2=gaussian*1000@update=10"

    def distance(ran: QuickRun) -> float:
        return float(np.abs(ran.updates[-1].weights.vector - 1).max())

    assert distance(run("asgd", faults=lies, **options)) > 20
    ran = run("asgd", faults=lies, **honest)
    assert distance(ran) < 0.5
    before, applied = ran.updates[10].weights.vector, list[int]()
    for update in ran.updates[11:]:
        if update.weights.vector.tobytes() != before.tobytes():
            applied.append(update.dones[0].worker)
        before = update.weights.vector
    assert 2 not in applied
    assert all(len({*applied[i : i + 3]}) == 3 for i in range(len(applied) - 2))
    assert len(applied) > 300


def test_zeno_takes_what_leads_down() -> None:
    """A gradient counts, with the length of the trusted one, v, where its cosine with v is at least
    rho - epsilon/|v|^2; before there is a v, and if it is not finite, it does not.
    """
    rng, w = np.random.default_rng(0), Weights(np.zeros(4, np.float32))
    counted = 0
    for n in range(200):
        v, g = rng.standard_normal((2, 4)).astype(np.float32)
        zeno = ZenoPlusPlus(rho=(0.0, 0.3, 0.9)[n % 3], epsilon=(0.0, 0.5)[n % 2])
        slots: dict[str, Vector] = {}
        assert zeno.each(g, 1.0, w, Arrived(g, w, 1), slots)[1] == 0
        assert zeno.each(v, 0.5, w, Arrived(v, w, 0), slots) == (v, 0.5)
        found, scale = zeno.each(g, 0.5, w, Arrived(g, w, 1), slots)
        cosine = float(v @ g / np.linalg.norm(v) / np.linalg.norm(g))
        assert (scale == 0.5) == (cosine >= zeno.rho - zeno.epsilon / float(v @ v))
        assert found == pytest.approx(np.linalg.norm(v) / np.linalg.norm(g) * g if scale else 0 * g, rel=1e-5)
        counted += scale > 0
        for bad in (np.nan, np.inf):
            assert zeno.each(np.full(4, bad, np.float32), 1.0, w, Arrived(g, w, 1), slots)[1] == 0
    assert 20 < counted < 180


def test_zeno_withstands_a_majority_of_liars() -> None:
    """With three of five workers turning their gradients round, the server runs away, and with Zeno++ it
    reaches the optimum, taking every honest gradient and none of the lies; unless the trusted worker lies.
    """
    options = {**FILTERED, "grad_noise": 0.0, "lr": 0.05, "optima": "3", "steps": 100}
    lies: dict[str, Any] = {"faults": "lie:1,2,4=signflip*4"}

    def distance(**more: Any) -> float:
        return float(np.abs(run("asgd", **options, **more).updates[-1].weights.vector - 3).max())

    assert distance(**lies) > 100
    assert distance(faults="lie:0,1,2=signflip*4", filter="zeno:.1") > 100
    ran = run("asgd", **options, **lies, filter="zeno:.1")
    assert np.abs(ran.updates[-1].weights.vector - 3).max() < 0.01
    trusted, before = False, np.ones(3, np.float32)
    for update in ran.updates[:200]:
        worker = update.dones[0].worker
        trusted = trusted or worker == 0
        counts = update.weights.vector.tobytes() != before.tobytes()
        assert counts == (trusted and worker in (0, 3))
        before = update.weights.vector


def test_a_filter_is_for_gradients() -> None:
    """Where a strategy's rule is of weights, a filter ends the run in one line."""
    with pytest.raises(ClusterError, match=r"^--filter kardam:0: looks at gradients"):
        run("localsgd", **{**QUADRATIC, "num_workers": 1, "optima": "1"}, filter="kardam:0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mode": "asgd", "filter": "zeno:.1", "num_workers": 1},
            "--filter zeno:.1: needs 2 workers or more",
        ),
        ({"mode": "diloco", "exchange": "async", "filter": "kardam:1"}, "workers send weights; leave it out"),
        ({"mode": "ssgd", "filter": "kardam:1"}, "--filter kardam:1: --mode ssgd averages results"),
        ({"mode": "asgd", "filter": "kardam:2"}, "--filter kardam:2: needs 7 workers or more"),
    ],
)
def test_what_cannot_be_filtered_is_refused(options: dict[str, Any], words: str) -> None:
    """A filter is for modes that apply one result at a time, and for few liars."""
    with pytest.raises(ValueError, match=r"^--") as refused:
        config(**{"num_workers": 5, **options})
    assert words in str(refused.value)
