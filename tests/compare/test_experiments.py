"""Experiments: what their files may say, what results, and that no finished run is lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import psutil
import pytest
import yaml
from conftest import ROOT, CommandLine, needs, python, run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.manifests.job_table import JOBS
from dsgd.compare import finished_runs as kept
from dsgd.compare.experiment_file import load
from dsgd.compare.pool import Pool
from dsgd.compare.runner import check_data
from dsgd.compare.tuning import choose
from dsgd.core.option_rules import options
from dsgd.process.outcomes import UsageError
from dsgd.running.quick_run import config, run

SHIPPED = sorted((ROOT / "experiments").glob("*.yaml"))
BASE: dict[str, Any] = {"engine": "sim", "num_workers": 2, "steps": 20, "workload": "quadratic", "dim": 3}
VARIANTS: dict[str, Any] = {"ssgd": {"mode": "ssgd"}, "asgd": {"mode": "asgd", "lr": 0.05}}


def content(**changes: Any) -> dict[str, Any]:
    """Return the content of an experiment's file; a change to None leaves a key out."""
    whole = {"title": "T", "question": "Q?", "base": BASE, "variants": VARIANTS, "seeds": 2}
    whole |= {"show": ["throughput"]} | changes  # one figure: drawing more is what takes time
    return {key: value for key, value in whole.items() if value is not None}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "try.yaml"
    path.write_text(yaml.safe_dump(content(**changes), sort_keys=False))
    return path


