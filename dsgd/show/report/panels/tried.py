"""What was tried for each variant before the comparison: the loss against each value, and the choice."""

from __future__ import annotations

import math

from dsgd.show.report.choices import Chosen, choices
from dsgd.show.report.layout import Factor
from dsgd.show.report.panels.drawing import Panel, Scene, Section
from dsgd.show.report.panels.levels import LevelLine, Point, draw
from dsgd.show.report.written_numbers import listed


def applies(scene: Scene) -> bool:
    """Whether options with numbers were tuned."""
    return bool(_options(scene))


def tried(scene: Scene) -> Section:
    """Draw the loss at the end against the values tried, for each option that was tuned and each group."""
    panels = []
    for option in _options(scene):
        found = choices(scene.frames, option)
        groups, others = scene.some_scenarios()
        for place, group in enumerate(groups):
            name = f"tuning-{option}-{place + 1}" if len(groups) > 1 else f"tuning-{option}"
            panels.append(_panel(scene, name, option, group, [c for c in found if c.group == group]))
    return Section(
        name="tuning",
        heading=f"Which {listed([o.replace('_', ' ') for o in _options(scene)])} is best for each?",
        caption="Median loss at the end of the same budget, on seeds that the comparison does not use; where "
        "other options were tuned too, with the best of them. Rings are what was chosen. A value at the edge "
        f"of what was tried may have a better one beyond.{others}",
        panels=panels,
    )


def _options(scene: Scene) -> list[str]:
    """Return the tuned options of which several values, all numbers, were tried."""
    found = []
    for option in dict.fromkeys(option for tuned in scene.frames.tuned for option in tuned.chosen):
        texts = {value for c in choices(scene.frames, option) for value in c.losses}
        if len(texts) > 1 and all(_finite(text) for text in texts):
            found.append(option)
    return found


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _panel(scene: Scene, name: str, option: str, group: str, found: list[Chosen]) -> Panel:
    texts = sorted({value for c in found for value in c.losses}, key=float)
    factor = Factor(option=option, levels=texts, numbers={text: float(text) for text in texts})
    title = f"Loss by {option.replace('_', ' ')}{f', {group}' if group else ''}"
    lines = [
        LevelLine(
            name=choice.level,
            look=scene.looks[choice.variant],
            points={value: Point(centre=choice.losses[value]) for value in sorted(choice.losses, key=float)},
            ringed=choice.value,
        )
        for choice in found
    ]
    return draw(name, title, "loss at the end", factor, lines, never="diverged", from_zero=False)
