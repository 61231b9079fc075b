"""Aggregators: what liars can do to them, and what they cannot."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from dsgd.core.aggregators import (
    Aggregation,
    Aggregator,
    Bucketing,
    Bulyan,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    NearestNeighbours,
    PreAggregation,
    TrimmedMean,
    parse_aggregator,
    parse_mixing,
)
from dsgd.core.protocol import ClusterError
from dsgd.core.rules import Arrived, Chain, Clip, Descend, Momentum, chain
from dsgd.core.weights import Vector, Weights, mean
from dsgd.data import make_workload
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.theory.robustness import (
    BOUNDS,
    aggregated,
    kappa_median,
    kappa_mixed,
    kappa_trimmed,
    lower_bound,
    spreads_away,
    worst_found,
)

SIZES = ((5, 1), (7, 2), (11, 2), (12, 3))
"""n and f."""


BY_NAME: dict[str, Callable[[int], Aggregator]] = {
    **{name: make for name, (make, _) in BOUNDS.items()},
    "multikrum": lambda f: Krum(f, 2),
    "bulyan": lambda f: Bulyan(f),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_no_liars_get_farther_than_proved(name: str) -> None:
    """Whatever f of n send, the aggregate is at most sqrt(kappa) spreads from the mean of the others; with
    nearest-neighbour mixing before it, kappa is at most 8 f/(n - f) (kappa + 1).
    """
    make, kappa = BOUNDS[name]
    for n, f in SIZES:
        assert worst_found(n, f, make(f)) <= kappa(n, f) * (1 + 1e-5)  # the values are of single precision
        mixed = worst_found(n, f, make(f), NearestNeighbours(f), 20)
        assert mixed <= kappa_mixed(kappa(n, f), n, f)


def test_the_search_is_sharp() -> None:
    """The same search finds what breaks the mean, and a median or Krum that is not one."""
    assert worst_found(7, 2, TrimmedMean(0)) > 1e6
    assert worst_found(7, 3, TrimmedMean(2)) > kappa_trimmed(7, 2)


@pytest.mark.parametrize(("n", "f"), [*SIZES, (12, 2), (6, 2)])
def test_what_liars_do_at_worst_to_medians_and_trimmed_means(n: int, f: int) -> None:
    """The kappas of the median and the trimmed mean are attained: by honest values 0 and 1, and lies beyond.
    That of the trimmed mean is the smallest that any aggregator can have, f/(n - 2f).
    """
    for by, kappa, zeros in (
        (TrimmedMean(f), lower_bound(n, f), f),
        (Median(), kappa_median(n, f), -(-n // 2) - 1),
    ):
        honest = np.ones((n - f, 1), np.float32)
        honest[:zeros] = 0
        everyone = np.vstack([honest, np.full((f, 1), 9, np.float32)])
        assert spreads_away(aggregated(by, everyone), honest) == pytest.approx(kappa, rel=1e-5)


BREAKS_AT = [
    (Median(), 4),
    (TrimmedMean(2), 3),
    (TrimmedMean(1), 2),
    (TrimmedMean(0), 1),
    (GeometricMedian(), 4),
]


@pytest.mark.parametrize(("by", "breaks_at"), [*BREAKS_AT, (Krum(2), 4), (Krum(1), 4)], ids=str)
def test_where_an_aggregator_breaks(by: Aggregator, breaks_at: int) -> None:
    """Of 7 values, one less than it takes to break it moves an aggregate no farther than the honest are;
    that many take it wherever they like.
    """
    rng = np.random.default_rng(0)
    values = rng.standard_normal((7, 3)).astype(np.float32)
    for liars in range(1, breaks_at + 1):
        lying = values.copy()
        lying[:liars] = 1e6
        reached = float(np.abs(aggregated(by, lying)).max())
        assert reached > 1e4 if liars == breaks_at else reached < 10


def test_bulyan_withstands_what_it_promises() -> None:
    """With n = 4f + 3, f liars move no coordinate out of the honest values'."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        honest = rng.standard_normal((9, 4)).astype(np.float32)
        lies = np.tile((10 ** rng.uniform(-1, 6) * rng.standard_normal(4)).astype(np.float32), (2, 1))
        found = aggregated(Bulyan(2), np.vstack([honest, lies]))
        assert np.all((honest.min(0) <= found) & (found <= honest.max(0)))


