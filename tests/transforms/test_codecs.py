"""Codecs: how long their messages are, and what is lost, by closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from dsgd.core.weights import Vector
from dsgd.transforms.codecs import (
    BLOCK,
    FP4,
    QSGD,
    Codec,
    Draws,
    Int8,
    PowerSGD,
    RandomK,
    Sign,
    TopK,
    kept,
    parse_codec,
)

TEXTS = [
    *("topk:.01", "topk:.5", "topk:1", "randk:.1", "randk:.1,scaled", "sign", "sign:positive"),
    *("qsgd:1", "qsgd:8", "qsgd:127", "int8", "fp4", "powersgd:1", "powersgd:4"),
]
CONTRACTING = [text for text in TEXTS if (codec := parse_codec(text)) and codec.contracts]
UNBIASED = [text for text in TEXTS if (codec := parse_codec(text)) and codec.unbiased]
D = 300
Numbers = NDArray[np.float64]


def codec_of(text: str) -> Codec:
    codec = parse_codec(text)
    assert codec
    return codec


def uneven(num_weights: int = D, seed: int = 0) -> Vector:
    """Return numbers of very different sizes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(num_weights) * np.exp(rng.standard_normal(num_weights))
    return x.astype(np.float32)


def through(codec: Codec, x: Vector, step: int = 0, memory: Vector | None = None) -> Vector:
    """Return C(x)."""
    draws = Draws(seed=7, worker=2, step=step)
    memory = np.zeros((codec.memory_rows, len(x)), np.float32) if memory is None else memory
    return codec.decode(codec.encode(x, draws, memory), len(x), draws)


def square(x: Any) -> float:
    return float(np.square(x, dtype=np.float64).sum())


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=40)
@given(num_weights=st.integers(1, 1100), seed=st.integers(0, 2**30))
def test_a_message_is_as_long_as_its_closed_form_says(text: str, num_weights: int, seed: int) -> None:
    """A message has num_bytes(D) bytes and gives D finite numbers, the same ones for the same draws."""
    codec, x, draws = codec_of(text), uneven(num_weights, seed), Draws(seed, 1, 5)
    memories = [np.zeros((codec.memory_rows, num_weights), np.float32) for _ in range(2)]
    first, again = (codec.encode(x, draws, memory) for memory in memories)
    assert first.dtype == np.uint8
    assert len(first) == codec.num_bytes(num_weights)
    assert first.tobytes() == again.tobytes()
    decoded = codec.decode(first, num_weights, draws)
    assert decoded.dtype == np.float32
    assert decoded.shape == (num_weights,)
    assert np.isfinite(decoded).all()
    if codec.contracts and not text.startswith("randk"):
        assert square(decoded - x) <= square(x) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("topk:.01", 4 * 10 + 4 * 10),  # the places as numbers
        ("topk:.1", 4 * 100 + 125),  # a bit for each weight
        ("randk:.01", 4 * 10),
        ("sign", 4 + 125),
        ("qsgd:8", 4 + 625),  # 17 codes are 5 bits
        ("int8", 1000 + 4 * 4),
        ("fp4", 500 + 4 * 4),
        ("powersgd:2", 4 * 2 * (33 + 31)),
    ],
)
def test_bytes_of_a_thousand_weights(text: str, num_bytes: int) -> None:
    """The closed forms, worked out by hand."""
    assert codec_of(text).num_bytes(1000) == num_bytes


@pytest.mark.parametrize("text", TEXTS)
def test_zeros_stay_zeros(text: str) -> None:
    """Where all numbers are 0, 0 is what comes."""
    assert not through(codec_of(text), np.zeros(D, np.float32)).any()


HARDLY = {"sign": 32.0, "powersgd:1": 32.0, "powersgd:4": 64.0, "sign:positive": 400.0}
"""How far 400 messages move what is zero in all of them, in means of the others' magnitudes; others: not."""


@pytest.mark.parametrize("every", [1, 2, 3, 8])
@pytest.mark.parametrize("text", TEXTS)
def test_what_stays_zero_hardly_moves(text: str, every: int) -> None:
    """Among other numbers, and whether it is 0 or -0: rows of an embedding that no sample uses. Also where
    only every second, third or eighth is sent, as in local steps.
    """
    codec, moved, size = codec_of(text), np.zeros(D), 0.0
    memory = np.zeros((2, codec.memory_rows, D), np.float32)
    for message in range(400):
        x = uneven(seed=message)
        x[:60], x[60:90] = 0, -0.0
        step = message * every
        sent, without = (through(codec, y, step, own) for y, own in zip((x, x + 0), memory, strict=True))
        np.testing.assert_array_equal(sent, without)
        moved, size = moved + sent, size + float(np.abs(x).mean())
    assert np.abs(moved[:90]).max() <= HARDLY.get(text, 0) * 1.001 * size / 400


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith("randk")])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_hidden(text: str, bad: float) -> None:
    """A number that is not finite reaches the server, so that a run that diverges is seen to."""
    x = uneven()
    x[17] = bad
    with np.errstate(invalid="ignore", over="ignore"):
        assert not np.isfinite(through(codec_of(text), x)).all()


