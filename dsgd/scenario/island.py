"""How long a mini-batch of an island lasts: of a worker that is a group of G ranks, each on its own GPU.

A mini-batch that takes one GPU X seconds takes G of them X/G, and then the seconds of their collectives:
nothing overlaps. Each collective is a ring among the ranks of one fast network, of B bytes/s and alpha
seconds of latency a message in the alpha-beta model (`allreduce`). S = G/R ranks share a copy of the weights,
of which there are R: R is 1 for `fsdp`, G for `ddp`, and what `hsdp:R` says. w bytes are the weights as they
are gathered (n, or half of it where they travel in bfloat16), n those of a gradient in float32:

    gathered before the forward pass, and before the backward pass     2 (S-1) (alpha + w/(S B))
    the gradient's sums scattered                                        (S-1) (alpha + n/(S B))
    each rank's part of them, all-reduced over the copies              2 (R-1) (alpha + n/(G B))

So `fsdp` takes 3 (G-1)/G n/B and `ddp` 2 (G-1)/G n/B beside the latency, and `hsdp:R` lies between. torch's
FSDP2 gathers one layer while it computes another, which hides some of it: max(a, b) <= a + b <= 2 max(a, b)
says how far off the sum can be at most. Source of the sums: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054),
section 7, for gradients and weights that are sharded; Patarasuk and Yuan 2009 for the rings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsgd.core.rescaled_laws import rescaled
from dsgd.core.time_laws import Law


@dataclass(frozen=True, kw_only=True)
class Island:
    """The ranks of a worker, and the network among them.

    copies: R, of the weights; it divides `ranks`. gathered: bytes of a weight that is gathered over those of
    one in a message, .5 for bfloat16. parts: of a mini-batch, computed one after another: each gathers the
    weights anew, and the last one's backward pass scatters the sums.

    >>> fsdp = Island(ranks=4, bytes_per_s=100.0)
    >>> fsdp.collectives_s(400), Island(ranks=4, copies=4, bytes_per_s=100.0).collectives_s(400)
    (9.0, 6.0)
    """

    ranks: int = 1
    copies: int = 1
    bytes_per_s: float = math.inf
    latency_s: float = 0.0
    gathered: float = 1.0
    parts: int = 1

    def __post_init__(self) -> None:
        assert self.ranks % self.copies == 0, "the options say so"

    def collectives_s(self, num_bytes: float) -> float:
        """Return the seconds of a mini-batch's collectives for a vector of so many bytes."""
        ranks, copies = self.ranks, self.copies
        shards = ranks // copies

        def ring_s(size: int, sent_bytes: float) -> float:
            """Return the time of a ring in which each of `size` ranks sends so many bytes size - 1 times."""
            return (size - 1) * (self.latency_s + sent_bytes / self.bytes_per_s)

        gathers_s = 2 * ring_s(shards, self.gathered * num_bytes / shards)
        scatter_s = ring_s(shards, num_bytes / shards)
        sums_s = 2 * ring_s(copies, num_bytes / ranks)
        return self.parts * gathers_s + scatter_s + sums_s

    def law(self, of_one: Law, num_bytes: float) -> Law:
        """Return the law of an island's mini-batch from that of one GPU."""
        return rescaled(of_one, 1 / self.ranks, self.collectives_s(num_bytes))