class Asked(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


class Ask:
    """Runs main.py in this process, with experiments in its own folder."""

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys = out, capsys

    def __call__(self, path: Path, *more: str) -> Asked:
        return self.main("compare", str(path), "--out", str(self.out), *more)

    def main(self, *arguments: str) -> Asked:
        from main import main

        code = main(arguments)
        return Asked(code, *self._capsys.readouterr())

    def refuses(self, path: Path, parts: list[str], *more: str) -> None:
        """Check that a command gets exit code 2 and one line with these parts, and leaves nothing."""
        before = snapshot(self.out)
        asked = self(path, *more)
        assert asked.code == 2, asked
        assert len(asked.err.strip().splitlines()) == 1
        for part in parts:
            assert part in asked.err
        assert snapshot(self.out) == before


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    return Ask(tmp_path / "runs", capsys)


def snapshot(folder: Path) -> dict[Path, tuple[float, bytes]]:
    """Return all files in a folder, with when they were changed and what they hold."""
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


# ------------------------------------------------------------------------------------------------ the file


def test_a_run_has_the_options_of_base_variant_grid_and_seed(tmp_path: Path) -> None:
    """The base's options hold unless the variant or the grid point says otherwise."""
    path = write(tmp_path, variants={"ssp": {"mode": "ssp", "steps": 7}}, grid={"slack": [0, math.inf]})
    runs = load(path).runs()
    assert [(r.variant, r.cfg.seed) for r in runs] == [
        ("ssp slack=0", 0),
        ("ssp slack=inf", 0),
        ("ssp slack=0", 1),
        ("ssp slack=inf", 1),
    ]
    expected = config("ssp", num_workers=2, steps=7, workload="quadratic", dim=3, slack=math.inf, seed=1)
    not_output = {k: v for k, v in options(runs[-1].cfg).items() if k not in ("out", "run_name", "quiet")}
    assert not_output.items() <= options(expected).items()
    assert runs[-1].path == Path("runs/try/ssp+slack=inf-s1")


@settings(max_examples=8, deadline=None)
@given(
    modes=st.sets(st.sampled_from(["ssgd", "asgd", "ssp"]), min_size=1, max_size=2),
    grid=st.dictionaries(
        st.sampled_from(["lr", "steps", "partition", "compute_time"]),
        st.integers(1, 3),
        min_size=1,
        max_size=2,
    ),
    seeds=st.integers(1, 3),
)
def test_the_runs_are_the_cross_product_under_names_of_their_own(
    tmp_path_factory: pytest.TempPathFactory, modes: set[str], grid: dict[str, int], seeds: int
) -> None:
    """Variants times grid points times seeds, each in a folder that no other has, on any file system."""
    values: dict[str, list[Any]] = {
        "lr": [0.1, 0.5, 1],
        "steps": [3, 4, 5],
        "partition": ["iid", "label", "dirichlet:.1"],
        "compute_time": ["none", "markov:1,5,.05,.2", "exponential:1"],
    }
    runs = load(
        write(
            tmp_path_factory.mktemp("grid"),
            base={"engine": "sim"},
            variants={mode: {"mode": mode} for mode in modes},
            grid={option: values[option][:count] for option, count in grid.items()},
            seeds=seeds,
        )
    ).runs()
    assert len(runs) == len(modes) * math.prod(grid.values()) * seeds
    assert len({r.name.casefold() for r in runs}) == len(runs)
    assert all(re.fullmatch(r"\w[\w.+=-]{0,199}", r.name) for r in runs)


def test_named_points_change_options_together(tmp_path: Path) -> None:
    """A grid of mappings has one point per name, not a cross product."""
    points = {"two": {"num_workers": 2, "steps": 8}, "four": {"num_workers": 4, "steps": 4}}
    runs = load(write(tmp_path, grid=points, seeds=[7])).runs()
    assert [r.variant for r in runs] == ["ssgd two", "ssgd four", "asgd two", "asgd four"]
    assert {r.cfg.budget for r in runs} == {16}


def test_set_replaces_what_the_base_says(tmp_path: Path) -> None:
    """`--set` overrides the base, takes dashes for underscores, and can change the seeds."""
    asked = load(write(tmp_path), ["steps=10", "--eval-every=3", "seeds=[4]", "slowdown=0=4"], "other")
    assert {(r.cfg.steps, r.cfg.stop.eval_every, r.cfg.seed) for r in asked.runs()} == {(10, 3, 4)}
    assert asked.runs()[0].cfg.timing.slowdowns == {0: 4.0}
    assert asked.folder == Path("other/try")


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    # what is changed in the file, what the message must name
    ({"titel": "T"}, ["no key titel", "did you mean title"]),
    ({"title": None}, ["needs title:", "in words"]),
    ({"question": " "}, ["question: must be in words, not nothing"]),
    ({"base": [1]}, ["base:", "mapping"]),
    ({"base": {**BASE, "stepz": 3}}, ["variant ssgd", "stepz", "did you mean steps"]),
    ({"base": {**BASE, "steps": "many"}}, ["variant ssgd", "--steps", "whole number"]),
    ({"base": {**BASE, "steps": [1, 2]}}, ["variant ssgd", "'steps'", "one value"]),
    ({"base": {**BASE, "batch_size": 8}}, ["variant ssgd", "--batch-size 8", "no effect", "quadratic"]),
    ({"base": {**BASE, "seed": 3}}, ["seed", "listed under seeds:"]),
    ({"base": {**BASE, "run_name": "x"}}, ["run_name", "named after its variant"]),
    ({"base": {**BASE, "out": "x"}}, ["out", "--out DIR"]),
    ({"base": {**BASE, "dashboard": 1}}, ["dashboard", "on the command line"]),
    ({"base": {**BASE, "engine": "both"}}, ["--engine both", "engine: ray and sim"]),
    ({"base": {**BASE, "engine": "cloud"}}, ["--engine cloud", "ray, sim"]),
    ({"variants": None}, ["compares nothing", "grid:"]),
    ({"variants": {}}, ["variants:", "empty"]),
    ({"variants": ["ssgd"]}, ["variants:", "mapping"]),
    ({"variants": {"a": {"mode": "sgd"}}}, ["variant a", "--mode sgd", "ssgd"]),
    ({"variants": {"a": {"mode": "ssgd", "slack": 3}}}, ["variant a", "slack", "--mode ssp"]),
    ({"variants": {"a": {"mode": "ssp", "slack": -1}}}, ["variant a", "--slack -1", "at least 0"]),
    ({"variants": {"a b": {"mode": "ssgd"}, "a+b": {"mode": "asgd"}}}, ["a b and a+b", "share the folder"]),
    ({"variants": {"a": {"mode": "ssgd"}, "A": {"mode": "asgd"}}}, ["a and A", "share the folder"]),
    ({"variants": {"a": {"mode": "ssgd"}, "b": {"mode": "ssgd"}}}, ["a and b", "same run"]),
    ({"variants": {"/etc": {"mode": "ssgd"}}}, ["/etc", "begins with a letter"]),
    ({"grid": {}}, ["grid:", "empty"]),
    ({"grid": {"lr": []}}, ["grid: lr", "list of values", "not []"]),
    ({"grid": {"lr": 0.1}}, ["grid: lr", "list of values"]),
    ({"grid": {"batch_size": [1, 1]}}, ["batch_size", "1 twice"]),
    ({"grid": {"lr": [0.1, 0.2]}}, ["lr is set under variants: and grid:", "keep one"]),
    ({"grid": {"slack": [1, 2]}}, ["variant ssgd slack=1", "--mode ssp"]),
    ({"seeds": None}, ["needs seeds:", "must be a count"]),
    ({"seeds": 0}, ["seeds:", "not 0"]),
    ({"seeds": 2**62}, ["seeds:", "at most 10,000"]),
    ({"seeds": []}, ["seeds:", "list of numbers", "not []"]),
    ({"seeds": True}, ["seeds:", "not true"]),
    ({"seeds": [0, -1]}, ["seeds:", "-1"]),
    ({"seeds": [1, 1]}, ["seeds:", "twice"]),
    ({"target_loss": "low"}, ["target_loss:", "low"]),
    ({"show": ["los"]}, ["show:", "did you mean loss"]),
    ({"show": []}, ["show:", "list of figures"]),
    ({"premise": {"idle_share": 1}}, ["premise:", "must be a list"]),
    ({"premise": [{"quantity": "idle_shar", "at_most": 1}]}, ["premise:", "did you mean idle_share"]),
    ({"premise": [{"quantity": "idle_share"}]}, ["idle_share", "no range", "at_least:"]),
    ({"premise": [{"quantity": "idle_share", "at_most": "1"}]}, ["at_most:", "must be a number"]),
    ({"premise": [{"quantity": "drift", "at_least": 2, "at_most": 1}]}, ["drift", "2 is above at_most: 1"]),
    ({"premise": [{"quantity": "drift", "most": 1}]}, ["no key most", "at_most"]),
    ({"premise": [{"quantity": "drift", "at_most": 1, "variants": ["b"]}]}, ["no b", "ssgd, asgd"]),
    ({"tune": {"momentum": [0, 0.9]}}, ["tune:", "its own seeds:"]),
    ({"tune": {"momentum": [0, 0.9], "seeds": [1, 9]}}, ["1 is a seed of the experiment too", "others"]),
    ({"tune": {"momentum": [0, 2], "seeds": [9]}}, ["momentum=2", "[0, 1)"]),
    ({"tune": {"lr": [0.1, 1], "seeds": [9]}}, ["lr is set under variants: and tune:"]),
    ({"tune": {"seeds": [9]}}, ["tune:", "empty"]),
    ({"tune": "Auto"}, ["tune: must be auto, or options with lists"]),
]


