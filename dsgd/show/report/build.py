"""Writes a report: report.html, results.csv and each figure as a file, from records alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from dsgd.models.workloads import name_of
from dsgd.process.files import whole_file
from dsgd.show.report import tables
from dsgd.show.report.answer import answer
from dsgd.show.report.figures import draw_sections
from dsgd.show.report.frames import Frames, read_folder
from dsgd.show.report.page_templates import rendered
from dsgd.show.report.panels.drawing import Section
from dsgd.show.report.questions import questions
from dsgd.show.report.style import standalone_svg
from dsgd.show.report.written_numbers import Answer, Table, number, plural

_SLOW = 1.5  # from here on a worker's mean time is not slow by chance
_FIGURE_NAMES = re.compile(
    r"(loss|time|gradients|bytes|staleness|timeline|scaling|drift|sweep|ratio|tuning|experts)-[\w-]+"
    r"|throughput|idle|drift|sweep|ratio|tuning"
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that a report says."""

    frames: Frames
    facts: str
    answer: Answer
    sections: Sequence[Section]
    tables: Sequence[Table]
    details: Sequence[Table]
    """For repeating the runs."""


def build_report(folder: Path, frames: Frames | None = None) -> Path:
    """Write the report of an experiment's folder, a folder of records or one record into that folder.

    frames: what was read from the folder; None: read it.
    Returns the path of report.html. Raises RecordError, in one line, where there is nothing to report on, and
    OSError where nothing can be written. The same records give the same bytes.
    """
    folder = Path(folder)
    return write_report(frames or read_folder(folder), folder)


def write_report(frames: Frames, folder: Path) -> Path:
    """Write the report of these runs into a folder; returns the path of report.html."""
    report = _report(frames)
    _write_figures(folder / "figures", report.sections)
    _write(folder / "results.csv", frames.runs.write_csv())
    (folder / "report.md").unlink(missing_ok=True)  # older versions wrote one
    path = folder / "report.html"
    _write(path, rendered("template.html.j2", report=report, frames=frames, title=frames.title))
    return path


def _report(frames: Frames) -> Report:
    asked = questions(frames) if len(frames.variants) > 1 else []
    found = [
        tables.overview(frames, asked),
        *(tables.pairs(question) for question in asked),
        tables.theory(frames),
        tables.faults(frames),
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
        ranks = config.get("ranks_per_worker", 1)
        of_ranks = f" of {ranks} ranks" if ranks > 1 and "ranks_per_worker" not in frames.varied else ""
        facts.append(plural(records[0].summary.num_workers, "worker") + of_ranks)
    if "workload" not in frames.varied and name_of(config) != "none":
        facts.append(f"data {name_of(config)}")
    for option, what in (("compute_time", "compute times"), ("slowdown", "slowdown")):
        if option not in frames.varied and config.get(option) not in (None, "", "none"):
            facts.append(f"{what} {config[option]}")
    slowest = median(r.summary.slowest_ratio for r in records)
    if slowest > _SLOW and not any(r.config.get("slowdown") for r in records):
        facts.append(f"the slowest worker takes {number(slowest, 2)} times as long as the median one")
    taken = [x for r in records if (x := r.summary.exchange_batches)]
    if taken:
        low, high = number(min(taken), 2), number(max(taken), 2)
        span = low if low == high else f"{low} to {high}"
        facts.append(f"an exchange, there and back, takes {span} mini-batches")
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
            _write(folder / f"{panel.name}.svg", standalone_svg(panel.svg))
            _write(folder / f"{panel.name}.png", panel.png)


def _write(path: Path, content: str | bytes) -> None:
    with whole_file(path, "copy the records to another disk") as file:
        file.write(content.encode() if isinstance(content, str) else content)
