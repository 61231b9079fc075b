"""The quantities of a run for which a strategy's `theory(cfg)` may give closed forms.

    def theory(cfg: Config) -> ClosedForms:
        return ClosedForms(
            staleness_mean=lambda: 0.0,
            s_per_update=lambda: ssgd_time(*workers(timed(cfg))),
        )

Each form is evaluated only when it is asked for, and raises ValueError where it does not apply: `timed`,
`only_computing`, `equal_workers` and `same_members` check what most formulas assume. What a strategy leaves
out is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from dsgd.config import AsynchronousConfig, ExchangeConfig, LocalConfig, PeerConfig, TrainConfig
from dsgd.core.time_laws import Constant, Floats, Law
from dsgd.scenario.graphs import Mixing
from dsgd.theory.assumptions import NoClosedForm, factors_of, known, need
from dsgd.theory.bounded_staleness import (
    ssp_clock_gap_bound,
    ssp_mean_staleness,
    ssp_memory,
    ssp_staleness_bound,
    ssp_steps_per_s,
)
from dsgd.theory.disturbances import members_stay, shared_hosts, spot_losses, spot_skewness
from dsgd.theory.exchanges import all_reduce_time, served_round_time
from dsgd.theory.failures import asgd_time_on_hosts, asgd_time_with_losses
from dsgd.theory.islands import island_law
from dsgd.theory.laws_of_times import memory_steps, plain_law
from dsgd.theory.mixing import longest_way, one_peer_rounds
from dsgd.theory.order_statistics import order_statistic_skewness
from dsgd.theory.quadratics import local_sgd_fixed_point
from dsgd.theory.queueing import server_updates_per_s
from dsgd.theory.stale_gradients import asgd_mean_staleness, asgd_mean_staleness_by_worker, asgd_staleness_pmf
from dsgd.theory.times import asgd_time, local_sgd_run_time, local_sgd_time_per_step, ssgd_time

_Config = TypeVar("_Config", bound=TrainConfig)


def _unknown(*_: object) -> NoReturn:
    raise NoClosedForm("no formula is known for this strategy")


@dataclass(frozen=True, kw_only=True)
class ClosedForms:
    """Functions that compute what a run must measure, in the long run unless said.

    The last two say how long that is: a shorter run is not compared (dsgd.theory.uncertainty).
    """

    s_per_update: Callable[[], float] = _unknown
    """Seconds from one update to the next."""
    s_per_update_disturbed: Callable[[], float] = _unknown
    """The same where processes are lost, or carry several workers each (`dsgd.theory.disturbances`)."""
    staleness_mean: Callable[[], float] = _unknown
    """Of all applied gradients, in updates."""
    staleness_max: Callable[[], float] = _unknown
    """Upper bound of every gradient's staleness."""
    staleness_pmf: Callable[[int], float] = _unknown
    """The share of gradients with this staleness."""
    staleness_by_worker: Callable[[], Floats] = _unknown
    """The mean staleness of each worker's gradients (P,)."""
    clock_gap_max: Callable[[], float] = _unknown
    """Upper bound of fastest minus slowest clock, in mini-batches."""
    run_s: Callable[[], float] = _unknown
    """Seconds of the whole run."""
    final_weight: Callable[[], float] = _unknown
    """Where each coordinate of a quadratic without noise ends."""
    memory: Callable[[], float] | None = None
    """Updates in which a run forgets how it began; without, those in which even the slowest worker delivers
    once, if each update takes one gradient (`delivery_cycle`)."""
    skewness: Callable[[], float] | None = None
    """Of the times whose mean `s_per_update` is; without, of the law of compute times or that of the server,
    whichever is more skewed."""


# --- What formulas assume -----------------------------------------------------------------------------------


def workers(cfg: TrainConfig) -> tuple[Law, int, Mapping[int, float]]:
    """Return the law of compute times, P, and the workers' factors: the arguments of most formulas."""
    return island_law(cfg), cfg.num_workers, cfg.timing.slowdowns


def equal_workers(cfg: TrainConfig) -> tuple[Law, int]:
    """Return the law of compute times and P; raise NoClosedForm unless all workers share the law."""
    law, num_workers, slowdown = workers(cfg)
    if any(factor != 1 for factor in slowdown.values()):
        raise NoClosedForm("the formula is for equal workers")
    return law, num_workers


def only_computing(cfg: _Config) -> _Config:
    """Return `cfg`; raise NoClosedForm unless nothing but computing takes time."""
    if cfg.timing.latency_s or cfg.timing.server_law or not instant_links(cfg):
        raise NoClosedForm("the formula is for messages and a server that take no time")
    return cfg


def known_times(cfg: _Config) -> _Config:
    """Return `cfg`; raise NoClosedForm on Ray unless compute times are drawn."""
    if cfg.engine != "sim" and cfg.timing.compute_time == "none":
        raise NoClosedForm("the law of real compute times is not known")
    return cfg