@pytest.mark.parametrize(("changes", "parts"), REFUSED, ids=[str(changes) for changes, _ in REFUSED])
def test_a_mistake_in_the_file_gets_one_line_and_nothing_is_run(
    changes: dict[str, Any], parts: list[str], ask: Ask, tmp_path: Path
) -> None:
    """Exit 2, one line that names the file, the place and the remedy; no folder is made."""
    path = tmp_path / "try.yaml"
    whole = content() | changes
    given_keys = {key: value for key, value in whole.items() if value is not None}
    path.write_text(yaml.safe_dump(given_keys, sort_keys=False))
    ask.refuses(path, [f"compare {path}", *parts])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("title: a\ntitle: b", ["line 2", "'title' appears twice"]),
        ("title: 'open", ["is not YAML"]),
        ("- title", ["mapping"]),
        (None, ["cannot be read", "compare-modes.yaml"]),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(
    text: str | None, parts: list[str], ask: Ask, tmp_path: Path
) -> None:
    """Two variants of one name, text that is not YAML, a missing file: one line each."""
    path = tmp_path / "try.yaml"
    if text is not None:
        path.write_text(text)
    ask.refuses(path, [f"compare {path}", *parts])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "steps"], ["--set steps", "option=value"]),
        (["--set", "steps=0"], ["--steps 0", "at least 1"]),
        (["--set", "stepz=3"], ["--set stepz=3", "did you mean steps"]),
        (["--set", "lr=3"], ["--set lr=3", "under variants:", "change it there"]),
        (["--set", "seeds=none"], ["seeds:", "not none"]),
        (["--steps", "3"], ["--steps", "--set steps=VALUE"]),
        (["--dryrun"], ["--dryrun", "did you mean --dry-run"]),
        (["--processes", "0"], ["--processes 0", "at least 1"]),
        (["--processes", "two"], ["--processes two", "whole number"]),
        (
            ["--set", "workload=xor", "--set", "samples=3", "--set", "dim=2"],
            ["variant ssgd", "--batch-size 32"],
        ),
    ],
)
def test_a_mistake_on_its_command_line_gets_one_line(
    arguments: list[str], parts: list[str], ask: Ask, tmp_path: Path
) -> None:
    """A mistake that only the data show, a shard too small, is found before anything runs."""
    ask.refuses(write(tmp_path), parts, *arguments, "--dry-run")


