"""Where every random number of a run comes from: one counter-based generator a purpose.

A draw is a pure function of (seed, purpose, worker, index), so a task that is repeated after a
crash gives the same bytes, both engines draw the same numbers, and every strategy meets the same
draws: *common random numbers*, which is what makes a comparison between modes sharp.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox), section 2.
"""

from __future__ import annotations

import enum
import threading
from typing import Any

import numpy as np
from numpy.random import Generator, Philox


class Purpose(enum.IntEnum):
    """What a stream is for; streams of different purposes never overlap."""

    COMPUTE_TIME = 1
    SERVER_TIME = 2
    BATCH_ORDER = 3
    GRAD_NOISE = 4
    SAMPLES = 5
    LABEL_NOISE = 6
    PARTITION = 7
    INITIAL_WEIGHTS = 8
    FAULT = 9
    BACKOFF = 10
    DROPOUT = 11
    COMPRESSION = 12
    BROADCAST = 13
    GOSSIP = 16
    BUCKETS = 21
    LIE = 22
    CLIENTS = 23
    PACKETS = 24


def generator(seed: int, purpose: Purpose, worker: int = 0, index: int = 0) -> Generator:
    """Return a new generator at the start of the stream (seed, purpose, worker, index).

    `index` (a step, an epoch, a block) sets the highest word of Philox's 256-bit counter, so two
    indices are 2^192 draws apart.

    >>> a = generator(1, Purpose.COMPUTE_TIME, worker=3, index=7).random()
    >>> b = generator(1, Purpose.COMPUTE_TIME, worker=3, index=7).random()
    >>> a == b
    True
    """
    key = np.array([seed, purpose << 32 | worker], dtype=np.uint64)
    counter = np.array([0, 0, 0, index], dtype=np.uint64)
    return Generator(Philox(key=key, counter=counter))


class _Reused(threading.local):
    """One generator a thread, moved from stream to stream: making a new one costs four times as much."""

    def __init__(self) -> None:
        self.philox = Philox(0)
        self.generator = Generator(self.philox)
        self.state: Any = self.philox.state


_reused = _Reused()


def at(seed: int, purpose: Purpose, worker: int, index: int) -> Generator:
    """Return this thread's one generator at the start of a stream: draw at once, and do not keep it.

    It gives what `generator` gives.

    >>> at(1, Purpose.BATCH_ORDER, 3, 7).random() == generator(1, Purpose.BATCH_ORDER, 3, 7).random()
    True
    """
    state = _reused.state
    inner = state["state"]
    inner["key"][:] = seed, purpose << 32 | worker
    inner["counter"][:] = 0, 0, 0, index
    state["buffer_pos"], state["has_uint32"] = 4, 0  # nothing is left over from the stream before
    _reused.philox.state = state
    return _reused.generator
