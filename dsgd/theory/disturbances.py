"""Which faults and policies leave a closed form as it is, which change it, and which end it.

A leave or a join changes the number of members: `dsgd.running.predict.members` follows that. A lost or slow
process changes times: only the formulas that count it stay.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dsgd.config import TrainConfig
from dsgd.scenario.fault import MEMBERSHIP, PROCESS, Crash, Fault, Spot
from dsgd.scenario.possible_faults import first_of, takes_processes
from dsgd.theory.assumptions import NoClosedForm
from dsgd.theory.checkpointing import checkpoint_interval
from dsgd.theory.failures import suspected_share, time_away
from dsgd.theory.islands import island_law, island_mtbf


def drops_members(cfg: TrainConfig) -> bool:
    """Whether the workers of a lost process leave: no spare takes over, none is waited for."""
    return cfg.fault.on_loss == "drop" and not cfg.fault.spares


def undisturbed(cfg: TrainConfig) -> bool:
    """Whether members compute as closed forms assume: each in a separate process, at the speed of its law,
    while the server never pauses.
    """
    fault, checkpoint = cfg.fault, cfg.checkpoint
    stands_still = checkpoint.checkpoint_cost_s > 0 and checkpoint.checkpoint_every is not None
    own_process = fault.hosts is None or fault.hosts >= cfg.num_workers
    harmless = all(_harmless(one, cfg) for one in fault.fault_list)
    return harmless and own_process and not stands_still and not _suspects(cfg)


def _harmless(one: Fault | Spot | Crash, cfg: TrainConfig) -> bool:
    """Whether a fault changes nothing but the members."""
    match one:
        case Crash() | Fault(kind="driver"):
            return False
        case Spot() | Fault(kind="kill" | "node"):
            return drops_members(cfg)
    return one.kind not in PROCESS


def _suspects(cfg: TrainConfig) -> bool:
    """Whether tasks that are only slow may be given to a second process."""
    after_s = cfg.fault.suspect_after
    if after_s is None:
        return False
    try:
        return suspected_share(island_law(cfg), after_s) > 0
    except ValueError:  # a trace, or a module's size: not known
        return True


def members_stay(cfg: TrainConfig) -> bool:
    """Whether nobody is asked to leave or join, and no lost process takes its workers with it."""
    faults = cfg.fault.fault_list
    lost = cfg.fault.on_loss == "drop" and takes_processes(faults)
    return not lost and first_of(faults, MEMBERSHIP) is None


def spot_losses(cfg: TrainConfig) -> tuple[float, float]:
    """Return M and D, seconds, where hosts are lost to `spot` alone and every worker waits for its own.

    Raises NoClosedForm for any other disturbance, and where a second loss in the window of --restarts delays
    the next start: then the time away is no longer the same each time.
    """
    fault = cfg.fault
    spots = [one for one in fault.fault_list if isinstance(one, Spot)]
    if len(spots) != 1 or len(spots) < len(fault.fault_list):
        raise NoClosedForm("the formula is for one spot process and no other fault")
    (spot,) = spots
    own = fault.hosts in (None, cfg.num_workers) and not fault.spares and fault.suspect_after is None
    if not own or fault.on_loss != "replace" or cfg.checkpoint.checkpoint_cost_s:
        raise NoClosedForm("the formula is for workers that each wait for their own process")
    if cfg.engine != "sim":
        raise NoClosedForm("the time of a real start is not known")
    if fault.restart_limit.within_s > spot.back_s:
        raise NoClosedForm("a second loss within the window of --restarts delays the next start")
    mtbf_s = island_mtbf(spot.mtbf_s, cfg.group.ranks_per_worker)
    return mtbf_s, time_away(mtbf_s, spot.back_s, fault.restart_s)


def shared_hosts(cfg: TrainConfig) -> int:
    """Return how many hosts carry the workers, fewer than these; raise NoClosedForm for other faults."""
    fault = cfg.fault
    if fault.hosts is None or fault.hosts >= cfg.num_workers:
        raise NoClosedForm("the formula is for hosts that carry several workers")
    if fault.fault_list or fault.suspect_after is not None or cfg.checkpoint.checkpoint_cost_s:
        raise NoClosedForm("the formula is for hosts that are never lost")
    return fault.hosts


class Completion(NamedTuple):
    """What Daly's model needs of a run, in seconds."""

    work_s: float
    interval_s: float
    cost_s: float
    mtbf_s: float
    restart_s: float


def completion(cfg: TrainConfig, work_s: float, s_per_update: float) -> Completion:
    """Return the arguments of `dsgd.theory.checkpointing` for a run whose driver is lost now and then.

    work_s, s_per_update: without failures and checkpoints, where every update takes the same time: a
    checkpoint is taken at the first update that is due. Raises NoClosedForm for any other disturbance.
    """
    fault, checkpoint = cfg.fault, cfg.checkpoint
    crashes = [one for one in fault.fault_list if isinstance(one, Crash)]
    tiers = dict(checkpoint.checkpoint_tiers) if checkpoint.checkpoint_every else {}
    if len(crashes) != 1 or len(fault.fault_list) != 1 or tiers.keys() != {"disk"}:
        raise NoClosedForm("the formula is for one crash process, and checkpoints in one place")
    if cfg.timing.compute_law.variance_s2 or cfg.fault.hosts not in (None, cfg.num_workers):
        raise NoClosedForm("the formula is for updates that all take the same time")
    (crash,), cost_s = crashes, checkpoint.checkpoint_cost_s
    every_s = tiers["disk"]
    if every_s is None:
        assert checkpoint.mtbf is not None, "auto needs the mtbf"
        every_s = checkpoint_interval(cost_s, checkpoint.mtbf)
    updates = max(1, math.ceil(every_s / s_per_update * (1 - 1e-12)))
    return Completion(work_s, updates * s_per_update, cost_s, crash.mtbf_s, crash.back_s)


def spot_skewness(
    mean_s: float, law_skewness: float, variance_s2: float, mtbf_s: float, away_s: float
) -> float:
    """Return the skewness of a task's time with a rare, long wait: a compound Poisson sum beside it.

    Cumulants add: those of the law, and (E[X]/M) D^n. Source: Ross 2014, "Introduction to probability
    models", section 5.4.2.

    >>> round(spot_skewness(1.0, 2.0, 1.0, 600, 60), 1)
    19.5
    """
    losses = mean_s / mtbf_s
    variance = variance_s2 + losses * away_s**2
    third = (law_skewness * variance_s2**1.5 if variance_s2 else 0.0) + losses * away_s**3
    return third / variance**1.5 if variance and math.isfinite(variance) else math.inf
