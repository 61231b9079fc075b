"""The answer to `measure: best OPTION`: which value tuning chose at each level, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsgd.show.report.experiment_yaml import Tuned
from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import Layout
from dsgd.show.report.written_numbers import Answer, Table, listed, number, option_text, percent, plural


class Chosen(NamedTuple):
    """The value of one option that was chosen for a variant."""

    group: str
    level: str
    variant: str
    value: str
    """As the command line has it."""
    losses: Mapping[str, float]
    """By value of the option, in the order tried: the lowest median loss with it; infinite if it diverged."""
    by_seed: Mapping[int, str]
    """Which value each seed alone would have chosen."""
    at_the_edge: bool


def choices(frames: Frames, option: str) -> list[Chosen]:
    """Return what was chosen for each variant that has a run and the option, in the order of the layout."""
    by_variant = {tuned.variant: tuned for tuned in frames.tuned}
    return [
        _choice(by_variant[variant], option, group, level, variant)
        for group, cells in frames.layout.cells.items()
        for level, variant in cells.items()
        if variant in by_variant and option in by_variant[variant].chosen
    ]


def _choice(tuned: Tuned, option: str, group: str, level: str, variant: str) -> Chosen:
    losses: dict[str, float] = {}
    seeds: dict[int, dict[str, float]] = {}
    for tried in tuned.tried:
        value = option_text(tried.options[option])
        losses[value] = min(losses.get(value, math.inf), tried.loss)
        for seed, loss in tried.losses.items():
            own = seeds.setdefault(seed, {})
            own[value] = min(own.get(value, math.inf), loss)
    return Chosen(
        group,
        level,
        variant,
        option_text(tuned.chosen[option]),
        losses,
        {seed: min(own, key=lambda value: own[value]) for seed, own in seeds.items() if _finite(own)},
        option in tuned.at_the_edge,
    )


def _finite(losses: Mapping[str, float]) -> bool:
    return any(map(math.isfinite, losses.values()))


def of_tuning(frames: Frames) -> Answer:
    """Return which value of an option is best at each level of what is compared."""
    option = frames.asked.tuned
    assert option is not None
    found = choices(frames, option)
    layout = frames.layout
    groups = {group: own for group in layout.cells if (own := [c for c in found if c.group == group])}
    best = [f"{group}, {_by_level(own)}" if group else _by_level(own) for group, own in groups.items()]
    seeds = sorted({seed for tuned in frames.tuned for tried in tuned.tried for seed in tried.losses})
    values = list(found[0].losses) if found else []
    basis = (
        f"Chosen from {listed(values)}: the value with the lowest median loss at the end of the same budget"
    )
    if seeds:
        basis += f", over {plural(len(seeds), 'seed')} that the comparison does not use"
    return Answer(
        headline=f"The best {option}{':' if len(groups) > 1 else ' is'} {'; '.join(best)}.",
        table=_table(layout, option, found),
        basis=f"{basis}.",
    )


def _by_level(found: Sequence[Chosen]) -> str:
    """Return the values with their levels, levels with the same value together."""
    by_value: dict[str, list[str]] = {}
    for choice in found:
        by_value.setdefault(choice.value, []).append(choice.level)
    return listed([f"{value} with {listed(levels)}" for value, levels in by_value.items()])


def _table(layout: Layout, option: str, found: Sequence[Chosen]) -> Table:
    rows = []
    for c in found:
        best = c.losses[c.value]
        others = {value: loss for value, loss in c.losses.items() if value != c.value}
        second = min(others, key=lambda value: others[value], default="–")
        behind = "–"
        if others and best > 0:
            loss = others[second]
            behind = f"{percent(loss / best - 1)} higher" if math.isfinite(loss) else "diverged"
        alone = listed(sorted(set(c.by_seed.values()), key=list(c.losses).index)) or "–"
        rows.append([c.variant, c.value, number(best), alone, second, behind])
    return Table(
        title="",
        note="Losses are medians over the seeds of the tuning.",
        headings=[
            "variant",
            f"best {option}",
            "loss with it",
            "best by single seeds",
            "runner-up",
            "its loss",
        ],
        rows=rows,
    )
