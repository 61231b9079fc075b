"""A mixture of experts: as it is computed, in grouped products, against one expert after another.

    python benchmarks/experts.py

Each time is the processor time of a forward and a backward pass of one layer (dsgd/models/moe/mixture.py),
the median of turns that alternate between the two, in one thread. Loads are those of a fresh router.
"""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

import torch

from dsgd.models.moe.mixture import Mixture
from dsgd.models.moe.mixture_options import MixtureOptions
from dsgd.models.moe.mixture_products import by_grouped_product, by_loop

TURNS = 25


class Case(NamedTuple):
    """Sizes of a layer, and of a mini-batch."""

    name: str
    tokens: int
    width: int
    hidden: int
    experts: int
    top_k: int = 2


CASES = (
    Case("moe, a mini-batch of 32", 32, 32, 32, 8),
    Case("gpt 100k, 8 windows", 512, 64, 192, 8),
    Case("gpt 100k, 8 windows, 64 experts", 512, 64, 192, 64),
    Case("gpt 1m, 4 windows", 1024, 128, 512, 8),
    Case("gpt 11m, 2 windows", 512, 384, 1536, 8),
)


def seconds(layer: Mixture, x: torch.Tensor) -> float:
    """Return the processor time of a gradient of the layer at x (T, d)."""
    began = time.process_time()
    layer(x).square().mean().backward()
    return time.process_time() - began


def main() -> None:
    """Print a line for each case."""
    torch.set_num_threads(1)
    print(f"{'case':34} {'T':>5} {'d':>4} {'h':>5} {'E':>3}  {'grouped ms':>10} {'loop ms':>8}  loop/grouped")
    for case in CASES:
        torch.manual_seed(0)
        options = MixtureOptions(experts=case.experts, top_k=case.top_k)
        layer = Mixture(case.width, case.hidden, options)
        x = torch.randn(case.tokens, case.width, requires_grad=True)
        times: dict[str, list[float]] = {"grouped": [], "loop": []}
        for turn in range(TURNS + 2):
            for name, compute in (("grouped", by_grouped_product), ("loop", by_loop)):
                layer.compute = compute
                taken = seconds(layer, x)
                if turn >= 2:
                    times[name].append(taken)
        grouped, loop = (1e3 * median(times[name]) for name in ("grouped", "loop"))
        sizes = f"{case.tokens:5} {case.width:4} {case.hidden:5} {case.experts:3}"
        print(f"{case.name:34} {sizes}  {grouped:10.2f} {loop:8.2f}  {loop / grouped:12.2f}", flush=True)


if __name__ == "__main__":
    main()
