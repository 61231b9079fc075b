"""Rules: how the results that have come in make the next version of the weights.

A rule is a frozen value and a chain of parts, as in Optax. Some parts look at each result (what its staleness
is worth, what its weights have moved since); the rest see their mean, and the last one moves the weights:

    chain(ByStaleness(bound=1), Clip(1.0), Momentum(0.9), Descend(0.1))

Everything a rule remembers is in the named slots of `Weights`. All parts are elementwise: a rule's step on
slices of the vectors is, bit for bit, the slice of its step on the whole; so the weights may live on several
servers, or on all workers. The exception is named: a `Reduction` has what `Clip` and aggregators need to know
of whole vectors, as sums over the slices (`Chain.gram`, then `Chain.squares`).

Where gradients may leave weights out, -0 says that the loss does not depend on a weight: a step leaves it and
its slots alone (`Chain.leaving_out`), as torch does with a parameter whose gradient is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from dsgd.core.aggregators import Aggregation, Candidates, Matrix
from dsgd.core.weights import CHUNK, LEFT_OUT, Vector, Weights, is_left_out, mean

Slots: TypeAlias = dict[str, Vector]


class TaskResult(Protocol):
    """What a rule needs to know of a finished task."""

    @property
    def worker(self) -> int:
        """Whose result it is."""

    @property
    def value(self) -> Vector:
        """What the task computed (D,)."""

    @property
    def read(self) -> int:
        """The version of the weights it read."""

    @property
    def origin(self) -> Weights:
        """The weights it read."""


class Reduction(NamedTuple):
    """What a step needs to know of whole vectors where only slices are here: sums over the slices."""

    gram: Matrix | None = None
    """The inner products of the values, for an aggregator."""
    squares: float | None = None
    """The sum of squares of the direction, for `Clip`."""


ALL_HERE = Reduction()
"""Where the vectors are whole, all follows from them."""


class Rule(Protocol):
    """Makes the next version of the weights from results."""

    def step(self, w: Weights, results: Sequence[TaskResult], whole: Reduction = ALL_HERE) -> Weights:
        """Return the version after `w`. whole: of the whole vectors, where only slices of them are here."""


class EachPart(Protocol):
    """A part that looks at each result, before they are averaged."""

    slots: ClassVar[tuple[str, ...]]

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        """Return what the result's direction g (D,) becomes, and how much it counts."""


class Part(Protocol):
    """A part that changes the direction in which the weights will move."""

    slots: ClassVar[tuple[str, ...]]

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        """Return the new direction, shape (D,); the slots are those of the version to come."""


class End(Protocol):
    """The last part: it makes the new weights."""

    slots: ClassVar[tuple[str, ...]]

    def end(self, u: Vector, scale: float, w: Weights, slots: Slots, out: Vector | None = None) -> Vector:
        """Return the new weights, shape (D,), from the direction `scale` u; in `out`, if that is given."""


# --- what each result counts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByStaleness:
    """A gradient of staleness t counts min(1, bound/t): fully up to the bound, less beyond.

    Zhang, Gupta, Lian and Liu 2015, "Staleness-aware async-SGD" (arXiv 1511.05950), equation 6, is bound = 1.

    >>> [ByStaleness(2).weight(t) for t in (0, 2, 4)]
    [1.0, 1.0, 0.5]
    """

    bound: float
    slots: ClassVar[tuple[str, ...]] = ()

    def weight(self, staleness: int) -> float:
        """Return how much a gradient counts, in (0, 1]."""
        return min(1.0, max(1, self.bound) / max(1, staleness))

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        return g, scale * self.weight(w.version - result.read)


@dataclass(frozen=True)
class Compensate:
    """Carries a stale gradient to the present weights: g + rate h(g) (w - origin), with h(g) = g*g.

    adaptive: the rate is divided by the root of the gradients' mean square (decay .95, slot `mean_square`).
    Zheng et al. 2017 (arXiv 1609.08326), algorithm 2 and section 5.
    """

    rate: float
    adaptive: bool = False
    slots: ClassVar[tuple[str, ...]] = ("mean_square",)

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        rate: Any = self.rate
        if self.adaptive:
            before = slots.get("mean_square")
            square = 0.05 * g * g if before is None else 0.95 * before + 0.05 * g * g
            slots["mean_square"] = square
            rate = self.rate / np.sqrt(square + 1e-7)
        return g + rate * hessian(g) * (w.vector - result.origin.vector), scale


def hessian(g: Vector) -> Vector:
    """Return what stands for the Hessian: the diagonal (D,) of the gradient's outer product."""
    return g * g


