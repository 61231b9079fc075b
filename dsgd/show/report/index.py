"""The index of a folder of unrelated runs: a table for each group of comparable runs, and no common axis."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from dsgd.records.listing import ListedRun, Listing
from dsgd.records.variants import differing, of_workload, option_text, printable
from dsgd.show.report.colours import DARK, LIGHT
from dsgd.show.report.comparable import SHARED, Group, groups
from dsgd.show.report.written_numbers import number, plural

COMPARISONS = "comparisons"
"""The folder, next to the runs, of the reports of single groups."""

_MOST_SUGGESTED = 200  # values that the filter's list offers


@dataclass(frozen=True, kw_only=True)
class IndexRow:
    """A run in a table."""

    name: str
    link: str
    """To its report, if there is one, else to its folder."""
    variant: str
    seed: int
    loss: str
    seconds: str
    per_s: str
    staleness: str
    began: str
    best: Sequence[str]
    """The columns in which it is the best of its group."""
    tokens: str
    """What the filter looks for: options and their values between spaces."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """A table of runs."""

    title: str
    unit: str
    """Of its seconds."""
    rows: Sequence[IndexRow]
    like: str = ""
    """A run of the group, if it is one, as a shell takes it."""
    anchor: str = ""
    page: str = ""
    """The link to the group's report, if it has been drawn."""


def build_index(folder: Path, listing: Listing) -> Path:
    """Write the index of a folder of runs as its report.html; returns the path.

    The other files of a report that was drawn when there were fewer runs are removed. Raises OSError where
    nothing can be written. The same records give the same bytes.
    """
    found = groups(listing.runs)
    filtered = ["mode", "engine", "num_workers", *differing(run.config for run in listing.runs)]
    compared = [
        RunTable(
            title=group.title,
            unit=_unit(group.engine),
            rows=[_row(run, group, filtered) for run in group.runs],
            like=shlex.quote(group.runs[0].path.name),
            anchor=group.slug,
            page=_page_of(folder, group),
        )
        for group in found
        if len(group.runs) > 1
    ]
    alone = [group for group in found if len(group.runs) == 1]
    singles = [
        RunTable(
            title=f"Comparable with no other, {'in the simulator' if engine == 'sim' else 'on Ray'}",
            unit=_unit(engine),
            rows=[_row(group.runs[0], group, filtered) for group in alone if group.engine == engine],
        )
        for engine in dict.fromkeys(group.engine for group in alone)
    ]
    tokens = dict.fromkeys(
        token for shown in (*compared, *singles) for row in shown.rows for token in row.tokens.split()
    )
    path = folder / "report.html"
    script = (Path(__file__).parent / "index.js").read_text(encoding="utf-8")
    page = _template().render(
        title=folder.resolve().name,
        folder=shlex.quote(str(folder)),
        facts=_facts(listing, len(compared)),
        compared=compared,
        singles=singles,
        listing=listing,
        others=[(path.name, _link(path), kind, count) for path, kind, count in listing.folders],
        tokens=sorted(tokens)[:_MOST_SUGGESTED],
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        light=LIGHT,
        dark=DARK,
    )
    path.write_text(page, encoding="utf-8")
    for outdated in ("report.md", "results.csv"):
        (folder / outdated).unlink(missing_ok=True)
    return path


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("index.html.j2")


def _facts(listing: Listing, compared: int) -> str:
    found = plural(compared, "group of comparable runs", "groups of comparable runs")
    facts = [plural(len(listing.runs), "run"), found]
    if listing.folders:
        facts.append(plural(len(listing.folders), "folder of other runs", "folders of other runs"))
    return " · ".join(facts)


def _row(run: ListedRun, group: Group, filtered: Sequence[str]) -> IndexRow:
    best = group.best() if len(group.runs) > 1 else {}
    ended = run.result if run.is_result else None
    loss = ended.eval.loss if ended else None
    seconds = ended.clock_s if ended else None
    marks = {"loss": loss, "s": seconds}
    return IndexRow(
        name=run.path.name,
        link=_link(run.path),
        variant=_variant(run, group),
        seed=int(run.config["seed"]),
        loss=_ending(run) or number(loss, 4),
        seconds=number(seconds, 4),
        per_s=number(ended.gradients / ended.clock_s if ended and ended.clock_s else None),
        staleness=number(ended.staleness_mean if ended else None),
        began=f"{datetime.fromtimestamp(run.started_epoch_s, UTC):%Y-%m-%d %H:%M}",
        best=[column for column, value in marks.items() if column in best and value == best[column]],
        tokens=f" {' '.join(_tokens(run, filtered))} ",
    )


def _variant(run: ListedRun, group: Group) -> str:
    """Name a run by its mode and the options that say how it differs from the others of its table."""
    if len(group.runs) > 1:
        shown = {*group.varied, *run.given(without=(*SHARED, *of_workload(run.config)))}
    else:
        shown = {"num_workers", *run.given()}
    values = [f"{option}={option_text(value)}" for option, value in run.config.items() if option in shown]
    return printable(" ".join([run.mode, *values]))


def _tokens(run: ListedRun, filtered: Sequence[str]) -> list[str]:
    """Return what the filter looks for: the options that differ in the folder, and the run's name."""
    options = [f"{o}={option_text(run.config[o])}" for o in filtered if o in run.config]
    return [printable(text).replace(" ", "_") for text in (*options, f"seed={run.config['seed']}")]


def _ending(run: ListedRun) -> str:
    """Return how a run ended that has no last loss to compare; empty if it has one."""
    if run.result is None:
        return "not finished"
    stopped_by = run.result.stopped_by
    return stopped_by if stopped_by in ("failed", "interrupted", "diverged") else ""


def _unit(engine: str) -> str:
    return "virtual s" if engine == "sim" else "wall s"


def _page_of(folder: Path, group: Group) -> str:
    path = folder / COMPARISONS / group.slug / "report.html"
    return quote(f"{COMPARISONS}/{group.slug}/report.html") if path.is_file() else ""


def _link(path: Path) -> str:
    has_page = (path / "report.html").is_file()
    return quote(f"{path.name}/report.html" if has_page else f"{path.name}/")
