"""A worker that is a group of G ranks: the law of its mini-batches, and how often it is lost."""

from __future__ import annotations

from dsgd.config import TrainConfig
from dsgd.core.rescaled_laws import rescaled
from dsgd.core.time_laws import Law
from dsgd.scenario.group_options import RankLink
from dsgd.theory.assumptions import NoClosedForm, need, need_whole


def island_collectives_time(
    ranks: int, copies: int, num_bytes: float, latency_s: float, bytes_per_s: float
) -> float:
    """Return the seconds of a mini-batch's collectives among the G ranks of a worker, in rings.

    R = `copies` of the weights, each over S = G/R ranks, which gather them twice and scatter the sums of the
    gradient; then the copies all-reduce it:

        3 (S-1) (alpha + n/(S B)) + 2 (R-1) (alpha + n/(G B))

    R = 1 (FSDP): 3 (G-1)/G n/B and R = G (DDP): 2 (G-1)/G n/B, beside the latency. Rajbhandari et al. 2020
    (ZeRO, arXiv 1910.02054), section 7: sharding the weights costs half as many bytes again.

    >>> [island_collectives_time(4, copies, 400, 0.0, 100.0) for copies in (1, 2, 4)]
    [9.0, 8.0, 6.0]
    """
    need_whole("ranks", ranks)
    need(ranks % copies == 0, f"copies must divide the {ranks} ranks, not {copies}")
    shards = ranks // copies
    messages = 3 * (shards - 1) + 2 * (copies - 1)
    moved = 3 * (shards - 1) / shards + 2 * (copies - 1) / ranks
    return messages * latency_s + moved * num_bytes / bytes_per_s


def island_law(cfg: TrainConfig) -> Law:
    """Return the law of a worker's mini-batches: a G-th of that of one rank, and their collectives.

    Raises NoClosedForm where these take time and the size of the weights is not known from the options.
    """
    group, timing = cfg.group, cfg.timing
    ranks, collectives_s = group.ranks_per_worker, 0.0
    if group.link != RankLink():
        if cfg.data.name != "none":
            raise NoClosedForm("how many weights there are is not an option")
        copies, link = ranks // group.shards, group.link
        collectives_s = island_collectives_time(
            ranks, copies, timing.padding_bytes, link.latency_s, link.bytes_per_s
        )
    return rescaled(timing.compute_law, 1 / ranks, collectives_s)


def island_mtbf(mtbf_s: float, ranks: int) -> float:
    """Return the mean seconds between losses of a group, M/G, which is lost with the first of its G ranks.

    The smallest of G exponential times is exponential, and its rate is the sum of theirs. Source: Ross 2014,
    "Introduction to probability models", section 5.2.3.

    >>> island_mtbf(600, 8)
    75.0
    """
    need(mtbf_s > 0, f"mtbf_s must be above 0, not {mtbf_s}")
    need_whole("ranks", ranks)
    return mtbf_s / ranks