@pytest.mark.parametrize("share", [0.003, 0.1, 0.5, 1.0])
def test_top_k_loses_the_tail(share: float) -> None:
    """The error is the energy of the D - k smallest numbers, at most the share 1 - k/D of all."""
    x, k = uneven(), kept(share, D)
    tail = np.sort(np.abs(x))[: D - k]
    error = square(through(TopK(share), x) - x)
    assert error == pytest.approx(square(tail), rel=1e-12)
    assert error <= (1 - k / D) * square(x)


def test_of_equal_numbers_the_first_are_sent() -> None:
    """Ties are broken by place, so that every engine chooses alike."""
    x = np.array([1, -2, 2, 1, 2, -1, 2, 0], np.float32)
    np.testing.assert_array_equal(through(TopK(3 / 8), x), [0, -2, 2, 0, 2, 0, 0, 0])
    np.testing.assert_array_equal(through(TopK(5 / 8), x), [1, -2, 2, 0, 2, 0, 2, 0])


@pytest.mark.parametrize("scaled", [False, True])
def test_random_k_is_exact_over_all_choices(scaled: bool) -> None:
    """Each place is drawn equally often, so the mean error is (1 - k/D) ||x||^2 or, scaled, the variance is
    (D/k - 1) ||x||^2: within 5 standard errors of the mean of 4,000 messages.
    """
    codec, x, trials = RandomK(0.1, scaled), uneven(), 4000
    errors = [square(through(codec, x, step) - x) for step in range(trials)]
    expected = (10 - 1 if scaled else 1 - 0.1) * square(x)
    assert abs(np.mean(errors) - expected) < 5 * np.std(errors) / math.sqrt(trials)


def test_random_k_draws_for_each_worker_and_step() -> None:
    """Two workers, or two steps, send different places; the same task repeated sends the same ones."""
    codec, x, none = RandomK(0.1), np.ones(D, np.float32), np.zeros((0, D), np.float32)
    streams = [Draws(0, 0, 0), Draws(0, 1, 0), Draws(0, 0, 1), Draws(1, 0, 0)]
    sent = {codec.decode(codec.encode(x, draws, none), D, draws).tobytes() for draws in streams * 2}
    assert len(sent) == len(streams)


def test_scaled_sign_has_its_exact_error() -> None:
    """||C(x) - x||^2 = (1 - ||x||_1^2 / (D ||x||_2^2)) ||x||^2."""
    x = uneven()
    x[5] = 0
    share = 1 - np.abs(x).sum(dtype=np.float64) ** 2 / (D * square(x))
    assert square(through(Sign(), x) - x) == pytest.approx(share * square(x), rel=1e-6)


def _steps_of(codec: Codec, x: Vector) -> Numbers:
    """Return by how much two neighbouring values of each number differ, shape (D,)."""
    if isinstance(codec, QSGD):
        return np.full(D, math.sqrt(square(x)) / codec.levels)
    blocks = [
        np.full(len(x[i : i + BLOCK]), np.abs(x[i : i + BLOCK]).max() / 127) for i in range(0, D, BLOCK)
    ]
    return np.concatenate(blocks).astype(np.float64)


@pytest.mark.parametrize("codec", [QSGD(1), QSGD(4), QSGD(64), Int8()], ids=str)
def test_random_rounding_is_unbiased_with_its_exact_variance(codec: Codec) -> None:
    """The variance is the sum of step^2 p (1 - p), p the fractional parts, within 5 standard errors; each
    coordinate's mean is x, within 5 standard errors; and the published bound holds.
    """
    x, trials = uneven(), 3000
    step = _steps_of(codec, x)
    p = np.abs(x) / step % 1
    variances = step**2 * p * (1 - p)
    errors = np.stack([through(codec, x, trial) - x for trial in range(trials)]).astype(np.float64)
    totals = np.square(errors).sum(1)
    assert abs(totals.mean() - variances.sum()) < 5 * totals.std() / math.sqrt(trials) + 1e-6 * totals.mean()
    assert (np.abs(errors.mean(0)) <= 5 * np.sqrt(variances / trials) + 1e-6 * np.abs(x)).all()
    if isinstance(codec, QSGD):
        assert variances.sum() <= min(D / codec.levels**2, math.sqrt(D) / codec.levels) * square(x)
    else:
        assert variances.sum() <= D * step.max() ** 2 / 4


def test_random_rounding_goes_to_the_two_neighbours() -> None:
    """A number becomes the level below or above it, with its sign, and a level stays."""
    x = np.array([0.3, -0.3, 1.0, -1.0, 0.0], np.float32) * np.float32(127)
    seen = np.stack([through(Int8(), x, step) for step in range(200)])
    assert set(seen[:, 0]) == {38.0, 39.0}
    assert set(seen[:, 1]) == {-38.0, -39.0}
    np.testing.assert_array_equal(seen[:, 2:], [[127, -127, 0]] * 200)