def test_no_liars_to_withstand_leaves_the_mean() -> None:
    """With f = 0 the trimmed mean is the mean, bit for bit; Multi-Krum of all, Bulyan and mixing by nearest
    neighbours are it up to rounding.
    """
    rows = np.random.default_rng(2).standard_normal((6, 1000)).astype(np.float32)
    plain = mean(rows)
    assert aggregated(TrimmedMean(0), rows).tobytes() == plain.tobytes()
    for by, mix in ((Krum(0, 6), None), (Bulyan(0), None), (Median(), NearestNeighbours(0))):
        assert aggregated(by, rows, mix) == pytest.approx(plain, abs=1e-6)


# Mixed values may coincide, and which of them Bulyan takes last then depends on their order.
@pytest.mark.parametrize(
    ("name", "mix"),
    [(name, mix) for name in BY_NAME for mix in (None, NearestNeighbours(1)) if not mix or name != "bulyan"],
    ids=str,
)
def test_who_says_what_does_not_matter_nor_where_zero_is(name: str, mix: PreAggregation | None) -> None:
    """The aggregate of values in another order is the same, and that of moved values is moved as they are."""
    by, rng = BY_NAME[name](1), np.random.default_rng(3)
    for _ in range(20):
        rows = rng.standard_normal((8, 5)).astype(np.float32)
        found = aggregated(by, rows, mix)
        assert aggregated(by, rng.permutation(rows), mix) == pytest.approx(found, abs=1e-5)
        shift = rng.standard_normal(5).astype(np.float32)
        assert aggregated(by, rows + shift, mix) == pytest.approx(found + shift, abs=1e-5)


ALL = [
    Aggregation(make(1), mix)
    for make in BY_NAME.values()
    for mix in (None, NearestNeighbours(1), Bucketing(2, seed=5))
]
ENOUGH = {a: 2 * a.by.least - 1 if isinstance(a.mix, Bucketing) else 9 for a in ALL if a.by}


@pytest.mark.parametrize("aggregation", [*ALL, Aggregation(CenteredClipping(0.5))], ids=str)
def test_an_aggregate_of_slices_is_the_slice_of_the_aggregate(aggregation: Aggregation) -> None:
    """Three steps of a rule on slices, given the whole's inner products, are three steps on the whole, bit
    for bit, with all that is remembered; the inner products of the slices add up to those.
    """
    rule = chain(Clip(0.5), Momentum(0.9), Descend(0.1)).aggregated(aggregation)
    rng, n = np.random.default_rng(4), ENOUGH.get(aggregation, 9)
    whole = Weights(rng.standard_normal(50).astype(np.float32))
    cuts = [slice(a, b) for a, b in pairwise([0, 1, 20, 50])]
    shards = [sliced(whole, cut) for cut in cuts]
    for _ in range(3):
        results = [Arrived(rng.standard_normal(50).astype(np.float32), whole) for _ in range(n)]
        pieces = [[Arrived(r.value[cut], sliced(r.origin, cut)) for r in results] for cut in cuts]
        total = sum(rule.gram(*here) for here in zip(shards, pieces, strict=True))
        assert total == pytest.approx(rule.gram(whole, results), rel=1e-9, abs=1e-9)
        reduction = rule.reduction([(whole, results)])
        whole = rule.step(whole, results, reduction)
        shards = [rule.step(w, piece, reduction) for w, piece in zip(shards, pieces, strict=True)]
        assert np.concatenate([w.vector for w in shards]).tobytes() == whole.vector.tobytes()
        for slot in whole.slots:
            assert np.concatenate([w.slots[slot] for w in shards]).tobytes() == whole.slots[slot].tobytes()


def sliced(w: Weights, cut: slice) -> Weights:
    return Weights(w.vector[cut], w.version, {name: slot[cut] for name, slot in w.slots.items()})


def test_the_geometric_median_has_the_smallest_sum_of_distances() -> None:
    """Nowhere near it is the sum of the distances smaller; of three points of an obtuse angle over 120
    degrees it is the middle one.
    """
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((6, 3)).astype(np.float32)
    found = aggregated(GeometricMedian(), rows)

    def distance(point: Any) -> float:
        return float(np.sqrt(((rows.astype(np.float64) - point) ** 2).sum(1)).sum())

    for _ in range(200):
        assert distance(found) <= distance(found + 0.01 * rng.standard_normal(3)) + 1e-6
    obtuse = np.array([[-1, 0.1], [0, 0], [1, 0.1]], np.float32)
    assert aggregated(GeometricMedian(), obtuse) == pytest.approx([0, 0], abs=1e-3)


