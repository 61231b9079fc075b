"""Which figures a report has, drawn one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib as mpl

from dsgd.show.report.frames import Frames
from dsgd.show.report.panels import curves, experts, rows, scaling, staleness, sweep, timeline, tried
from dsgd.show.report.panels.drawing import Scene, Section
from dsgd.show.report.style import RC, Style, styles


def draw_sections(frames: Frames) -> Iterator[Section]:
    """Draw the figures that the experiment asks for, in its order; by default, all that apply.

    What cannot apply (drift without local steps, a loss without weights) is left out, asked for or not.
    """
    scene = scene_of(frames)
    with mpl.rc_context(RC):
        for name in chosen(frames):
            yield _DRAW[name](scene)


def chosen(frames: Frames) -> list[str]:
    """Return the names of the figures that are drawn, in order: first those of the question."""
    scene = scene_of(frames)
    wanted = dict.fromkeys([*_OF_THE_QUESTION, *(frames.show or _DRAW)])
    return [name for name in wanted if _applies(name, scene)]


def scene_of(frames: Frames) -> Scene:
    """Return what figures are drawn from: the runs and the look of each variant."""
    modes = {run.variant: run.record.summary.mode for run in frames.records}
    looks: dict[str, Style] = {}
    for variants in frames.scenarios.values():  # a strategy looks the same in all of them
        looks |= styles({variant: modes[variant] for variant in _by_value(frames, variants)})
    return Scene(frames=frames, looks=looks)


def _by_value(frames: Frames, variants: Sequence[str]) -> list[str]:
    """Return variants in the order of what is swept, if they differ in one number; else in their own.

    Variants of different modes are not compared: each mode has its ramp.
    """
    configs = {variant: frames.of(variant)[0].config for variant in variants}
    found = []
    for mode in dict.fromkeys(config["mode"] for config in configs.values()):
        own = [variant for variant in variants if configs[variant]["mode"] == mode]
        swept = [o for o in frames.varied if len({str(configs[variant].get(o)) for variant in own}) > 1]
        if len(swept) == 1 and all(isinstance(configs[v].get(swept[0]), int | float) for v in own):
            own.sort(key=lambda variant: configs[variant][swept[0]])
        found += own
    return found


_DRAW = {
    "sweep": sweep.sweep,
    "tuning": tried.tried,
    "loss": curves.loss,
    "time_to_target": rows.time_to_target,
    "scaling": scaling.scaling,
    "throughput": rows.throughput,
    "staleness": staleness.staleness,
    "timeline": timeline.timeline,
    "drift": curves.drift,
    "experts": experts.experts,
}


_OF_THE_QUESTION = ("sweep", "tuning")  # drawn whatever the file lists under show:


def _applies(name: str, scene: Scene) -> bool:
    records = [run.record for run in scene.frames.records]
    match name:
        case "sweep":
            return sweep.applies(scene)
        case "tuning":
            return tried.applies(scene)
        case "loss":
            return any(record.evals for record in records)
        case "time_to_target":
            return scene.frames.target_loss is not None and any(record.evals for record in records)
        case "staleness":
            return any(record.summary.staleness.max for record in records)
        case "throughput":
            return any(record.summary.gradients_per_s for record in records)
        case "timeline":
            return any(timeline.is_complete(scene.representative(v)) for v in scene.variants)
        case "drift":
            return any(record.summary.measured["drift"] is not None for record in records)
        case "experts":
            return any(experts.evaluated(record) for record in records)
    return bool(scaling.series(scene.frames))
