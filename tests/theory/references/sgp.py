"""Stochastic gradient push: the paper's algorithm 1, with numbers and vectors that workers push.

Assran et al. 2019 (arXiv 1811.10792): one-peer directed exponential graph, equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import Published, Run, consensus

OPTIONS = {"lr": 0.3}
OTHER = {"lr": 0.2}


def train(problem: Problem, lr: float) -> Iterator[Version]:
    """Train for a budget of steps; the weights are the mean of what the workers hold."""
    p = problem.num_workers
    periods = math.ceil(math.log2(p))
    x, w = [problem.initial for _ in range(p)], [1.0] * p
    begins = [0.0] * p
    for t in range(problem.steps):
        half = [x[i] - lr * problem.gradient(i, t, x[i] / w[i]) for i in range(p)]
        ends = [begins[i] + problem.seconds(i, t) for i in range(p)]
        hop = 2 ** (t % periods)
        senders = [(i - hop) % p for i in range(p)]
        x = [half[i] / 2 + half[senders[i]] / 2 for i in range(p)]
        w = [w[i] / 2 + w[senders[i]] / 2 for i in range(p)]
        begins = [max(ends[i], ends[senders[i]]) for i in range(p)]
        yield Version(max(ends), (t + 1) * p, sum(x[1:], x[0]) / sum(w))


def published(run: Run) -> Published:
    """Ying et al. 2021, lemma 1: the one-peer graph is exact after log2 N rounds; so on one quadratic a
    worker's noise is shared by 2^m workers after m rounds, and by all in the end.
    """
    lr = 0.2

    def law(n: int) -> float:
        rounds = range(1, int(math.log2(n)))
        return lr**2 * sum((1 - lr) ** (2 * (m - 1)) * (2.0**-m - 1 / n) for m in rounds)

    return consensus(run, law, "one worker's noise, shared", "Consensus distance, one-peer graph")
