"""Rules: what they compute is torch's, and where the weights live does not matter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core import chunked as chunks
from dsgd.core.aggregators import Aggregation, Bucketing, CenteredClipping, GeometricMedian, Median
from dsgd.core.rules import (
    Adam,
    Arrived,
    Average,
    ByStaleness,
    Chain,
    Clip,
    Compensate,
    Decay,
    DelayedNesterov,
    Descend,
    Momentum,
    Moved,
    Pull,
    Schedule,
    chain,
    combine,
)
from dsgd.core.weights import CHUNK, Vector, Weights, mean

RULES: dict[str, Chain] = {
    "plain": chain(Descend(0.1)),
    "momentum": chain(Momentum(0.9), Descend(0.1)),
    "nesterov": chain(Momentum(0.9, nesterov=True), Descend(0.1)),
    "by staleness": chain(ByStaleness(2), Momentum(0.5), Descend(0.1)),
    "compensated": chain(Compensate(0.04), ByStaleness(1), Descend(0.1)),
    "compensated, adaptive": chain(Compensate(0.04, adaptive=True), Momentum(0.5), Descend(0.1)),
    "clipped": chain(Clip(0.5), Descend(0.1)),
    "everything": chain(ByStaleness(1), Clip(0.5), Decay(0.01), Momentum(0.9), Descend(0.1)),
    "adamw": chain(
        Clip(1.0), Adam(), Decay(0.01), Descend(0.01, Schedule(shape="cosine", warmup=2, steps=9))
    ),
    "average": chain(Average()),
    "pull": chain(Pull(0.3)),
    "outer nesterov": chain(Moved(), Momentum(0.9, nesterov=True), Descend(0.7)),
    "median": chain(Momentum(0.9), Descend(0.1)).aggregated(Aggregation(Median())),
    "geometric median, clipped": chain(Clip(0.5), Descend(0.1)).aggregated(Aggregation(GeometricMedian())),
    "median of buckets": chain(Average()).aggregated(Aggregation(Median(), Bucketing(2))),
    "clipped around the last": chain(Pull(0.3)).aggregated(Aggregation(CenteredClipping(1.0))),
    "delayed nesterov": chain(Moved(), DelayedNesterov(0.9, every=3), Descend(0.7)),
}


def part(w: Weights, cut: slice) -> Weights:
    """Return a slice of the weights, as one of several servers holds it."""
    return Weights(w.vector[cut], w.version, {name: slot[cut] for name, slot in w.slots.items()})


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 40),
    cuts=st.lists(st.integers(1, 39), max_size=3),
    results=st.integers(1, 4),
)
def test_the_step_on_slices_is_the_slice_of_the_step(
    name: str, seed: int, size: int, cuts: list[int], results: int
) -> None:
    """Five steps on slices, joined, are five steps on the whole, bit for bit, with all that is remembered."""
    rule, rng = RULES[name], np.random.default_rng(seed)
    results = 1 if "outer" in name or "delayed" in name else results
    edges = [0, *sorted({c for c in cuts if c < size}), size]
    slices = [slice(a, b) for a, b in pairwise(edges)]
    whole = Weights(rng.standard_normal(size).astype(np.float32))
    shards = [part(whole, cut) for cut in slices]
    before = whole
    for _ in range(5):
        origins = [before if rng.random() < 0.5 else whole for _ in range(results)]
        arrived = [Arrived(rng.standard_normal(size).astype(np.float32), origin) for origin in origins]
        pieces = [[Arrived(r.value[cut], part(r.origin, cut)) for r in arrived] for cut in slices]
        sums = rule.reduction([(whole, arrived)])
        before, whole = whole, rule.step(whole, arrived, sums)
        shards = [rule.step(w, piece, sums) for w, piece in zip(shards, pieces, strict=True)]
        assert np.concatenate([w.vector for w in shards]).tobytes() == whole.vector.tobytes()
        for slot in whole.slots:
            assert np.concatenate([w.slots[slot] for w in shards]).tobytes() == whole.slots[slot].tobytes()
        assert {w.version for w in shards} == {whole.version}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("size", [CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_the_step_in_chunks_is_the_step(name: str, size: int) -> None:
    """Three steps in chunks, on any number of threads, are three steps at once, bit for bit, written into the
    memory that was asked for; nothing that was read is written to.
    """
    rule, rng = RULES[name], np.random.default_rng(size)
    count = 1 if "outer" in name or "delayed" in name else 3
    whole = Weights(rng.standard_normal(size).astype(np.float32))
    whole.vector.setflags(write=False)
    chunked = {1: whole, 2: whole, 3: whole}
    for _ in range(3):
        values = [rng.standard_normal(size).astype(np.float32) for _ in range(count)]
        for threads, w in chunked.items():
            given: list[Vector] = []

            def fresh(given: list[Vector] = given) -> Vector:
                given.append(np.full(size, np.nan, np.float32))
                return given[-1]

            with ThreadPoolExecutor(threads) as executor:
                arrived = [Arrived(value, w) for value in values]
                new = chunks.combine(rule, w, arrived, fresh, executor, threads)
            assert size == CHUNK or any(new.vector is vector for vector in given)
            assert not new.vector.flags.writeable
            chunked[threads] = new
        whole = combine(rule, whole, [Arrived(value, whole) for value in values])
        for new in chunked.values():
            assert new.version == whole.version
            assert new.vector.tobytes() == whole.vector.tobytes()
            assert new.slots.keys() == whole.slots.keys()
            assert all(new.slots[slot].tobytes() == whole.slots[slot].tobytes() for slot in whole.slots)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 40), cut=st.integers(1, 39))
def test_the_squares_of_slices_add_up(seed: int, size: int, cut: int) -> None:
    """The one reduction that a rule needs, for `Clip`, is a sum over the slices."""
    rule, rng = RULES["clipped"], np.random.default_rng(seed)
    w = Weights(rng.standard_normal(size).astype(np.float32))
    arrived = Arrived(rng.standard_normal(size).astype(np.float32), w)
    pieces = [slice(0, min(cut, size - 1)), slice(min(cut, size - 1), size)]
    parts = [rule.squares(part(w, s), [Arrived(arrived.value[s], part(w, s))]) for s in pieces]
    assert sum(parts) == pytest.approx(rule.squares(w, [arrived]), rel=1e-12)


def torch_path(
    start: Vector,
    gradients: list[Vector],
    optimizer: str,
    clip: float | None,
    schedule: Schedule,
    **options: Any,
) -> Vector:
    """Return where torch's optimizer, clipping and schedulers lead with these gradients."""
    w = torch.nn.Parameter(torch.tensor(start))
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
    descent = kind([w], lr=0.1, **options)
    lr_scheduler, n = torch.optim.lr_scheduler, schedule.warmup
    rest: dict[str, Any] = {
        "constant": lambda: lr_scheduler.ConstantLR(descent, 1.0),
        "linear": lambda: lr_scheduler.LinearLR(descent, 1.0, 0.0, total_iters=schedule.steps - n),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(descent, T_max=schedule.steps - n),
    }
    follow = rest[schedule.shape]()
    if n > 1:
        warm = lr_scheduler.LinearLR(descent, 1 / n, 1.0, total_iters=n - 1)
        follow = lr_scheduler.SequentialLR(descent, [warm, follow], [n])
    for g in gradients:
        w.grad = torch.tensor(g)
        if clip:
            torch.nn.utils.clip_grad_norm_([w], clip)
        descent.step()
        follow.step()
    moved: Vector = w.detach().numpy()
    return moved