# -------------------------------------------------------------------------------------------- shipped ones


def test_a_cluster_that_is_out_of_reach_is_one_line(tmp_path: Path) -> None:
    """It ends with exit code 1, the address and a remedy; in a process that is connected to no other."""
    arguments = ["compare", "ssgd", "asgd", "--engine", "ray", "--lr", "1", "--start-timeout-s", "1"]
    done = run_python(ROOT / "main.py", *arguments, cwd=tmp_path, env={"RAY_ADDRESS": "127.0.0.1:1"})
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert said.startswith("main.py: RAY_ADDRESS=127.0.0.1:1: no Ray cluster answers there within")
    assert "unset RAY_ADDRESS" in said


@pytest.mark.parametrize("verb", ["compare", "report"])
def test_help_is_given_where_the_verb_lacks_its_value(verb: str, ask: Ask) -> None:
    """`compare --help` and `report --help` print their options and exit with 0."""
    with pytest.raises(SystemExit) as stop:
        ask.main(verb, "--help")
    assert stop.value.code == 0


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[needs("fashion-mnist")] * ("fashion" in path.stem))
        for path in SHIPPED
    ],
)
def test_a_shipped_experiment_is_valid_and_compares_equal_budgets(path: Path) -> None:
    """Each of its runs can be made, with its data, and all see equally many samples; it asks a question."""
    asked = load(path)
    assert asked.question.endswith("?")
    assert len(asked.seeds) >= 2
    runs = [*asked.tuning_runs(), *asked.runs()]
    check_data(runs)
    assert len({r.cfg.budget * r.cfg.batch_size for r in runs}) == 1
    text = (ROOT / "docs/experiments.md").read_text()
    assert f"`{path.name}`" in text


# ------------------------------------------------------------------------------------------------ its runs

FAST: dict[str, Any] = {
    "engine": "sim",
    "num_workers": 2,
    "workload": "none",
    "compute_time": "exponential:1",
}


def test_a_dry_run_lists_every_run_and_writes_nothing(tmp_path: Path, ask: Ask) -> None:
    """One line a run, tuning among them, with what differs; then their number."""
    path = write(tmp_path, base=FAST | {"steps": 50}, tune={"momentum": [0, 0.5], "seeds": [9]})
    asked = ask(path, "--dry-run")
    assert asked.code == 0
    names = re.findall(r"^(\S+) +mode=\w+", asked.out, re.MULTILINE)
    experiment = load(path)
    assert names == [f"tuning/{r.name}" for r in experiment.tuning_runs()] + [
        r.name for r in experiment.runs()
    ]
    assert "8 runs, 0 of them kept; into" in asked.out
    assert not ask.out.exists()


