"""Reports: records are read whole or refused, tables and figures agree with them, sentences are honest."""

from __future__ import annotations

import json
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple
from scipy import stats

from dsgd.core.routing import ROUTING
from dsgd.records.reader import read_record
from dsgd.records.schema import RecordError
from dsgd.records.whole import lost
from dsgd.running.predict.predictions import staleness_by_worker, staleness_pmf
from dsgd.show.report import tables
from dsgd.show.report.answer import answer
from dsgd.show.report.build import build_report
from dsgd.show.report.colours import DARK, LIGHT, contrast, distance, oklab, on_dark, ramp, shades
from dsgd.show.report.experiment_yaml import FIGURES
from dsgd.show.report.figures import chosen, draw_sections, scene_of
from dsgd.show.report.frames import read_folder
from dsgd.show.report.panels import timeline
from dsgd.show.report.questions import differs, questions
from dsgd.show.report.statistics import compare, holm, median_bands, median_interval, paired_t, rank_test
from dsgd.show.report.style import LOOKS, styles
from dsgd.show.report.written_numbers import number
from dsgd.strategies import modes
from main import main

BASE: dict[str, Any] = {
    "engine": "sim",
    "num_workers": 4,
    "steps": 60,
    "eval_every": 5,
    "lr": 0.5,
    "compute_time": "exponential:1",
    "slowdown": "0=4",
}
SSGD: dict[str, Any] = {"mode": "ssgd"}
ASGD: dict[str, Any] = {"mode": "asgd", "lr_scaling": "workers"}
LOCAL: dict[str, Any] = {"mode": "localsgd", "local_steps": 4}


def run(out: Path, name: str, **options: Any) -> Path:
    """Run main.py in this process and return the record."""
    given = [f"--{key.replace('_', '-')}={value}" for key, value in (BASE | options).items()]
    assert main([*given, "--quiet", f"--out={out}", f"--run-name={name}"]) in (0, 3)
    return out / name