# --- the direction ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """Shortens a direction longer than `norm` to that length, as torch's clip_grad_norm_ does.

    It needs the squares of the whole vector, so it must be the first part after the mean.
    """

    norm: float
    slots: ClassVar[tuple[str, ...]] = ()

    def factor(self, squares: float) -> float:
        """Return what the direction is multiplied by, given its sum of squares."""
        return min(1.0, self.norm / (math.sqrt(squares) + 1e-6))


@dataclass(frozen=True)
class Decay:
    """Adds rate w: before the momentum it is L2 regularisation, after Adam's moments decoupled weight
    decay.
    """

    rate: float
    slots: ClassVar[tuple[str, ...]] = ()

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        return u + self.rate * w.vector


@dataclass(frozen=True)
class Momentum:
    """Heavy ball (Polyak 1964), v <- beta v + u; with nesterov (Sutskever et al. 2013) the direction
    is u + beta v.
    """

    beta: float
    nesterov: bool = False
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        v = slots.get("velocity")
        v = slots["velocity"] = u if v is None else self.beta * v + u
        return u + self.beta * v if self.nesterov else v


@dataclass(frozen=True)
class Adam:
    """The direction m/(1 - beta1^t) / (sqrt(v/(1 - beta2^t)) + epsilon), t counting updates from 1.

    Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1; with `Decay` after it, AdamW: Loshchilov and Hutter
    2019 (arXiv 1711.05101), algorithm 2. Updates that leave a weight alone do not count for it.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        t: Any = w.version + 1
        if LEFT_OUT in slots:
            t = np.maximum(t - slots[LEFT_OUT].astype(np.float64), 1)
        m = (1 - self.beta1) * u
        v = (1 - self.beta2) * u * u
        if "first_moment" in slots:
            m += self.beta1 * slots["first_moment"]
            v += self.beta2 * slots["second_moment"]
        slots["first_moment"], slots["second_moment"] = m, v
        corrections: list[Vector] = [np.asarray(1 - beta**t, np.float32) for beta in (self.beta1, self.beta2)]
        u = m / corrections[0]
        u /= np.sqrt(v / corrections[1]) + np.float32(self.epsilon)
        return u


@dataclass(frozen=True)
class Moved:
    """Takes as direction how far the workers have moved from the weights that they read: origin -
    mean(values).

    All results must have read the same weights.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    of_weights: ClassVar[bool] = True

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        return results[0].origin.vector - u


@dataclass(frozen=True)
class DelayedNesterov:
    """Nesterov momentum for directions that come one by one from `every` workers.

    Each counts its share, and the momentum joins in once `every` of them, with s the slot `pending`:

        s <- s + u,  u/N;    every N-th:  m <- beta m + s/N,  u/N + beta m,  s <- 0

    Liu et al. 2024 (arXiv 2401.09135), delayed Nesterov with activation c = 0. N = 1 is `Momentum` with
    nesterov.
    """

    beta: float
    every: int
    slots: ClassVar[tuple[str, ...]] = ("velocity", "pending")

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        zero = np.zeros_like(u)
        m, s = slots.get("velocity", zero), slots.get("pending", zero) + u
        share = np.float32(self.every)
        u = u / share
        if (w.version + 1) % self.every == 0:
            m, s = self.beta * m + s / share, zero
            u = u + self.beta * m
        slots["velocity"], slots["pending"] = m, s
        return u


# --- the step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the step size changes over a run: a factor on it, from 0 to 1.

    warmup: it rises linearly over so many steps. Then, up to `steps`: constant 1, linear down to 0, or half a
    cosine down to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5). restarts: steps at which it
    begins again, to end at the next one, or at `steps`. share: how many steps one count is: 1 in a worker,
    whose clock counts them; K/P for a server that makes a version of K mini-batches of P workers.

    >>> [Schedule(shape="linear", warmup=2, steps=6).factor(n) for n in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> [Schedule(shape="linear", steps=4, restarts=(2,)).factor(n) for n in range(4)]
    [1.0, 0.5, 1.0, 0.5]
    """

    shape: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    steps: int = 1
    share: float = 1.0
    restarts: tuple[int, ...] = ()

    def factor(self, count: int) -> float:
        """Return the factor for the update that follows `count` others."""
        at, warmup, steps = count * self.share, self.warmup, self.steps
        if self.restarts:
            began = max((step for step in self.restarts if step <= at), default=0)
            steps = min((step for step in self.restarts if step > at), default=steps) - began
            at, warmup = at - began, min(warmup, steps)
        if at < warmup:
            return min(1.0, (at + self.share) / warmup)
        if self.shape == "constant":
            return 1.0
        done = min(1.0, (at - warmup) / max(self.share, steps - warmup))
        return 1.0 - done if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Descend:
    """One step against the direction: w - lr u, lr times the schedule's factor for this version, if
    there is one.
    """

    lr: float
    schedule: Schedule | None = None
    slots: ClassVar[tuple[str, ...]] = ()

    def end(self, u: Vector, scale: float, w: Weights, slots: Slots, out: Vector | None = None) -> Vector:
        lr = self.lr if self.schedule is None else self.lr * self.schedule.factor(w.version)
        vector: Vector = np.multiply(-lr * scale, u, out=out)
        vector += w.vector
        return vector


