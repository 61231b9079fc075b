"""A task whose result travels as a codec's bytes, and what its worker remembers of what it did not send.

What a worker remembers is a part of the task's state, so it is as safe as that: a task that is repeated
begins with the same memory, and one that is cancelled leaves none. What is sent, C(p), and remembered:

    ErrorFeedback   p = x + e,  e <- p - C(p)               x: what the task computed
    Ef21            p = x - g,  g <- g + C(p)               and the server, which knows g too, uses g
    MomentumCorrection  u <- m u + x,  p = e + u,  e <- p - C(p),  u <- 0 where C(p) has something
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dsgd.core.tasks import Task, TaskAround
from dsgd.core.weights import Vector, is_left_out
from dsgd.transforms.codecs import Bytes, Codec, Draws, TopK

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Objective
    from dsgd.core.shards import Shard


class Memory(Protocol):
    """What is done with that part of a vector which a codec does not send."""

    rows: ClassVar[int]
    """How many vectors (D,) a worker keeps for it."""
    estimates: ClassVar[bool]
    """Whether the server adds up what is sent, and uses the sum."""

    def before(self, x: Vector, rows: Vector) -> Vector:
        """Return p (D,), which is encoded. rows (rows, D): what is remembered; changed in place."""

    def after(self, p: Vector, sent: Vector, rows: Vector) -> None:
        """Change what is remembered, (rows, D), now that `sent` = C(p) has been."""


@dataclass(frozen=True)
class Forgets:
    """What is not sent is lost."""

    rows: ClassVar[int] = 0
    estimates: ClassVar[bool] = False

    def before(self, x: Vector, rows: Vector) -> Vector:
        return x

    def after(self, p: Vector, sent: Vector, rows: Vector) -> None:
        pass


@dataclass(frozen=True)
class ErrorFeedback:
    """What is not sent is added to the next vector, so nothing is lost: all that was sent and what is
    remembered are together all that was computed.

    Stich, Cordonnier and Jaggi 2018 (arXiv 1809.07599), algorithm 1; Karimireddy et al. 2019 (arXiv
    1901.09847), algorithm 2. There the step size is in what is remembered; here gradients are, as in the code
    of the former (epfml/sparsifiedSGD, memory.py), which is the same while the step size is constant.
    """

    rows: ClassVar[int] = 1
    estimates: ClassVar[bool] = False

    def before(self, x: Vector, rows: Vector) -> Vector:
        p: Vector = x + rows[0]
        return p

    def after(self, p: Vector, sent: Vector, rows: Vector) -> None:
        np.subtract(p, sent, out=rows[0])


@dataclass(frozen=True)
class Ef21:
    """The worker and the server have an estimate g of the worker's vector, which begins at 0; what changed is
    sent.

    Richtarik, Sokolov and Fatkhullin 2021 (arXiv 2106.05203), algorithm 2, of gradients of mini-batches
    instead of whole ones. The step sizes in the tests are those of IgorSokoloff/ef21_experiments_source_code.
    """

    rows: ClassVar[int] = 1
    estimates: ClassVar[bool] = True

    def before(self, x: Vector, rows: Vector) -> Vector:
        p: Vector = x - rows[0]
        return p

    def after(self, p: Vector, sent: Vector, rows: Vector) -> None:
        rows[0] += sent


@dataclass(frozen=True, kw_only=True)
class MomentumCorrection:
    """Error feedback of the momentum instead of the gradient; what was sent loses its momentum.

    clip: largest norm of a worker's gradient, before the momentum. everything: the whole
    vector is sent, so nothing is masked: plain SGD with momentum.
    Lin et al. 2018, "Deep gradient compression" (arXiv 1712.01887), section 3 and algorithm 4, and its first
    author's code (synxlin/deep-gradient-compression, dgc/memory.py).
    """

    momentum: float
    clip: float | None = None
    everything: bool = False
    rows: ClassVar[int] = 2
    estimates: ClassVar[bool] = False

    def before(self, x: Vector, rows: Vector) -> Vector:
        if self.clip is not None:
            norm = math.sqrt(np.square(x, dtype=np.float64).sum())
            x = x * np.float32(min(1.0, self.clip / (norm + 1e-6)))
        rows[0] = np.float32(self.momentum) * rows[0] + x
        p: Vector = rows[0] + rows[1]
        return p

    def after(self, p: Vector, sent: Vector, rows: Vector) -> None:
        if not self.everything:
            rows[0][sent != 0] = 0
        np.subtract(p, sent, out=rows[1])


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How results travel from the workers: a codec, and what is done with what it does not send.

    warmup: mini-batches of a worker in which top-k sends more than its share, a quarter in the first quarter
    of them, then a sixteenth, and so on: Lin et al. 2018, section 3.3, where 75%, 93.75%, 98.4375% and 99.6%
    are left out, in an epoch each. In the first author's code epoch k of W, from 1, has share^(k/(W + 1)):
    for a share of .001 and W = 4 nearly the same, .251^k.
    """

    codec: Codec
    memory: Memory = Forgets()
    warmup: int = 0

    @classmethod
    def of(cls, codec: Codec, memory: str | None = None) -> Compression:
        """Return a codec with the memory of this name; None: none where it is unbiased, else ef."""
        memories: Mapping[str, Memory] = {"none": Forgets(), "ef": ErrorFeedback(), "ef21": Ef21()}
        return cls(codec=codec, memory=memories[memory or ("none" if codec.unbiased else "ef")])

    def at(self, clock: int) -> Compression:
        """Return what it is for a task that begins with the worker's mini-batch number `clock`."""
        if not self.warmup:
            return self
        assert isinstance(self.codec, TopK)
        later = replace(self, warmup=0)
        if clock >= self.warmup:
            return later
        share = max(self.codec.share, 0.25 ** (1 + 4 * clock // self.warmup))
        return replace(later, codec=replace(self.codec, share=share))


@dataclass(frozen=True, kw_only=True)
class Compressed(TaskAround):
    """A task whose value is what the server decodes: of a task that returns weights, how far they moved.

    seed: of the codec's draws.
    """

    how: Compression
    seed: int

    @property
    def state_rows(self) -> int:
        return self.task.state_rows + self.how.memory.rows + self.how.codec.memory_rows

    @property
    def relative(self) -> bool:
        """Whether the value is added to the weights that were read."""
        return getattr(self.task, "relative", False)

    def part(self, num_weights: int) -> slice:
        """Return which weights the value is of; a task that exchanges a part of them says so."""
        return part_of(self.task, num_weights) or slice(num_weights)

    def value_bytes(self, num_weights: int) -> int:
        """Return the length of a message; 0 for no weights."""
        size = len(range(num_weights)[self.part(num_weights)])
        return self.how.codec.num_bytes(size) if size else 0

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        losses, messages, state = self.messages(objective, shards, steps, w, state)
        values = [
            self.decode(message, w.shape[1], shard.worker, step)
            for message, shard, step in zip(messages, shards, steps, strict=True)
        ]
        return losses, torch.from_numpy(np.stack(values)).to(w.device), state

    def messages(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, list[Bytes], Tensor]:
        """Return what a call returns, the values (P, D) as the messages that are decoded to them."""
        import torch

        own = self.task.state_rows
        losses, values, kept = self.task(objective, shards, steps, w, state[:, :own])
        rows = state[:, own:].cpu().numpy().copy()  # (P, memory's and codec's rows, D)
        xs = (values - w if self.relative else values).cpu().numpy()
        part, messages = self.part(w.shape[1]), []
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverges stops by its loss
            for x, shard, step, row in zip(xs, shards, steps, rows, strict=True):
                messages.append(self._encode(x[part], Draws(self.seed, shard.worker, step), row[:, part]))
        if rows.shape[1]:
            kept = torch.cat([kept, torch.from_numpy(rows).to(w.device)], dim=1)
        return losses, messages, kept

    def _encode(self, x: Vector, draws: Draws, rows: Vector) -> Bytes:
        """Return the message for x (n,), and remember in `rows` (rows, n) what it does not have."""
        memory = self.how.memory
        if not len(x):
            return np.zeros(0, np.uint8)
        p = memory.before(x, rows)
        message = self._message(x, p, draws, rows[memory.rows :])
        if memory.rows:
            memory.after(p, self._decoded(message, len(p), draws), rows)
        return message

    def _message(self, x: Vector, p: Vector, draws: Draws, memory: Vector) -> Bytes:
        """Return the bytes for p (n,), which was made of x (n,)."""
        return self.how.codec.encode(p, draws, memory)

    def _decoded(self, message: Bytes, size: int, draws: Draws) -> Vector:
        """Return C(p), (n,)."""
        return self.how.codec.decode(message, size, draws)

    def decode(self, message: Bytes, num_weights: int, worker: int, step: int) -> Vector:
        """Return the value (D,) of a message, 0 outside of its part of the weights.

        step: the number of the task's first mini-batch.
        """
        part, draws = self.part(num_weights), Draws(self.seed, worker, step)
        x = np.zeros(num_weights, np.float32)
        if len(message):
            with np.errstate(invalid="ignore", over="ignore"):
                x[part] = self._decoded(message, len(x[part]), draws)
        return x


@dataclass(frozen=True, kw_only=True)
class CompressedGradient(Compressed):
    """A gradient that may leave parameters out, of which nothing is encoded: behind the codec's bytes, a bit
    for each parameter says so, and what is decoded is -0 there.

    sizes: how many weights each parameter has.
    """

    sizes: tuple[int, ...]

    def value_bytes(self, num_weights: int) -> int:
        return super().value_bytes(num_weights) + -(-len(self.sizes) // 8)

    def _message(self, x: Vector, p: Vector, draws: Draws, memory: Vector) -> Bytes:
        ends = zip(self.sizes, np.cumsum(self.sizes), strict=True)
        bits = np.packbits([size > 0 and is_left_out(x[end - 1]) for size, end in ends])
        encoded = super()._message(x, np.where(self._left(bits), np.float32(0), p), draws, memory)
        return np.concatenate([encoded, bits])

    def _decoded(self, message: Bytes, size: int, draws: Draws) -> Vector:
        end = self.how.codec.num_bytes(size)
        decoded = super()._decoded(message[:end], size, draws)
        return np.where(self._left(message[end:]), np.float32(-0.0), decoded)

    def _left(self, bits: Bytes) -> NDArray[np.bool_]:
        """Return which weights (D,) these bits leave out."""
        return np.repeat(np.unpackbits(bits, count=len(self.sizes)).view(bool), self.sizes)


def part_of(task: Task, num_weights: int) -> slice | None:
    """Return which weights a task's value is of, None for all: a task that exchanges a part has `part`."""
    part: Callable[[int], slice] | None = getattr(task, "part", None)
    return None if part is None else part(num_weights)


@dataclass(frozen=True)
class AsPart(TaskAround):
    """A task whose values are the parts (P, n) of those of another: what a worker far away sends."""

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, values, state = self.task(objective, shards, steps, w, state)
        return losses, values[:, part_of(self.task, w.shape[1])].contiguous(), state


@dataclass(frozen=True)
class AsMessage(TaskAround):
    """A compressed task whose values are the messages (P, value_bytes): what a worker far away sends."""

    task: Compressed

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        losses, messages, state = self.task.messages(objective, shards, steps, w, state)
        return losses, torch.from_numpy(np.stack(messages)), state


def to_send(task: Task) -> Task:
    """Return what a worker in another process computes, so that only what must travel does."""
    if isinstance(task, Compressed):
        return AsMessage(task)
    return AsPart(task) if hasattr(task, "part") else task


def received(task: Task, message: Bytes, num_weights: int, worker: int, step: int) -> Vector:
    """Return the value (D,) in a message, which may be padded: what `to_send(task)` has computed."""
    if isinstance(task, Compressed):
        return task.decode(message[: task.value_bytes(num_weights)], num_weights, worker, step)
    part = part_of(task, num_weights)
    if part is None:
        return message[: 4 * num_weights].view(np.float32)
    x = np.zeros(num_weights, np.float32)
    x[part] = message[: 4 * len(x[part])].view(np.float32)
    return x