def test_a_premise_holds_or_does_not_in_the_report_at_the_end_and_in_the_exit_code(
    tmp_path: Path, ask: Ask
) -> None:
    """Of mini-batches of 1 s, and one worker at half the speed: each variant's median decides."""
    base = BASE | {"num_workers": 3, "compute_time": "constant:1", "slowdown": "0=2"}
    true = {"quantity": "slowest_ratio", "at_least": 2, "at_most": 2}
    fresh = {"quantity": "staleness_max", "at_most": 0}
    premise = [true, fresh, fresh | {"variants": ["ssgd"]}, {"quantity": "consensus", "at_least": 0}]
    path = write(tmp_path, seeds=1, base=base, premise=premise)
    ran = ask(path)
    said = [line.removeprefix("premise ") for line in ran.out.splitlines() if line.startswith("premise ")]
    broken = r"staleness_max is 0 to (\d), at most 0: does not hold with asgd \(\1\)"
    assert re.fullmatch(broken, said[1])
    held = "slowest_ratio is 2, at least 2, at most 2: holds"
    assert [*said[:1], *said[2:]] == [
        held,
        "staleness_max is 0, at most 0: holds",
        "consensus at least 0: was not measured",
    ]
    assert ran.code == 0
    page = (ask.out / "try" / "report.html").read_text()
    assert all(f"Premise: {line}" in page for line in said)
    assert ask(path, "--check-premise").code == 1
    write(tmp_path, seeds=1, base=base, premise=[true])  # of the same runs
    assert ask(path, "--check-premise").code == 0
    write(tmp_path, seeds=1, base=base, premise=[fresh | {"variants": ["ssgd", "asgd"], "at_most": 9}])
    assert ask(path, "--check-premise").code == 0
    (ask.out / "try" / "asgd-s0" / "summary.json").write_text("{}")  # of which nothing is known now
    unknown = ask(path, "--check-premise")
    assert (unknown.code, "at most 9: was not measured with asgd" in unknown.out) == (1, True)
    shutil.rmtree(ask.out / "try" / "asgd-s0")
    write(tmp_path, seeds=1, base=base)
    ask.refuses(path, ["--check-premise", "has no premise:"], "--check-premise")


def test_every_experiment_of_a_rayjob_states_its_premise() -> None:
    """A comparison on other machines is worth what they made of its setting."""
    for job in (job for job in JOBS if job.is_experiment):
        assert load(ROOT / job.arguments.split()[1]).premises, job.name


@pytest.mark.thorough
def test_killed_and_started_again_it_loses_only_what_was_being_run(tmp_path: Path, ask: Ask) -> None:
    """SIGKILL, then SIGTERM, then to the end: finished runs keep their bytes, and no process stays behind.

    What comes out is what main.py gives for each run alone.
    """
    path = write(tmp_path, base=FAST | {"steps": 12_000}, seeds=3)
    command = ["main.py", "compare", str(path), "--out", str(ask.out), "--processes", "1"]
    folder = ask.out / "try"

    def start_until(finished: int) -> subprocess.Popen[str]:
        process = python(*command)
        while (
            len(list(folder.glob("*/summary.json"))) < finished or len(list(folder.glob("*-s*"))) == finished
        ):
            assert process.poll() is None
            time.sleep(0.01)
        return process

    process = start_until(1)
    process.kill()
    assert process.communicate()[1] == ""
    summaries = list(folder.glob("*/summary.json"))
    before = {path: content for s in summaries for path, content in snapshot(s.parent).items()}
    assert len(summaries) < len(list(folder.glob("*-s*")))

    process = start_until(3)
    process.terminate()
    out, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines() == [
        "main.py: interrupted; finished runs are kept, and the same command makes the others"
    ]
    assert f"{len(summaries)} finished runs are kept" in out

    asked = ask(path, "--processes", "1")
    assert asked.code == 0
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert len(list(folder.glob("*/summary.json"))) == 6
    assert not list(folder.glob(".*"))
    alone = run("asgd", **FAST, steps=12_000, lr=0.05, seed=2)
    summary = json.loads((folder / "asgd-s2" / "summary.json").read_text())
    assert summary["clock_s"] == alone.updates[-1].finished_s


