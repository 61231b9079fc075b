"""The answer to an experiment's question: one sentence, then how sure it is and what else is worth saying;
and a short table, with it, for a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsgd.config import DataConfig
from dsgd.core.option_rules import option_fields
from dsgd.models.beginnings import other_beginnings
from dsgd.records.variants import of_workload
from dsgd.show.report.choices import of_tuning
from dsgd.show.report.comparable import identical
from dsgd.show.report.frames import Frames, RecordedRun
from dsgd.show.report.group_table import table_of_groups
from dsgd.show.report.layout import alone
from dsgd.show.report.not_given import assumptions
from dsgd.show.report.one_variant import of_one_variant
from dsgd.show.report.panels.scaling import Series, series
from dsgd.show.report.questions import Question, basis, questions
from dsgd.show.report.sentences import largest_difference, sentence
from dsgd.show.report.statistics import median_interval
from dsgd.show.report.theory_words import throughput_beside_theory
from dsgd.show.report.written_numbers import Answer, few, listed, number, percent, with_interval


def answer(frames: Frames) -> Answer:
    """Return the answer to what the experiment's file asks, or else to which variant is best; and on what it
    rests.
    """
    found = _answer(frames)
    return replace(found, points=[*found.points, *assumptions(frames)])


def _answer(frames: Frames) -> Answer:
    if len(frames.variants) == 1:
        return of_one_variant(frames)
    if frames.asked.tuned:
        return of_tuning(frames)
    found = series(frames)
    grown = sum(len(one.variants) for one in found) == len(frames.variants)
    if not frames.asked and grown and any(len(one.variants) > 2 for one in found):
        return _of_growth(frames, found)
    first, *others = questions(frames)
    beside = others if frames.asked.measures else [] if first.layout.baseline else _apart(others)
    return Answer(
        headline=" ".join(filter(None, [first.opening, sentence(first)])),
        points=[
            *map(sentence, beside),
            *([] if others or frames.asked else [_price(frames)]),
            *_at_the_edge(first),
            *_identical_runs(frames),
            *_other_beginnings(frames),
            *_unresolved(frames, first),
        ],
        table=table_of_groups(frames, first),
        basis=basis(first),
    )


def _apart(found: Sequence[Question]) -> list[Question]:
    """Return the questions whose answer is a difference that the seeds show, the largest first."""
    sizes = {question.measure.name: largest_difference(question) for question in found}
    apart = [question for question in found if sizes[question.measure.name]]
    return sorted(apart, key=lambda question: -sizes[question.measure.name])


def _of_growth(frames: Frames, found: Sequence[Series]) -> Answer:
    """Return how throughput grows with workers, and the result."""
    first, *others = questions(frames, alone(frames.variants))
    beside = "" if others else throughput_beside_theory([run.record for run in frames.records])
    return Answer(
        headline=f"Throughput grows {listed([_growth(frames, one) for one in found])}.",
        points=[sentence(first), *([f"{beside[0].upper()}{beside[1:]}."] if beside else [])],
        basis=basis(first),
    )


def _growth(frames: Frames, one: Series) -> str:
    """Return how many times the throughput of the fewest workers that of the most is."""
    (few_workers, start), *_, (many_workers, end) = one.variants
    before, after = ({r.summary.seed: r.summary.gradients_per_s for r in frames.of(v)} for v in (start, end))
    times = [y / x for seed, x in before.items() if x and (y := after.get(seed))]
    grown = f"{with_interval(median_interval(times))} times" if times else "an unknown number of times"
    return f"{grown} for {one.name} ({few_workers:,} to {many_workers:,} workers)"


def _at_the_edge(question: Question) -> list[str]:
    """Return that the best level is the largest or smallest compared, so that a better one may lie beyond.

    A smallest level of 0 or 1 is where most options end.
    """
    layout, numbers = question.layout, question.layout.compared.numbers
    if len(numbers) < 3 or layout.baseline is not None or question.measure.low_is_good is None:
        return []
    found: dict[str, list[str]] = {}
    for group in layout.cells:
        ranking = question.ranking(group)
        best = next(iter(ranking), None)
        if best is None or math.isinf(ranking[best].centre):
            continue
        level = layout.level(group, best)
        if numbers[level] == max(numbers.values()) < math.inf:
            found.setdefault(f"{level} is the largest compared", []).append(group)
        elif numbers[level] == min(numbers.values()) and numbers[level] not in (0, 1):
            found.setdefault(f"{level} is the smallest compared", []).append(group)
    many = len(layout.cells) > 1
    return [
        f"{text}{f' (with {listed(groups)})' if many else ''}; a better one may lie beyond."
        for text, groups in found.items()
    ]


def _unresolved(frames: Frames, question: Question) -> list[str]:
    """Return what is no longer than the distance between two evaluations: leads, and what is level by it."""
    layout, by = question.layout, question.measure
    same = identical(frames)
    leads = []
    for group in layout.cells:
        ranking = list(question.ranking(group))
        if by.place is None or len(ranking) < 2:
            continue
        level = question.leaders(group)
        close = level if len(level) > 1 else ranking[:2]
        if question.resolved(*close[:2]) or any({*close} <= {*own} for own in same):
            continue
        names = [layout.level(group, v) for v in close]
        lead = (
            f"the difference between {few(names)}"
            if close is level
            else f"the lead of {names[0]} over {names[1]}"
        )
        leads.append(f"{lead}{f' with {group}' if group else ''}")
    if not leads:
        return []
    every = min(int(run.record.config.get("eval_every", 0)) for run in frames.records)
    finer = f"; --set eval_every={max(1, every // 5)} would resolve it" if every > 1 else ""
    said = f"{few(leads)} {'is' if len(leads) == 1 else 'are'} at most one evaluation interval{finer}."
    return [f"{said[0].upper()}{said[1:]}"]


def _identical_runs(frames: Frames) -> list[str]:
    """Return which variants are the same runs under other names."""
    return [f"{few(same, 6)} are identical runs: same weights, same times." for same in identical(frames)]


_MOST_BEGINNINGS = 3


def _other_beginnings(frames: Frames) -> list[str]:
    """Return of which seeds the runs did not begin alike, though their workload was the same."""
    begun: dict[tuple[object, ...], list[RecordedRun]] = {}
    for run in frames.records:
        config = run.record.config
        names = {*option_fields(DataConfig), *of_workload(config)} - {"partition"}
        of_data = [config.get(name) for name in sorted(names)]
        begun.setdefault((run.seed, *map(str, of_data)), []).append(run)
    said: dict[tuple[str, str, str], list[str]] = {}
    for first, *others in begun.values():
        for run in others:
            if found := other_beginnings(first.record.meta.workload, run.record.meta.workload):
                key = run.variant, " and ".join(found), first.variant
                said.setdefault(key, []).append(str(run.seed))
    return [
        f"{variant} began with {what} than {first}, seed {few(seeds, 6)}: compare them with care."
        for (variant, what, first), seeds in [*said.items()][:_MOST_BEGINNINGS]
    ]


def _price(frames: Frames) -> str:
    """Return what the throughput costs by variant: idleness or staleness."""
    parts = []
    for variant in frames.variants[:4]:
        records = frames.of(variant)
        idle = median_interval([record.summary.idle_share for record in records]).centre
        stale = [r.summary.staleness.mean for r in records if r.summary.staleness.mean is not None]
        updates = f", gradients {number(median_interval(stale).centre)} updates stale" if stale else ""
        parts.append(f"{percent(idle)} idle{updates} ({variant})")
    return f"The cost: {'; '.join(parts)}."


def print_results(frames: Frames, console: Console) -> None:
    """Print a line per variant, medians over its runs (the first with its interval), and the answer."""
    asked = questions(frames) if len(frames.variants) > 1 else []
    measured = [
        question for question in asked if question.measure.name not in ("last-loss", "time", "loss-at-time")
    ][:1]
    unit = frames.seconds
    headings = ["variant", "runs", *(question.name for question in measured), "loss at the end", unit]
    table = Table(*headings, "", box=None, pad_edge=False)
    for variant in frames.variants:
        summaries = [record.summary for record in frames.of(variant)]
        diverged = sum(summary.stopped_by == "diverged" for summary in summaries)
        medians = [question.median(variant) for question in measured]
        table.add_row(
            escape(variant),
            str(len(summaries)),
            *(with_interval(found) if found else "–" for found in medians),
            _median([s.eval.loss for s in summaries if s.eval.loss is not None]),
            _median([summary.clock_s for summary in summaries]),
            f"{diverged} diverged" if diverged else "",
        )
    console.print(table)
    found = answer(frames)
    console.print()
    for text in (found.headline, *(f"- {point}" for point in found.points)):
        console.print(escape(text), highlight=False)
    if found.basis:
        console.print(escape(found.basis), style="dim", highlight=False)
    for premise in frames.judged_premises:
        style = "dim" if premise.held else "bold"
        console.print(f"premise {escape(premise.text)}", style=style, highlight=False, soft_wrap=True)


def _median(values: Sequence[float]) -> str:
    return number(median(values), 4) if values else "–"
