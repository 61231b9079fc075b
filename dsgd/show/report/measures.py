"""What variants are compared by: a number of each run, and the words for it.

Losses are shown as they are or, of language models, in bits a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dsgd.metrics import QUANTITIES, Column
from dsgd.process.checked_yaml import did_you_mean
from dsgd.records.reader import Record
from dsgd.records.schema import LastEvaluation, RecordedEvaluation

_YARDSTICKS = ("gzip", "xz")


@dataclass(frozen=True, kw_only=True)
class LossScale:
    """A unit of losses, and the words for it."""

    noun: str = "loss"
    lowest: str = "lowest"
    in_bits: bool = False
    per_nat: float | None = 1.0
    """What a loss is multiplied by; None where that is not the same in all runs."""
    yardsticks: Mapping[str, float] = field(default_factory=dict)
    """By name, to how many bits a byte a program brings the same text."""
    score: str = "accuracy"
    """What is reported beside the loss."""

    def of(self, found: RecordedEvaluation | LastEvaluation) -> float | None:
        """Return an evaluation's loss in this unit; None if it is not finite."""
        return found.bits_per_byte if self.in_bits else found.loss

    def target(self, loss: float | None) -> float | None:
        """Return a target loss in this unit; None where runs have it at different heights."""
        return None if loss is None or self.per_nat is None else loss * self.per_nat


LOSS = LossScale()


def scale_of(records: Iterable[Record]) -> LossScale:
    """Return the scale on which these runs are compared: bits a byte if all are of language models."""
    abouts = [record.meta.workload for record in records]
    scores = {str(about.get("score_name", "accuracy")) for about in abouts}
    score = scores.pop() if len(scores) == 1 else "score"
    lengths = {float(about.get("bytes_per_token") or 0) for about in abouts}
    if not lengths or 0 in lengths:
        return replace(LOSS, score=score)
    yardsticks = {}
    for name in _YARDSTICKS:
        found = {about.get(f"{name}_bits_per_byte") for about in abouts}
        if len(found) == 1 and (bits := found.pop()) is not None:
            yardsticks[name] = float(bits)
    return LossScale(
        noun="bits a byte",
        lowest="fewest",
        in_bits=True,
        per_nat=1 / (math.log(2) * lengths.pop()) if len(lengths) == 1 else None,
        yardsticks=yardsticks,
        score=score,
    )


OF_TARGET = ("time-to-loss", "gradients-to-loss", "bytes-to-loss")
"""Measures that need the file's target_loss."""

NAMED = (*OF_TARGET, "last-loss", "time", "throughput", "staleness")
BEST = "best "
"""Before an option that is tuned: the value that was chosen for it."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run by which variants are compared."""

    name: str
    """As in an experiment's file."""
    label: str
    """Of an axis or a table's column, with the unit."""
    noun: str
    """In a sentence."""
    of: Callable[[Record], float | None]
    """Infinite if the run never got there; None without such a number."""
    wins: str = ""
    """What the best variant does, with its value; empty where neither low nor high is better."""
    value: str = "{}"
    """How a sentence gives it."""
    times: str = "has {} times the value"
    """What a variant does whose value is so many times another's."""
    target: str = ""
    """What `times` leaves out where the sentence has said it before."""
    fewer: str = ""
    """What it does whose value is so many times smaller; empty where `times` says that."""
    never: str = "diverges"
    """What a variant does whose median is infinite; `never_plural`: what several do."""
    never_plural: str = "ends"
    nobody: str = ""
    """What to say where the median of every variant is infinite."""
    low_is_good: bool | None = None
    """None where neither is."""
    place: Callable[[RecordedEvaluation], float] | None = None
    """Of measures that look for the target among evaluations: what is read there."""

    def said(self, text: str) -> str:
        return self.value.format(text)


