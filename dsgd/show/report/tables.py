"""The tables of a report, as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from dsgd.core.option_rules import option_fields
from dsgd.metrics import taken_of_updates
from dsgd.records.fault_words import hit
from dsgd.records.output_options import OutputConfig
from dsgd.records.reader import Record
from dsgd.records.schema import RecordedFault
from dsgd.records.whole import lost
from dsgd.running.predict.verdicts import BOUNDS
from dsgd.show.report.frames import EXTRA, NOT_COMPARED, Frames, option_text
from dsgd.show.report.measures import scale_of
from dsgd.show.report.questions import Question, test_name
from dsgd.show.report.statistics import Pair, median_interval
from dsgd.show.report.theory_words import over_seeds
from dsgd.show.report.written_numbers import Table, few, number, percent, plural
from dsgd.show.watching_options import LiveConfig, LogConfig

_THEORY = {
    "s_per_update": "time of an update",
    "staleness_mean": "mean staleness",
    "staleness_p0": "share of fresh gradients",
    "staleness_max": "largest staleness (bound)",
    "clock_gap_max": "largest clock gap (bound)",
    "run_s": "seconds of the run",
}


_IF_ANY = ("wasted", "faults", "repeated")  # columns that are left out where they are 0
_MOST_FAULTS = 20  # in the table of them; more are shown on demand

_DETERMINISTIC = (
    " Deterministic: each of the two has one value, whatever the seed, so there is nothing to test."
)


def overview(frames: Frames, asked: Sequence[Question]) -> Table:
    """Return the few columns that compare variants: the measure, its ratio to the best, staleness and idling.

    asked: what variants are compared by; none where there is a single variant.
    """
    full = results(frames)
    if not asked:
        return full
    seeds = {len(frames.of(variant)) for variant in frames.variants}
    first = asked[0]
    column = first.measure.label
    best = {v: next(iter(first.ranking(group))) for group, own in first.scenarios.items() for v in own
            if v in first.values}  # fmt: skip
    headings = [column, "× best", "mean staleness", "idle"]
    rows = []
    for variant in frames.variants:
        own = frames.runs.filter(pl.col("variant") == variant)
        ratio = first.ratio(variant, best[variant]) if variant in best else None
        rows.append([
            variant,
            _cell(list(first.values.get(variant, {}).values()), number),
            "–" if ratio is None or math.isinf(ratio.centre) else number(ratio.centre),
            *(_cell(own[name].drop_nulls(), write, interval=False) for name, write in
              (("staleness_mean", number), ("idle_share", percent))),
        ])  # fmt: skip
    if first.measure.low_is_good is None:
        headings, rows = _without(headings, rows, "× best")
    of = " of its group" if len(first.scenarios) > 1 else ""
    times = f" × best: how many times the best{of}, on common seeds." if "× best" in headings else ""
    shown = _table("Results", _intervals(seeds) + times, headings, rows)
    places = {variant: place for place, variant in enumerate(frames.variants)}
    leaders = [v for group in first.scenarios for v in first.leaders(group)]
    winners = {(places[variant], 1) for variant in leaders} if shown.headings[1] == column else set()
    return replace(shown, more=full, best=winners)


def _without(
    headings: Sequence[str], rows: Sequence[Sequence[str]], heading: str
) -> tuple[list[str], list[list[str]]]:
    place = list(headings).index(heading)
    left = [[*row[: place + 1], *row[place + 2 :]] for row in rows]  # a row begins with its name
    return [*headings[:place], *headings[place + 1 :]], left


def _table(title: str, note: str, headings: list[str], rows: list[list[str]]) -> Table:
    """Return a table of variants; what is the same for all of them is said in its note instead."""
    same = []
    for heading in list(headings) if len(rows) > 1 else ():
        values = {row[headings.index(heading) + 1] for row in rows}
        if len(values) == 1 and len(headings) > 1:
            same += [f"{heading} {values.pop()}".replace("\n", " ")] * (heading != "seeds")
            headings, rows = _without(headings, rows, heading)
    if same:
        note += f" The same for all: {', '.join(same)}."
    return Table(title=title, note=note, headings=["variant", *headings], rows=rows)


def results(frames: Frames) -> Table:
    """Return one row per variant: medians over seeds, with their intervals."""
    unit, target = frames.seconds, frames.target_loss
    score = scale_of(run.record for run in frames.records).score
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
        (score, "eval_accuracy", percent if score == "accuracy" else number),
        ("bits a byte", "eval_bits_per_byte", number),
        ("MaxVio", "max_violation", number),
        ("idle experts", "idle_experts", number),
        ("routers agree", "agreement", percent),
        (f"gradients/{unit}", "gradients_per_s", number),
        (f"updates/{unit}", "updates_per_s", number),
        ("idle", "idle_share", percent),
        ("exchange, in mini-batches", "exchange_batches", number),
        ("mean staleness", "staleness_mean", number),
        ("p95", "staleness_p95", number),
        ("largest", "staleness_max", number),
        *((name, name, number) for name in taken_of_updates()),
        *((name.removeprefix(EXTRA), name, number) for name in runs.columns if name.startswith(EXTRA)),
        ("MB", "bytes", lambda x: number(x / 1e6)),
        *((name, name, number) for name in _IF_ANY),
        (f"recovery ({unit})", "recovery_p50_s", number),
    ]
    columns = [c for c in columns if runs[c[1]].null_count() < len(runs)]
    columns = [
        c for c in columns if c[1] not in ("exchange_batches", "idle_experts", *_IF_ANY) or runs[c[1]].sum()
    ]
    rows = []
    for variant in frames.variants:
        own = runs.filter(pl.col("variant") == variant)
        cells = [_cell(own[name].drop_nulls(), write) for _, name, write in columns]
        rows.append([variant, str(len(own)), *cells])
    return _table(
        "Results" if len(rows) == 1 else "Results in full",
        _intervals({int(row[1]) for row in rows}),
        ["seeds", *(heading for heading, _, _ in columns)],
        rows,
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


def _cell(
    values: Sequence[float] | pl.Series, write: Callable[[float], str], *, interval: bool = True
) -> str:
    """Return a median and, on a second line, its interval."""
    if not len(values):
        return "–"
    centre, low, high = median_interval([float(value) for value in values])[:3]
    return write(centre) if low == high or not interval else f"{write(centre)}\n[{write(low)}, {write(high)}]"


def pairs(question: Question) -> Table | None:
    """Return each variant compared with the baseline or the best of its group.

    None where no two share two seeds.
    """
    rows = []
    wanted = question.layout.baseline
    for scenario, cells in question.layout.cells.items():
        ranking = question.ranking(scenario)
        first = next(iter(ranking), "") if wanted is None else cells.get(wanted, "")
        found = question.against(first)
        rows += [_pair(variant, first, found[variant]) for variant in ranking if variant in found]
    if not rows:
        return None
    alone = len(question.scenarios) == 1
    best = rows[0][1] if alone else wanted or "the best of each case"
    return Table(
        title=f"Compared with {best}: {question.name}",
        note="Ratio on common seeds, with its 95 % interval, and the p-value, raw and "
        f"Holm-corrected for all pairs{'' if alone else ' of a case'} "
        f"({question.tested}{'' if alone else ' in all cases'})."
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
        *("–" if pair.test == "identical" else _p(p) for p in (pair.p, pair.corrected_p)),
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
        note=f"Times in {frames.seconds}, staleness in updates, clock gaps in mini-batches. Measured is the "
        "mean over seeds after the warm-up, ± one standard error, from batch means within the runs; for "
        "bounds it is the largest. What lies within two standard errors agrees; what is farther off than "
        "chance explains once in 1,000 comparisons differs.",
        headings=["variant", "quantity", "theory", "measured", "difference", "verdict"],
        rows=rows,
    )


def ended_early(frames: Frames) -> Table | None:
    """Return the runs that diverged or whose record is cut, and how a single record's run was cut off.

    None if there are none.
    """
    bad = ("failed", "diverged", "interrupted")
    rows = [
        [run.record.path.name, run.record.summary.stopped_by, run.record.summary.error or "–"]
        for run in frames.records
        if run.record.summary.stopped_by in bad
    ]
    rows += [
        [run.record.path.name, run.record.summary.stopped_by, said]
        for run in frames.records
        for said in lost(run.record)
    ]
    if not rows:
        return None
    return Table(
        title="Runs that did not end as planned, or whose records are cut",
        note="A run that diverged counts as infinitely bad from then on. Of several runs, those that failed "
        "or were interrupted are left out of all figures and tables.",
        headings=["run", "ended", "reason"],
        rows=rows,
    )


def faults(frames: Frames) -> Table | None:
    """Return the faults of a single run, in the order in which they began; else None."""
    if len(frames.records) > 1 or not frames.records[0].record.faults:
        return None
    found = sorted(frames.records[0].record.faults, key=lambda fault: fault.t_s)
    unit = frames.seconds
    full = Table(
        title="Faults",
        note=f"Times in {unit}, from a fault's beginning where it says after. Repeated and wasted: "
        "mini-batches. Asked: by --faults; the others happened by themselves, or followed from such a fault.",
        headings=[
            f"began ({unit})", "fault", "at update", "asked", "what was done", "noticed after", "over after",
            "repeated", "wasted",
        ],
        rows=[_fault(fault) for fault in found],
    )  # fmt: skip
    if len(found) <= _MOST_FAULTS:
        return full
    note = f"{full.note} The first {_MOST_FAULTS} of {len(found):,}."
    return replace(full, note=note, rows=full.rows[:_MOST_FAULTS], more=replace(full, title="All faults"))


def _fault(fault: RecordedFault) -> list[str]:
    over = "not over" if fault.over_s is None else _number(fault.recovered_s)
    return [
        number(fault.t_s, 5),
        f"{fault.kind} of {hit(fault)}",
        str(fault.update),
        "yes" if fault.asked else "no",
        fault.text,
        _number(fault.detected_s),
        over,
        *(str(n) if n else "–" for n in (fault.repeated, fault.wasted)),
    ]


def _number(x: float | None) -> str:
    return "–" if x is None else number(x)


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
    rows = []
    for one in frames.tuned:
        edges = ", ".join(one.at_the_edge)
        edge = f" ({edges} at the edge of what was tried: a better value may lie beyond)" if edges else ""
        losses = [
            f"{_options(tried.options)}: {'diverged' if math.isinf(tried.loss) else number(tried.loss)}"
            for tried in sorted(one.tried, key=lambda tried: tried.loss)
        ]
        rows.append([one.variant, _options(one.chosen) + edge, few(losses, 12)])
    return Table(
        title="Tuned before the comparison",
        note="Chosen for the lowest median loss at the end, on seeds that are not compared.",
        headings=["variant", "chosen", "loss of what was tried, the best first"],
        rows=rows,
    )


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={option_text(value)}" for name, value in options.items())


def shared(frames: Frames) -> Table:
    """Return the options that all runs have in common."""
    seen = {name for kind in (OutputConfig, LiveConfig, LogConfig) for name in option_fields(kind)}
    hidden = {*frames.varied, *seen, "seed"}
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