def experiment(folder: Path, variants: dict[str, dict[str, Any]], seeds: int, **more: Any) -> Path:
    """Make an experiment's folder as the runner does."""
    entries = []
    for place, (name, options) in enumerate(variants.items()):
        entries.append({"name": name, "folder": f"v{place}", "options": BASE | options})
        for seed in range(seeds):
            run(folder, f"v{place}-s{seed}", seed=seed, **options)
    spec = {"title": "A title", "question": "Which?", "variants": entries, "seeds": list(range(seeds))} | more
    (folder / "experiment.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return folder


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three modes under one slow worker, five seeds."""
    folder = tmp_path_factory.mktemp("race") / "experiment"
    return experiment(folder, {"ssgd": SSGD, "asgd": ASGD, "localsgd": LOCAL}, 5, target_loss=0.69)


@pytest.fixture
def copy(race: Path, tmp_path: Path) -> Path:
    """Return a copy of the race, to be damaged."""
    return shutil.copytree(race, tmp_path / "experiment")


@pytest.fixture(scope="module")
def record(race: Path) -> Path:
    return race / "v1-s0"


# --- Records ------------------------------------------------------------------------------------------------


def to_lists(value: Any) -> Any:
    """Return what a JSON file would have."""
    return json.loads(msgspec.json.encode(value))


def test_what_is_read_is_what_was_written(record: Path) -> None:
    """Summary, evaluations and updates of a record come back as its files have them."""
    read = read_record(record)
    summary = json.loads((record / "summary.json").read_text())
    assert read.summary.staleness.counts == {int(k): n for k, n in summary["staleness"]["counts"].items()}
    assert to_lists(read.summary) == summary
    assert read.summary.theory["staleness_mean"].theory == 3.0
    assert to_lists(list(read.evals)) == lines(record / "evals.jsonl")
    assert read.config["lr_scaling"] == "workers"
    assert read.meta.device == "cpu"
    assert to_lists(list(read.updates())) == lines(record / "updates.jsonl")


def test_frames_agree_with_the_lines(record: Path) -> None:
    """The frames of updates, tasks and evaluations hold what the iterator yields."""
    read = read_record(record)
    updates = list(read.updates())
    assert read.update_frame().rows() == [
        (u.version, u.t_s, u.loss, u.measured["drift"], u.measured["consensus"]) for u in updates
    ]
    assert read.task_frame().rows() == [(u.version, u.t_s, *astuple(g)) for u in updates for g in u.gradients]
    no_experts = (None,) * len(ROUTING)
    assert read.eval_frame().rows() == [(*astuple(e)[:-1], *no_experts) for e in read.evals]


def test_updates_are_read_one_at_a_time(copy: Path) -> None:
    """The first updates can be read although the last ones are damaged."""
    file = copy / "v1-s0" / "updates.jsonl"
    whole = file.read_text().splitlines()
    file.write_text("\n".join([*whole[:9], '{"version": "ten"}', *whole[9:]]))
    updates = read_record(copy / "v1-s0").updates()
    assert [next(updates).version for _ in range(9)] == list(range(1, 10))
    with pytest.raises(RecordError, match=r"updates.jsonl, line 10: version is not a whole number"):
        next(updates)


def test_a_cut_record_is_said_to_be(copy: Path) -> None:
    """A record that ends before its run did is named with the update at which it ends; a whole one is not."""
    assert tables.ended_early(read_folder(copy)) is None
    file = copy / "v1-s0" / "updates.jsonl"
    raw = file.read_bytes()
    lines_of = raw.splitlines(keepends=True)
    for kept, last in ((b"".join(lines_of[:7]) + lines_of[7][:40], 7), (b"".join(lines_of[:1]), 1), (b"", 0)):
        file.write_bytes(kept)
        table = tables.ended_early(read_folder(copy))
        assert table is not None
        ((name, _, reason),) = table.rows
        assert name == "v1-s0"
        assert reason == f"updates.jsonl ends at update {last} of {len(lines_of)}"
    file.write_bytes(raw)
    (copy / "v1-s0" / "evals.jsonl").write_bytes(b"\0" * 99)
    assert lost(read_record(copy / "v1-s0")) == ["evals.jsonl lacks the last evaluation"]


def test_a_torn_last_line_is_dropped(copy: Path) -> None:
    """A line that was cut off while it was written is ignored, by the iterator and the frames alike."""
    folder = copy / "v1-s0"
    before = list(read_record(folder).updates())
    with (folder / "updates.jsonl").open("a") as file:
        file.write('{"version": 241, "t_s": 1')
    with (folder / "evals.jsonl").open("a") as file:
        file.write('{"version"')
    read = read_record(folder)
    assert list(read.updates()) == before
    assert len(read.update_frame()) == len(before)
    assert read.evals[-1].version == before[-1].version


def damage_config(folder: Path) -> None:
    (folder / "config.yaml").write_text("mode: [")


def damage_field(file: str, name: str) -> Any:
    def damage(folder: Path) -> None:
        path = folder / file
        if file.endswith(".json"):
            values = json.loads(path.read_text())
            del values[name]
            path.write_text(json.dumps(values))
        else:
            kept = [{k: v for k, v in line.items() if k != name} for line in lines(path)]
            path.write_text("\n".join(map(json.dumps, kept)))

    return damage


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no such folder"),
        (lambda folder: [file.unlink() for file in folder.iterdir()], "is not a run record"),
        (lambda folder: (folder / "summary.json").unlink(), "is partial (no summary.json)"),
        (lambda folder: (folder / "evals.jsonl").unlink(), "cannot be read (No such file or directory)"),
        (lambda folder: (folder / "summary.json").write_text("[]"), "is not an object"),
        (damage_config, "is not YAML"),
        (damage_field("evals.jsonl", "bytes"), "line 1: has no bytes; the record is from an older version"),
        (damage_field("summary.json", "wasted"), "has no wasted; the record is from an older version"),
        (damage_field("meta.json", "device"), "has no device; the record is from an older version"),
    ],
)
def test_what_is_no_whole_record_is_refused_in_one_line(copy: Path, damage: Any, says: str) -> None:
    """A missing, foreign, partial, damaged or older record is refused in one line that says which and why."""
    folder = copy / "v1-s0"
    damage(folder)
    with pytest.raises(RecordError) as error:
        read_record(folder)
    assert says in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["rubbish", "{broken", "[1", '{"version": 1, "t_s": }'])
@pytest.mark.parametrize("where", ["updates.jsonl", "evals.jsonl"])
def test_a_bad_line_in_the_middle_is_told_by_its_number(copy: Path, where: str, damage: str) -> None:
    """Only the last line may be torn: rubbish before it is a damaged record."""
    file = copy / "v1-s0" / where
    whole = file.read_text().splitlines()
    file.write_text("\n".join([*whole[:2], damage, *whole[2:]]) + "\n")
    with pytest.raises(RecordError, match=f"{where}, line 3: is not (JSON|an object)"):
        list(read_record(copy / "v1-s0").updates())
    if where == "updates.jsonl":
        with pytest.raises(RecordError, match=where):
            read_record(copy / "v1-s0").update_frame()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- Tables of many records ---------------------------------------------------------------------------------


def test_rows_agree_with_their_records(race: Path) -> None:
    """Each row of `runs` has its record's figures, and the first evaluation that reached the target."""
    frames = read_folder(race)
    assert frames.variants == ["ssgd", "asgd", "localsgd"]
    assert frames.runs["seed"].to_list() == [0, 1, 2, 3, 4] * 3
    assert frames.runs.columns == [
        "variant", "folder", "mode", "engine", "num_workers", "seed", "stopped_by", "wall_s",
        "best_eval_loss", "time_to_target_s", "gradients_to_target", "eval_loss", "eval_accuracy",
        "eval_bits_per_byte", "updates", "updates_per_s",
        "gradients", "gradients_per_s", "tokens_per_s", "clock_s", "staleness_mean", "staleness_p95",
        "staleness_max",
        "clock_gap_max", "drift", "consensus", "idle_share", "exchange_s", "exchange_batches",
        "restarts", "wasted", "faults", "repeated",
        "recovery_p50_s", "bytes", "wasted_bytes", *ROUTING,
    ]  # fmt: skip
    for row in frames.runs.iter_rows(named=True):
        summary = json.loads((race / row["folder"] / "summary.json").read_text())
        evals = lines(race / row["folder"] / "evals.jsonl")
        reached = next(e for e in evals if e["loss"] <= 0.69)
        assert row["time_to_target_s"] == reached["t_s"]
        assert row["gradients_to_target"] == reached["gradients"]
        assert row["best_eval_loss"] == min(e["loss"] for e in evals)
        assert row["bytes"] == sum(summary["bytes"].values())
        idle = [worker["idle_s"] / summary["clock_s"] for worker in summary["workers"].values()]
        assert row["idle_share"] == pytest.approx(np.mean(idle))
        own = frames.curves.filter(pl.col("variant") == row["variant"], pl.col("seed") == row["seed"])
        assert own.drop("variant", "seed", "bits_per_byte", *ROUTING).rows(named=True) == evals


def test_loose_records_are_grouped_by_what_differs(race: Path, tmp_path: Path) -> None:
    """Loose runs that differ by their seed are one variant; variants are named by the options that differ."""
    for name in ("v0-s0", "v0-s1", "v1-s0"):
        shutil.copytree(race / name, tmp_path / name)
    run(tmp_path, "other", mode="asgd", lr=0.25, lr_scaling="workers")
    frames = read_folder(tmp_path)
    assert frames.variants == ["asgd lr=0.25", "ssgd", "asgd lr=0.5"]
    assert [len(frames.of(variant)) for variant in frames.variants] == [1, 2, 1]
    assert frames.runs["lr"].to_list() == [0.25, 0.5, 0.5, 0.5]


def test_a_run_that_was_repeated_counts_once(race: Path, tmp_path: Path) -> None:
    """Of several runs with the same options and seed the latest counts, and the report says so."""
    shutil.copytree(race / "v0-s0", tmp_path / "first")
    run(tmp_path, "again", mode="ssgd")
    frames = read_folder(tmp_path)
    assert frames.runs["folder"].to_list() == ["again"]
    assert frames.left_out == (("first", "has the same options and seed as again; only that one counts"),)


def test_what_is_left_out_is_said(copy: Path) -> None:
    """Partial, older, missing and foreign folders are left out of the tables, each with its reason."""
    (copy / "v0-s1" / "summary.json").unlink()
    damage_field("evals.jsonl", "bytes")(copy / "v0-s2")
    shutil.rmtree(copy / "v2-s3")
    (copy / "notes").mkdir()
    edit(copy, show=["throughput"])
    frames = read_folder(copy)
    assert len(frames.runs) == 12
    assert dict(frames.left_out) == {
        "v0-s1": "is partial (no summary.json): its run is under way or was killed",
        "v0-s2": "evals.jsonl, line 1: has no bytes; the record is from an older version, run it again",
        "v2-s3": "was not run, or not yet",
        "notes": "is not a run of this experiment",
    }
    page = build_report(copy).read_text()
    for name, reason in frames.left_out:
        assert name in page
        assert reason.replace("'", "&#39;") in page


@pytest.mark.parametrize("target", [None, 0.69])
@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        ({"stopped_by": "failed", "error": "worker 2 died"}, "failed after 0 updates: worker 2 died"),
        ({"stopped_by": "interrupted", "error": None}, "was interrupted after 0 updates"),
    ],
)
def test_a_run_that_was_cut_off_is_no_result(
    copy: Path, ended: dict[str, Any], reason: str, target: float | None
) -> None:
    """A failed or interrupted run among others changes nothing but the list of what is left out."""
    edit(copy, target_loss=target)
    cut, gone = copy / "v1-s0", "was not run, or not yet"
    whole = shutil.move(cut, copy.parent / "aside")
    without = read_folder(copy)
    shutil.move(whole, cut)
    end_early(cut, **ended)
    frames = read_folder(copy)
    assert without.left_out == ((cut.name, gone),)
    assert frames.left_out == ((cut.name, reason),)
    assert frames.runs.equals(without.runs)
    assert frames.curves.equals(without.curves)
    assert answer(frames) == answer(without)
    (copy / "experiment.yaml").unlink()  # loose records
    assert read_folder(copy).left_out == ((cut.name, reason),)
    assert read_folder(cut).left_out == ()  # its own page it has
    assert reason.split(" after ")[0] in answer(read_folder(cut)).headline