def test_any_number_of_processes_gives_the_weights_of_a_single_run(tmp_path: Path, ask: Ask) -> None:
    """The same weights_sha256 from one process, from two, and from main.py alone; and tables of all runs."""
    path = write(tmp_path, base=BASE | {"grad_noise": 0.1})
    hashes = []
    for processes in ("1", "2"):
        folder = tmp_path / processes
        asked = ask.main("compare", str(path), "--out", str(folder), "--processes", processes)
        assert asked.code == 0
        assert asked.out.splitlines()[-1].endswith("report.html")
        assert (folder / "try/report.html").is_file()
        runs = pl.read_parquet(folder / "try/results.parquet")
        assert runs["variant"].to_list() == ["ssgd", "ssgd", "asgd", "asgd"]
        assert pl.read_parquet(folder / "try/curves.parquet")["variant"].n_unique() == 2
        summaries = {p.parent.name: json.loads(p.read_text()) for p in folder.rglob("summary.json")}
        hashes.append({name: summary["weights_sha256"] for name, summary in summaries.items()})
    assert hashes[0] == hashes[1]
    for mode, lr in (("ssgd", 0.1), ("asgd", 0.05)):
        w = run(mode, **BASE, grad_noise=0.1, lr=lr, seed=1).w
        assert hashes[0][f"{mode}-s1"] == hashlib.sha256(w.tobytes()).hexdigest()


def test_a_run_that_fails_or_diverges_does_not_stop_the_others(tmp_path: Path, ask: Ask) -> None:
    """A divergence is a result, and kept; a failure is reported (exit 1) and tried again the next time."""
    variants = {
        "broken": {"mode": "ssgd", "compute_time": "constant:1e308"},
        "wild": {"mode": "ssgd", "lr": 1e200},
        "ssgd": {"mode": "ssgd", "faults": "kill:1@t=9999"},
    }
    path = write(tmp_path, variants=variants, seeds=1)
    asked = ask(path, "--processes", "1")
    assert asked.code == 1
    assert "ssgd-s0: the run was over before these faults could happen: kill:1@t=9999" in asked.out
    assert [kept.is_kept(r) for r in load(path, out=ask.out).runs()] == [False, True, True]
    assert "broken-s0 failed: the virtual clock overflowed" in asked.out
    assert "wild-s0 diverged: the loss" in asked.out
    assert "1 diverged" in asked.out
    assert (ask.out / "try/report.html").is_file()
    del variants["broken"]
    asked = ask(write(tmp_path, variants=variants, seeds=1))
    assert asked.code == 0
    assert "2 finished runs are kept" in asked.out


def test_a_process_that_dies_takes_one_run_with_it(tmp_path: Path) -> None:
    """The run has failed, in one line; another process makes the others."""
    runs = load(write(tmp_path, base=FAST | {"steps": 12_000}), out=tmp_path / "runs").runs()

    def kill() -> None:
        while not (runs[0].path / "meta.json").exists():
            time.sleep(0.01)
        children = psutil.Process().children()
        (worker,) = (child for child in children if "compare.worker" in " ".join(child.cmdline()))
        worker.kill()

    with Pool(1) as pool:
        pool.grow(runs)
        killer = threading.Thread(target=kill)
        killer.start()
        ended = [(r.name, outcome.stopped_by, outcome.error) for r, outcome in pool.outcomes(runs)]
        killer.join()
    assert ended == [
        (runs[0].name, "failed", "its process ended with signal 9; if memory ran out, lower --processes"),
        *((r.name, "budget", "") for r in runs[1:]),
    ]


@pytest.mark.thorough
def test_tuning_picks_the_best_value_and_compares_on_other_seeds(tmp_path: Path, ask: Ask) -> None:
    """On the quadratic of curvature 1, one step of lr 1 is at the optimum, and lr above 2 diverges."""
    path = write(
        tmp_path,
        base=BASE | {"steps": 400},
        variants={"ssgd": {"mode": "ssgd"}, "asgd": {"mode": "asgd", "lr_scaling": "workers"}},
        tune={"lr": [0.001, 1, 100], "seeds": [7, 8, 9]},
    )
    asked = ask(path)
    assert asked.code == 0
    assert "ssgd: the best is lr=1\n" in asked.out
    as_run = yaml.safe_load((ask.out / "try/experiment.yaml").read_text())
    choices = {choice["variant"]: choice for choice in as_run["tuning"]["choices"]}
    assert [v["options"]["lr"] for v in as_run["variants"]] == [1, 1]
    assert [t["loss"] is None for t in choices["ssgd"]["tried"]] == [False, False, True]
    assert sorted(p.name for p in (ask.out / "try/tuning").iterdir() if "ssgd+lr=1-" in p.name) == [
        "ssgd+lr=1-s7",
        "ssgd+lr=1-s8",
        "ssgd+lr=1-s9",
    ]
    config = yaml.safe_load((ask.out / "try/ssgd-s1/config.yaml").read_text())
    assert (config["lr"], config["seed"]) == (1.0, 1)