def test_centered_clipping_moves_three_radii_at_most() -> None:
    """However far the lies are, an aggregate is at most three radii from the last one; values within the
    radius are averaged more closely each time.
    """
    rule = chain(Descend(1.0)).aggregated(Aggregation(CenteredClipping(0.5)))
    w = Weights(np.zeros(2, np.float32))
    for _ in range(5):
        before = w.vector
        w = rule.step(w, [Arrived(np.full(2, 1e9, np.float32), w) for _ in range(3)])
        last = w.slots["aggregate"]
        assert np.linalg.norm(w.vector - before) == pytest.approx(np.linalg.norm(last))
    assert np.linalg.norm(last) == pytest.approx(5 * 3 * 0.5, rel=1e-5)
    near = np.array([[0.1, 0], [0.2, 0], [0.3, 0]], np.float32)
    assert aggregated(CenteredClipping(1.0), near) == pytest.approx([0.2, 0], abs=1e-7)


@pytest.mark.parametrize("name", BY_NAME)
def test_values_that_are_not_finite_count_as_0(name: str) -> None:
    """A liar may send infinity or NaN: that is a lie like 0."""
    rows = np.random.default_rng(6).standard_normal((8, 4)).astype(np.float32)
    with_zero = rows.copy()
    with_zero[3] = 0
    expected = aggregated(BY_NAME[name](1), with_zero)
    for bad in (np.nan, np.inf, -np.inf, np.float32(-0.0)):
        rows[3] = 0 if bad == 0 else rows[3]
        rows[3, 1] = bad
        assert aggregated(BY_NAME[name](1), rows).tobytes() == expected.tobytes()


def test_buckets_are_drawn_anew_and_hold_every_value_once() -> None:
    """Each value is in one bucket; the same seed and version give the same buckets, others do not."""
    gram = np.eye(7)
    drawn = [Bucketing(3, seed=1).matrix(gram, version) for version in range(5)]
    for matrix in drawn:
        assert matrix.shape == (3, 7)
        assert sorted((matrix > 0).sum(1)) == [1, 3, 3]
        assert np.all((matrix > 0).sum(0) == 1)
        assert matrix.sum(1) == pytest.approx(1)
    assert np.array_equal(drawn[2], Bucketing(3, seed=1).matrix(gram, 2))
    assert any(not np.array_equal(drawn[0], other) for other in drawn[1:])
    assert not np.array_equal(drawn[0], Bucketing(3, seed=2).matrix(gram, 0))


def test_means_weighted_by_samples() -> None:
    """Weighted by their samples, values count as often as the worker has samples; where all have as many, it
    is the mean, bit for bit.
    """
    rng = np.random.default_rng(7)
    w = Weights(rng.standard_normal(30).astype(np.float32))
    results = [Arrived(rng.standard_normal(30).astype(np.float32), w, worker) for worker in (0, 2, 3)]
    plain = chain(Momentum(0.9), Descend(0.1))

    def direction(rule: Chain) -> Vector:
        return rule.step(w, results).vector

    equal = plain.aggregated(Aggregation(samples=(9, 9, 9, 9)))
    assert direction(equal).tobytes() == direction(plain).tobytes()
    uneven = plain.aggregated(Aggregation(samples=(1, 50, 2, 4)))
    often = [r for r, count in zip(results, (1, 2, 4), strict=True) for _ in range(count)]
    assert direction(uneven) == pytest.approx(plain.step(w, often).vector, abs=1e-6)


def test_samples_count_in_a_run() -> None:
    """A round of federated averaging: what each worker has moved by counts as often as it has samples; shards
    of one size leave the bytes as they are.
    """
    options: dict[str, Any] = {"num_workers": 4, "steps": 8, "local_steps": 4, "workload": "digits"}
    by_samples = options | {"aggregate": "mean,samples"}
    assert same_bytes(run("localsgd", samples=1436, **options), run("localsgd", samples=1436, **by_samples))
    ran = run("localsgd", partition="iid,uneven=8", **by_samples)
    sizes = [len(shard) for shard in cast("list[Any]", make_workload(ran.cfg).shards)]
    assert sizes[-1] == pytest.approx(8 * sizes[0], rel=0.02)
    (first, *_) = ran.updates
    expected = np.average([d.value for d in first.dones], axis=0, weights=sizes)
    assert first.weights.vector == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", ["ssgd", "rennala"])
