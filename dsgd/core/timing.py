"""How long a task takes: one module for both engines.

The simulator moves its clock by the drawn time, Ray sleeps what real computing leaves of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dsgd.core.rng import Purpose, at
from dsgd.core.time_laws import Law, Markov, NoDelay, Trace

_BLOCK = 128  # draws a generator makes at once: its creation costs as much as some hundred draws


class ComputeTimes:
    """The compute times of all workers: a pure function of (seed, worker, step).

    law: seconds per mini-batch. slowdown: factors on it by worker, 1 where a worker is not named.
    purpose: which stream the draws come from.
    """

    def __init__(
        self,
        law: Law,
        seed: int,
        slowdown: Mapping[int, float] = {},
        purpose: Purpose = Purpose.COMPUTE_TIME,
    ) -> None:
        self.law, self.seed, self.slowdown, self.purpose = law, seed, slowdown, purpose
        # A worker's current block: its number, the times in it, the chain's state after it.
        self._blocks: dict[int, tuple[int, list[float], bool | None]] = {}

    @property
    def real(self) -> bool:
        """Whether a step on Ray lasts as long as it really computes, with nothing drawn."""
        return isinstance(self.law, NoDelay)

    def factor(self, worker: int) -> float:
        """How many times slower than the law `worker` is."""
        return self.slowdown.get(worker, 1.0)

    def seconds(self, worker: int, step: int) -> float:
        """Seconds that `worker` takes for its mini-batch number `step` (from 0)."""
        number = step // _BLOCK
        block = self._blocks.get(worker)
        if block is None or block[0] != number:
            block = self._draw(worker, number)
        return block[1][step % _BLOCK]

    def total(self, worker: int, step: int, batches: int) -> float:
        """Seconds for the mini-batches [step, step + batches) of `worker`."""
        total_s = 0.0
        for k in range(
            batches
        ):  # not sum(): from Python 3.12 on it compensates rounding, and times would differ
            total_s += self.seconds(worker, step + k)
        return total_s

    def _draw(self, worker: int, number: int) -> tuple[int, list[float], bool | None]:
        law, state = self.law, None
        if isinstance(law, Trace):
            times = law.replay(worker, number * _BLOCK, _BLOCK)
        elif isinstance(law, Markov):
            last, _, state = self._blocks.get(worker, (-1, [], None))
            if last >= number:  # a chain has memory: walk it from its start
                last, state = -1, None
            for b in range(last + 1, number + 1):
                times, state = law.walk(at(self.seed, self.purpose, worker, b), _BLOCK, state)
        else:
            times = law.sample(at(self.seed, self.purpose, worker, number), _BLOCK)
        self._blocks[worker] = (number, (times * self.factor(worker)).tolist(), state)
        return self._blocks[worker]


def sleep_heterogeneity(
    times: ComputeTimes,
    worker: int,
    step: int,
    batches: int,
    computed_s: float,
    sleep: Callable[[float], object] = time.sleep,
    slower: float = 1.0,
) -> None:
    """Sleep until a task of `batches` mini-batches has lasted max(real compute, drawn time).

    `computed_s` is what the task has really computed, in seconds. Where no time is drawn (law
    `none`), the task lasts its real time multiplied by the worker's slowdown. `sleep` may end early.
    slower: a factor on both.
    """
    drawn_s = computed_s * times.factor(worker) if times.real else times.total(worker, step, batches)
    if drawn_s * slower > computed_s:
        sleep(drawn_s * slower - computed_s)
