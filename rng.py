"""Where every random number of a run comes from: one counter-based generator a purpose.

A draw is a pure function of (seed, purpose, worker, index), so a task that is repeated after a
crash gives the same bytes, both engines draw the same numbers, and every strategy meets the same
draws: *common random numbers*, which is what makes a comparison between modes sharp.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox), section 2.
"""

from __future__ import annotations

import enum

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


def generator(seed: int, purpose: Purpose, worker: int = 0, index: int = 0) -> Generator:
    """Return the generator of the stream (seed, purpose, worker, index).

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
