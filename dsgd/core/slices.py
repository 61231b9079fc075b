"""A vector in slices, one for each of several servers, and a rule's step on one of them.

A rule's step on a slice is the slice of its step, bit for bit. What it has to know of whole vectors
(`rules.Reduction`) is summed over chunks of `CHUNK` weights in their order; so the bits are those of one
server as long as no slice ends within a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dsgd.core import chunked
from dsgd.core.rules import Arrived, Chain, Reduction, Rule, TaskResult
from dsgd.core.weights import CHUNK, Vector, Weights


class Slices:
    """Where the slices of vectors (D,) begin and end: of equal length, up to one chunk where there are at
    least as many chunks as slices, else up to one weight.

    >>> Slices(10, 3).bounds
    ((0, 4), (4, 7), (7, 10))
    """

    def __init__(self, num_weights: int, count: int) -> None:
        self.whole_chunks = num_weights >= count * CHUNK or count == 1
        """Whether no slice ends within a chunk."""
        unit = CHUNK if num_weights >= count * CHUNK else 1
        units = -(-num_weights // unit)
        each, more = divmod(units, count)
        ends = [min(num_weights, unit * (each * k + min(k, more))) for k in range(count + 1)]
        self.bounds = tuple(pairwise(ends))
        """By slice: its first weight, and the one after its last."""

    def of(self, vector: Vector) -> list[Vector]:
        """Return a vector's slices, which show its memory."""
        return [vector[lo:hi] for lo, hi in self.bounds]


def steps_in_slices(rule: Rule) -> bool:
    """Whether a rule's step on slices is known to be the slice of its step."""
    return chunked.in_chunks(rule, CHUNK + 1)


def needs_whole(rule: Rule) -> bool:
    """Whether a rule's step needs to know something of whole vectors."""
    return isinstance(rule, Chain) and bool(rule.clip or (rule.aggregation and rule.aggregation.by))


def step(rule: Rule, w: Weights, results: Sequence[TaskResult], whole: Reduction | None) -> Weights:
    """Return the version after `w`, of which a slice is here. whole: None if the rule needs nothing of it."""
    if whole is None:
        return chunked.combine(rule, w, results, lambda: np.empty_like(w.vector))
    return rule.step(w, results, whole)


def chunks(w: Weights, results: Sequence[TaskResult]) -> Iterator[tuple[Weights, list[Arrived]]]:
    """Return weights and results in chunks of `CHUNK` weights, in order."""
    slots = w.slots
    for lo in range(0, len(w.vector), CHUNK):
        here = slice(lo, lo + CHUNK)
        part = Weights(w.vector[here], w.version, {name: slot[here] for name, slot in slots.items()})
        yield part, [_part(result, here) for result in results]


def _part(result: TaskResult, here: slice) -> Arrived:
    return Arrived(result.value[here], Weights(result.origin.vector[here], result.read), result.worker)