def test_speed_counts_in_a_run(mode: str) -> None:
    """A result counts as the mini-batches a second that its worker computed those of the update at, where
    two are of one worker, too; without time, all count the same.
    """
    options: dict[str, Any] = {"num_workers": 3, "steps": 12, "lr": 0.5, "slowdown": "1=4"}
    options |= {"aggregate": "mean,speed"}
    ran = run(mode, compute_time="exponential:1", **options)
    before, twice = ran.updates[0].dones[0].origin.vector, 0
    for update in ran.updates:
        by_worker: dict[int, list[float]] = {}
        for done in update.dones:
            by_worker.setdefault(done.worker, []).append(done.compute_s)
        counts = [len(by_worker[done.worker]) / sum(by_worker[done.worker]) for done in update.dones]
        expected = before - 0.5 * np.average([done.value for done in update.dones], axis=0, weights=counts)
        assert update.weights.vector == pytest.approx(expected, abs=1e-5)
        before = update.weights.vector
        twice += max(map(len, by_worker.values())) > 1
    assert (twice > 0) == (mode == "rennala")
    plain = {**options, "aggregate": "mean", "slowdown": ""}
    assert same_bytes(run(mode, **plain), run(mode, **{**plain, "aggregate": "mean,speed"}))


@pytest.mark.parametrize(
    "mode", ["ssgd", "ksync", "kasync", "rennala", "localsgd", "adacomm", "diloco", "easgd"]
)
def test_every_mode_that_averages_can_aggregate(mode: str) -> None:
    """`trimmed:0` has the bits of a run without it where gradients are averaged, and its weights up
    to rounding where weights are.
    """
    options: dict[str, Any] = {
        "num_workers": 4,
        "steps": 12,
        "momentum": 0.0,
        "compute_time": "exponential:1",
    }
    if mode == "kasync":
        options["k"] = 3
    plain, other = run(mode, **options), run(mode, aggregate="trimmed:0", **options)
    ends = plain.updates[-1].weights.vector, other.updates[-1].weights.vector
    if mode in ("ssgd", "ksync", "kasync", "rennala"):
        assert ends[0].tobytes() == ends[1].tobytes()
    else:
        assert ends[1] == pytest.approx(ends[0], abs=1e-5)
    median = run(mode, aggregate="nnm:1+median", **options).updates[-1].weights.vector
    assert not np.allclose(median, ends[0], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mode": "asgd", "aggregate": "median"},
            "--aggregate median: --mode asgd applies one result at a time",
        ),
        ({"mode": "diloco", "exchange": "async", "aggregate": "median"}, "applies one result at a time"),
        ({"mode": "ssp", "aggregate": "mean,samples"}, "--mode ssp applies one result at a time"),
        ({"mode": "dpsgd", "aggregate": "median"}, "needs a server, and --mode dpsgd has none"),
        ({"aggregate": "krum:2"}, "--aggregate krum:2: needs 7 results an update, and gets 5; add workers"),
        ({"aggregate": "nnm:3+median"}, "needs 7 results an update, and gets 5"),
        ({"mode": "ksync", "backup": 2, "aggregate": "trimmed:2"}, "needs 5 results an update, and gets 3"),
        ({"mode": "kasync", "k": 2, "aggregate": "trimmed:1"}, "needs 3 results an update, and gets 2"),
        (
            {"aggregate": "median", "topology": "allreduce:ring"},
            "adds results; use --aggregate mean",
        ),
        ({"aggregate": "nnm:1+mean"}, "--aggregate nnm:1+mean: a lie moves a mean as far"),
        ({"aggregate": "median,samples"}, "samples and speed can weight only a mean"),
        ({"aggregate": "mean,fast"}, "must be mean, mean,samples or mean,speed"),
        ({"aggregate": "median,speed"}, "samples and speed can weight only a mean"),
        ({"workload": "quadratic", "aggregate": "mean,samples"}, "quadratic has no samples to count"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_aggregated_is_refused_before_a_run(options: dict[str, Any], words: str) -> None:
    """A mode that averages nothing, and too few results, are one line that names option, rule and remedy."""
    with pytest.raises(ValueError, match=r"^--") as refused:
        config(**{"mode": "ssgd", "num_workers": 5, **options})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_too_few_members_end_a_run_in_one_line() -> None:
    """Where members that leave make an update too small for its aggregator, the run says so, and ends."""
    with pytest.raises(
        ClusterError, match=r"^--aggregate trimmed:2: needs 5 results an update, and update 5 has 4"
    ):
        run("ssgd", num_workers=5, steps=12, aggregate="trimmed:2", faults="leave:1@update=3")


def test_options_mean_what_they_say() -> None:
    """Each text of the options is the aggregator that it names."""
    assert parse_aggregator("krum:2") == Krum(2)
    assert parse_aggregator("clip:.5") == CenteredClipping(0.5)
    assert parse_aggregator("bulyan:1") == Bulyan(1)
    assert parse_mixing("bucketing:2") == Bucketing(2)