@pytest.mark.parametrize("clip", [None, 1.5])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule(warmup=4, steps=20),
        Schedule(shape="linear", steps=20),
        Schedule(shape="cosine", warmup=5, steps=20),
    ],
    ids=["constant", "warmup", "linear", "warmup and cosine"],
)
@pytest.mark.parametrize(
    ("optimizer", "options", "parts"),
    [
        ("sgd", {}, []),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.05}, [Decay(0.05), Momentum(0.9)]),
        ("sgd", {"momentum": 0.9, "nesterov": True}, [Momentum(0.9, nesterov=True)]),
        ("adamw", {"weight_decay": 0.05}, [Adam(), Decay(0.05)]),
    ],
    ids=["sgd", "sgd with decay", "nesterov", "adamw"],
)
def test_a_rule_is_torch_s(
    optimizer: str, options: dict[str, Any], parts: list[Any], schedule: Schedule, clip: float | None
) -> None:
    """For one worker: SGD, Nesterov and AdamW with schedule and clipping go where torch.optim goes, to
    rounding.
    """
    rng = np.random.default_rng(3)
    start = rng.standard_normal(11).astype(np.float32)
    gradients = [rng.standard_normal(11).astype(np.float32) for _ in range(20)]
    rule = chain(*([Clip(clip)] if clip else []), *parts, Descend(0.1, schedule))
    w = Weights(start)
    for g in gradients:
        w = rule.step(w, [Arrived(g, w)])
    theirs = torch_path(start, gradients, optimizer, clip, schedule, **options)
    np.testing.assert_allclose(w.vector, theirs, rtol=2e-5, atol=2e-6)


def test_a_schedule_counts_steps_not_versions() -> None:
    """A server that makes a version of K of P mini-batches is as far after P/K versions as a worker
    after a step.
    """
    worker = Schedule(shape="cosine", warmup=3, steps=12)
    server = Schedule(shape="cosine", warmup=3, steps=12, share=0.25)
    for step in range(3, 12):
        assert server.factor(4 * step) == pytest.approx(worker.factor(step))
    assert server.factor(10**6) == 0


def test_slots_are_values() -> None:
    """A step leaves the slots of the version before as they were."""
    rule, w = RULES["adamw"], Weights(np.ones(3, np.float32))
    first = rule.step(w, [Arrived(np.ones(3, np.float32), w)])
    kept = {name: slot.copy() for name, slot in first.slots.items()}
    rule.step(first, [Arrived(np.full(3, 5, np.float32), first)])
    assert not w.slots
    assert all((first.slots[name] == slot).all() for name, slot in kept.items())


def test_several_results_are_averaged_in_their_order() -> None:
    """Without individual weights, K results count as their mean, summed in the order given."""
    rng = np.random.default_rng(0)
    w = Weights(np.zeros(5, np.float32))
    values = [rng.standard_normal(5).astype(np.float32) for _ in range(3)]
    moved = chain(Average()).step(w, [Arrived(v, w) for v in values])
    assert moved.vector.tobytes() == mean(values).tobytes()


def test_parts_in_a_wrong_order_are_a_mistake() -> None:
    """What looks at each result comes first, clipping before what remembers, and the end last."""
    with pytest.raises(AssertionError, match="parts come in this order"):
        chain(Momentum(0.9), Clip(1.0), Descend(0.1))
    with pytest.raises(AssertionError, match="makes the weights"):
        chain(Descend(0.1), Momentum(0.9))
