"""What theory predicts of a run, from its options alone, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dsgd.config import TrainConfig
from dsgd.theory import formulas as theory

Formulas = dict[str, Callable[[], float]]

BOUNDS = ("staleness_max", "clock_gap_max")  # of these, theory gives a bound; of all else, the value


def predict(cfg: TrainConfig) -> dict[str, float]:
    """Return what the literature's closed forms give for this mode, law and scenario.

    Keys: s_per_update (seconds on the engine's clock), staleness_mean and staleness_max (updates),
    staleness_p0 (the share of fresh gradients), clock_gap_max (mini-batches). What no formula covers is left
    out.
    """
    found = {}
    for name, formula in _formulas(cfg).items():
        try:
            found[name] = float(formula())
        except ValueError:  # outside a formula's assumptions, or none is known
            continue
    return {name: value for name, value in found.items() if math.isfinite(value)}  # inf bounds nothing


def staleness_bound(cfg: TrainConfig) -> float | None:
    """Return what no gradient's staleness exceeds, in updates; None if theory has no bound."""
    predicted = predict(cfg)
    fresh = predicted.get("staleness_mean") == 0
    return predicted.get("staleness_max", 0.0 if fresh else None)


def compare(cfg: TrainConfig, summary: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return predictions and measurements side by side, as `theory` of summary.json has them.

    Each entry: theory, measured, and relative_difference, (measured - theory)/theory, None for bounds.
    """
    updates, staleness = summary["updates"], summary["staleness"]
    if not updates:
        return {}
    measured = {
        "s_per_update": summary["clock_s"] / updates,
        "staleness_mean": staleness["mean"],
        "staleness_p0": staleness["counts"].get("0", 0) / sum(staleness["counts"].values()),
        "staleness_max": staleness["max"],
        "clock_gap_max": summary["clock_gap_max"],
    }
    return {
        name: {
            "theory": value,
            "measured": measured[name],
            "relative_difference": (measured[name] - value) / value if value and name not in BOUNDS else None,
        }
        for name, value in predict(cfg).items()
    }


def _formulas(cfg: Any) -> Formulas:
    """Return the formulas that concern a run's mode; each raises ValueError where it does not apply."""
    p, law, slow = cfg.num_workers, cfg.timing.compute_law, cfg.timing.slowdowns
    service, latency_s = cfg.timing.server_law, cfg.timing.latency_s
    fresh: Formulas = {"staleness_mean": lambda: 0.0}
    match cfg.mode:
        case "ssgd":
            return fresh | _timed(cfg, lambda: theory.ssgd_time(law, p, slow))
        case "asgd" | "dcasgd":
            staleness: Formulas = {"staleness_mean": lambda: theory.asgd_mean_staleness(p)}
            if _instant(cfg):
                staleness["staleness_p0"] = lambda: theory.asgd_staleness_pmf(_equal(slow, law), p, 0)
            if service and _plain_network(cfg):
                return staleness | {
                    "s_per_update": lambda: (
                        1 / theory.server_updates_per_s(_equal(slow, law), service, p, latency_s)
                    )
                }
            return staleness | _timed(cfg, lambda: theory.asgd_time(law, p, slow))
        case "ssp":
            return {
                "staleness_mean": lambda: theory.ssp_mean_staleness(_equal(slow, law), p, cfg.slack),
                "staleness_max": lambda: theory.ssp_staleness_bound(p, cfg.slack),
                "clock_gap_max": lambda: theory.ssp_clock_gap_bound(p, cfg.slack),
            } | _timed(cfg, lambda: 1 / (p * theory.ssp_steps_per_s(law, p, cfg.slack, slow)))
        case "dssp":
            return {
                "staleness_max": lambda: theory.ssp_staleness_bound(p, cfg.slack_high),
                "clock_gap_max": lambda: theory.ssp_clock_gap_bound(p, cfg.slack_high),
            }
        case "easgd" | "diloco" if cfg.exchange == "async":
            h = cfg.local_steps
            if cfg.budget % h:  # shorter last tasks have times of their own
                return {}
            staleness = {"staleness_mean": lambda: theory.asgd_mean_staleness(p)}
            return staleness | _timed(cfg, lambda: h * theory.asgd_time(law, p, slow))
        case "localsgd" | "easgd" | "diloco":
            h = cfg.local_steps
            rounds = cfg.steps % h == 0  # a shorter last round has a time of its own
            step_s = _timed(cfg, lambda: h * theory.local_sgd_time_per_step(law, p, h, slow))
            return fresh | (step_s if rounds else {})
        case "ksync":
            k = cfg.k or p - cfg.backup
            known = theory.k_sync_time if cfg.count == "workers" else theory.k_batch_sync_time
            cancelled = cfg.rest == "cancel" or (k == p and cfg.count == "workers")
            return fresh | (_timed(cfg, lambda: known(_equal(slow, law), p, k)) if cancelled else {})
        case "kasync":
            k = cfg.gradients_per_update
            if cfg.count == "gradients":
                return {"staleness_mean": lambda: theory.k_batch_async_mean_staleness(p, k)} | _timed(
                    cfg, lambda: theory.k_batch_async_time(law, p, k, slow)
                )
            found: Formulas = {"staleness_mean": lambda: theory.k_async_mean_staleness(p, k)}
            if _instant(cfg):
                found["staleness_p0"] = lambda: theory.k_async_staleness_pmf(_equal(slow, law), p, k, 0)
            return found | _timed(cfg, lambda: theory.k_async_time(_equal(slow, law), p, k))
        case "rennala" | "adacomm":
            return fresh
        case "ringmaster":
            return {"staleness_max": lambda: cfg.delay_bound - 1}
    return {}


def _timed(cfg: Any, s_per_update: Callable[[], float]) -> Formulas:
    """Return a formula for the time of an update where it holds: nothing but computing takes time."""
    known = cfg.engine == "sim" or cfg.timing.compute_time != "none"  # on Ray, real computing is not
    return {"s_per_update": s_per_update} if known and _instant(cfg) else {}


def _instant(cfg: Any) -> bool:
    """Whether nothing but computing takes time."""
    return _plain_network(cfg) and not (cfg.timing.latency_s or cfg.timing.server_law)


def _plain_network(cfg: Any) -> bool:
    """Whether messages take no time but the latency."""
    return bool(cfg.timing.server_bytes_per_s == float("inf"))


def _equal(slowdown: Mapping[int, float], law: Any) -> Any:
    """Return the law, if all workers share it."""
    if any(factor != 1 for factor in slowdown.values()):
        raise theory.NoClosedForm("the formula is for equal workers")
    return law
