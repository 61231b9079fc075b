"""Reports in a real browser: they fit desktop and phone, and are readable on light and on dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import needs
from test_report import ASGD, LOCAL, SSGD, experiment

from dsgd.show.report.build import build_report

pytestmark = needs("chromium")

# The contrast of each text with what is behind it, as WCAG 2.2 defines it; texts of figures lie on the page.
CONTRASTS = """() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('h1,h2,h3,p,th,td,li,summary,svg text')]
    .filter(e => e.textContent.trim())
    .map(e => {
      const style = getComputedStyle(e);
      const ink = parse(e instanceof SVGElement ? style.fill : style.color);
      const [low, high] = [light(ink), light(ground(e))].sort((a, b) => a - b);
      return [(high + .05) / (low + .05), e.textContent.trim().slice(0, 40)];
    });
}"""

# Labels that stick out of their figure would be cut off.
CUT_OFF = """() => [...document.querySelectorAll('figure svg text')].filter(e => {
  const own = e.getBoundingClientRect(), all = e.ownerSVGElement.getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1
    || own.bottom > all.bottom + 1;
}).map(e => e.textContent)"""


class Seen(NamedTuple):
    """A page as a browser shows it, and what it did meanwhile."""

    page: Any
    messages: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a report of an experiment with long names and a damaged run, and one of a single run."""
    folder = tmp_path_factory.mktemp("browser") / "experiment"
    variants = {
        "ssgd": SSGD,
        "asgd with a name that is much longer than others": ASGD,
        "localsgd H=4": LOCAL,
        "localsgd H=12": LOCAL | {"local_steps": 12},
    }
    experiment(folder, variants, 2, target_loss=0.691)
    (folder / "v0-s1" / "summary.json").unlink()
    return {"experiment": build_report(folder), "run": build_report(folder / "v1-s0")}


@pytest.fixture(
    params=[(name, width, scheme) for name in ("experiment", "run") for width in (1280, 390) for scheme in
            ("light", "dark")],
    ids=lambda p: " ".join(map(str, p)),
)  # fmt: skip
def seen(request: pytest.FixtureRequest, reports: dict[str, Path], browser: Any) -> Iterator[Seen]:
    """Open a report at a width and in a colour scheme."""
    name, width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    found = Seen(page, [], [])
    page.on("console", lambda message: found.messages.append(message.text))
    page.on("pageerror", lambda error: found.messages.append(str(error)))
    page.on("request", lambda asked: found.requests.append(asked.url))
    page.goto(reports[name].as_uri())
    yield found
    context.close()


@pytest.mark.crossing(one_in=4)
def test_a_report_fits_and_can_be_read(seen: Seen) -> None:
    """A page makes no network request, logs nothing to the console, is no wider than its window, shows
    every figure whole, and all its words stand out from their ground.
    """
    page = seen.page
    assert seen.messages == []
    assert [url for url in seen.requests if not url.startswith(("data:", page.url))] == []
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(e => [e.clientWidth, e.clientHeight])"
    )
    assert len(boxes) >= 5
    assert all(w >= 330 and h >= 80 for w, h in boxes)
    assert page.evaluate(CUT_OFF) == []
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [entry for entry in contrasts if entry[0] < 4.5] == []


def test_wide_tables_scroll_in_their_own_box(reports: dict[str, Path], browser: Any) -> None:
    """On a phone a table that is too wide scrolls in its box, and its first column stays visible."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(reports["experiment"].as_uri())
    box = page.locator(".scroll").first
    assert box.evaluate("e => e.scrollWidth > e.clientWidth")
    left = box.evaluate(
        "e => { e.scrollLeft = 200; return e.querySelector('tbody th').getBoundingClientRect().left }"
    )
    assert left == pytest.approx(box.bounding_box()["x"], abs=2)
    context.close()


def test_figures_and_numbers_are_laid_out_for_the_window(reports: dict[str, Path], browser: Any) -> None:
    """Loss curves of a scenario are one row on a desktop; the measure's numbers can be seen on a phone."""
    for width, rows in ((1280, 1), (390, 3)):
        context = browser.new_context(viewport={"width": width, "height": 844})
        page = context.new_page()
        page.goto(reports["experiment"].as_uri())
        tops = {page.locator(f"#loss-{name}").bounding_box()["y"] for name in ("time", "gradients", "bytes")}
        assert len(tops) == rows
        cells = page.locator("section:has(h2:text-is('In numbers')) .scroll").first.locator(
            "tbody tr td:nth-child(2)"
        )
        boxes = cells.evaluate_all("cells => cells.map(e => e.getBoundingClientRect().right)")
        assert len(boxes) == 4
        assert max(boxes) <= width
        context.close()


def test_the_answer_is_there_before_any_figure(reports: dict[str, Path], browser: Any) -> None:
    """The first screen of a phone has the title, the question and the beginning of the answer."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(reports["experiment"].as_uri())
    assert page.locator("h1").inner_text() == "A title"
    assert page.locator(".answer p").count() == 2
    assert page.locator(".answer").bounding_box()["y"] < 844
    assert page.locator(".left-out li").inner_text().startswith("v0-s1: is partial")
    context.close()