def timed(cfg: _Config) -> _Config:
    """Return `cfg`; raise NoClosedForm unless nothing but computing takes time, and its law is known."""
    return known_times(only_computing(cfg))


def same_members(cfg: _Config) -> _Config:
    """Return `cfg`; raise NoClosedForm if members may come or go: a bound on staleness counts all clocks."""
    if not members_stay(cfg):
        raise NoClosedForm("the bound is for members that stay")
    return cfg


def delivery_cycle(cfg: TrainConfig) -> float:
    """Return the updates in which even the slowest worker delivers once, R/r_i, if none waits.

    Times the steps in which a worker's times forget their past (`memory_steps`).
    """
    factors = factors_of(cfg.num_workers, cfg.timing.slowdowns)
    return float(factors.max() * (1 / factors).sum()) * memory_steps(cfg.timing.compute_law)


def slowest_skewness(cfg: TrainConfig) -> float:
    """Return the skewness of a round's time: of the slowest of P equal workers; of the law, if they differ.

    Sums of mini-batches are less skewed than these, so a round of local steps is too.
    """
    n = cfg.num_workers if all(factor == 1 for factor in cfg.timing.slowdowns.values()) else 1
    return order_statistic_skewness(cfg.timing.compute_law, n, n)  # the same for a share and a constant


def instant_links(cfg: TrainConfig) -> bool:
    """Whether messages take no time except the latency."""
    return cfg.timing.server_bytes_per_s == math.inf and cfg.network.only_servers_link


def exchange_s(cfg: TrainConfig) -> float:
    """Return the seconds by which a round is longer than its slowest worker computes.

    Raises NoClosedForm where that is no such sum, or the size of the messages is not known from the options.
    """
    timing, network, p = cfg.timing, cfg.network, cfg.num_workers
    latency_s, topology = timing.latency_s, network.parsed_topology
    if timing.server_law:
        raise NoClosedForm("the formula is for a server that takes no time")
    if instant_links(cfg):
        return 2 * latency_s * network.replicas
    if cfg.data.name != "none":
        raise NoClosedForm("how many weights there are is not an option")
    if network.parsed_racks.racks > 1 or network.slow_links or network.drop_rate:
        raise NoClosedForm("the formula is for equal links that lose nothing")
    if topology.all_reduces:
        return all_reduce_time(topology.kind, p, timing.padding_bytes, latency_s, network.bytes_per_s)
    if not isinstance(plain_law(equal_workers(cfg)[0]), Constant):
        raise NoClosedForm("on a server's link, the formula is for constant compute times")
    rates = network.bytes_per_s, timing.server_bytes_per_s
    servers = topology.servers, network.replicas
    return served_round_time(p, timing.padding_bytes, latency_s, *rates, *servers)


# --- What several strategies share --------------------------------------------------------------------------


def asynchronous(cfg: TrainConfig) -> ClosedForms:
    """Return the closed forms of strategies that apply each gradient as it comes and never wait."""
    p = cfg.num_workers
    losses = known(lambda: spot_losses(cfg))

    def s_per_update() -> float:
        service = cfg.timing.server_law
        if service and instant_links(cfg):
            law, _ = equal_workers(cfg)
            return 1 / server_updates_per_s(law, service, p, cfg.timing.latency_s * cfg.network.replicas)
        return asgd_time(*workers(timed(cfg)))

    def s_per_update_disturbed() -> float:
        if losses:
            law, _, slowdown = workers(timed(cfg))
            return asgd_time_with_losses(law, p, *losses, slowdown)
        law, _ = equal_workers(timed(cfg))
        return asgd_time_on_hosts(law, p, shared_hosts(cfg))

    def memory() -> float:
        if not losses:
            return delivery_cycle(cfg)
        between_s = known(s_per_update_disturbed) or math.inf  # without a mean time, nothing is forgotten
        return max(delivery_cycle(cfg), sum(losses) / between_s if between_s < math.inf else math.inf)

    def skewness() -> float:
        own = [law for law in (cfg.timing.compute_law, cfg.timing.server_law) if law]
        if not losses:
            return max(map(order_statistic_skewness, own))
        law = known(lambda: island_law(cfg)) or cfg.timing.compute_law
        return spot_skewness(law.mean_s, order_statistic_skewness(law), law.variance_s2, *losses)

    return ClosedForms(
        s_per_update=s_per_update,
        s_per_update_disturbed=s_per_update_disturbed,
        staleness_mean=lambda: asgd_mean_staleness(p),
        staleness_pmf=lambda tau: asgd_staleness_pmf(*equal_workers(only_computing(cfg)), tau),
        staleness_by_worker=lambda: asgd_mean_staleness_by_worker(p, only_computing(cfg).timing.slowdowns),
        memory=memory,
        skewness=skewness,
    )


