"""Dynamic SSP: the slack is chosen at run time, within a range.

Source: Zhao et al. 2019, "Dynamic stale synchronous parallel distributed training for deep learning" (arXiv
1908.11848), algorithms 1 and 2.

As SSP with the lower slack s_L; but when the fastest worker reaches it, the server predicts, from the last
two pushes of that worker and of the slowest, the number r of further mini-batches after which it would wait
least for the slowest (the gap stays within s_U), and lets it run these r first:

    r = argmin over r of min over k of | (A_fast + r I_fast) - (A_slow + k I_slow) |
    A: time of the last push,  I: time between the last two

Limits: s_L = s_U is SSP. The gap at a start never exceeds s_U.

Members that leave and join: as in SSP. Extra steps that a worker was allowed before it left are void when it
joins again, with the slowest clock.

How this differs from the paper: r counts towards the current gap, so s_U is a strict bound on it. Extra steps
are void once the slowest has caught up to within s_L; in algorithm 1 the worker may use them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from dsgd.strategy import *
from dsgd.theory.bounded_staleness import ssp_clock_gap_bound, ssp_staleness_bound
from dsgd.theory.closed_forms import ClosedForms, same_members

EXAMPLE = "--slack-low 1 --slack-high 5 --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "dssp"

    slack_low: Annotated[int, Ge(0)] = 3
    """s_L, mini-batches a worker may always be ahead of the slowest when it starts one."""

    slack_high: int = 15
    """s_U, mini-batches the fastest worker may be ahead where that shortens its waiting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must be at least --slack-low; raise it"
        require(self.slack_high >= self.slack_low, "slack-high", self.slack_high, rule)


def extra_steps(fast: Sequence[float], slow: Sequence[float], most: int) -> int:
    """Return r, 0 to `most`, after which the fastest waits least; fast, slow: last two pushes (s) each."""
    pushes = [slow[1] + k * (slow[1] - slow[0]) for k in range(1, most + 2)]
    waits = [min(abs(fast[1] + r * (fast[1] - fast[0]) - t) for t in pushes) for r in range(most + 1)]
    return waits.index(min(waits))


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule, clocks = server_rule(cfg, gradients=1), cluster.clocks
    while True:
        start_idle(cluster, gradient, w, ahead=cfg.slack_low)
        done = cluster.next_done()
        if not done:
            continue
        i, extra = done.worker, dict(w.kept or {})  # by worker: mini-batches it may still run ahead
        gap = clocks[i] - clocks.slowest
        if gap > cfg.slack_low and i not in extra and clocks[i] == clocks.fastest:
            slow = cluster.came_in_s(clocks.slowest_worker)
            extra[i] = extra_steps(cluster.came_in_s(i), slow, most=cfg.slack_high + 1 - gap)
        left = 0 if gap <= cfg.slack_low else extra.get(i, 0)  # once the slowest has caught up: void
        extra[i] = left - 1
        w = cluster.combine(rule, w, [done]).keeping({j: r for j, r in extra.items() if r > 0})
        ahead = [i] if left and i in cluster.idle else []  # it is not if it is about to leave
        for worker in sorted(cluster.idle.within(cfg.slack_low)) + ahead:
            cluster.start(worker, gradient, w)
        yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(
        staleness_max=lambda: ssp_staleness_bound(same_members(cfg).num_workers, cfg.slack_high),
        clock_gap_max=lambda: ssp_clock_gap_bound(cfg.num_workers, cfg.slack_high),
    )


LAWS = Laws(
    limits=[
        Limit({"slack_low": 0, "slack_high": 0}, "ssp", {"slack": 0.0}),
        Limit({"slack_low": 2, "slack_high": 2}, "ssp", {"slack": 2.0}),
    ],
    variants=[
        {"slack_low": 1, "slack_high": 6},
        {"slack_low": 0, "slack_high": 3, "momentum": 0.5, "staleness_lr": "inverse"},
    ],
)
