"""How long aggregators take: eight values of 1,000 to 10 million weights, on one thread.

python benchmarks/aggregators.py          # a Markdown table, ms, medians
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from dsgd.core.aggregators import Aggregation, Candidates, parse_aggregator, parse_mixing
from dsgd.core.weights import mean

SIZES = {1_000: 50, 1_000_000: 5, 10_000_000: 3}
"""Weights, and how often each is measured."""
KINDS = ("median", "trimmed:2", "krum:2", "multikrum:2,4", "geometric", "clip:1", "bulyan:1")


def milliseconds(compute: Callable[[], Any], times: int) -> float:
    """Return the median time of a computation."""
    taken = []
    for _ in range(times):
        began_s = time.perf_counter()
        compute()
        taken.append(1000 * (time.perf_counter() - began_s))
    return median(taken)


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[float]] = {}
    for size, times in SIZES.items():
        values = [rng.standard_normal(size, np.float32) for _ in range(8)]
        rows.setdefault("mean", []).append(milliseconds(partial(mean, values), times))
        for text, mix in [*((kind, "none") for kind in KINDS), ("trimmed:2", "nnm:2")]:
            how = Aggregation(parse_aggregator(text), parse_mixing(mix))
            remembered = [np.zeros(size, np.float32) for _ in how.slots]
            candidates = Candidates(values, remembered)
            name = text if mix == "none" else f"{text} after {mix}"
            measured = milliseconds(partial(how, candidates, 0), times)
            rows.setdefault(name, []).append(measured)
    print(f"| | {' | '.join(f'{size:,} weights' for size in SIZES)} |\n|---|{'---:|' * len(SIZES)}")
    for name, measured_ms in rows.items():
        print(f"| `{name}` | {' | '.join(f'{ms:.3g}' for ms in measured_ms)} |")


if __name__ == "__main__":
    main()
