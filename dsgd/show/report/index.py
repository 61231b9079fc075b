"""The index of a folder of unrelated runs: a table for each group of comparable runs, and no common axis."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from dsgd.records.listing import ListedRun, Listing
from dsgd.records.variants import of_workload, option_text, printable
from dsgd.show.report.comparable import SHARED, Group, groups
from dsgd.show.report.page_templates import rendered
from dsgd.show.report.written_numbers import Table, number, plural

COMPARISONS = "comparisons"
"""The folder, next to the runs, of the reports of single groups."""

_NO_OTHER = (
    "No other run here has the same workload, workers, times and budget as one of these; their losses and "
    "times do not compare."
)
_HEADINGS = ("run", "loss at the end", "gradients per s", "mean staleness", "seed", "began, UTC")


def build_index(folder: Path, listing: Listing) -> Path:
    """Write the index of a folder of runs as its report.html; returns the path.

    The other files of a report that was drawn when there were fewer runs are removed. Raises OSError where
    nothing can be written. The same records give the same bytes.
    """
    found = groups(listing.runs)
    compared = [group for group in found if len(group.runs) > 1]
    alone = [group for group in found if len(group.runs) == 1]
    tables = [
        (shlex.quote(group.runs[0].path.name), _page_of(folder, group), _table(group.title, "", [group]))
        for group in compared
    ]
    for engine in dict.fromkeys(group.engine for group in alone):
        where = "in the simulator" if engine == "sim" else "on Ray"
        own = [group for group in alone if group.engine == engine]
        tables.append(("", "", _table(f"Comparable with no other, {where}", _NO_OTHER, own)))
    facts = [
        plural(len(listing.runs), "run"),
        plural(len(compared), "group of comparable runs", "groups of comparable runs"),
        *([plural(len(listing.folders), "other folder")] if listing.folders else []),
    ]
    page = rendered(
        "index.html.j2",
        title=f"Index of {folder.resolve().name}",
        folder=shlex.quote(str(folder)),
        facts=" · ".join(facts),
        tables=tables,
        others=[
            (path.name, _link(path), kind, plural(count, "run")) for path, kind, count in listing.folders
        ],
        listing=listing,
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    for outdated in ("report.md", "results.csv"):
        (folder / outdated).unlink(missing_ok=True)
    return path


def _table(title: str, note: str, shown: Sequence[Group]) -> Table:
    """Return a table of runs on one engine; in that of a single group the best stand out."""
    seconds = "virtual s" if shown[0].engine == "sim" else "wall s"
    runs = [(run, group) for group in shown for run in group.runs]
    best = shown[0].best() if len(shown) == 1 and len(runs) > 1 else {}
    rows, marked = [], set()
    for place, (run, group) in enumerate(runs):
        ended = run.result if run.is_result else None
        values = {"loss": ended.eval.loss, "s": ended.clock_s} if ended else {"loss": None, "s": None}
        marked |= {(place, 1 + k) for k, (name, x) in enumerate(values.items()) if best.get(name, "") == x}
        rows.append(
            [
                f"{_variant(run, group)}\n{run.path.name}",
                _ending(run) or number(values["loss"], 4),
                number(values["s"], 4),
                number(ended.gradients / ended.clock_s if ended and ended.clock_s else None),
                number(ended.staleness_mean if ended else None),
                str(run.config["seed"]),
                f"{datetime.fromtimestamp(run.started_epoch_s, UTC):%Y-%m-%d %H:%M}",
            ]
        )
    return Table(
        title=title,
        note=note,
        headings=[*_HEADINGS[:2], seconds, *_HEADINGS[2:]],
        rows=rows,
        best=marked,
        links=[_link(run.path) for run, _ in runs],
    )


def _variant(run: ListedRun, group: Group) -> str:
    """Name a run by its mode and the options that say how it differs from the others of its table."""
    if len(group.runs) > 1:
        shown = {*group.varied, *run.given(without=(*SHARED, *of_workload(run.config)))}
    else:
        shown = {"num_workers", *run.given()}
    values = [f"{option}={option_text(value)}" for option, value in run.config.items() if option in shown]
    return printable(" ".join([run.mode, *values]))


def _ending(run: ListedRun) -> str:
    """Return how a run ended that has no last loss to compare; empty if it has one."""
    if run.result is None:
        return "not finished"
    stopped_by = run.result.stopped_by
    return stopped_by if stopped_by in ("failed", "interrupted", "diverged") else ""


def _page_of(folder: Path, group: Group) -> str:
    path = folder / COMPARISONS / group.slug / "report.html"
    return quote(f"{COMPARISONS}/{group.slug}/report.html") if path.is_file() else ""


def _link(path: Path) -> str:
    """Return the link to a run's report, if there is one, else to its folder."""
    has_page = (path / "report.html").is_file()
    return quote(f"{path.name}/report.html" if has_page else f"{path.name}/")