def test_an_interrupted_repetition_does_not_replace_a_run(race: Path, tmp_path: Path) -> None:
    """Of loose runs with the same options and seed the latest that ended counts."""
    shutil.copytree(race / "v0-s0", tmp_path / "first")
    end_early(run(tmp_path, "again", mode="ssgd"), stopped_by="interrupted")
    frames = read_folder(tmp_path)
    assert frames.runs["folder"].to_list() == ["first"]
    assert frames.left_out == (("again", "was interrupted after 0 updates"),)


def end_early(record: Path, **ended: Any) -> None:
    """Cut a record off after its first evaluation."""
    file = record / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"updates": 0, "gradients": 0} | ended))
    (record / "updates.jsonl").write_text("")
    first = (record / "evals.jsonl").read_text().splitlines()[0]
    (record / "evals.jsonl").write_text(first + "\n")


def interrupt_runs(folder: Path) -> None:
    for path in folder.glob("v*"):
        end_early(path, stopped_by="interrupted")


def remove_runs(folder: Path) -> None:
    for path in folder.glob("v*"):
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no such folder"),
        (remove_runs, "holds no run record"),
        (
            lambda folder: [(p / "summary.json").unlink() for p in folder.glob("v*")],
            "holds no record that can",
        ),
        (
            interrupt_runs,
            "holds no record that can be reported on; of v0-s0: was interrupted after 0 updates",
        ),
        (
            lambda folder: edit(folder, show=["loss", "lose"]),
            "show: number 2: there is no lose; did you mean loss?",
        ),
        (lambda folder: edit(folder, variants=[]), "variants: is empty"),
        (lambda folder: edit(folder, target_loss="low"), "target_loss: must be a number, not low"),
        (
            lambda folder: edit(folder, variants=[{"name": "x", "folder": "../x"}]),
            "folder: must be the name of a folder beside this file, not ../x",
        ),
        (lambda folder: edit(folder, tuning={"choices": 3}), "tuning: choices: must be a list, not 3"),
    ],
)
def test_a_folder_without_a_report_is_told_in_one_line(
    copy: Path, damage: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be reported on ends with exit code 2 and one line that names the folder and the reason."""
    damage(copy)
    with pytest.raises(RecordError, match=r"^[^\n]*$") as error:
        read_folder(copy)
    assert says in str(error.value)
    assert main(["report", str(copy)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"main.py: report {error.value}"]


def edit(folder: Path, **more: Any) -> None:
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | more, sort_keys=False))


# --- Statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, 30))
def test_the_interval_of_a_median_covers_what_it_says(n: int) -> None:
    """Between the order statistics lies the median with the binomial's probability: 95 % if n allows it."""
    interval = median_interval(range(n))
    k = int(interval.low)
    assert interval.high == n - 1 - k
    assert interval.level == pytest.approx(max(0.0, 1 - 2 * stats.binom.cdf(k, n, 0.5)))
    assert interval.level >= 0.95 or k == 0
    if k + 1 <= (n - 1) / 2:  # a narrower interval would cover less
        assert 1 - 2 * stats.binom.cdf(k + 1, n, 0.5) < 0.95


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=25), st.data())
def test_never_is_later_than_all(values: list[float], data: st.DataObject) -> None:
    """Runs that never reach the target rank last: the median rises, or is `never`."""
    never = data.draw(st.integers(1, len(values)))
    censored = [*sorted(values)[: len(values) - never], *[math.inf] * never]
    found, whole = median_interval(censored), median_interval(values)
    assert found.n == len(values)
    assert found.centre >= whole.centre
    assert math.isinf(found.centre) == (never >= len(values) / 2)
    if never < len(values) / 2 - 1:
        assert found.centre == whole.centre


@given(st.integers(1, 12), st.integers(1, 5))
def test_bands_are_intervals_column_by_column(seeds: int, columns: int) -> None:
    """The bands of curves are the intervals of their columns."""
    values = np.random.default_rng(seeds * 10 + columns).normal(size=(seeds, columns))
    bands = np.array(median_bands(values)).T
    assert bands.tolist() == [list(median_interval(column)[:3]) for column in values.T]


def test_the_paired_test_is_students() -> None:
    """The p and the interval are those of scipy's paired t-test on the logarithms."""
    rng = np.random.default_rng(1)
    x, y = rng.lognormal(0, 0.3, 7), rng.lognormal(0.4, 0.3, 7)
    (pair,) = compare({"a": dict(enumerate(x)), "b": dict(enumerate(y))})
    known = stats.ttest_rel(np.log(y), np.log(x))
    interval = known.confidence_interval(0.95)
    assert pair.p == pair.corrected_p == pytest.approx(known.pvalue)
    assert pair.ratio is not None
    assert pair.ratio[:3] == pytest.approx(
        (np.exp(np.mean(np.log(y / x))), np.exp(interval.low), np.exp(interval.high))
    )
    assert paired_t(np.array([2.0, 2.0, 2.0])) is None


