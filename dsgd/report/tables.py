"""The tables of a report, as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dsgd.config import LiveConfig, OutputConfig, option_fields
from dsgd.metrics import taken_of_updates
from dsgd.records.reader import Record
from dsgd.report.answer import test_name
from dsgd.report.frames import NOT_COMPARED, Frames, option_text
from dsgd.report.panels import seconds
from dsgd.report.questions import Question
from dsgd.report.statistics import Pair, median_interval
from dsgd.report.theory_words import over_seeds
from dsgd.report.words import number, percent, plural
from dsgd.theory.verdicts import BOUNDS

_THEORY = {
    "s_per_update": "time of an update",
    "staleness_mean": "mean staleness",
    "staleness_p0": "share of fresh gradients",
    "staleness_max": "largest staleness (bound)",
    "clock_gap_max": "largest clock gap (bound)",
}


_DETERMINISTIC = (
    " Deterministic: each of the two has one value, whatever the seed, so there is nothing to test."
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with title and note; the first column names its rows."""

    title: str
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def results(frames: Frames) -> Table:
    """Return one row per variant: medians over seeds, with their intervals."""
    unit, target = seconds(frames), frames.target_loss
    diverged, never = pl.col("stopped_by") == "diverged", pl.lit(math.inf)
    runs = frames.runs.with_columns(
        pl.when(diverged).then(never).otherwise(pl.col("eval_loss")).alias("eval_loss"),
        pl.col("time_to_target_s").fill_null(never),
        pl.col("gradients_to_target").cast(pl.Float64).fill_null(never),
    )
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        *([(f"{unit} to loss {target:g}", "time_to_target_s", number)] if target is not None else []),
        *([(f"gradients to loss {target:g}", "gradients_to_target", number)] if target is not None else []),
        ("last loss", "eval_loss", lambda x: "diverged" if math.isinf(x) else number(x)),
        ("accuracy", "eval_accuracy", percent),
        (f"gradients/{unit}", "gradients_per_s", number),
        (f"updates/{unit}", "updates_per_s", number),
        ("idle", "idle_share", percent),
        ("mean staleness", "staleness_mean", number),
        ("p95", "staleness_p95", number),
        ("largest", "staleness_max", number),
        *((name, name, number) for name in taken_of_updates()),
        ("MB", "bytes", lambda x: number(x / 1e6)),
        ("wasted", "wasted", number),
    ]
    columns = [c for c in columns if runs[c[1]].null_count() < len(runs)]
    if not runs["wasted"].sum():
        columns = [c for c in columns if c[1] != "wasted"]
    rows = []
    for variant in frames.variants:
        own = runs.filter(pl.col("variant") == variant)
        cells = [_cell(own[name].drop_nulls(), write) for _, name, write in columns]
        rows.append([variant, str(len(own)), *cells])
    return Table(
        title="Results",
        note=_intervals({int(row[1]) for row in rows}),
        headings=["variant", "seeds", *(heading for heading, _, _ in columns)],
        rows=rows,
    )


def _intervals(seeds: set[int]) -> str:
    """Return what the brackets of medians are, given the numbers of seeds that variants have."""
    if seeds == {1}:
        return "One seed per variant: no interval can be given."
    parts = []
    for n in sorted(seeds - {1}):
        interval = median_interval(list(range(n)))
        place = int(interval.low) + 1
        which = "their whole range" if place == 1 else f"all but the {place - 1} lowest and highest"
        level = f"{round(100 * interval.level)}\N{NO-BREAK SPACE}%"
        parts.append(f"of {plural(n, 'seed')} {which}, with a confidence of {level}")
    if 1 in seeds:
        parts.append("of one seed none can be given")
    return f"Medians over seeds; in brackets, the interval that covers the true median: {'; '.join(parts)}."


def _cell(values: pl.Series, write: Callable[[float], str]) -> str:
    """Return a median and, on a second line, its interval."""
    if not len(values):
        return "–"
    interval = median_interval([float(value) for value in values])
    if interval.low == interval.high:
        return write(interval.centre)
    return f"{write(interval.centre)}\n[{write(interval.low)}, {write(interval.high)}]"


def pairs(question: Question) -> Table | None:
    """Return each variant compared with the best of its scenario; None where no two share two seeds."""
    rows = []
    for scenario in question.scenarios:
        ranking = question.ranking(scenario)
        first = next(iter(ranking), "")
        found = question.against(first)
        rows += [_pair(variant, first, found[variant]) for variant in ranking if variant in found]
    if not rows:
        return None
    alone = len(question.scenarios) == 1
    best = rows[0][1] if alone else "the best of each scenario"
    return Table(
        title=f"Compared with {best}: {question.name}",
        note="Ratio on common seeds, with its 95 % interval, and the p-value, raw and "
        f"Holm-corrected for all pairs{'' if alone else ' of a scenario'} "
        f"({question.tested}{'' if alone else ' in all scenarios'})."
        + (_DETERMINISTIC if question.tested < len(question.pairs) else ""),
        headings=["variant", "baseline", "ratio", "95 % interval", "p", "corrected p", "test", "seeds"],
        rows=rows,
    )