def test_fp4_takes_the_nearest_power_of_two() -> None:
    """The value is the nearest of 0 and the block's largest times 2^-6 ... 2^0; from 2^-6 on the error is at
    most a third.
    """
    x = uneven()
    powers = np.array([0, *(2.0**n for n in range(-6, 1))])
    largest = np.repeat([np.abs(x[:BLOCK]).max(), np.abs(x[BLOCK:]).max()], [BLOCK, D - BLOCK])
    sent = through(FP4(), x)
    allowed = largest[:, None] * powers
    nearest = np.abs(allowed - np.abs(x)[:, None]).min(1)
    np.testing.assert_allclose(np.abs(sent - x), nearest, rtol=1e-5, atol=1e-7 * largest.max())
    large = np.abs(x) >= largest / 64
    assert (np.abs(sent - x)[large] <= np.abs(x)[large] * (1 / 3 + 1e-6)).all()
    assert (np.sign(sent)[sent != 0] == np.sign(x)[sent != 0]).all()


def _matrix(singular: list[float], n: int = 20, m: int = 20) -> Vector:
    """Return a matrix (n m,) with these singular values."""
    rng = np.random.default_rng(3)
    u, v = (np.linalg.qr(rng.standard_normal((k, len(singular))))[0] for k in (n, m))
    matrix: Vector = ((u * np.array(singular)) @ v.T).astype(np.float32)
    return matrix.reshape(-1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_powersgd_sends_a_matrix_of_its_rank_exactly(rank: int) -> None:
    """A matrix of rank r or less comes as it is, also in the second message, which starts warm."""
    x, codec = _matrix([5.0, 2.0, 1.0][:rank]), PowerSGD(3)
    memory = np.zeros((1, len(x)), np.float32)
    for step in range(3):
        assert square(through(codec, x, step, memory) - x) <= 1e-10 * square(x)


def test_powersgd_comes_near_to_the_best_rank() -> None:
    """The error is at least the energy of the singular values after the r-th, and a warm start reaches it."""
    singular = [8.0, 4.0, 2.0, 1.0, 0.5]
    x, codec = _matrix(singular), PowerSGD(2)
    memory = np.zeros((1, len(x)), np.float32)
    errors = [square(through(codec, x, step, memory) - x) for step in range(12)]
    best = sum(s**2 for s in singular[2:])
    assert min(errors) >= best * (1 - 1e-5)
    assert errors[-1] == pytest.approx(best, rel=1e-4)
    assert errors[0] > 1.01 * best


# A thread of the group may still call the hook back when the group is destroyed. If it then dropped the group
# last, it would wait for itself, and torch ends the process.
NEVER_DROPPED: list[Any] = []


def test_powersgd_is_torch_s() -> None:
    """With one process, the hook of torch makes the same matrices, from the same Q, in five steps."""
    n, m, rank = 20, 20, 2
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    NEVER_DROPPED.append(dist.group.WORLD)
    try:
        layer = torch.nn.Linear(m, n, bias=False)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        state = PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, use_error_feedback=False
        )
        model.register_comm_hook(state, powerSGD_hook)
        codec, memory = PowerSGD(rank), np.zeros((1, n * m), np.float32)
        for step in range(7):
            g = uneven(n * m, step).reshape(n, m)
            model.zero_grad()
            (model(torch.eye(m)).T * torch.from_numpy(g)).sum().backward()
            theirs = layer.weight.grad
            assert theirs is not None
            if not state.q_memory_dict:  # the first steps are not compressed
                np.testing.assert_array_equal(theirs.numpy(), g)
                continue
            if not memory.any():
                q_of_last = next(iter(state.q_memory_dict.values())).reshape(
                    m, rank
                )  # the next step begins with it
                memory[0, : m * rank] = q_of_last.T.contiguous().numpy().reshape(-1)
                continue
            ours = through(codec, g.reshape(-1), step, memory)
            np.testing.assert_allclose(ours.reshape(n, m), theirs.numpy(), rtol=1e-3, atol=1e-4)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("text", CONTRACTING)
def test_what_contracts_brings_an_estimate_to_its_aim(text: str) -> None:
    """Adding C(x - h) to h again and again comes as near as wanted to any x."""
    codec, x = codec_of(text), uneven()
    h, memory = np.zeros(D, np.float32), np.zeros((codec.memory_rows, D), np.float32)
    for step in range(400):
        h = h + through(codec, x - h, step, memory)
    assert square(x - h) < 1e-3 * square(x)


def test_which_codecs_are_unbiased() -> None:
    """Those whose rounding or choice is random and scaled; the others contract."""
    assert UNBIASED == ["randk:.1,scaled", "qsgd:1", "qsgd:8", "qsgd:127", "int8"]
    assert {*TEXTS} - {*CONTRACTING} == {"randk:.1,scaled", "qsgd:1", "qsgd:8", "qsgd:127"}
