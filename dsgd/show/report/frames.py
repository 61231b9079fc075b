"""Tables of many records, one row per run and per evaluation: the start of every report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dsgd.config import DataConfig
from dsgd.core.old_options import today
from dsgd.core.option_rules import option_fields
from dsgd.metrics import QUANTITIES, Column
from dsgd.process.checked_yaml import convert
from dsgd.process.outcomes import UsageError, is_result
from dsgd.records.reader import (
    Record,
    evaluation_columns,
    evaluation_row,
    is_record,
    read_record,
    read_yaml,
)
from dsgd.records.schema import RecordError, Summary
from dsgd.records.variants import NOT_COMPARED as NOT_COMPARED
from dsgd.records.variants import as_variants, differing, of_workload, own_target, printable
from dsgd.records.variants import option_text as option_text
from dsgd.records.whole import lost
from dsgd.scenario.network_options import LINKS
from dsgd.scenario.timing_options import TimingConfig
from dsgd.show.report.experiment_yaml import AsRun, AsTuned, ComparedVariant, Tuned
from dsgd.show.report.layout import Asked, Layout, Member, arrange, by_name
from dsgd.show.report.premises import JudgedPremise, Premise, judge, require_names
from dsgd.show.report.written_numbers import plural

if TYPE_CHECKING:
    import polars as pl

OWN_FOLDERS = ("figures", "tuning", "comparisons")
"""Folders next to the records whose runs are not compared."""

EXTRA = "extra_"
"""How the columns of what strategies hand over in `Update.extra` begin."""

_ENVIRONMENT = {*option_fields(DataConfig), *option_fields(TimingConfig), *LINKS, "engine", "num_workers"}


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A record and its variant."""

    variant: str
    record: Record

    @property
    def seed(self) -> int:
        return self.record.summary.seed


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The runs of an experiment, of a folder of records, or one run."""

    records: Sequence[RecordedRun]
    """Variants in the experiment's order, seeds ascending."""
    title: str
    target_loss: float | None
    question: str = ""
    show: Sequence[str] | None = None
    """The figures that are asked for, in order; None: those that apply."""
    left_out: Sequence[tuple[str, str]] = ()
    """Folders that are not in the tables, and why."""
    tuned: Sequence[Tuned] = ()
    """What was chosen for each variant, if options were tuned before the comparison."""
    asked: Asked = field(default_factory=Asked)
    """What the experiment's file asks."""
    compared: Mapping[str, ComparedVariant] = field(default_factory=dict)
    """By variant: what experiment.yaml says of it."""
    premises: Sequence[Premise] = ()
    """What the experiment's file takes for granted."""

    @cached_property
    def varied(self) -> list[str]:
        """The options that differ between runs."""
        return list(differing(run.record.config for run in self.records))

    @cached_property
    def runs(self) -> pl.DataFrame:
        """One row per run. Columns: variant, folder, mode, engine, num_workers, seed, the options that differ
        between runs, stopped_by, wall_s, best_eval_loss, time_to_target_s and gradients_to_target (null:
        never, or no target), then the columns of the table of quantities (dsgd/metrics.py), like updates,
        clock_s, staleness_mean, and the means of what strategies hand over in `Update.extra`, like extra_tau.
        """
        import polars as pl

        shown = [option for option in self.varied if option not in ("mode", "engine", "num_workers")]
        extra = sorted({name for run in self.records for name in run.record.summary.extra or ()})
        rows = [_row(run, shown, self.target_loss) | _extra(run, extra) for run in self.records]
        types: dict[str, Any] = dict.fromkeys(("num_workers", "seed", "gradients_to_target"), pl.Int64)
        types |= dict.fromkeys(("variant", "folder", "mode", "engine", "stopped_by"), pl.String)
        types |= {name: pl.Int64 for name, column in measured_columns().items() if column.kind is int}
        types |= {option: _type_of([row[option] for row in rows]) for option in shown}
        schema = {name: types.get(name, pl.Float64) for name in rows[0]}
        return pl.DataFrame([_typed(row, schema) for row in rows], schema=schema, orient="row")

    @cached_property
    def curves(self) -> pl.DataFrame:
        """One row per evaluation: variant, seed and what a line of evals.jsonl has, `experts` flat."""
        import polars as pl

        rows = [(run.variant, run.seed, *evaluation_row(e)) for run in self.records for e in run.record.evals]
        schema = {"variant": pl.String, "seed": pl.Int64, **evaluation_columns()}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def notes(self) -> list[str]:
        """What is left out, and what records lack, in a line each."""
        cut = [f"{run.record.path.name}: {said}" for run in self.records for said in lost(run.record)]
        return [f"left out: {name}: {reason}" for name, reason in self.left_out] + cut

    @property
    def variants(self) -> list[str]:
        """Names of the variants that have a run, in order."""
        return list(dict.fromkeys(run.variant for run in self.records))

    @property
    def seconds(self) -> str:
        """The unit of the engine's clock: virtual s in the simulator, s on Ray, engine s for both."""
        engines = {run.record.summary.engine for run in self.records}
        if len(engines) > 1:
            return "engine s"
        return "virtual s" if engines == {"sim"} else "s"

    @property
    def judged_premises(self) -> list[JudgedPremise]:
        """What the experiment's file takes for granted, and whether its runs were so."""
        return [judge(premise, self._concerned(premise)) for premise in self.premises]

    def _concerned(self, premise: Premise) -> dict[str, list[Summary]]:
        """Return the summaries of the variants that a premise is about, by variant."""
        names = set(premise.variants)
        return {
            variant: [record.summary for record in self.of(variant)]
            for variant in dict.fromkeys([*self.variants, *self.compared])  # one of them may have no run
            if not names or names & {variant, *self._parts(variant).values()}
        }

    @property
    def scenarios(self) -> dict[str, list[str]]:
        """The variants that are compared with each other, by group."""
        return self.layout.groups

    @cached_property
    def layout(self) -> Layout:
        """The variants as the experiment's file arranges them; else by scenario.

        The file was checked before anything ran. But if the runs of all levels but one are missing, there is
        nothing to arrange.
        """
        if self.asked.compare:
            with suppress(ValueError):
                return arrange(self.asked, self._members, self._no_factors)
        cells = {
            scenario: {variant.removesuffix(f" {scenario}"): variant for variant in variants}
            for scenario, variants in self._scenarios().items()
        }
        return by_name(cells, self.asked.baseline)

    @property
    def _members(self) -> list[Member]:
        return [Member(name=v, config=self.of(v)[0].config, parts=self._parts(v)) for v in self.variants]

    @property
    def measured(self) -> dict[str, float]:
        """By variant: the seconds of a mini-batch, where they were measured since nobody gave them."""
        return {name: s for name, v in self.compared.items() if (s := v.measured_s) is not None}

    def _parts(self, variant: str) -> dict[str, str]:
        found = self.compared[variant].parts if variant in self.compared else {}
        return {part: printable(name) for part, name in found.items()}

    @property
    def _no_factors(self) -> list[str]:
        chosen = {option for tuned in self.tuned for option in tuned.chosen}
        return [*NOT_COMPARED, *chosen, *["compute_time"] * bool(self.measured)]

    def _scenarios(self) -> dict[str, list[str]]:
        """Return the variants that meet the same data, machines and network, by the name of that scenario.

        All of them, without a name, if there is only one scenario or one has a single variant.
        """
        environment = _ENVIRONMENT.union(*(of_workload(self.of(v)[0].config) for v in self.variants))
        varied = [o for o in self.varied if o in environment and o not in self._no_factors]
        groups: dict[tuple[str, ...], list[str]] = {}
        for variant in self.variants:
            config = self.of(variant)[0].config
            key = tuple(f"{option}={option_text(config.get(option))}" for option in varied)
            groups.setdefault(key, []).append(variant)
        if len(groups) < 2 or min(map(len, groups.values())) < 2:
            return {"": self.variants}
        names = [common_words(variants, last=True) for variants in groups.values()]
        if not all(names) or len(set(names)) < len(names):
            names = [" ".join(key) for key in groups]
        return dict(zip(names, groups.values(), strict=True))

    def of(self, variant: str) -> list[Record]:
        """Return a variant's records, seeds ascending."""
        return [run.record for run in self.records if run.variant == variant]