@pytest.mark.parametrize("values", [(2.0, 3.0), (0.0, 3.0), (2.0, math.inf)])
def test_copies_of_an_observation_are_not_tested(values: tuple[float, float]) -> None:
    """Two variants without spread that differ get no p, and do not count in the correction of others."""
    found = {name: dict.fromkeys(range(5), value) for name, value in zip("ab", values, strict=True)}
    (pair,) = compare(found)
    assert (pair.p, pair.corrected_p, pair.test) == (None, None, "deterministic")
    (same,) = compare({"a": found["a"], "c": found["a"]})
    assert (same.p, same.test) == (1.0, "identical")
    spread = {"c": dict(enumerate([2.5, 2.6, 2.4, 2.7, 2.5]))}
    alone = [pair.p for pair in compare(found | spread) if pair.p is not None]
    assert [pair.corrected_p for pair in compare(found | spread)] == [None, *holm(alone)]


def test_deterministic_runs_are_said_to_be(tmp_path: Path) -> None:
    """Constant times give one throughput each: the page says deterministic, and which is ahead, with no p."""
    same: dict[str, Any] = {"compute_time": "constant:1", "workload": "none"}
    variants = {"ssgd": SSGD | same, "asgd": ASGD | same}
    folder = experiment(tmp_path / "x", variants, 5, show=["throughput"])
    found = answer(read_folder(folder))
    assert found.headline.startswith("asgd has the highest throughput, ")
    assert "a variant has the same value with each seed, so there is nothing to test" in found.basis
    page = build_report(folder).read_text()
    assert "<td>deterministic</td>" in page
    assert "0.0079" not in page


@given(st.lists(st.integers(0, 4), min_size=4, max_size=10))
def test_the_rank_test_is_the_exact_permutation_test(values: list[int]) -> None:
    """The p counts the ways to split the values into groups as far apart or farther, ties included."""
    half = len(values) // 2
    x = [math.inf if v == 4 else float(v) for v in values[:half]]
    y = [math.inf if v == 4 else float(v) for v in values[half:]]
    ranks = stats.rankdata([*x, *y])
    centre = ranks.mean() * half
    parts = [sum(ranks[list(part)]) - centre for part in combinations(range(len(ranks)), half)]
    own = sum(ranks[:half]) - centre
    assert rank_test(x, y) == pytest.approx(np.mean([abs(part) >= abs(own) - 1e-9 for part in parts]))


def test_the_rank_test_agrees_with_scipy() -> None:
    """Without ties p is scipy's exact one for few values and its approximation for many."""
    rng = np.random.default_rng(2)
    for n, method in ((5, "exact"), (8, "exact"), (20, "asymptotic")):
        x, y = rng.normal(size=n).tolist(), rng.normal(0.8, size=n).tolist()
        assert rank_test(x, y) == pytest.approx(stats.mannwhitneyu(x, y, method=method).pvalue)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_what_the_step_down_procedure_rejects(ps: list[float], level: float) -> None:
    """A corrected p is below the level just where Holm's procedure rejects, and never above Bonferroni's."""
    rejected = set()
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[i] * (len(ps) - rank) >= level:
            break
        rejected.add(i)
    corrected = holm(ps)
    assert {i for i, p in enumerate(corrected) if p < level} == rejected
    assert all(p <= c <= min(1, len(ps) * p) for p, c in zip(ps, corrected, strict=True))


