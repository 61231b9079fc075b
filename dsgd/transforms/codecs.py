"""Codecs: how a vector of float32 becomes fewer bytes, and what the bytes become again.

A codec is a frozen value, and both ends use numpy alone, on the processor: the same bits come out in the
simulator, in a worker on Ray and on the driver, which has no torch. How many bytes a vector of D weights
takes is a closed form, `num_bytes(D)`, and exactly as many are made. Vectors: float32, shape (D,).

A codec that draws takes its numbers from a counter-based stream (`Draws`), at the receiver too: random-k
sends no indices. NaN and infinity stay, so a run that diverges is seen to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dsgd.core.option_forms import Form, number, parsed, whole, word
from dsgd.core.rng import Purpose, at
from dsgd.core.weights import Vector

Bytes = NDArray[np.uint8]
BLOCK = 256
"""Numbers that share one scale, in int8 and fp4."""
_GOLDEN, _SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


class Draws(NamedTuple):
    """The stream of one message: a repeated task draws the same numbers, and so does the receiver."""

    seed: int
    worker: int
    step: int
    """Of the task's first mini-batch; of a broadcast, the version."""
    purpose: Purpose = Purpose.COMPRESSION

    def begin(self) -> Generator:
        """Return this thread's generator at the start of the stream: draw at once, and do not keep it."""
        return at(self.seed, self.purpose, self.worker, self.step)


def broadcast_draws(seed: int, version: int) -> Draws:
    """Return the stream of the message that all workers get of a version of the weights."""
    return Draws(seed, 0, version, Purpose.BROADCAST)


