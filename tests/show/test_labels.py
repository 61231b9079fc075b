"""Names at the ends of lines: none covers another, none is cut, none is outside its figure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import readable_ticks

WIDTH, HEIGHT = 3.0, 2.0

heights = st.lists(st.sampled_from((0.14, 0.28)), min_size=1, max_size=7)
ends = st.tuples(st.floats(0.05, 1), st.floats(0.001, 10))


@given(heights, st.data())
def test_names_are_pushed_apart_no_more_than_needed(sizes: list[float], data: st.DataObject) -> None:
    """Names in a column do not overlap, stay in it and keep their order; where there is room none moves."""
    wanted = data.draw(st.lists(st.floats(-1, 3), min_size=len(sizes), max_size=len(sizes)))
    found = labels.apart(wanted, sizes, HEIGHT)
    order = sorted(range(len(sizes)), key=lambda i: found[i])
    assert [wanted[i] for i in order] == sorted(wanted)
    for a, b in pairwise(order):
        assert found[a] + sizes[a] / 2 <= found[b] - sizes[b] / 2 + 1e-9
    assert found[order[0]] - sizes[order[0]] / 2 >= -1e-9
    assert found[order[-1]] + sizes[order[-1]] / 2 <= HEIGHT + 1e-9
    assert labels.apart(found, sizes, HEIGHT) == pytest.approx(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(ends, min_size=1, max_size=8), st.booleans())
def test_names_cover_neither_each_other_nor_a_line(lines: list[tuple[float, float]], log: bool) -> None:
    """Wherever lines end, names are disjoint, inside the figure, off every line; a moved one has a leader."""
    axes = Figure(figsize=(4, 3)).add_axes((0.1, 0.1, 0.8, 0.8))
    axes.set(xlim=(0, 1), ylim=(0.0005, 20), yscale="log" if log else "linear")
    named = []
    for place, (x, y) in enumerate(lines):
        line = np.array([[0, 10], [x / 2, (y + 10) / 2], [x, y]])
        named.append(labels.Label(text=f"variant {place}", line=line, colour="#0072B2"))
    room = labels.room(named, axes, WIDTH, HEIGHT)
    width = WIDTH - room
    found = labels.arrange(named, axes, width, HEIGHT)
    boxes = []
    for label, at in zip(named, found, strict=True):
        w, h = label.size
        boxes.append(labels.Box(at.x, at.x + w, at.y - h / 2 + 1e-9, at.y + h / 2 - 1e-9))
    assert not any(a.touches(b) for i, a in enumerate(boxes) for b in boxes[:i])
    for label, at, box in zip(named, found, boxes, strict=True):
        assert box.left >= 0
        assert box.right <= WIDTH
        assert box.low >= -1e-6
        assert box.high <= HEIGHT + 1e-6
        shown = (axes.transData - axes.transAxes).transform(label.line) * (width, HEIGHT)
        along = np.linspace(0, 2, 300)
        points = np.stack([np.interp(along, range(3), shown[:, i]) for i in (0, 1)], axis=1)
        nearest = np.clip(points, (box.left, box.low), (box.right, box.high))
        assert at.leader or np.hypot(*(points - nearest).T).min() < 0.25


@given(st.text(min_size=1, max_size=90))
def test_wrapped_names_are_whole(name: str) -> None:
    """A name in lines has all its letters, and no line is longer than said."""
    shown = labels.wrapped(name, 20)
    assert "".join(shown.split()) == "".join(name.split())
    assert labels.extent(shown)[0] <= labels.extent("m" * 20)[0] or any(ord(c) > 127 for c in name)


def test_a_short_name_is_one_line() -> None:
    """Names that fit are not broken."""
    assert labels.wrapped("local_steps=64, 2x") == "local_steps=64, 2x"


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 5), st.floats(0.2, 4), st.floats(2.0, 4.5))
def test_the_ticks_of_a_logarithmic_axis_do_not_touch(low: float, decades: float, width: float) -> None:
    """Wherever it begins, however far it goes, and however wide it is."""
    figure = Figure(figsize=(width, 2))
    axes = figure.add_axes((0.05, 0.2, 0.9, 0.7))
    axes.set(xscale="log", xlim=(10**low, 10 ** (low + decades)))
    axes.tick_params(labelsize=9)
    readable_ticks(axes, "x", log=True)
    figure.draw_without_rendering()
    boxes = [
        text.get_window_extent()
        for x, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if axes.get_xlim()[0] <= x <= axes.get_xlim()[1]
    ]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