def test_false_alarms_stay_at_their_level() -> None:
    """Where all variants are alike, at least one pair differs significantly in 5 % of experiments at most."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(400):
        values = rng.lognormal(0, 0.2, (4, 5)) * rng.lognormal(0, 0.5, 5)
        pairs = compare({str(i): dict(enumerate(row)) for i, row in enumerate(values)})
        alarms += any(differs(pair) for pair in pairs)
    assert stats.binomtest(alarms, 400, 0.05, alternative="greater").pvalue > 0.01


# --- Sentences ----------------------------------------------------------------------------------------------


def test_a_clear_winner_is_named_with_its_numbers(race: Path) -> None:
    """Under a slow worker ASGD is first, and the sentence has its median, interval, lead and p."""
    frames = read_folder(race)
    times = frames.runs.filter(pl.col("variant") == "asgd")["time_to_target_s"].to_list()
    found = answer(frames)
    interval = rf"\[{number(min(times))}, {number(max(times))}\]"  # of five seeds, their range
    assert re.fullmatch(
        rf"asgd reaches loss 0.69 first, after {number(median(times))} {interval} virtual s; \w+, the next, "
        r"takes \S+ \[\S+, \S+\] times as long \(p [=<] 0.\d+\)\.",
        found.headline,
    )
    assert "Medians of 5 seeds with 94\N{NO-BREAK SPACE}% intervals" in found.basis
    assert "paired t-test, after Holm's correction for 3 pairs" in found.basis
    assert "localsgd needs the fewest bytes to reach loss" in found.points[0]  # the largest difference
    assert re.match(r"(\w+ and )?\w+ needs? the fewest gradients to reach loss", found.points[1])


def test_equals_have_no_clear_winner(tmp_path: Path) -> None:
    """Two variants that do the same do not differ, whatever their order, and are called identical."""
    folder = experiment(tmp_path / "x", {"one": SSGD, "two": SSGD}, 3, target_loss=0.69)
    found = answer(read_folder(folder))
    assert found.headline.startswith("one and two are level in time to loss 0.69: ")
    assert found.points[0].startswith("one and two are identical runs")  # nothing else differs
    assert "evaluation interval" not in found.text  # there is no lead


def test_what_is_level_is_not_called_a_lead(tmp_path: Path) -> None:
    """Two variants that reach the target at the same evaluation are both in bold, and the answer says that
    they differ by at most one interval.
    """
    variants = {"one": SSGD, "two": SSGD | {"lr": 0.5001}, "late": SSGD | {"lr": 0.1}}
    frames = read_folder(experiment(tmp_path / "x", variants, 1, target_loss=0.4, show=["time_to_target"]))
    panels = {panel.name: panel.svg for section in draw_sections(frames) for panel in section.panels}
    bold = re.findall(r"font-weight: 700[^>]*>(×?[\d.]+)<", panels["time-to-target"])
    assert len(bold) == 4
    assert len(set(bold)) == 2  # the time and ×1 of both
    assert "The difference between one and two is at most one evaluation interval" in answer(frames).text


def test_one_seed_gives_no_interval(race: Path, tmp_path: Path) -> None:
    """With one seed per variant the sentences give no interval and no p, and say why."""
    for name in ("v0-s0", "v1-s0"):
        shutil.copytree(race / name, tmp_path / name)
    found = answer(read_folder(tmp_path))
    assert "There is one seed per variant, so no interval can be given; it may be chance" in found.basis
    assert "p =" not in found.text
    assert "one seed, so no interval can be given" in answer(read_folder(tmp_path / "v0-s0")).headline


def test_a_lack_of_common_seeds_is_not_called_one_seed(copy: Path) -> None:
    """Where one variant has five seeds and the others one, the answer does not claim one seed per variant."""
    for variant in (0, 2):
        for seed in range(1, 5):
            shutil.rmtree(copy / f"v{variant}-s{seed}")
    found = answer(read_folder(copy))
    assert "one seed per variant" not in found.text
    assert "No two variants share two seeds, so nothing can be tested; it may be chance" in found.basis


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ((0.5, 0.502), "asgd, the next, has 1.004 times the loss"),
        ((0.5, 0.5), "ssgd and asgd are level in loss after 74.6 virtual s: 0.5 each"),
        ((0.5, 0.75), "asgd, the next, has 1.5 times the loss"),
    ],
)
def test_nobody_is_one_time_ahead(copy: Path, losses: tuple[float, float], says: str) -> None:
    """A lead that two digits do not show has more of them, and where there is none that is said."""
    for name in ("v2", *(f"v{v}-s{seed}" for v in range(3) for seed in range(5) if v == 2 or seed)):
        shutil.rmtree(copy / name, ignore_errors=True)
    (copy / "experiment.yaml").unlink()
    for variant, loss in enumerate(losses):
        file = copy / f"v{variant}-s0" / "evals.jsonl"
        file.write_text("".join(json.dumps(line | {"loss": loss}) + "\n" for line in lines(file)))
    found = answer(read_folder(copy))
    assert f"; {found.headline}".endswith(f"; {says}.")
    assert " 1 times " not in found.text


def test_results_say_what_their_intervals_cover(copy: Path) -> None:
    """The note has the true numbers of seeds and the confidence that each of them gives."""
    for name in ("v0-s4", "v0-s3", *(f"v1-s{seed}" for seed in range(1, 5))):
        shutil.rmtree(copy / name)
    assert tables.results(read_folder(copy)).note == (
        "Medians over seeds; in brackets, the interval that covers the true median: of 3 seeds their whole "
        "range, with a confidence of 75\N{NO-BREAK SPACE}%; of 5 seeds their whole range, with a confidence "
        "of 94\N{NO-BREAK SPACE}%; of one seed none can be given."
    )


def test_options_that_only_some_modes_have_are_shown(race: Path) -> None:
    """What an option of some modes only is set to is in the table of what differs."""
    table = tables.differing(read_folder(race))
    assert table is not None
    columns = dict(zip(table.headings, zip(*table.rows, strict=True), strict=True))
    assert columns["variant"] == ("ssgd", "asgd", "localsgd")
    assert columns["mode"] == ("ssgd", "asgd", "localsgd")
    assert columns["not in all modes"] == (
        "optimizer=sgd",
        "optimizer=sgd lr_scaling=workers staleness_lr=none",
        "local_steps=4 sample_clients=none",
    )


def test_a_target_that_nobody_reaches_is_said(copy: Path) -> None:
    """Where no run reaches the target, the answer says so and compares losses instead."""
    edit(copy, target_loss=-1)
    found = answer(read_folder(copy))
    assert found.headline.startswith("No run reaches loss -1. ")
    assert "the lowest loss after " in found.headline
    assert "the lowest loss after " in found.points[0]


def test_never_loses(tmp_path: Path) -> None:
    """A variant that never reaches the target comes last, as never, and the exact rank test shows it."""
    variants = {"slow": SSGD | {"lr": 1e-4}, "quick": SSGD}
    frames = read_folder(experiment(tmp_path / "x", variants, 4, target_loss=0.69))
    times = frames.runs.group_by("variant").agg(pl.col("time_to_target_s").null_count()).rows()
    assert dict(times) == {"slow": 4, "quick": 0}
    question = questions(frames)[0]
    ranking = question.ranking("")
    assert list(ranking) == ["quick", "slow"]
    assert ranking["slow"][:3] == (math.inf, math.inf, math.inf)
    (pair,) = question.pairs
    assert (pair.test, pair.ratio) == ("rank", None)
    assert pair.p == pytest.approx(2 / math.comb(8, 4))
    found = answer(frames)
    assert found.headline.endswith("; no other gets there in the median of its seeds (p = 0.029).")
    assert "(rank test, after Holm's correction for 1 pair)" in found.basis


def test_scenarios_are_answered_one_by_one(tmp_path: Path) -> None:
    """Variants compete where they meet the same machines and data, and the correction is for those pairs."""
    grid = {"even": {"slowdown": ""}, "slow": {"slowdown": "0=8"}}
    variants = {
        f"{mode} {name}": own | point
        for mode, own in (("ssgd", SSGD), ("asgd", ASGD))
        for name, point in grid.items()
    }
    frames = read_folder(experiment(tmp_path / "x", variants, 3, target_loss=0.69))
    assert frames.scenarios == {"even": ["ssgd even", "asgd even"], "slow": ["ssgd slow", "asgd slow"]}
    question = questions(frames)[0]
    assert [(p.a, p.b) for p in question.pairs] == [("ssgd even", "asgd even"), ("ssgd slow", "asgd slow")]
    assert all(pair.p == pair.corrected_p for pair in question.pairs)
    found = answer(frames)
    assert found.headline == "By time to loss 0.69, the best is asgd with even and slow."
    assert found.table is not None
    best = next(x.centre for x in question.ranking("slow").values())
    assert found.table.rows[1][2].startswith(f"{number(best)} [")
    assert (1, 2) in found.table.best
    assert found.table.headings[1:] == ["ssgd", "asgd"]
    assert [row[0] for row in found.table.rows] == ["even", "slow"]
    edit(tmp_path / "x", show=["loss"])
    (section,) = draw_sections(read_folder(tmp_path / "x"))
    assert [panel.title.split(" · ")[0] for panel in section.panels] == [
        f"Loss against {x}, {scenario}"
        for scenario in ("even", "slow")
        for x in ("time", "gradients", "bytes")
    ]


def test_growth_with_workers_is_told(tmp_path: Path) -> None:
    """Variants that differ in their number of workers get scaling's figures and an answer about growth."""
    same: dict[str, Any] = ASGD | {"slowdown": "", "workload": "none"}
    variants = {f"asgd P={p}": same | {"num_workers": p, "steps": 64 // p} for p in (2, 4, 8)}
    frames = read_folder(experiment(tmp_path / "x", variants, 2))
    found = answer(frames)
    assert found.headline.startswith("Throughput grows ")
    assert found.headline.endswith(" times for asgd (2 to 8 workers).")
    assert "The runs are too short, or their times too irregular, to compare with theory." in found.points
    assert chosen(frames) == ["scaling", "throughput", "staleness", "timeline"]
    edit(tmp_path / "x", show=["scaling"])
    for ended_at_once in ([], ["v0-s0", "v0-s1"]):  # so that two workers have no throughput
        for run in ended_at_once:
            file = tmp_path / "x" / run / "summary.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"clock_s": 0.0}))
        (section,) = draw_sections(read_folder(tmp_path / "x"))
        assert [panel.name for panel in section.panels] == [
            "scaling-throughput", "scaling-idle", "scaling-staleness"
        ]  # fmt: skip


def test_an_interval_that_ends_with_never_leaves_the_rest_readable(tmp_path: Path) -> None:
    """Where one seed of three never reaches the loss, the axis of scaling keeps to the times there are."""
    same: dict[str, Any] = ASGD | {"slowdown": ""}
    variants = {f"asgd P={p}": same | {"num_workers": p, "steps": 160 // p} for p in (2, 4)}
    folder = experiment(tmp_path / "x", variants, 3, target_loss=0.69, show=["scaling"])
    evals = folder / "v1-s0" / "evals.jsonl"
    lines = [json.loads(line) | {"loss": 0.7} for line in evals.read_text().splitlines()]
    evals.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (section,) = draw_sections(read_folder(folder))  # an overflow would be a warning, and so an error
    assert "scaling-time" in [panel.name for panel in section.panels]


# --- Figures and pages --------------------------------------------------------------------------------------


def test_every_mode_has_a_look_of_its_own() -> None:
    """Each mode has a colour and a marker that no other has, visible on light and dark ground."""
    looks = styles({mode: mode for mode in modes()}).values()
    distinct = min(len(modes()), len(LOOKS))
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == distinct
    for colour, _ in LOOKS:
        assert min(contrast(colour, LIGHT), contrast(colour, DARK)) >= 3


def test_a_mode_looks_the_same_in_every_figure() -> None:
    """A mode of the repository looks the same alone and with any other; an unknown mode takes a free look."""
    every = styles({mode: mode for mode in modes()})
    assert all(styles({mode: mode})[mode] == every[mode] for mode in modes())
    for stranger in {"signvote", "mine", "a", "b", "c", "d"} - set(modes()):
        looks = styles({mode: mode for mode in (stranger, *modes())})
        assert {mode: looks[mode] for mode in modes()} == every
        markers = {look.marker for look in every.values()}
        assert looks[stranger].marker not in markers or len(markers) == len(LOOKS)


def test_more_modes_than_looks_are_drawn_all_the_same() -> None:
    """A figure of more modes than there are looks uses some of them twice."""
    modes = [f"mode{i}" for i in range(2 * len(LOOKS))]
    looks = styles({mode: mode for mode in modes})
    assert len({look.marker for look in looks.values()}) == len(LOOKS)


# How colours look to those without red or green cones, on linear red, green and blue: Machado, Oliveira and
# Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency", severity 1.
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
                     (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                       (-0.011820, 0.042940, 0.968881)),
}  # fmt: skip


def seen_by(eyes: str, colour: str) -> str:
    """Return a colour as such eyes see it."""
    shares = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(EYES[eyes]) @ linear, 0, 1)
    shares = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * x):02x}" for x in shares)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("n", range(2, 7))
