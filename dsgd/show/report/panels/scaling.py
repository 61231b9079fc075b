"""What more workers gain: throughput, time and staleness against their number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsgd.records.reader import Record
from dsgd.running.predict.predictions import predicted_gradients_per_s, predicted_value
from dsgd.show.report.frames import Frames, common_words, option_text
from dsgd.show.report.layout import Factor
from dsgd.show.report.measures import Measure, measure
from dsgd.show.report.panels.drawing import Panel, Scene, Section
from dsgd.show.report.panels.levels import LevelLine, Point, draw
from dsgd.show.report.style import styles


class Series(NamedTuple):
    """Variants that differ in their number of workers only."""

    name: str
    mode: str
    variants: tuple[tuple[int, str], ...]
    """Number of workers and variant, ascending."""


_THEORY: dict[str, Callable[[Record], float | None]] = {
    "throughput": lambda record: predicted_gradients_per_s(record.summary),
    "staleness": lambda record: predicted_value(record.summary, "staleness_mean"),
}


def series(frames: Frames) -> list[Series]:
    """Return the groups of at least two variants of a mode that differ in their number of workers.

    Options that go with it, such as a budget that is shared by all workers, may differ too.
    """
    free = {}
    for mode in {run.record.summary.mode for run in frames.records}:
        own = [run.record.config for run in frames.records if run.record.summary.mode == mode]
        free[mode] = [option for option in frames.varied if not _goes_with_workers(option, own)]
    groups: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for variant in frames.variants:
        record = frames.of(variant)[0]
        mode = record.summary.mode
        values = [f"{option}={option_text(record.config.get(option))}" for option in free[mode]]
        groups.setdefault((mode, *values), []).append((record.summary.num_workers, variant))
    found = []
    for key, members in groups.items():
        if len({workers for workers, _ in members}) == len(members) > 1:
            name = common_words([variant for _, variant in members], last=False) or " ".join(key)
            found.append(Series(name, key[0], tuple(sorted(members))))
    return found


def _goes_with_workers(option: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an option has one value for each number of workers."""
    values: dict[Any, set[str]] = {}
    for config in configs:
        values.setdefault(config["num_workers"], set()).add(option_text(config.get(option)))
    return all(len(found) == 1 for found in values.values())


def scaling(scene: Scene) -> Section:
    """Panels against the number of workers."""
    target = scene.frames.target_loss
    names = ("throughput", *(() if target is None else ("time-to-loss",)), "idle_share", "staleness")
    panels = [_panel(scene, measure(name, target, scene.seconds)) for name in names]
    return Section(
        name="scaling",
        heading="What do more workers gain?",
        caption="Medians over seeds with their intervals. Dashed: theory, where a closed form is known. "
        "Dotted: linear scaling. Empty marks are numbers of workers with which the target is never reached; "
        "0 cannot be shown on a logarithmic axis.",
        panels=[panel for panel in panels if panel],
    )


def _panel(scene: Scene, by: Measure) -> Panel | None:
    """Draw a measure against the number of workers; None where there is nothing to draw."""
    found, log = series(scene.frames), by.name != "idle_share"
    looks = styles({one.name: one.mode for one in found})
    numbers = sorted({workers for one in found for workers, _ in one.variants})
    by_level = {str(n): float(n) for n in numbers}
    across = Factor(option="workers", levels=list(by_level), numbers=by_level)
    lines = []
    for one in found:
        points, theory = {}, {}
        for workers, variant in one.variants:
            seeds = [x for record in scene.of(variant) if (x := by.of(record)) is not None]
            if seeds and (min(seeds) > 0 or not log):
                points[str(workers)] = Point.of(seeds)
            if said := by.name in _THEORY and _THEORY[by.name](scene.of(variant)[0]):
                theory[str(workers)] = said
        if points:
            lines.append(LevelLine(name=one.name, look=looks[one.name], points=points, theory=theory))
    if not any(math.isfinite(point.centre) for line in lines for point in line.points.values()):
        return None
    dotted = {}
    if by.name == "throughput":
        least = min((level for line in lines for level in line.points), key=by_level.__getitem__)
        first = max(line.points[least].centre for line in lines if least in line.points)
        dotted = {level: first * n / by_level[least] for level, n in by_level.items()}
    name, title = f"scaling-{re.split('[-_]', by.name)[0]}", f"{by.noun[0].upper()}{by.noun[1:]}"
    return draw(name, title, by.label, across, lines, dotted=dotted, log=log)