def stale_synchronous(cfg: AsynchronousConfig, slack: float) -> ClosedForms:
    """Return the closed forms of SSP; slack: mini-batches a worker may be ahead when it starts one."""

    def s_per_update() -> float:
        law, p, slowdown = workers(timed(cfg))
        return 1 / (p * ssp_steps_per_s(law, p, slack, slowdown))

    return ClosedForms(
        staleness_mean=lambda: ssp_mean_staleness(*equal_workers(cfg), slack),
        staleness_max=lambda: ssp_staleness_bound(same_members(cfg).num_workers, slack),
        clock_gap_max=lambda: ssp_clock_gap_bound(cfg.num_workers, slack),
        s_per_update=s_per_update,
        memory=lambda: ssp_memory(cfg.timing.compute_law, cfg.num_workers, cfg.timing.slowdowns, slack),
    )


def averaging_fixed_point(cfg: LocalConfig) -> float:
    """Return where each coordinate of the weights ends if workers average after H plain steps on quadratics.

    Raises NoClosedForm for other steps and other objectives.
    """
    plain = not (cfg.parsed_schedule.changes or cfg.momentum or cfg.clip_norm or cfg.weight_decay)
    plain = plain and not cfg.fault.lies and cfg.aggregation.aggregator is None
    need(cfg.data.dataset == "quadratic" and plain, "the fixed point is known for plain steps on quadratics")
    values = cfg.data.curvature_values, cfg.data.optimum_values
    a, x, _ = np.broadcast_arrays(*values, np.empty(cfg.num_workers))
    return local_sgd_fixed_point(cfg.lr, a.tolist(), x.tolist(), cfg.local_steps)


def rounds(cfg: LocalConfig) -> ClosedForms:
    """Return the closed forms of strategies whose workers take H local steps and wait for each other."""
    h = cfg.local_steps

    def s_per_update() -> float:
        if cfg.steps % h:
            raise NoClosedForm("a shorter last round takes less time")
        law, p, slowdown = workers(known_times(cfg))
        return h * local_sgd_time_per_step(law, p, h, slowdown) + exchange_s(cfg)

    def run_s() -> float:
        if cfg.timing.server_law or not instant_links(cfg):
            raise NoClosedForm("the formula is for messages that take the latency only")
        law, _ = equal_workers(known_times(cfg))
        return local_sgd_run_time(law, cfg.steps, h, cfg.timing.latency_s * cfg.network.replicas)

    return ClosedForms(
        staleness_mean=lambda: 0.0,
        s_per_update=s_per_update,
        run_s=run_s,
        memory=lambda: memory_steps(cfg.timing.compute_law),
        skewness=lambda: slowest_skewness(cfg),
    )


def exchanges(cfg: ExchangeConfig) -> ClosedForms:
    """Return the closed forms of local strategies that exist with a barrier and without."""
    if cfg.exchange == "sync":
        return rounds(cfg)
    h = cfg.local_steps
    if cfg.budget % h:  # shorter last tasks have other times
        return ClosedForms()
    return ClosedForms(
        s_per_update=lambda: h * asgd_time(*workers(timed(cfg))),
        staleness_mean=lambda: asgd_mean_staleness(cfg.num_workers),
    )


def peers(cfg: PeerConfig, sources: Mixing, *, h: int = 1, late: bool, one_peer: bool = False) -> ClosedForms:
    """Return the closed forms of strategies whose workers wait for those from whom they receive.

    sources: of round 0. h: mini-batches of a round. late: whether what is received was made of the round's
    results. one_peer: whether peers change from round to round.
    """
    n, name = cfg.num_workers, cfg.edges.name
    everybody = late and all(len(row.keys() | {i}) == n for i, row in sources.items())

    def s_per_update() -> float:
        law, p, slowdown = workers(timed(cfg))
        if cfg.steps % h:
            raise NoClosedForm("a shorter last round takes less time")
        if everybody:  # a barrier
            return ssgd_time(law, p, slowdown) if h == 1 else h * local_sgd_time_per_step(law, p, h, slowdown)
        if not isinstance(law, Constant):
            raise NoClosedForm("times on a graph have no formula unless they are constant")
        return h * law.mean_s * float(factors_of(p, slowdown).max())

    def clock_gap_max() -> float:
        same_members(cfg)
        if name == "random":
            raise NoClosedForm("random peers bound nothing")
        if one_peer and name == "exponential":
            return h * one_peer_rounds(range(n))
        starts = range(n) if cfg.edges.edges else [0]  # the others look the same from every worker
        return h * longest_way(sources, starts) * (1 if late else 2)

    return ClosedForms(
        staleness_mean=lambda: 0.0,
        s_per_update=s_per_update,
        clock_gap_max=clock_gap_max,
        memory=lambda: memory_steps(cfg.timing.compute_law),
        skewness=lambda: slowest_skewness(cfg),
    )
