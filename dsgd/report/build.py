"""Writes a report: report.html, report.md, results.csv and each figure as a file, from records alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dsgd.report import tables
from dsgd.report.answer import answer
from dsgd.report.figures import draw_sections
from dsgd.report.frames import Frames, read_folder
from dsgd.report.panels import Section
from dsgd.report.questions import questions
from dsgd.report.style import DARK, LIGHT, standalone_svg
from dsgd.report.tables import Table
from dsgd.report.words import plural

_FIGURE_NAMES = re.compile(
    r"(loss|time|gradients|bytes|staleness|timeline|scaling|drift)-[\w-]+|throughput|idle|drift"
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a report says."""

    frames: Frames
    facts: str
    answer: Sequence[str]
    sections: Sequence[Section]
    tables: Sequence[Table]
    details: Sequence[Table]
    """For repeating the runs."""


def build_report(folder: Path) -> Path:
    """Write the report of an experiment's folder, a folder of records or one record into that folder.

    Returns the path of report.html. Raises RecordError, in one line, where there is nothing to report on, and
    OSError where nothing can be written. The same records give the same bytes.
    """
    folder = Path(folder)
    return write_report(read_folder(folder), folder)


def write_report(frames: Frames, folder: Path) -> Path:
    """Write the report of these runs into a folder; returns the path of report.html."""
    report = _report(frames)
    _write_figures(folder / "figures", report.sections)
    (folder / "results.csv").write_text(frames.runs.write_csv(), encoding="utf-8")
    (folder / "report.md").write_text(_render("template.md.j2", report), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(_render("template.html.j2", report), encoding="utf-8")
    return path


def _report(frames: Frames) -> Report:
    asked = questions(frames) if len(frames.variants) > 1 else []
    found = [
        tables.results(frames),
        *(tables.pairs(question) for question in asked),
        tables.theory(frames),
        tables.ended_early(frames),
    ]
    details = [
        tables.tuned(frames),
        tables.differing(frames),
        tables.shared(frames),
        tables.made_with(frames),
    ]
    return Report(
        frames=frames,
        facts=_facts(frames),
        answer=answer(frames),
        sections=list(draw_sections(frames)),
        tables=[table for table in found if table],
        details=[table for table in details if table],
    )


def _facts(frames: Frames) -> str:
    """Return the number of runs and their setting, in one line."""
    records = [run.record for run in frames.records]
    engines = dict.fromkeys({"sim": "the simulator", "ray": "Ray"}.get(r.summary.engine, "") for r in records)
    facts = [plural(len(records), "run")]
    if len(frames.variants) > 1:
        facts.append(plural(len(frames.variants), "variant"))
    facts += [plural(len({run.seed for run in frames.records}), "seed"), " and ".join(engines)]
    config = records[0].config
    if "num_workers" not in frames.varied:
        facts.append(plural(records[0].summary.num_workers, "worker"))
    for option, what in (("dataset", "data"), ("compute_time", "compute times"), ("slowdown", "slowdown")):
        if option not in frames.varied and config.get(option) not in (None, "", "none"):
            facts.append(f"{what} {config[option]}")
    return " · ".join(facts)


def _write_figures(folder: Path, sections: Sequence[Section]) -> None:
    """Write each figure, and remove those of an earlier report that are not drawn any more."""
    folder.mkdir(exist_ok=True)
    drawn = {panel.name for section in sections for panel in section.panels}
    for path in folder.iterdir():
        if path.suffix in (".svg", ".png") and path.stem not in drawn and _FIGURE_NAMES.fullmatch(path.stem):
            path.unlink()
    for section in sections:
        for panel in section.panels:
            (folder / f"{panel.name}.svg").write_text(standalone_svg(panel.svg), encoding="utf-8")
            (folder / f"{panel.name}.png").write_bytes(panel.png)


def _render(template: str, report: Report) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"markdown": _markdown, "svg": Markup}
    values: Mapping[str, Any] = {"report": report, "frames": report.frames, "light": LIGHT, "dark": DARK}
    return environment.get_template(template).render(values)


def _markdown(text: object) -> str:
    r"""Return text that Markdown shows as it is.

    >>> _markdown("a|b <i> *c*")
    'a\\|b &lt;i&gt; \\*c\\*'
    """
    plain = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", plain)