def test_variants_of_a_mode_are_told_apart(n: int, eyes: str) -> None:
    """Up to six variants of any mode share its marker and differ in colour, on both grounds, to all eyes."""
    least = min(0.12, 0.27 / (n - 1))  # of Oklab, where 0.02 can just be seen
    for mode in modes():
        looks = styles({f"{mode} {i}": mode for i in range(n)} | {"other": "another"})
        own = [look for variant, look in looks.items() if variant != "other"]
        assert {look.marker for look in own} == {styles({mode: mode})[mode].marker}
        light = [look.colour for look in own]
        for colours, ground in ((light, LIGHT), ([on_dark(colour) for colour in light], DARK)):
            assert min(contrast(colour, ground) for colour in colours) >= 2.98
            assert all(contrast(a, ground) < contrast(b, ground) for a, b in pairwise(colours))
            assert min(distance(seen_by(eyes, a), seen_by(eyes, b)) for a, b in pairwise(colours)) >= least


def test_a_ramp_follows_the_swept_value(tmp_path: Path) -> None:
    """Variants that differ in one number get darker as it grows, in whatever order the file has them."""
    variants = {f"H={h}": LOCAL | {"local_steps": h} for h in (16, 2, 4)}
    frames = read_folder(experiment(tmp_path / "x", variants, 1))
    looks = scene_of(frames).looks
    shades = [contrast(looks[f"H={h}"].colour, LIGHT) for h in (2, 4, 16)]
    assert shades == sorted(shades)


def test_names_can_be_read_on_both_grounds() -> None:
    """The name of a variant, in its colour, has a contrast of 4.5 on light and on dark pages."""
    for look in styles({f"{mode} {i}": mode for mode in modes() for i in range(3)}).values():
        assert contrast(look.text, LIGHT) >= 4.5
        assert contrast(on_dark(look.text), DARK) >= 4.5


def test_a_dark_page_keeps_contrasts_and_hues() -> None:
    """A mode's colour has a little more contrast to the dark ground than to white, its darkest shade a little
    less, and no shade becomes white or grey; white becomes the ground.
    """
    for base, _ in LOOKS:
        for colour in (base, *ramp(base, 6)):
            ratio = contrast(on_dark(colour), DARK) / contrast(colour, LIGHT)
            assert (1.05 if colour == base else 0.93) < ratio < 1.2
            assert chroma(on_dark(colour)) >= min(0.035, 0.85 * chroma(base))
    assert on_dark(LIGHT).lower() == DARK


def chroma(colour: str) -> float:
    """Return how colourful a colour is, in Oklab: 0 for greys, 0.3 for the pure colours of a screen."""
    return math.hypot(*oklab(colour)[1:])


