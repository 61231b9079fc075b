"""How long codecs take, and how long their messages are, for vectors of 1,000 and of 10 million weights.

    python benchmarks/codecs.py

One thread, numpy; the vector has normal numbers. Medians of seven, after one that is not counted; encoding
has its draws in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from dsgd.transforms.codecs import Draws, parse_codec

CODECS = ("topk:.01", "topk:.1", "randk:.01", "sign", "qsgd:8", "int8", "fp4", "powersgd:2")


def median_s(action: Callable[[], object]) -> float:
    """Return the median time of seven calls, after one more."""
    action()
    times = []
    for _ in range(7):
        began_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - began_s)
    return sorted(times)[3]


def main() -> None:
    print(
        f"{'codec':12s} {'weights':>10s} {'bytes':>10s} {'of 4 D':>8s} {'encode ms':>10s} {'decode ms':>10s}"
    )
    for num_weights in (1_000, 10_000_000):
        x = np.random.default_rng(0).standard_normal(num_weights, np.float32)
        for text in CODECS:
            codec, draws = parse_codec(text), Draws(0, 0, 0)
            assert codec
            memory = np.zeros((codec.memory_rows, num_weights), np.float32)
            message = codec.encode(x, draws, memory)
            encode_s = median_s(partial(codec.encode, x, draws, memory))
            decode_s = median_s(partial(codec.decode, message, num_weights, draws))
            row = f"{text:12s} {num_weights:10d} {len(message):10d} {len(message) / 4 / num_weights:8.2%}"
            print(f"{row} {1e3 * encode_s:10.3f} {1e3 * decode_s:10.3f}")


if __name__ == "__main__":
    main()