def read_folder(folder: Path) -> Frames:
    """Read an experiment's folder, a folder of records, or one record.

    Records that cannot be read are left out, and so are runs that failed or were interrupted, unless the
    folder is that one record; `left_out` says why. Raises RecordError, in one line, for a folder that is not
    there, that holds nothing to report on, or whose experiment.yaml cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder}: there is no such folder; give a run's, an experiment's or one of runs")
    if is_record(folder):
        record = read_record(folder)
        summary = record.summary
        workers = "1 worker" if summary.num_workers == 1 else f"{summary.num_workers:,} workers"
        return Frames(
            records=[RecordedRun(variant=printable(summary.mode), record=record)],
            title=f"{summary.mode} on {'Ray' if summary.engine == 'ray' else 'the simulator'}, {workers}",
            target_loss=own_target([record]),
        )
    if (folder / "experiment.yaml").is_file():
        return _read_experiment(folder)
    return read_loose(folder)


def _read_experiment(folder: Path) -> Frames:
    file = folder / "experiment.yaml"
    try:
        asked = convert(read_yaml(file), AsRun, str(file))
        require_names(asked.premise, [name for v in asked.variants for name in (v.name, *v.parts.values())])
    except (UsageError, ValueError) as error:
        raise RecordError(str(error)) from None
    runs, left_out, expected = [], [], set()
    seeds = range(asked.seeds) if isinstance(asked.seeds, int) else asked.seeds
    for variant, seed in itertools.product(asked.variants, seeds):
        name = f"{variant.folder}-s{seed}"
        expected.add(name)
        if not (folder / name).is_dir():
            left_out.append((name, "was not run, or not yet"))
            continue
        try:
            record = _read_result(folder / name)
            runs.append(RecordedRun(variant=printable(variant.name), record=record))
        except RecordError as error:
            left_out.append((name, _reason(error, folder / name)))
    for path in _folders(folder):
        if path.name not in expected:
            left_out.append((path.name, "is not a run of this experiment"))
    if not runs:
        raise _none_readable(folder, left_out)
    measures = [asked.measure] if isinstance(asked.measure, str) else asked.measure
    return Frames(
        records=runs,
        title=printable(asked.title or folder.name),
        question=printable(asked.question or ""),
        target_loss=asked.target_loss,
        show=asked.show and tuple(dict.fromkeys(asked.show)),
        left_out=tuple(left_out),
        tuned=[replace(t, variant=printable(t.variant)) for t in (asked.tuning or AsTuned()).choices],
        asked=Asked(
            compare=asked.compare and today(asked.compare),
            per=tuple(map(today, asked.per)),
            baseline=asked.baseline,
            measures=tuple(measures),
        ),
        compared={printable(v.name): v for v in asked.variants},
        premises=asked.premise,
    )


def read_loose(folder: Path, names: Sequence[str] | None = None, like: str | None = None) -> Frames:
    """Read a folder of loose runs, those of these names alone if any are given; raises RecordError.

    like: the run that is reported on even where a later one repeats it.
    """
    records, left_out = [], []
    for path in _folders(folder) if names is None else [folder / name for name in names]:
        try:
            records.append(_read_result(path))
        except RecordError as error:
            left_out.append((path.name, _reason(error, path)))
    if not records:
        raise _none_readable(folder, left_out)
    variants, repeated = as_variants(records, like)
    return Frames(
        records=[RecordedRun(variant=variant, record=record) for variant, record in variants],
        title=folder.resolve().name,
        target_loss=own_target([record for _, record in variants]),
        left_out=tuple(sorted([*left_out, *repeated])),
    )


def _folders(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(path for path in found if path.name not in OWN_FOLDERS)


def _reason(error: RecordError, path: Path) -> str:
    return str(error).removeprefix(str(path)).lstrip(":/ ")


def _read_result(path: Path) -> Record:
    """Read the record of a run that was not cut off: the progress of a cut-off run says nothing of its mode.

    Raises RecordError, in one line. A run that diverged is a result.
    """
    record = read_record(path)
    summary = record.summary
    if is_result(summary.stopped_by):
        return record
    ended = "failed" if summary.stopped_by == "failed" else "was interrupted"
    error = f": {printable(summary.error)}" if summary.error else ""
    raise RecordError(f"{path}: {ended} after {plural(summary.updates, 'update')}{error}")


def _none_readable(folder: Path, left_out: Sequence[tuple[str, str]]) -> RecordError:
    if not any(is_record(folder / name) for name, _ in left_out):
        return RecordError(f"{folder}: holds no run record; give a run's, an experiment's or one of runs")
    name, reason = next((name, reason) for name, reason in left_out if is_record(folder / name))
    return RecordError(f"{folder}: holds no record that can be reported on; of {name}: {reason}")


def _row(run: RecordedRun, options: Sequence[str], target_loss: float | None) -> dict[str, Any]:
    record, summary = run.record, run.record.summary
    losses = [evaluation.loss for evaluation in record.evals if evaluation.loss is not None]
    reached = None if target_loss is None else record.reached(target_loss)
    return {
        "variant": run.variant,
        "folder": record.path.name,
        "mode": summary.mode,
        "engine": summary.engine,
        "num_workers": summary.num_workers,
        "seed": summary.seed,
        **{option: record.config.get(option) for option in options},
        "stopped_by": summary.stopped_by,
        "wall_s": summary.wall_s,
        "best_eval_loss": min(losses, default=None),
        "time_to_target_s": reached.t_s if reached else None,
        "gradients_to_target": reached.gradients if reached else None,
        **{name: column.of(summary) for name, column in measured_columns().items()},
    }


def _extra(run: RecordedRun, names: Sequence[str]) -> dict[str, float | None]:
    """Return the means of what a strategy handed over by these names, in columns like extra_tau."""
    seen = run.record.summary.extra or {}
    return {f"{EXTRA}{name}": seen[name].mean if name in seen else None for name in names}


def measured_columns() -> dict[str, Column]:
    """Return the columns that the table of quantities has, by name."""
    return {name: column for row in QUANTITIES for name, column in row.columns.items()}


def common_words(names: Sequence[str], *, last: bool) -> str:
    """Return the words that all names end with (`last`) or begin with.

    >>> common_words(["ssgd P=2", "2 backups P=2"], last=True)
    'P=2'
    """
    split = [name.split(" ")[:: -1 if last else 1] for name in names]
    words = []
    for at_place in zip(*split, strict=False):
        if len(set(at_place)) > 1:
            break
        words.append(at_place[0])
    return " ".join(words[::-1] if last else words)


def _type_of(values: Sequence[Any]) -> Any:
    """Return the column type of an option: numbers stay numbers, mixtures become text."""
    import polars as pl

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Boolean
    if kinds == {int}:
        return pl.Int64
    return pl.Float64 if kinds and kinds <= {int, float} else pl.String


def _typed(row: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    import polars as pl

    texts = {name for name, kind in schema.items() if kind == pl.String and row[name] is not None}
    return {name: option_text(row[name]) if name in texts else row[name] for name in schema}
