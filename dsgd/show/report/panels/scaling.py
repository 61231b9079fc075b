"""What more workers gain: throughput, time and staleness against their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.records.reader import Record
from dsgd.running.predict.predictions import predicted_gradients_per_s, predicted_value
from dsgd.show.report.frames import Frames, common_words, option_text
from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, Section, readable_ticks
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.style import INK, styles


class Series(NamedTuple):
    """Variants that differ in their number of workers only."""

    name: str
    mode: str
    variants: tuple[tuple[int, str], ...]
    """Number of workers and variant, ascending."""


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """Something that depends on the number of workers."""

    name: str
    title: str
    unit: str
    measure: Callable[[Record], float | None]
    theory: Callable[[Record], float | None] = lambda record: None
    log: bool = True
    proportional: bool = False
    """Whether a line shows growth in proportion to the number of workers."""

    def drawn(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)


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
    quantities = [
        _Quantity(
            name="throughput",
            title="Throughput",
            unit=f"gradients per {scene.seconds}",
            measure=lambda r: r.summary.gradients_per_s,
            theory=lambda r: predicted_gradients_per_s(r.summary),
            proportional=True,
        ),
        _Quantity(
            name="idle",
            title="Idle share",
            unit="per cent of the workers' time",
            measure=lambda r: 100 * r.summary.idle_share,
            log=False,
        ),
        _Quantity(
            name="staleness",
            title="Mean staleness",
            unit="updates",
            measure=lambda r: r.summary.staleness.mean,
            theory=lambda r: predicted_value(r.summary, "staleness_mean"),
        ),
    ]
    if target is not None:
        time = _Quantity(
            name="time",
            title=f"Time to loss {target:g}",
            unit=scene.seconds,
            measure=lambda r: reached.t_s if (reached := r.reached(target)) else math.inf,
        )
        quantities.insert(1, time)
    panels = [_panel(scene, quantity) for quantity in quantities]
    return Section(
        name="scaling",
        heading="What do more workers gain?",
        caption="Medians over seeds with their intervals. Dashed: theory, where a closed form is known. "
        "Dotted: linear scaling. Empty marks above are numbers of workers "
        "with which the target is never reached; 0 cannot be shown on a logarithmic axis.",
        panels=[panel for panel in panels if panel],
    )


_THEORY: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": (0, (4, 2))}


def _panel(scene: Scene, quantity: _Quantity) -> Panel | None:
    """Draw a quantity against the number of workers; None where there is nothing to draw."""
    found = series(scene.frames)
    looks = styles({one.name: one.mode for one in found})
    medians = {one: _medians(scene, one, quantity) for one in found}
    drawn = [i for at in medians.values() for i in at.values() if quantity.drawn(i.centre)]
    if not drawn:
        return None
    canvas = Canvas(title=quantity.title)
    axes = canvas.axes()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log" if quantity.log else "linear")
    values = [x for i in drawn for x in i[:3] if quantity.drawn(x)]
    least, most = min(values), max(values)
    beyond = 100 * most  # an interval that ends with "never" leaves the panel, but stays a number
    never = False
    for place, (one, at) in enumerate(medians.items()):
        look = looks[one.name]
        shown = {workers: interval for workers, interval in at.items() if quantity.drawn(interval.centre)}
        (line,) = axes.plot(list(shown), [interval.centre for interval in shown.values()], **look.line)
        low, high = ([min(i[end], beyond) for i in shown.values()] for end in (1, 2))
        axes.vlines(list(shown), low, high, color=look.colour, linewidth=4, alpha=0.35)
        missed = [workers for workers, interval in at.items() if math.isinf(interval.centre)]
        if not shown and not missed:
            continue
        if len(shown) and labels.fit([series.name for series in found], canvas.axes_height):
            canvas.name(axes, one.name, list(shown), [i.centre for i in shown.values()], look)
        else:
            canvas.legend.append((one.name, line))
        height = [0.97 - 0.07 * place] * len(missed)
        empty: dict[str, Any] = {"color": look.colour, "markerfacecolor": "none", "linestyle": ""}
        axes.plot(missed, height, marker=look.marker, transform=axes.get_xaxis_transform(), **empty)
        never = never or bool(missed)
    if never:
        empty = {"color": INK, "markerfacecolor": "none", "linestyle": ""}
        canvas.legend.append(("never, in the median", Line2D([], [], marker="o", **empty)))
    _draw_theory(axes, scene, found, quantity)
    workers = sorted({workers for at in medians.values() for workers in at})
    if quantity.log:
        margin = 1.05 * (most / least) ** 0.06
        room = margin ** (1 + 1.4 * len(found) * never)  # for the marks above
        axes.set_ylim(least / margin, most * room)
    else:
        axes.set_ylim(0, 1.08 * max(1e-9, most))
    if quantity.proportional:
        first = max(at[workers[0]].centre for at in medians.values() if workers[0] in at)
        y = [first * count / workers[0] for count in workers]
        axes.plot(workers, y, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    axes.set(xlabel="workers", ylabel=quantity.unit)
    axes.grid(visible=True)
    axes.set_xticks(workers, [f"{count:,}" for count in workers])
    axes.minorticks_off()
    readable_ticks(axes, "y", log=quantity.log)
    return canvas.done(f"scaling-{quantity.name}")


def _medians(scene: Scene, one: Series, quantity: _Quantity) -> dict[int, Interval]:
    """Return the median over seeds by number of workers; infinite for never."""
    values = {
        workers: [value for r in scene.of(variant) if (value := quantity.measure(r)) is not None]
        for workers, variant in one.variants
    }
    return {workers: median_interval(seeds) for workers, seeds in values.items() if seeds}


def _draw_theory(axes: Axes, scene: Scene, found: Sequence[Series], quantity: _Quantity) -> None:
    """Draw a line of theory for each series that has one."""
    for one in found:
        said = {workers: quantity.theory(scene.of(variant)[0]) for workers, variant in one.variants}
        known = {workers: value for workers, value in said.items() if value and quantity.drawn(value)}
        axes.plot(list(known), list(known.values()), **_THEORY, zorder=3)