def test_null_leaves_out_an_option_of_the_base(tmp_path: Path) -> None:
    """A variant that cannot have one is refused with that remedy; then it has the mode's default."""
    base = BASE | {"server_bytes_per_s": 1e9, "local_steps": 4}
    bare: dict[str, Any] = {"mode": "ssgd", "topology": "allreduce"}
    for option in ("local_steps", "server_bytes_per_s"):
        with pytest.raises(UsageError, match=f"leave.*; {option}: null leaves it out of this variant$"):
            load(write(tmp_path, base=base, variants={"l": {"mode": "localsgd"}, "s": bare}))
        bare |= {option: None}
    local, without = load(
        write(tmp_path, base=base, variants={"l": {"mode": "localsgd"}, "s": bare})
    ).variants
    assert (local.cfg.timing.server_bytes_per_s, without.cfg.timing.server_bytes_per_s) == (1e9, math.inf)
    with pytest.raises(UsageError, match="local_stepz: there is no such option"):
        load(write(tmp_path, variants={"s": {"mode": "ssgd", "local_stepz": None}}))


LOCAL: dict[str, Any] = {"mode": "diloco", "inner": "sgd", "local_steps": 2}


def test_auto_tries_what_the_file_leaves_to_each_mode(tmp_path: Path) -> None:
    """Step sizes around the variant's own, and the values in TUNE of options that the file does not set."""
    variants = {"a": {"mode": "asgd", "lr": 0.5}, "d": LOCAL, "set": LOCAL | {"outer_lr": 1}}
    asked = load(write(tmp_path, variants=variants, tune="auto"))
    assert asked.tuning
    values = asked.tuning.values
    assert values["a"] == {"lr": [0.056, 0.17, 0.5, 1.5, 4.5, 14.0]}
    assert list(values["d"]) == ["lr", "outer_lr", "outer_momentum"]
    assert list(values["set"]) == ["lr", "outer_momentum"]
    assert {v.options["outer_lr"] for v in asked.tuning.tried["set"]} == {1}
    assert len(asked.tuning.tried["d"]) == 6 * 3 * 3
    grid = load(write(tmp_path, variants={"a": {"mode": "asgd"}}, grid={"lr": [0.1, 0.2]}, tune="auto"))
    assert grid.tuning is None  # the grid compares what would be chosen


def test_what_a_mode_lacks_is_not_tried_for_it(tmp_path: Path) -> None:
    """Of the options under tune a variant tries those that its mode has, and the others stay as they are."""
    asked = load(
        write(
            tmp_path, variants={"s": {"mode": "ssgd"}, "d": LOCAL}, tune={"outer_lr": [0.7, 1], "seeds": [9]}
        )
    )
    assert asked.tuning
    assert {name: list(own) for name, own in asked.tuning.values.items()} == {"d": ["outer_lr"]}
    assert [v.cfg.mode for v in asked.tuned({"d": asked.tuning.tried["d"][1]}).variants] == ["ssgd", "diloco"]


def test_the_edge_of_what_was_tried_is_pointed_out(tmp_path: Path, cli: CommandLine) -> None:
    """A best value that is the smallest or largest tried is said to be; names have no order."""
    whole = cli("--engine sim --steps 1 --workload none").summary
    asked = load(write(tmp_path, tune={"momentum": [0.5, 0, 0.9], "slowdown": ["", "0=2"], "seeds": [7]}))
    for r in asked.tuning_runs():  # asgd is best without momentum, and nothing lies beyond
        loss = abs(r.cfg.momentum - (r.cfg.mode == "ssgd") * 0.9) + (not r.cfg.timing.slowdown)
        path = asked.folder / "tuning" / r.name
        where = tmp_path / path
        where.mkdir(parents=True)
        summary = whole | {"eval": {"loss": loss, "accuracy": None}}
        (where / "summary.json").write_text(json.dumps(summary))
    with contextlib.chdir(tmp_path):
        (_, tuned), (_, lowest) = choices = choose(asked)
    assert tuned.chosen == {"momentum": 0.9, "slowdown": "0=2"}
    assert (lowest.chosen["momentum"], lowest.at_the_edge) == (0, [])
    assert tuned.at_the_edge == ["momentum"]
    assert "momentum 0.9 is at the edge" in str(choices[0])