def heard(codec: Codec, seed: int, held: Vector, message: Bytes, version: int) -> Vector:
    """Return what all hold, (D,), once they have heard of a version: what they held before, and the message.

    The same bits wherever it is computed.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # a run that diverges stops by its loss
        vector: Vector = held + codec.decode(message, len(held), broadcast_draws(seed, version))
    vector.setflags(write=False)
    return vector


class Codec(Protocol):
    """Makes bytes of vectors."""

    memory_rows: ClassVar[int]
    """How many vectors (D,) the sender keeps for the codec between two messages."""

    @property
    def unbiased(self) -> bool:
        """Whether C(x) is x on average."""

    @property
    def contracts(self) -> bool:
        """Whether what is lost, C(x) - x, is always, or on average, shorter than x."""

    def num_bytes(self, num_weights: int) -> int:
        """Return the length of a message of D weights."""

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        """Return the message for x (D,). memory (memory_rows, D): zeros at first; it is changed in place."""

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        """Return C(x), shape (D,)."""


@dataclass(frozen=True)
class TopK:
    """The k = share D numbers of largest magnitude; of equal ones, those that come first.

    C(x) - x is the tail: ||C(x) - x||^2 <= (1 - k/D) ||x||^2. A message has the k numbers, and where they
    are: four bytes for each, or one bit a weight, whichever is less. Aji and Heafield 2017 (arXiv
    1704.05021).
    """

    share: float
    memory_rows: ClassVar[int] = 0
    unbiased: ClassVar[bool] = False
    contracts: ClassVar[bool] = True

    def num_bytes(self, num_weights: int) -> int:
        k = kept(self.share, num_weights)
        return 4 * k + min(4 * k, _bytes_of_bits(num_weights))

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        k, size = kept(self.share, len(x)), np.abs(x)
        size[np.isnan(size)] = np.inf
        least = np.partition(size, len(x) - k)[len(x) - k]
        chosen = size > least
        chosen[np.flatnonzero(size == least)[: k - np.count_nonzero(chosen)]] = True
        indices = np.flatnonzero(chosen)
        bitmap = 4 * k > _bytes_of_bits(len(x))
        places = np.packbits(chosen) if bitmap else indices.astype(np.uint32)
        return _joined(x[indices], places)

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        k = kept(self.share, num_weights)
        places, x = message[4 * k :], np.zeros(num_weights, np.float32)
        bitmap = 4 * k > _bytes_of_bits(num_weights)
        where = np.unpackbits(places, count=num_weights).view(bool) if bitmap else _as(np.uint32, places)
        x[where] = _as(np.float32, message[: 4 * k])
        return x


@dataclass(frozen=True)
class RandomK:
    """k = share D numbers at places that both ends draw, so only the numbers travel.

    E ||C(x) - x||^2 = (1 - k/D) ||x||^2. scaled: times D/k, which is unbiased, with variance
    (D/k - 1) ||x||^2. Stich, Cordonnier and Jaggi 2018 (arXiv 1809.07599), section 2.
    """

    share: float
    scaled: bool = False
    memory_rows: ClassVar[int] = 0

    @property
    def unbiased(self) -> bool:
        return self.scaled

    @property
    def contracts(self) -> bool:
        return not self.scaled

    def num_bytes(self, num_weights: int) -> int:
        return 4 * kept(self.share, num_weights)

    def _places(self, num_weights: int, draws: Draws) -> NDArray[np.int64]:
        return draws.begin().choice(num_weights, kept(self.share, num_weights), replace=False, shuffle=False)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        return _joined(x[self._places(len(x), draws)])

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        values = _as(np.float32, message)
        if self.scaled:
            values = values * np.float32(num_weights / len(values))
        x = np.zeros(num_weights, np.float32)
        x[self._places(num_weights, draws)] = values
        return x


@dataclass(frozen=True)
class Sign:
    """The sign of each number, one bit, and their mean magnitude: C(x) = ||x||_1 / D sign(x).

    ||C(x) - x||^2 = (1 - ||x||_1^2 / (D ||x||_2^2)) ||x||^2. Karimireddy et al. 2019 (arXiv 1901.09847),
    section 3. A zero, which has no bit, is positive in half of the messages (by an equidistributed sequence:
    Weyl 1916), so what stays zero hardly moves. positive: it always is.
    """

    positive: bool = False
    memory_rows: ClassVar[int] = 0
    unbiased: ClassVar[bool] = False
    contracts: ClassVar[bool] = True

    def num_bytes(self, num_weights: int) -> int:
        return 4 + _bytes_of_bits(num_weights)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        negative = x < 0
        if not self.positive:
            zeros = np.flatnonzero(x == 0)
            turn = draws.step * _GOLDEN + draws.worker * _SILVER + zeros * _SILVER**2
            negative[zeros] = turn % 1 < 0.5
        return _joined(np.array([np.abs(x).mean(dtype=np.float64)], np.float32), np.packbits(negative))

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        (size,) = _as(np.float32, message[:4])
        x: Vector = np.where(np.unpackbits(message[4:], count=num_weights), -size, size)
        return x


@dataclass(frozen=True)
class QSGD:
    """Each magnitude, as a share of the norm, is rounded at random to one of s levels; unbiased.

    Variance (||x||/s)^2 sum p (1 - p), p the fractional parts of s |x_i| / ||x||; at most
    min(D/s^2, sqrt(D)/s) ||x||^2. Alistarh et al. 2017 (arXiv 1610.02132), lemma 3.1; codes have a fixed
    width here, where the paper has Elias codes.
    """

    levels: int
    memory_rows: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True
    contracts: ClassVar[bool] = False

    @property
    def _bits(self) -> int:
        return (2 * self.levels).bit_length()

    def num_bytes(self, num_weights: int) -> int:
        return 4 + _bytes_of_bits(self._bits * num_weights)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        norm = np.float32(math.sqrt(np.square(x, dtype=np.float64).sum()))
        levels = _rounded(x * _inverse(norm / np.float32(self.levels)), self.levels, draws)
        codes = (levels + self.levels).astype(np.uint8)
        return _joined(np.array([norm], np.float32), _packed(codes, self._bits))

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        (norm,) = _as(np.float32, message[:4])
        levels = _unpacked(message[4:], self._bits, num_weights).astype(np.float32) - np.float32(self.levels)
        x: Vector = levels * (norm / np.float32(self.levels))
        return x


@dataclass(frozen=True)
class Int8:
    """Whole numbers from -127 to 127, rounded at random, times the scale of their block; unbiased.

    The scale is max |x| / 127. Variance scale^2 sum p (1 - p) in each block, p the fractional parts of
    |x| / scale; at most BLOCK / (4 127^2) ||x||^2. Dettmers 2016 (arXiv 1511.04561) has blocks and 8 bits;
    rounding at random is Gupta et al. 2015 (arXiv 1502.02551).
    """

    memory_rows: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True
    contracts: ClassVar[bool] = True

    def num_bytes(self, num_weights: int) -> int:
        return num_weights + 4 * _blocks(num_weights)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        blocks = _in_blocks(x)
        scale = np.abs(blocks).max(1) / np.float32(127)
        shares = (blocks * _inverse(scale)[:, None]).reshape(-1)[: len(x)]
        return _joined(scale, _rounded(shares, 127, draws).astype(np.int8))

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        end = 4 * _blocks(num_weights)
        whole = _in_blocks(_as(np.int8, message[end:]).astype(np.float32))
        return _flat(whole * _as(np.float32, message[:end])[:, None], num_weights)


@dataclass(frozen=True)
class FP4:
    """One bit of sign and three of exponent (E3M0): the nearest of 0 and max |x| 2^-6 to 2^0 of its block.

    Deterministic: an error of at most a third of the number, where it is at least max |x| / 64. What
    Douillard et al. 2025 (arXiv 2501.18512), section 2.3, send as outer gradients; their blocks are not
    published.
    """

    memory_rows: ClassVar[int] = 0
    unbiased: ClassVar[bool] = False
    contracts: ClassVar[bool] = True

    def num_bytes(self, num_weights: int) -> int:
        return -(-num_weights // 2) + 4 * _blocks(num_weights)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        blocks = _in_blocks(x)
        scale = np.abs(blocks).max(1)
        shares = _flat(np.abs(blocks) * _inverse(scale)[:, None], len(x))
        codes = np.zeros(2 * -(-len(x) // 2), np.uint8)
        for middle in (0.5 / 64, *(1.5 / 2**n for n in range(6, 0, -1))):
            codes[: len(x)] += shares >= np.float32(middle)
        codes[: len(x)] |= (x < 0).view(np.uint8) << 3
        return _joined(scale, codes[::2] | codes[1::2] << 4)

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        end = 4 * _blocks(num_weights)
        pairs = message[end:]
        codes = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)[:num_weights]
        powers = np.array([0, *(2.0**n for n in range(-6, 1))], np.float32)
        values = _in_blocks(np.concatenate([powers, -powers])[codes])
        return _flat(values * _as(np.float32, message[:end])[:, None], num_weights)


@dataclass(frozen=True)
class PowerSGD:
    """The vector as a matrix M (n, m), m = floor(sqrt D), and of it P Q^T of rank r.

        P = orthonormal columns of M Q,    Q = M^T P;    the next message begins with this Q (warm start)

    Error at least the sum of the squared singular values after the r-th; a matrix of rank r or less is sent
    exactly. Vogels, Karimireddy and Jaggi 2019 (arXiv 1905.13727), algorithm 1. There P and Q are averaged
    over the workers before they are used, so all have one Q; here each worker has its own, and the server
    averages P Q^T. With one worker that is the same.
    """

    rank: int
    memory_rows: ClassVar[int] = 1
    unbiased: ClassVar[bool] = False
    contracts: ClassVar[bool] = True

    def _shape(self, num_weights: int) -> tuple[int, int, int]:
        m = math.isqrt(num_weights)
        return -(-num_weights // m), m, min(self.rank, m)

    def num_bytes(self, num_weights: int) -> int:
        n, m, r = self._shape(num_weights)
        return 4 * r * (n + m)

    def encode(self, x: Vector, draws: Draws, memory: Vector) -> Bytes:
        n, m, r = self._shape(len(x))
        matrix = np.pad(x, (0, n * m - len(x))).reshape(n, m)
        q = np.array(memory[0, : m * r]).reshape(r, m)  # rows, so that each lies together
        unused = ~q.any(1)
        if unused.any():  # at first, and where M had a lower rank
            q[unused] = draws.begin().standard_normal((r, m), np.float32)[unused]
        # einsum, unlike a library's matrix product, adds in the same order with any number of threads.
        p = _orthonormal(np.stack([np.einsum("ij,j->i", matrix, row) for row in q]))
        q = np.stack([np.einsum("ij,i->j", matrix, row) for row in p])
        memory[0, : m * r] = q.reshape(-1)
        return _joined(p.reshape(-1), q.reshape(-1))

    def decode(self, message: Bytes, num_weights: int, draws: Draws) -> Vector:
        n, m, r = self._shape(num_weights)
        numbers = _as(np.float32, message)
        p, q = numbers[: r * n].reshape(r, n), numbers[r * n :].reshape(r, m)
        matrix = p[0][:, None] * q[0]
        for j in range(1, r):
            matrix += p[j][:, None] * q[j]
        return _flat(matrix, num_weights)


def kept(share: float, num_weights: int) -> int:
    """Return how many of D numbers a share is: at least 1, rounded up.

    >>> kept(0.01, 250), kept(1.0, 250)
    (3, 250)
    """
    return max(1, math.ceil(share * num_weights - 1e-9))


def _orthonormal(rows: Vector) -> Vector:
    """Return rows (r, n) made orthonormal, the first ones first (Gram-Schmidt, twice); 0 for one that depends
    on those before it.
    """
    done = np.zeros(rows.shape, np.float64)
    for j, row in enumerate(rows.astype(np.float64)):
        left = row.copy()
        for _ in range(2):  # once is not enough where little is left (Kahan, Parlett: "twice is enough")
            for other in done[:j]:
                left -= (other * left).sum() * other
        norm, before = math.sqrt((left * left).sum()), math.sqrt((row * row).sum())
        # Less than float32 can have left of it is rounding; NaN stays NaN.
        done[j] = 0 if norm <= 1e-6 * before else left / norm
    return done.astype(np.float32)


def _rounded(x: Vector, most: int, draws: Draws) -> Vector:
    """Return x rounded to a whole number of at most `most` in magnitude: up or down at random, unbiased."""
    size = np.abs(x)
    size += draws.begin().random(len(x), np.float32)
    np.minimum(np.floor(size, out=size), most, out=size)
    return np.nan_to_num(np.copysign(size, x, out=size), copy=False)  # NaN is in the scale


def _inverse(scale: Any) -> Any:
    """Return 1 / scale, and 0 where that is not finite."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _blocks(num_weights: int) -> int:
    return -(-num_weights // BLOCK)


def _in_blocks(x: Vector) -> Vector:
    """Return x (D,) as blocks (B, BLOCK), the last one filled up with zeros."""
    return np.pad(x, (0, _blocks(len(x)) * BLOCK - len(x))).reshape(-1, BLOCK)


def _flat(blocks: Vector, num_weights: int) -> Vector:
    return blocks.reshape(-1)[:num_weights]


def _bytes_of_bits(bits: int) -> int:
    return -(-bits // 8)


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Return codes of so many bits each, at most 8, one behind the other: eight of them make one word."""
    eights = np.pad(codes, (0, -len(codes) % 8)).reshape(-1, 8)
    words = np.zeros(len(eights), "<u8")
    for i in range(8):
        words |= eights[:, i].astype(np.uint64) << np.uint64(bits * i)
    return words.view(np.uint8).reshape(-1, 8)[:, :bits].reshape(-1)[: _bytes_of_bits(bits * len(codes))]


def _unpacked(message: Bytes, bits: int, count: int) -> Bytes:
    """Return the codes that `_packed` was given."""
    parts = np.zeros((-(-count // 8), 8), np.uint8)
    parts[:, :bits] = np.pad(message, (0, len(parts) * bits - len(message))).reshape(-1, bits)
    words, mask = parts.view("<u8")[:, 0], np.uint64(2**bits - 1)
    eights = [(words >> np.uint64(bits * i) & mask).astype(np.uint8) for i in range(8)]
    return np.stack(eights, axis=1).reshape(-1)[:count]


def _as(kind: Any, message: Bytes) -> Any:
    """Return bytes as numbers; a copy where they are not aligned."""
    return np.frombuffer(message.tobytes(), kind)


def _joined(*parts: NDArray[Any]) -> Bytes:
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])


SHARE = number("SHARE", "above 0 and at most 1", lambda share: 0 < share <= 1)
CODECS: Mapping[str, Form[Codec]] = {
    "topk": Form(TopK, (SHARE,), "topk:.01"),
    "randk": Form(RandomK, (SHARE, word("scaled")), "randk:.01 or randk:.01,scaled"),
    "sign": Form(Sign, (word("positive"),), "sign"),
    "qsgd": Form(QSGD, (whole("LEVELS", 1, 127),), "qsgd:8"),
    "int8": Form(Int8),
    "fp4": Form(FP4),
    "powersgd": Form(PowerSGD, (whole("RANK", 1, 1024),), "powersgd:2"),
}


def parse_codec(text: str) -> Codec | None:
    """Return the codec that a text names; None for none. Raises ValueError with the rule.

    >>> parse_codec("topk:.01"), parse_codec("none")
    (TopK(share=0.01), None)
    """
    return parsed(text, CODECS, "none")