def measure(name: str, target: float | None, unit: str, scale: LossScale = LOSS) -> Measure:
    """Return the measure that an experiment's file names (`required` has checked it).

    unit: of the engine's clock, like virtual s. scale: of losses.
    """
    loss = "" if target is None else f"loss {target:g}"
    nobody = f"no variant reaches {loss} in the median of its seeds"

    def until(place: Callable[[RecordedEvaluation], float]) -> Callable[[Record], float]:
        def found(record: Record) -> float:
            reached = None if target is None else record.reached(target)
            return place(reached) if reached else math.inf

        return found

    def reaching(name: str, label: str, place: Callable[[RecordedEvaluation], float]) -> Measure:
        return Measure(
            name=name,
            label=f"{label} to {loss}",
            noun=f"{name.partition('-')[0]} to {loss}",
            never=f"does not reach {loss} in the median of its seeds",
            never_plural=f"reaches {loss} in the median of its seeds",
            of=until(place),
            place=place,
            target=f" to reach {loss}",
            nobody=nobody,
            low_is_good=True,
        )

    match name:
        case "time-to-loss":
            return replace(
                reaching(name, unit, lambda e: e.t_s),
                wins=f"reaches {loss} first, after {{}}",
                value=f"{{}} {unit}",
                times="takes {} times as long",
                fewer=f"is {{}} times faster at reaching {loss}",
            )
        case "gradients-to-loss":
            return replace(
                reaching(name, "gradients", lambda e: e.gradients),
                wins=f"needs the fewest gradients to reach {loss}, {{}}",
                times="needs {} times as many gradients",
                fewer=f"needs {{}} times fewer gradients to reach {loss}",
            )
        case "bytes-to-loss":
            return replace(
                reaching(name, "MB", lambda e: e.bytes / 1e6),
                wins=f"needs the fewest bytes to reach {loss}, {{}}",
                value="{} MB",
                times="needs {} times as many bytes",
                fewer=f"needs {{}} times fewer bytes to reach {loss}",
            )
        case "last-loss":
            return Measure(
                name=name,
                label=f"{scale.noun} at the end",
                noun=f"{scale.noun} at the end",
                of=lambda r: math.inf if r.summary.stopped_by == "diverged" else scale.of(r.summary.eval),
                wins=f"ends with the {scale.lowest} {scale.noun}, {{}}",
                times=f"ends with {{}} times the {scale.noun}",
                nobody="every variant diverges in the median of its seeds",
                low_is_good=True,
            )
        case "time":
            return Measure(
                name=name,
                label=f"{unit} for the budget",
                noun="time for the budget",
                of=lambda r: math.inf if r.summary.stopped_by == "diverged" else r.summary.clock_s,
                wins="is the first to spend the budget, after {}",
                value=f"{{}} {unit}",
                times="takes {} times as long",
                fewer="is {} times faster for the same budget",
                target=" for the same budget",
                nobody="every variant diverges in the median of its seeds",
                low_is_good=True,
            )
        case "throughput":
            return Measure(
                name=name,
                label=f"gradients per {unit}",
                noun="throughput",
                of=lambda r: r.summary.gradients_per_s,
                wins="has the highest throughput, {}",
                value=f"{{}} gradients per {unit}",
                times="has {} times the throughput",
                low_is_good=False,
            )
        case "staleness":
            return Measure(
                name=name,
                label="mean staleness (updates)",
                noun="mean staleness",
                of=lambda r: r.summary.staleness.mean,
                value="{} updates",
                times="has {} times the staleness",
            )
    row, column = next((row, row.columns[name]) for row in QUANTITIES if name in row.columns)
    words = name.replace("_", " ")
    row_unit = unit if row.unit == "engine s" else row.unit
    if not name.startswith(row.name) or name.endswith(("_per_s", "_share")):
        row_unit = ""  # it is a share or a rate of the row's number
    if name in ("eval_accuracy", "eval_loss", "eval_bits_per_byte"):
        if high := name == "eval_accuracy":
            words = scale.score
        return Measure(
            name=name,
            label=words,
            noun=words,
            of=lambda r: _number(column, r),
            wins=f"has the {'highest' if high else 'lowest'} {words}, {{}}",
            times=f"has {{}} times the {words}",
            low_is_good=not high,
        )
    return Measure(
        name=name,
        label=f"{words} ({row_unit})" if row_unit else words,
        noun=words,
        of=lambda r: _number(column, r),
        times=f"has {{}} times the {words}",
    )


def loss_at(
    name: str, at: float, place: Callable[[RecordedEvaluation], float], words: str, scale: LossScale = LOSS
) -> Measure:
    """Return the loss known at a time or after so many gradients: for runs that do not reach the target."""

    def known(record: Record) -> float:
        losses = [scale.of(e) for e in record.evals if place(e) <= at]
        diverged = record.summary.stopped_by == "diverged" and place(record.evals[-1]) < at
        return math.inf if diverged or not losses or losses[-1] is None else losses[-1]

    return Measure(
        name=name,
        label=f"{scale.noun} after {words}",
        noun=f"{scale.noun} after {words}",
        of=known,
        wins=f"has the {scale.lowest} {scale.noun} after {words}, {{}}",
        times=f"has {{}} times the {scale.noun}",
        nobody="every variant diverges in the median of its seeds",
        low_is_good=True,
    )


def required(name: str, target: float | None, tuned: Sequence[str]) -> str:
    """Return the name of a measure as this module spells it: words may be joined by spaces too.

    Raises ValueError, in one line, for a measure that there is not, or that this experiment cannot have.
    """
    if name == BEST.strip():
        raise ValueError(f"measure: {name}: name a tuned option, like best lr")
    if name.startswith(BEST):
        option = name.removeprefix(BEST).strip().replace("-", "_")
        if option not in tuned:
            rule = f"tuned are {', '.join(tuned)}" if tuned else f"give tune: with values of {option}"
            raise ValueError(f"measure: {name}: {option} is not tuned; {rule}")
        return f"{BEST}{option}"
    columns = [column for row in QUANTITIES for column in row.columns]
    for spelled in (name, name.replace(" ", "-"), name.replace(" ", "_").replace("-", "_")):
        if spelled in NAMED or spelled in columns:
            if spelled in OF_TARGET and target is None:
                raise ValueError(f"measure: {name}: needs a target_loss: in the file")
            return spelled
    hint = did_you_mean(name.replace(" ", "-"), [*NAMED, *columns], "choose from {}, best OPTION")
    raise ValueError(f"measure: {name}: there is no such measure; {hint}")


def _number(column: Column, record: Record) -> float | None:
    value = column.of(record.summary)
    return None if value is None else float(value)