def test_what_is_in_the_way_is_refused_and_left_alone(tmp_path: Path, ask: Ask) -> None:
    """A record of other options, a folder that is no record, another process: one line, nothing changed."""
    path = write(tmp_path, base=FAST | {"steps": 5}, seeds=1)
    assert ask(path).code == 0
    remedy = "choose another --out, or delete"
    ask.refuses(path, ["ssgd-s0", "steps 5", "asks for steps 6", remedy], "--set", "steps=6")
    record = ask.out / "try/ssgd-s0"
    (record / "summary.json").unlink()  # a partial one of other options is in the way too
    ask.refuses(path, ["ssgd-s0", "steps 5", "asks for steps 6", remedy], "--set", "steps=6")
    (record / "thesis.tex").write_text("")
    ask.refuses(path, ["ssgd-s0", "not the record of a run", "move it away"])
    (record / "thesis.tex").unlink()
    (record / "config.yaml").write_text("- torn")
    assert "ssgd-s0 failed: " in (torn := ask(path)).out
    assert torn.code == 1
    (record / "meta.json").unlink()  # killed before it began
    (record / "workload.py").write_text("")  # the file of a workload
    assert ask(path).code == 0
    record.rename(tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    ask.refuses(path, ["ssgd-s0", "not the record of a run"])


def test_two_at_once_are_one_too_many(tmp_path: Path, ask: Ask) -> None:
    """While a process runs an experiment, another gets one line; a dry run may still read."""
    path, folder = write(tmp_path, base=FAST | {"steps": 5}, seeds=1), ask.out / "try"
    with kept.locked(folder):
        with (
            pytest.raises(UsageError, match=f"{folder}: another process .* choose another --out"),
            kept.locked(folder, patience_s=0.1),
        ):
            pass
        assert ask(path, "--dry-run").code == 0
    assert ask(path).code == 0


@pytest.mark.parametrize(("option", "value"), [("steps", 9), ("momentum", 0.9)])
def test_a_record_without_an_option_had_its_default(option: str, value: float, tmp_path: Path) -> None:
    """An option that an older version lacked makes no difference, unless it is set now."""
    asked = load(write(tmp_path, variants={"ssgd": {"mode": "ssgd"}}, seeds=1), out=tmp_path / "runs")
    (r,) = asked.runs()
    r.path.mkdir(parents=True)
    config = yaml.safe_load(yaml.safe_dump(options(r.cfg)))
    del config["momentum"]
    (r.path / "config.yaml").write_text(yaml.safe_dump(config))
    (r.path / "meta.json").write_text("{}")
    ended = {"stopped_by": "budget", "updates": 0, "gradients": 0, "clock_s": 0.0}
    empty = {"eval": {"loss": None, "accuracy": None}, "loss": {"first": None, "last": None}}
    (r.path / "summary.json").write_text(json.dumps(ended | empty))
    assert kept.is_kept(r)
    (other,) = load(write(tmp_path, variants={"ssgd": {"mode": "ssgd", option: value}}, seeds=1)).runs()
    (other,) = [replace(other, cfg=replace(other.cfg, output=r.cfg.output))]
    with pytest.raises(UsageError, match=option):
        kept.is_kept(other)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_simulated_and_real_runs_go_together(tmp_path: Path, ask: Ask) -> None:
    """One experiment on both engines: Ray's runs use one cluster, and stay what they are without it."""
    import ray

    variants = {engine: {"mode": "ssgd", "engine": engine} for engine in ("sim", "ray")}
    base = {key: value for key, value in BASE.items() if key != "engine"}
    asked = ask(write(tmp_path, base=base, variants=variants))
    assert asked.code == 0, asked.err
    assert ray.is_initialized()
    runs = pl.read_parquet(ask.out / "try/results.parquet")
    assert runs["engine"].to_list() == ["sim", "sim", "ray", "ray"]
    assert runs["eval_loss"][0] == pytest.approx(runs["eval_loss"][2])
