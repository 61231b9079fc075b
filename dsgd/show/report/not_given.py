"""What an answer rests on though nobody gave it: measured times, edges of what was tuned, and defaults."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dsgd.config import TrainConfig, lacks_compute_time
from dsgd.core.option_rules import option_fields
from dsgd.records.variants import differing
from dsgd.scenario.network_options import LINKS
from dsgd.show.report.frames import Frames
from dsgd.show.report.written_numbers import few, listed, option_text, seconds_text
from dsgd.strategies import left_at_defaults

_LINKS = ("latency_s", "server_bytes_per_s", *LINKS)
_ANY_RUN = ("workload", "num_workers", "batch_size", "partition")


def assumptions(frames: Frames) -> list[str]:
    """Return what an answer rests on: how long a mini-batch takes, where that was measured, the choices of
    tuning that have nothing beyond them, and the defaults that could change the order of the variants.
    """
    return [*measured_text(frames.measured), *_edges(frames), *_defaults(frames)]


def measured_text(measured: Mapping[str, float]) -> list[str]:
    """Return how long a mini-batch takes, in a sentence. measured: in seconds, by variant; may be empty."""
    times: dict[str, list[str]] = {}
    for variant, seconds in measured.items():
        times.setdefault(seconds_text(seconds), []).append(variant)
    said = [f"{text}{f' with {few(own)}' if len(times) > 1 else ''}" for text, own in times.items()]
    return [f"A mini-batch takes {'; '.join(said)} (measured here)."] if said else []


def _edges(frames: Frames) -> list[str]:
    """Return the choices of tuning that are the smallest or largest value tried, of losing variants too."""
    edges: dict[str, list[str]] = {}
    for one in frames.tuned:
        for option in one.at_the_edge:
            edges.setdefault(f"{option} {option_text(one.chosen[option])}", []).append(one.variant)
    found = listed([f"{text} ({few(variants)})" for text, variants in edges.items()])
    return [f"At the edge of what was tried, so a better one may lie beyond: {found}."] if found else []


def _defaults(frames: Frames) -> list[str]:
    """Return the options that nobody gave, varied or tuned: of all runs, then of single variants.

    Of a single variant, which competes with nobody, only the time of a mini-batch beside other times.
    """
    configs = {variant: frames.of(variant)[0].config for variant in frames.variants}
    every = list(configs.values())
    simulated = [config for config in every if config.get("engine") == "sim"]
    lacking = [variant for variant, config in configs.items() if lacks_compute_time(config)]
    unit = any("compute_time" not in _given_to(frames, variant) for variant in lacking)
    parts = ["compute_time none (a mini-batch takes 1 virtual s)"] if unit else []
    if len(configs) > 1:
        parts = [*_of_all(frames, every), *_of_variants(frames, configs), *parts]
        if simulated and not any(_given(config, name) for config in simulated for name in _LINKS):
            parts.append("messages that take no time")
    may = "others may change the order" if len(configs) > 1 else "give another, if that is not so"
    return [f"Left at the defaults: {listed(parts)}; {may}."] if parts else []


def _of_all(frames: Frames, every: Sequence[Mapping[str, Any]]) -> list[str]:
    fixed = {*frames.varied, *_given_to(frames, frames.variants[0])}
    if every[0].get("workload") in ("none", "quadratic"):  # without samples
        fixed |= {"batch_size", "partition"}
    left = [o for o in _ANY_RUN if o in every[0] and o not in fixed and not _given(every[0], o)]
    return [f"{option} {option_text(every[0][option])}" for option in left]


def _of_variants(frames: Frames, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return step sizes and a strategy's own numbers, with the variants that have them unless all do."""
    tuned = {one.variant: one.chosen for one in frames.tuned}
    every, own = list(configs.values()), dict[str, list[str]]()
    for variant, config in configs.items():
        of_mode = differing(other for other in every if other["mode"] == config["mode"])
        chosen = {*tuned.get(variant, ()), *of_mode, *_given_to(frames, variant)}
        chosen |= {"lr"} if config.get("workload") == "none" else set()
        for option, value in left_at_defaults(config).items():
            if option not in chosen:
                own.setdefault(f"{option} {option_text(value)}", []).append(variant)
    return [f"{text}{'' if len(of) == len(configs) else f' ({few(of)})'}" for text, of in own.items()]


def _given_to(frames: Frames, variant: str) -> Collection[str]:
    """Return the options of a variant that its experiment's file gives; of loose records nobody knows."""
    return frames.compared[variant].options if variant in frames.compared else ()


def _given(config: Mapping[str, Any], name: str) -> bool:
    """Return whether an option of a run is not at its default."""
    default = option_fields(TrainConfig)[name].default
    return bool(config.get(name, default) != default)
