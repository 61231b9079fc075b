"""The Markov chain of SSP's clocks, solved.

P equal workers with exponential times have no memory, so the clocks alone say what may happen next, and only
their distances to the slowest matter. A state counts the workers at each offset 0, 1, ..., s + 1 above the
slowest clock, s the slack: P workers make C(P + s, s + 1) states. Workers at offset s + 1 are blocked. All
others finish a mini-batch at rate 1 each, which moves one worker from its offset to the next; when none is
left at offset 0, the slowest clock has risen and all offsets fall by one.

The stationary distribution p solves `generator p = 0` with `sum p = 1`. Both are one regular system,
`generator p - e sum p = -e`, where only the first entry of e is not 0: the columns of the generator sum to 0,
so summing the rows gives back `sum p = 1`. The system is sparse and, with the states ordered by the sum of
their offsets, nearly triangular: every move raises that sum, except that of the last worker at offset 0. So
the lower triangle is a good preconditioner, and GMRES needs few iterations.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from dsgd.theory.assumptions import NoClosedForm


@functools.lru_cache(maxsize=64)
def workers_not_blocked(num_workers: int, slack: int) -> tuple[float, float]:
    """Return E[m] and E[m^2], m the workers not blocked, under SSP with equal exponential workers of rate 1.

    Raises NoClosedForm beyond 40,000 states or a slack of 60.

    >>> workers_not_blocked(2, 0)  # of 3 states, both work in one, and one waits in two
    (1.3333333333333333, 2.0)
    """
    if num_workers == 2:  # the clocks' difference is uniform on 2 slack + 3 values
        return (4 * slack + 4) / (2 * slack + 3), (8 * slack + 6) / (2 * slack + 3)
    if slack > 60 or math.comb(num_workers + slack, slack + 1) > 40_000:
        raise NoClosedForm(f"SSP's chain is too large for {num_workers} workers, slack {slack}; simulate it")
    from scipy.sparse import coo_array, diags_array, tril
    from scipy.sparse.linalg import LinearOperator, gmres, splu

    number = {(num_workers,) + (0,) * (slack + 1): 0}
    states = list(number)
    moves: list[tuple[int, int, int]] = []  # to, from, rate
    for state in states:
        for i, workers in enumerate(state[:-1]):
            if workers:
                to = (*state[:i], workers - 1, state[i + 1] + 1, *state[i + 2 :])
                to = to if to[0] else (*to[1:], 0)
                if to not in number:
                    number[to] = len(states)
                    states.append(to)
                moves.append((number[to], number[state], workers))
    counts = np.array(states)
    order = np.argsort(counts @ np.arange(slack + 2), kind="stable")
    place, m = np.argsort(order), num_workers - counts[order, -1].astype(float)
    target, source, rate = np.array(moves).T
    shape = (len(m), len(m))
    jumps = coo_array((rate.astype(float), (place[target], place[source])), shape=shape)
    generator = (jumps - diags_array(m)).tocsc()
    lower = splu(tril(generator, format="csc"), permc_spec="NATURAL", options={"DiagPivotThresh": 0.0})
    e = np.zeros(len(m))
    e[0] = num_workers
    system = LinearOperator(shape, lambda p: generator @ p - e * p.sum(), dtype=float)
    inverse = LinearOperator(shape, lower.solve, dtype=float)
    p, failed = gmres(system, -e, rtol=1e-11, restart=60, maxiter=20, M=inverse)
    assert not failed, "GMRES did not converge"
    p /= p.sum()
    return float(p @ m), float(p @ m**2)