def test_runs_of_a_mode_are_told_apart_on_the_live_page() -> None:
    """Three runs of a mode differ in shade to all eyes, the first has the mode's colour, none is almost black
    or white, and those of modes with different hues do not meet: on both grounds.
    """
    for base, _ in LOOKS:
        own = shades(base, 3)
        assert own[0] == base
        for colours, ground in ((own, LIGHT), ([on_dark(colour) for colour in own], DARK)):
            assert all(2.98 <= contrast(colour, ground) <= 11 for colour in colours)
            assert min(map(chroma, colours)) >= min(0.049, 0.85 * chroma(base))
            for eyes in EYES:
                seen = [seen_by(eyes, colour) for colour in colours]
                assert min(distance(a, b) for a, b in combinations(seen, 2)) >= 0.06
    for a, b in combinations(
        [look.colour for look in styles({m: m for m in ("ssgd", "asgd", "ssp", "localsgd")}).values()], 2
    ):
        for page in (str, on_dark):
            assert min(distance(page(x), page(y)) for x in shades(a, 3) for y in shades(b, 3)) >= 0.1


@pytest.fixture(scope="module")
def built(race: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw the race's report in a copy of it."""
    folder = shutil.copytree(race, tmp_path_factory.mktemp("built") / "experiment")
    return build_report(folder).parent


def test_the_same_records_give_the_same_bytes(race: Path, built: Path, tmp_path: Path) -> None:
    """A report drawn twice is the same, byte by byte: no date, path or hash seed is in it."""
    again = shutil.copytree(race, tmp_path / "elsewhere" / "experiment")
    build_report(again)
    for name in ("report.html", "results.csv"):
        assert (again / name).read_bytes() == (built / name).read_bytes()
    figures = sorted(file.name for file in (again / "figures").iterdir())
    assert figures == sorted(file.name for file in (built / "figures").iterdir())
    for name in figures:
        assert (again / "figures" / name).read_bytes() == (built / "figures" / name).read_bytes()


def test_a_report_is_whole(built: Path) -> None:
    """A report is one file without scripts and addresses, and each figure is there as SVG and as PNG."""
    page = built / "report.html"
    text = page.read_text()
    assert page.stat().st_size < 5_000_000
    for needs in ("<script", '<link rel="stylesheet', "url(http", "src=", "@import"):
        assert needs not in text
    assert text.replace("http://www.w3.org/", "").count("http") == text.count("http-equiv")
    svgs = sorted(file.stem for file in (built / "figures").glob("*.svg"))
    assert svgs == sorted(file.stem for file in (built / "figures").glob("*.png"))
    for name in svgs:
        assert ElementTree.parse(built / "figures" / f"{name}.svg").getroot().tag.endswith("svg")
        assert (built / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f'<figure id="{name}">' in text
    assert {"loss-time", "loss-gradients", "loss-bytes", "time-to-target", "throughput", "idle"} <= set(svgs)
    assert {"staleness-1", "timeline-1", "timeline-3", "drift"} <= set(svgs)
    assert pl.read_csv(built / "results.csv").height == 15


def test_many_lines_share_one_legend(tmp_path: Path) -> None:
    """Names stand at their lines; where there are too many, the section has one legend with all of them."""
    names = [f"variant {place}" for place in range(18)]
    variants = {name: SSGD | {"lr": 0.1 + place / 100, "steps": 5} for place, name in enumerate(names)}
    frames = read_folder(experiment(tmp_path / "x", variants, 1, show=["loss"]))
    (section,) = draw_sections(frames)
    texts = ["".join(panel.svg) for panel in section.panels]
    assert [panel.name for panel in section.panels] == [
        "loss-legend", "loss-time", "loss-gradients", "loss-bytes"
    ]  # fmt: skip
    assert all(f">{name}</text>" in texts[0] for name in names)
    assert not any(f">{name}</text>" in text for name in names for text in texts[1:])


def test_variants_whose_runs_are_the_same_share_a_name(tmp_path: Path) -> None:
    """Where runs are the same, the figure says so with one name instead of hiding lines behind another."""
    same = {"mode": "ssp", "compute_time": "constant:1", "slowdown": ""}
    variants = {f"slack={slack}": same | {"slack": slack} for slack in (1, 3)}
    frames = read_folder(experiment(tmp_path / "x", variants, 1, show=["loss"]))
    (section,) = draw_sections(frames)
    for panel in section.panels:
        words = " ".join("".join(ElementTree.fromstring(panel.svg).itertext()).split())
        assert "slack=1, slack=3: the same" in words


def test_words_from_records_are_only_words(copy: Path) -> None:
    """Names, titles and errors that look like HTML, SVG or mathematics are shown as they are."""
    evil = '<img src=x onerror="alert(1)"> | $x^2$ 0.123456 *b*'
    spec = yaml.safe_load((copy / "experiment.yaml").read_text())
    spec["variants"][0]["name"] = evil
    edit(copy, title=evil, question=evil, variants=spec["variants"], show=["loss"])
    summary = json.loads((copy / "v1-s0" / "summary.json").read_text())
    (copy / "v1-s0" / "summary.json").write_text(
        json.dumps(summary | {"stopped_by": "failed", "error": evil})
    )
    text = build_report(copy).read_text()
    assert "<img" not in text
    shown = "&lt;img src=x onerror=&#34;alert(1)&#34;&gt; | $x^2$ 0.123456 *b*"
    assert text.count(shown) >= 5
    root = ElementTree.parse(copy / "figures" / "loss-time.svg").getroot()
    words = "".join(root.itertext()).split()  # a long name has several lines
    assert "".join(evil.split()) in "".join(words)


def test_show_selects_and_orders(copy: Path) -> None:
    """The figures are those that the experiment names, in its order; what cannot apply is left out."""
    edit(copy, show=["timeline", "loss", "scaling"])
    assert chosen(read_folder(copy)) == ["timeline", "loss"]
    edit(copy, show=None)
    assert set(chosen(read_folder(copy))) == set(FIGURES) - {"scaling", "sweep", "tuning", "experts"}


def test_old_figures_go_and_others_stay(copy: Path) -> None:
    """Redrawing removes its own figures that are no longer drawn, and nothing that somebody else put in."""
    edit(copy, show=["loss", "throughput", "timeline"])
    build_report(copy)
    (copy / "figures" / "mine.svg").write_text("mine")
    edit(copy, show=["loss"])
    build_report(copy)
    names = {file.name for file in (copy / "figures").iterdir()}
    assert names == {
        "mine.svg",
        *(f"loss-{x}.{kind}" for x in ("time", "gradients", "bytes") for kind in ("svg", "png")),
    }


@pytest.mark.parametrize(
    "options",
    [
        ASGD,
        LOCAL | {"latency_s": 0.2},
        ASGD | {"workload": "none"},
        SSGD | {"record": "none", "eval_every": 0},
        ASGD | {"record": "every:7"},
        ASGD | {"record": "none"},
        {"mode": "asgd", "lr": 1e6, "workload": "quadratic"},
        {"mode": "ringmaster", "num_workers": 1, "steps": 2, "slowdown": ""},
        SSGD | {"max_seconds": 1e-6},
    ],
    ids=lambda options: " ".join(f"{k}={v}" for k, v in options.items()),
)
def test_any_single_run_has_a_page(options: dict[str, Any], tmp_path: Path) -> None:
    """A run of any kind gets a page: without weights, recorded updates, evaluations, updates, or diverged."""
    page = build_report(run(tmp_path, "one", **options))
    frames = read_folder(tmp_path / "one")
    assert answer(frames).headline
    assert len(answer(frames).points) == 1
    assert "<h1>" in page.read_text()


def test_a_diverged_run_is_said_to_be(tmp_path: Path) -> None:
    """The page of a run that diverged says so, with the reason, in its first sentence and in a table."""
    record = run(tmp_path, "one", mode="asgd", lr=1e6, workload="quadratic")
    error = json.loads((record / "summary.json").read_text())["error"]
    assert answer(read_folder(record)).headline.startswith("The run diverged after ")
    assert build_report(record).read_text().count(error) == 2


def test_the_last_loss_of_a_diverged_variant_is_said_to_be(tmp_path: Path) -> None:
    """Where most seeds diverged the last loss is "diverged", not a dash or the median of the others."""
    run(tmp_path, "a", mode="asgd", lr=1e6, workload="quadratic")
    run(tmp_path, "b", mode="asgd", lr=0.01, workload="quadratic")
    table = tables.results(read_folder(tmp_path))
    column = list(table.headings).index("last loss")
    diverged, whole = sorted((row[column] for row in table.rows), reverse=True)
    assert diverged == "diverged"
    assert float(whole) > 0


def test_theory_stands_beside_measurement(tmp_path: Path) -> None:
    """A histogram's theory line is the geometric law; means by worker are those of the slow and the fast."""
    record = read_record(run(tmp_path, "even", **ASGD, slowdown="", workload="none", steps=500))
    pmf = staleness_pmf(record, 200)
    assert pmf is not None
    counts = record.summary.staleness.counts
    assert pmf == pytest.approx([0.25 * 0.75**tau for tau in range(201)])
    assert counts[0] / record.summary.gradients == pytest.approx(pmf[0], abs=0.05)
    slow = read_record(run(tmp_path, "slow", **ASGD, workload="none", steps=500))
    means = staleness_by_worker(slow)
    assert means is not None
    assert staleness_pmf(slow, 5) is None
    for worker, mean in slow.summary.staleness.by_worker.items():
        assert mean == pytest.approx(means[worker], rel=0.25)


def test_a_report_says_how_noisy_its_comparison_with_theory_is(tmp_path: Path) -> None:
    """Table and sentence have the seeds' pooled mean, its standard error and a verdict, if long enough."""
    long = {
        f"asgd P={p}": ASGD | {"slowdown": "", "workload": "none", "num_workers": p, "steps": 400}
        for p in (2, 4)
    }
    frames = read_folder(
        experiment(tmp_path / "long", {**long, "short": {**long["asgd P=4"], "steps": 5}}, 2)
    )
    table = tables.theory(frames)
    assert table is not None
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    theory, measured, difference, verdict = rows["asgd P=4", "mean staleness"]
    assert (theory, verdict) == ("3", "agrees")
    mean, error = map(float, measured.split(" ± "))
    assert abs(mean - 3) <= 2 * error < 0.2
    assert difference.endswith(" %")
    theory, measured, _, verdict = rows["short", "mean staleness"]
    assert (theory, verdict) == ("3", "too short to compare")
    assert "±" not in measured
    one = read_folder(tmp_path / "long" / "v1-s0")
    assert re.search(
        r"gradients are 3\S* ± 0\.0\d+ updates stale on average \(theory: 3, agrees\)", answer(one).points[0]
    )


def test_a_timeline_holds_every_task_of_its_window(race: Path, tmp_path: Path) -> None:
    """All tasks of a worker that overlap the window are there, also those that end long after it."""
    for path in (race / "v1-s1", run(tmp_path, "one", mode="rennala")):
        record, end_s = read_record(path), 5.0
        found = timeline.window(record, end_s)
        updates = list(record.updates())
        for kind, shown in (("gradients", found.tasks), ("ignored", found.ignored)):
            tasks = [task for update in updates for task in getattr(update, kind)]
            for worker, own in enumerate(shown):
                assert own == [task for task in tasks if task.worker == worker and task.started_s < end_s]
        assert found.updates_s == [u.t_s for u in updates if u.t_s <= end_s]
    assert any(found.ignored)


def test_a_timeline_needs_a_whole_record_of_the_run_it_shows(tmp_path: Path) -> None:
    """Where the run that stands for its variant has no record of its updates, no timeline is drawn."""
    run(tmp_path, "first", **ASGD, record="none", seed=0)
    run(tmp_path, "second", **ASGD, record="all", seed=1)
    assert "timeline" not in chosen(read_folder(tmp_path))
    assert build_report(tmp_path).exists()


def test_curves_are_steps_and_end_with_their_first_seed(race: Path) -> None:
    """Between evaluations a run keeps its last loss; a diverged one is infinite from there on."""
    from dsgd.show.report.panels import curves as panel_curves

    record = read_record(race / "v0-s0")
    x, y = panel_curves.steps(record, lambda e: e.t_s)
    between = (x[3] + x[4]) / 2
    assert panel_curves.values_at(x, y, np.array([x[3], between, x[4]])).tolist() == [y[3], y[3], y[4]]
    shorter = (x[:5], y[:5])
    assert panel_curves.last_x([(x, y), shorter]) == x[4]
    diverged = (np.array([*x[:2], np.inf]), np.array([*y[:2], np.inf]))
    assert panel_curves.last_x([shorter, diverged]) == x[4]


def test_drawing_changes_no_settings(race: Path) -> None:
    """Drawing restores the settings of matplotlib, for others in the same process."""
    before = dict(mpl.rcParams)
    next(draw_sections(read_folder(race)))
    assert dict(mpl.rcParams) == before