@dataclass(frozen=True)
class Average:
    """The mean of the values becomes the weights: for workers that return weights, not gradients."""

    slots: ClassVar[tuple[str, ...]] = ()
    of_weights: ClassVar[bool] = True

    def end(self, u: Vector, scale: float, w: Weights, slots: Slots, out: Vector | None = None) -> Vector:
        if out is None:
            return u
        out[:] = u
        return out


@dataclass(frozen=True)
class Pull:
    """The weights move a share `rate` of the way to the mean of the values: w + rate (u - w).

    The slot `before` holds the weights from which they moved: elastic averaging pulls both ends at once.
    """

    rate: float
    slots: ClassVar[tuple[str, ...]] = ("before",)
    of_weights: ClassVar[bool] = True

    def end(self, u: Vector, scale: float, w: Weights, slots: Slots, out: Vector | None = None) -> Vector:
        slots["before"] = w.vector
        vector: Vector = np.add(w.vector, self.rate * (u - w.vector), out=out)
        return vector


@dataclass(frozen=True)
class Chain:
    """A rule in parts; make it with `chain`."""

    each: tuple[EachPart, ...]
    clip: Clip | None
    parts: tuple[Part, ...]
    last: End
    slots: tuple[str, ...]
    aggregation: Aggregation | None = None
    """How results are combined; None: by their mean."""
    stay: tuple[str, ...] | None = None
    """The slots that stay, with the weights, where all results are -0; None: it does not look for that."""

    def aggregated(self, aggregation: Aggregation) -> Chain:
        """Return this rule with another way to make one direction of several results."""
        return replace(self, aggregation=aggregation, slots=(*self.slots, *aggregation.slots))

    def leaving_out(self) -> Chain:
        """Return this rule as it leaves weights without a gradient alone; a rule of weights as it is."""
        if self.of_weights:
            return self
        counted = (LEFT_OUT,) if any(isinstance(part, Adam) for part in self.parts) else ()
        return replace(self, slots=(*self.slots, *counted), stay=(*self.slots, *counted))

    def preceded_by(self, part: EachPart) -> Chain:
        """Return this rule with a part that looks at each result before all others do."""
        return replace(self, each=(part, *self.each), slots=(*self.slots, *part.slots))

    @property
    def of_weights(self) -> bool:
        """Whether the values that it averages are weights, not gradients."""
        return any(getattr(part, "of_weights", False) for part in (*self.parts, self.last))

    def step(
        self,
        w: Weights,
        results: Sequence[TaskResult],
        whole: Reduction = ALL_HERE,
        out: Vector | None = None,
    ) -> Weights:
        slots = dict(w.slots) if self.slots else {}
        if LEFT_OUT in self.slots:
            slots.setdefault(LEFT_OUT, np.zeros_like(w.vector))
        u, scale = self._aggregate(w, results, slots, whole.gram)
        if self.clip or self.parts:
            u, scale = _scaled(u, scale), 1.0
            if self.clip:
                factor = self.clip.factor(_squares(u) if whole.squares is None else whole.squares)
                u = u if factor == 1 else np.float32(factor) * u
            for part in self.parts:
                u = part(u, w, results, slots)
        vector = self.last.end(u, scale, w, slots) if out is None else self.last.end(u, scale, w, slots, out)
        if self.stay is not None:
            left = np.logical_and.reduce([is_left_out(result.value) for result in results])
            vector[left] = w.vector[left]
            for name in slots.keys() & self.stay:
                slots[name] = np.where(left, w.slots.get(name, np.float32(0)), slots[name])
            if LEFT_OUT in slots:
                slots[LEFT_OUT] += left
        return w.replaced(vector, slots if self.slots else None)

    def reduction(self, slices: Iterable[tuple[Weights, Sequence[TaskResult]]]) -> Reduction:
        """Return what a step on any of these slices needs to know of the whole.

        To the last bit what a step on the whole computes, if they are chunks of `CHUNK` weights, in order.
        """
        slices = list(slices)
        grams = [self.gram(*here) for here in slices] if self.aggregation and self.aggregation.by else []
        gram = sum(grams[1:], grams[0]) if grams else None
        squares = sum(self.squares(*here, gram) for here in slices) if self.clip else None
        return Reduction(gram, squares)

    def gram(self, w: Weights, results: Sequence[TaskResult]) -> Matrix:
        """Return the inner products that an aggregator needs; those of slices add up."""
        assert self.aggregation
        return self._candidates(self.aggregation, w, results, dict(w.slots)).gram()

    def squares(self, w: Weights, results: Sequence[TaskResult], gram: Matrix | None = None) -> float:
        """Return the sum of squares that `Clip` needs; those of slices add up, given the whole's `gram`."""
        return _squares(_scaled(*self._aggregate(w, results, dict(w.slots), gram)))

    def _aggregate(
        self, w: Weights, results: Sequence[TaskResult], slots: Slots, gram: Matrix | None
    ) -> tuple[Vector, float]:
        """Return the mean direction, and what is still to be multiplied by: a lone result's weight
        costs nothing.
        """
        if (how := self.aggregation) and how.by:
            candidates = self._candidates(how, w, results, slots)
            u = how(candidates, w.version, gram)
            for name in how.slots:
                slots[name] = u
            return (u if candidates.reference is None else u + candidates.reference), 1.0
        if len(results) == 1:
            return self._one(w, results[0], slots)
        return mean(self._weighted(w, results, slots)), 1.0

    def _one(self, w: Weights, result: TaskResult, slots: Slots) -> tuple[Vector, float]:
        g, scale = result.value, 1.0
        for part in self.each:
            g, scale = part.each(g, scale, w, result, slots)
        return g, scale

    def _weighted(self, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Iterator[Vector]:
        shares = self.aggregation and self.aggregation.shares([result.worker for result in results])
        for n, result in enumerate(results):
            g, scale = self._one(w, result, slots)
            if shares:
                scale *= shares[n]
            yield g if scale == 1 else scale * g

    def _candidates(
        self, how: Aggregation, w: Weights, results: Sequence[TaskResult], slots: Slots
    ) -> Candidates:
        """Return the vectors (D,) that an aggregator compares; weights, as what they have moved by."""
        zero = np.zeros_like(w.vector) if how.slots else w.vector
        remembered = [slots.get(name, zero) for name in how.slots]
        reference = w.vector if self.of_weights else None
        return Candidates(list(self._weighted(w, results, slots)), remembered, reference)


def chain(*parts: EachPart | Part | End | Clip) -> Chain:
    """Return a rule: parts for each result, then `Clip` if any, then parts for their mean, then the one that
    ends it.

    >>> w = Weights(np.zeros(1, np.float32))
    >>> done = Arrived(np.ones(1, np.float32), w)
    >>> chain(Momentum(0.5), Descend(0.5)).step(w, [done]).vector
    array([-0.5], dtype=float32)
    """
    *before, last = parts
    each: list[Any] = [part for part in before if hasattr(part, "each")]
    clips: list[Any] = [part for part in before if isinstance(part, Clip)]
    rest: list[Any] = [part for part in before if not hasattr(part, "each") and not isinstance(part, Clip)]
    assert [*each, *clips, *rest] == before, "parts come in this order: for each result, Clip, for their mean"
    assert len(clips) <= 1, "one Clip at most"
    assert hasattr(last, "end"), "the last part makes the weights"
    slots = tuple(name for part in parts for name in part.slots)
    return Chain(tuple(each), clips[0] if clips else None, tuple(rest), last, slots)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Arrived:
    """A result on its own: what `value` a task computed at `origin`."""

    value: Vector
    origin: Weights
    worker: int = 0

    @property
    def read(self) -> int:
        return self.origin.version


def combine(rule: Rule, w: Weights, results: Sequence[TaskResult]) -> Weights:
    """Return the version after `w`: the results are aggregated, then the rule takes its step.

    Where there are no weights (`--workload none`) only the version changes.
    """
    return rule.step(w, results) if len(w.vector) else Weights(w.vector, w.version + 1, w.slots, w.kept)


def _scaled(u: Vector, scale: float) -> Vector:
    return u if scale == 1 else (scale * u).astype(np.float32, copy=False)


def _squares(u: Vector) -> float:
    chunks = (u[lo : lo + CHUNK].astype(np.float64) for lo in range(0, len(u), CHUNK))
    return sum(float(chunk @ chunk) for chunk in chunks)
