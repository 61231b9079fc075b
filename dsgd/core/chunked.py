"""A rule's step on large vectors: in chunks that stay in the processor's cache, on several threads.

A step makes several passes over its vectors. Where these are larger than the cache, every pass reads them
from memory again; in chunks, only the first does. Rules are elementwise, so the bits are those of the whole
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import pairwise

from dsgd.core import rules
from dsgd.core.rules import Arrived, Chain, Rule, TaskResult
from dsgd.core.weights import CHUNK, Vector, Weights


def combine(
    rule: Rule,
    w: Weights,
    results: Sequence[TaskResult],
    fresh: Callable[[], Vector],
    executor: Executor | None = None,
    threads: int = 1,
) -> Weights:
    """Return the version after `w`, as `rules.combine` does, with the same bits.

    fresh: returns a vector (D,) with any content, for the new weights and for each slot that changes.
    executor: computes on so many `threads`.
    """
    num_weights = len(w.vector)
    if not in_chunks(rule, num_weights):
        return rules.combine(rule, w, results)
    assert isinstance(rule, Chain)

    def chunk(lo: int) -> tuple[Weights, list[Arrived]]:
        return _slice(w, lo), [
            Arrived(result.value[lo : lo + CHUNK], _slice(result.origin, lo), result.worker)
            for result in results
        ]

    starts = range(0, num_weights, CHUNK)
    reduction = rule.reduction(map(chunk, starts))
    here, arrived = chunk(0)
    first = rule.step(here, arrived, reduction)
    vector = fresh()
    slots = {name: w.vector if slot is here.vector else fresh() for name, slot in first.slots.items()}
    copied = [name for name, slot in slots.items() if slot is not w.vector]

    def step(some: Sequence[int]) -> None:
        for lo in some:
            new = rule.step(*chunk(lo), reduction, vector[lo : lo + CHUNK])
            for name in copied:
                slots[name][lo : lo + CHUNK] = new.slots[name]

    if executor is None or threads == 1:
        step(starts)
    else:  # neighbours, so that no two threads write to one line of the cache
        ends = [len(starts) * k // threads for k in range(threads + 1)]
        list(executor.map(step, [starts[lo:hi] for lo, hi in pairwise(ends)]))
    return w.replaced(vector, slots if rule.slots else None)


def in_chunks(rule: Rule, num_weights: int) -> bool:
    """Whether `combine` takes a rule's step in chunks: of many weights, and if its step on slices is known to
    be the slice of its step, as it is with all parts in `rules`.
    """
    if num_weights <= CHUNK or not isinstance(rule, Chain):
        return False
    return all(type(part).__module__ == rules.__name__ for part in (*rule.each, *rule.parts, rule.last))


def _slice(w: Weights, lo: int) -> Weights:
    hi = lo + CHUNK
    slots = {name: slot[lo:hi] for name, slot in w.slots.items()} if w.slots else w.slots
    return Weights(w.vector[lo:hi], w.version, slots, w.kept)