def _pair(variant: str, best: str, pair: Pair) -> list[str]:
    """Return a row: a variant's values over those of the best."""
    ratio = interval = "–"
    if pair.ratio:
        middle, low, high = pair.ratio[:3]  # of b over a
        if pair.a == variant:
            middle, low, high = 1 / middle, 1 / high, 1 / low
        ratio = number(middle)
        interval = f"[{number(low)}, {number(high)}]" if pair.ratio.level else "–"
    return [
        variant,
        best,
        ratio,
        interval,
        _p(pair.p),
        _p(pair.corrected_p),
        test_name(pair),
        str(pair.seeds),
    ]


def _p(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else number(p, 2)


def theory(frames: Frames) -> Table | None:
    """Return the values of closed forms and those measured; None where no form is known."""
    rows = []
    for variant in frames.variants:
        for name, label in _THEORY.items():
            found = over_seeds(frames.of(variant), name)
            if not found or found.theory == found.measured == 0:  # as in all synchronous modes
                continue
            difference = "–" if name in BOUNDS else found.difference
            rows.append(
                [variant, label, number(found.theory, 4), found.with_noise, difference, found.words or "–"]
            )
    if not rows:
        return None
    return Table(
        title="Theory and measurement",
        note=f"Times in {seconds(frames)}, staleness in updates, clock gaps in mini-batches. Measured is the "
        "mean over seeds after the warm-up, ± one standard error, from batch means within the runs; for "
        "bounds it is the largest. What lies within two standard errors agrees; what is farther off than "
        "chance explains once in 1,000 comparisons differs.",
        headings=["variant", "quantity", "theory", "measured", "difference", "verdict"],
        rows=rows,
    )


def ended_early(frames: Frames) -> Table | None:
    """Return the runs that diverged, and how a single record's run was cut off; None if there are none."""
    bad = ("failed", "diverged", "interrupted")
    rows = [
        [run.record.path.name, run.record.summary.stopped_by, run.record.summary.error or "–"]
        for run in frames.records
        if run.record.summary.stopped_by in bad
    ]
    if not rows:
        return None
    return Table(
        title="Runs that did not end as planned",
        note="A run that diverged counts as infinitely bad from then on. Of several runs, those that failed "
        "or were interrupted are left out of all figures and tables.",
        headings=["run", "ended", "reason"],
        rows=rows,
    )


def differing(frames: Frames) -> Table | None:
    """Return the options that differ between variants, or that only some of their modes have; else None."""
    own = _not_in_all(frames)
    if not frames.varied and not own:
        return None
    rows = []
    for variant in frames.variants:
        config = frames.of(variant)[0].config
        row = [variant, *(option_text(config[o]) if o in config else "–" for o in frames.varied)]
        if own:
            row.append(" ".join(f"{o}={option_text(config[o])}" for o in own if o in config) or "–")
        rows.append(row)
    return Table(
        title="Options that differ",
        note="–: the mode has no such option." if any("–" in row for row in rows) else "",
        headings=["variant", *frames.varied, *(["not in all modes"] if own else [])],
        rows=rows,
    )


def _not_in_all(frames: Frames) -> list[str]:
    """Return the options of some modes that have one value there, and that other modes do not have."""
    configs = [run.record.config for run in frames.records]
    known = dict.fromkeys(option for config in configs for option in config)
    hidden = {*frames.varied, *NOT_COMPARED}
    return [o for o in known if o not in hidden and any(o not in config for config in configs)]


def tuned(frames: Frames) -> Table | None:
    """Return what was chosen for each variant before the comparison; None where nothing was tuned."""
    if not frames.tuned:
        return None
    return Table(
        title="Tuned before the comparison",
        note="Chosen for the lowest median loss at the end, on seeds that are not compared.",
        headings=["variant", "chosen", "loss of all that was tried"],
        rows=frames.tuned,
    )


def shared(frames: Frames) -> Table:
    """Return the options that all runs have in common."""
    hidden = {*frames.varied, *option_fields(OutputConfig), *option_fields(LiveConfig), "seed"}
    configs = [run.record.config for run in frames.records]
    common = {
        option: value
        for option, value in configs[0].items()
        if option not in hidden and all(option in config for config in configs)
    }
    rows = [[option, option_text(value)] for option, value in common.items()]
    return Table(title="Options that all runs share", note="", headings=["option", "value"], rows=rows)


def made_with(frames: Frames) -> Table:
    """Return the versions that the runs were made with."""

    def values(take: Callable[[Record], Any]) -> str:
        found = dict.fromkeys(str(take(run.record)) for run in frames.records)
        return ", ".join(found)

    def commit(record: Record) -> str:
        changed = " with changes" if record.meta.git_dirty else ""
        return f"{(record.meta.git_commit or 'unknown')[:12]}{changed}"

    def release(name: str) -> Callable[[Record], Any]:
        return lambda record: record.meta.versions.get(name, "–")

    names = dict.fromkeys(name for run in frames.records for name in run.record.meta.versions)
    rows = [["code", values(commit)], ["device", values(lambda record: record.meta.device)]]
    rows += [[name, values(release(name))] for name in names]
    return Table(title="Made with", note="", headings=["what", "version"], rows=rows)
