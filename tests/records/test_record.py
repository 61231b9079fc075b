"""The run record: what a run leaves is complete, repeatable and true."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import PATIENCE_S, ROOT, CommandLine, python, wait_for, where

from dsgd.core.model import Workload
from dsgd.core.time_laws import Trace
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.records.reader import read_summary
from dsgd.records.writer import RunRecord
from dsgd.running.comparison import measured_timing
from dsgd.running.quick_run import config
from dsgd.running.quick_run import run as quick_run
from dsgd.scenario.timing_options import TimingConfig

SIM = "--engine sim --compute-time exponential:1"


def test_the_documented_figures_of_asgd(cli: CommandLine) -> None:
    """8 workers, exponential times: mean staleness 7.0 ± .05, P(0) = .125 ± .01, .125 s an update ± 2 %."""
    summary = cli(f"{SIM} --mode asgd --num-workers 8 --steps 2000 --workload none --quiet").summary
    assert summary["staleness"]["mean"] == pytest.approx(7.0, abs=0.05)
    assert summary["staleness"]["counts"]["0"] / summary["gradients"] == pytest.approx(0.125, abs=0.01)
    assert summary["clock_s"] / summary["updates"] == pytest.approx(0.125, rel=0.02)


def test_the_same_command_twice_gives_the_same_weights(cli: CommandLine) -> None:
    """Same options: same weights_sha256; another seed: another one."""
    one, two = (cli(f"{SIM} --mode asgd --steps 30").summary for _ in range(2))
    assert one["weights_sha256"] == two["weights_sha256"]
    assert cli(f"{SIM} --mode asgd --steps 30 --seed 1").summary["weights_sha256"] != one["weights_sha256"]


@pytest.mark.parametrize("mode", ["ssgd", "ssp"])
def test_a_record_is_enough_to_repeat_its_run(mode: str, cli: CommandLine) -> None:
    """`--config RECORD/config.yaml` makes the same run again; the command line overrides the file."""
    own = "--slack 1" if mode == "ssp" else ""
    first = cli(
        f"{SIM} --mode {mode} {own} --steps 20 --seed 7 --slowdown 0=2 --max-seconds 1e6 --target-loss -1"
    )
    again = cli(f"--config {first.record / 'config.yaml'}")
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]
    assert again.summary["clock_s"] == first.summary["clock_s"]
    other = cli(f"--config {first.record / 'config.yaml'} --seed 8")
    assert other.summary["seed"] == 8


@pytest.mark.parametrize("mode", ["ssp --slack 2", "ssgd", "kasync"])
def test_the_summary_agrees_with_the_updates(cli: CommandLine, mode: str) -> None:
    """Every figure of summary.json can be computed again from updates.jsonl."""
    ran = cli(f"{SIM} --mode {mode} --num-workers 5 --steps 40 --slowdown 1=3")
    updates, summary = ran.lines("updates.jsonl"), ran.summary
    gradients = [g for u in updates for g in u["gradients"]]
    assert [u["version"] for u in updates] == list(range(1, summary["updates"] + 1))
    assert 200 <= sum(g["batches"] for g in gradients) == summary["gradients"] <= 202
    assert summary["samples"] == summary["gradients"] * 32
    for update in updates:
        assert update["t_s"] == max(g["finished_s"] for g in update["gradients"])
    staleness = [g["staleness"] for g in gradients]
    assert summary["staleness"]["mean"] == pytest.approx(np.mean(staleness))
    assert summary["staleness"]["max"] == max(staleness)
    assert summary["staleness"]["p50"] == np.quantile(staleness, 0.5, method="inverted_cdf")
    assert summary["staleness"]["p95"] == np.quantile(staleness, 0.95, method="inverted_cdf")
    assert sum(summary["staleness"]["counts"].values()) == len(staleness)
    for worker, mean in summary["staleness"]["by_worker"].items():
        assert mean == pytest.approx(
            np.mean([g["staleness"] for g in gradients if g["worker"] == int(worker)])
        )
    assert summary["loss"] == {"first": updates[0]["loss"], "last": updates[-1]["loss"]}
    assert summary["clock_s"] == max(g["finished_s"] for g in gradients) == updates[-1]["t_s"]
    for worker, entry in summary["workers"].items():
        own = [g for g in gradients if g["worker"] == int(worker)]
        assert entry["steps"] == len(own)
        computed_s = sum(g["compute_s"] for g in own)
        assert entry["busy_s"] >= computed_s - 1e-9
        assert entry["batch_s"] == pytest.approx(computed_s / len(own))
        assert entry["busy_s"] + entry["idle_s"] == pytest.approx(summary["clock_s"])
    weights = np.load(ran.record / "weights.npy")
    assert summary["weights_sha256"] == hashlib.sha256(weights.tobytes()).hexdigest()
    evals = ran.lines("evals.jsonl")
    assert summary["eval"] == {"loss": evals[-1]["loss"], "accuracy": evals[-1]["accuracy"]}
    assert evals[0]["version"] == 0
    assert evals[-1]["version"] == summary["updates"]
    due = [
        next(n for n in np.cumsum([len(u["gradients"]) for u in updates]) if n >= at)
        for at in (50, 100, 150, 200)
    ]
    assert [e["gradients"] for e in evals] == [0, *due]


def test_cancelled_tasks_make_no_worker_slow(cli: CommandLine) -> None:
    """With equal times all workers are equal, also those whose tasks ksync cancels."""
    ran = cli(f"{SIM} --mode ksync --k 5 --num-workers 8 --compute-time constant:1 --steps 20")
    assert ran.summary["wasted"]["cancelled"] > 0
    assert read_summary(ran.record).slowest_ratio == 1


def test_the_contract_of_the_summary(cli: CommandLine) -> None:
    """summary.json has the fields that readers rely on."""
    summary = cli(f"{SIM} --mode localsgd --num-workers 2 --steps 9 --local-steps 4").summary
    assert set(summary) == {
        "mode", "engine", "num_workers", "steps", "seed", "updates", "gradients", "samples", "stopped_by",
        "error", "clock_s", "wall_s", "startup_s", "loss", "eval", "staleness", "clock_gap_max", "drift",
        "consensus", "theory", "wasted", "faults", "repeated", "recovery_s", "workers", "over_workers",
        "exchange_s", "bytes", "wasted_bytes", "weights_sha256",
    }  # fmt: skip
    assert summary["over_workers"] == {}
    assert set(summary["staleness"]) == {"mean", "p50", "p95", "max", "counts", "by_worker"}
    assert set(summary["workers"]["0"]) == {
        "steps", "busy_s", "batch_s", "idle_s", "restarts", "sent_bytes", "received_bytes",
    }  # fmt: skip
    assert summary["drift"] > 0
    assert summary["stopped_by"] == "budget"


def test_bytes_follow_the_formula(cli: CommandLine) -> None:
    """A parameter server moves 2 |w| a gradient, LocalSGD 2 |w| / H; padding travels both ways."""
    size = 4 * 65
    for mode, per_gradient in (("ssgd", 1.0), ("asgd", 1.0), ("ssp", 1.0), ("localsgd", 1 / 8)):
        summary = cli(f"{SIM} --mode {mode} --num-workers 3 --steps 16").summary
        one_way = size * 48 * per_gradient
        assert summary["bytes"] == {
            "to_workers": one_way + summary["wasted_bytes"],  # with the tasks in flight at the end
            "to_server": one_way,
            "between_workers": 0,
            "between_servers": 0,
            "fetched": 0,
        }
    moved = cli(f"{SIM} --num-workers 3 --steps 16 --padding-mb .5").summary["bytes"]
    assert moved["to_server"] == (size + 500_000) * 48


@pytest.mark.parametrize(("record", "expected"), [("all", 20), ("every:6", 4), ("none", 0)])
def test_record_says_which_updates_are_written(record: str, expected: int, cli: CommandLine) -> None:
    """all, every N-th, or none: the summary counts all of them anyway."""
    ran = cli(f"{SIM} --steps 20 --record {record}")
    assert len(ran.lines("updates.jsonl")) == expected
    assert ran.summary["updates"] == 20


def test_max_seconds_stops_on_the_engines_clock(cli: CommandLine) -> None:
    """No update after --max-seconds; the run is done, not failed."""
    ran = cli(f"{SIM} --mode asgd --steps 1000 --max-seconds 20")
    assert ran.code == 0
    assert ran.summary["stopped_by"] == "seconds"
    assert 19 < ran.summary["clock_s"] <= 20


def test_target_loss_stops_at_the_evaluation_that_reached_it(cli: CommandLine) -> None:
    """The run ends with the first evaluation at or below the target."""
    ran = cli(f"{SIM} --mode asgd --steps 1000 --target-loss .3")
    losses = [e["loss"] for e in ran.lines("evals.jsonl")]
    assert ran.summary["stopped_by"] == "target-loss"
    assert losses[-1] <= 0.3 < min(losses[:-1])


def test_divergence_is_named_and_recorded(cli: CommandLine) -> None:
    """A loss that is NaN: exit 3, the update and the worker are named, the record is kept."""
    ran = cli(f"{SIM} --mode asgd --workload quadratic --curvatures 1,1,1,9 --lr 1e6 --steps 100")
    assert ran.code == 3
    assert ran.summary["stopped_by"] == "diverged"
    assert "worker" in ran.err
    assert f"update {ran.summary['updates']}" in ran.err
    assert "--lr" in ran.err
    assert ran.lines("updates.jsonl")[-1]["loss"] is None


def test_divergence_in_the_last_update_is_noticed(cli: CommandLine) -> None:
    """No later update meets the loss of the last weights: their evaluation detects divergence, exit 3."""
    ran = cli(f"{SIM} --steps 1 --lr 1e38")
    assert ran.code == 3
    assert ran.summary["stopped_by"] == "diverged"
    assert "--lr" in ran.err


def test_quiet_prints_the_path_alone(cli: CommandLine) -> None:
    """--quiet: one line, the record's path."""
    ran = cli(f"{SIM} --steps 3 --quiet")
    assert ran.out == f"{ran.record}\n"
    assert ran.err == ""


def test_the_default_name_never_collides(cli: CommandLine, tmp_path: Path) -> None:
    """Two unnamed runs within a second get two records."""
    from main import main

    for _ in range(2):
        given = [*SIM.split(), "--steps", "1", "--workload", "none", "--quiet"]
        assert main([*given, "--out", str(tmp_path / "two")]) == 0
    assert len(list((tmp_path / "two").iterdir())) == 2


@pytest.mark.crossing(one_in=2)
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_complete_record(which: signal.Signals, tmp_path: Path) -> None:
    """ctrl-C and SIGTERM: exit 130, and the summary agrees with the updates to the last line."""
    arguments = f"main.py {SIM} --mode asgd --steps 1000000 --out {tmp_path} --run-name r --quiet"
    process = python(*arguments.split())
    updates = tmp_path / "r" / "updates.jsonl"
    wait_for(lambda: updates.exists() and updates.stat().st_size > 100_000)
    process.send_signal(which)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["stopped_by"] == "interrupted"
    assert len(updates.read_text().splitlines()) == summary["updates"]


def test_a_killed_run_leaves_usable_updates(tmp_path: Path) -> None:
    """After SIGKILL all lines but perhaps the last can be read."""
    arguments = f"main.py {SIM} --mode asgd --steps 1000000 --out {tmp_path} --run-name r --quiet"
    process = python(*arguments.split())
    updates = tmp_path / "r" / "updates.jsonl"
    wait_for(lambda: updates.exists() and updates.stat().st_size > 100_000)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    lines = updates.read_text().split("\n")[:-1]
    assert [json.loads(line)["version"] for line in lines] == list(range(1, len(lines) + 1))
    assert yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["steps"] == 1_000_000
    assert not (tmp_path / "r" / "summary.json").exists()


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, GeneratorExit])
def test_a_mistake_in_a_strategy_is_shown_where_it_is(
    error: type[BaseException], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in train(): its traceback, exit 1, and a record that says failed."""
    from dsgd.strategies import train_ssgd

    def broken(*_: object) -> object:
        raise error("a student's mistake")

    monkeypatch.setattr(train_ssgd, "run_all", broken)
    ran = cli(f"{SIM} --mode ssgd --steps 3")
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert ran.summary["stopped_by"] == "failed"
    assert "a student's mistake" in ran.summary["error"]


def test_the_meta_data_name_what_ran(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """meta.json has the versions, the command and the commit."""
    monkeypatch.delenv("DSGD_GIT_COMMIT", raising=False)
    ran = cli(f"{SIM} --steps 2")
    meta = json.loads((ran.record / "meta.json").read_text())
    assert set(meta["versions"]) == {"python", "ray", "torch", "numpy"}
    assert meta["device"] == "cpu"
    assert meta["worker_pids"] == []
    asked = ["git", "rev-parse", "HEAD"]
    known = where("git") and subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert meta["git_commit"] == (known or None)


def test_theory_stands_beside_the_measurement(cli: CommandLine) -> None:
    """summary.json has theory, measurement and their difference; bounds hold, infinite ones are left out."""
    compared = cli(f"{SIM} --mode asgd --num-workers 8 --steps 500 --workload none").summary["theory"]
    assert compared["staleness_mean"]["theory"] == 7
    entry = compared["s_per_update"]
    assert entry["relative_difference"] == pytest.approx(entry["measured"] / 0.125 - 1)
    bounded = cli(f"{SIM} --mode ssp --slack 1 --num-workers 4 --steps 50 --workload none").summary["theory"]
    assert bounded["staleness_max"]["measured"] <= bounded["staleness_max"]["theory"] == 9
    for mode in ("ssp --slack inf", "ringmaster --delay-bound inf"):
        ran = cli(f"{SIM} --mode {mode} --steps 10 --workload none")
        assert ran.code == 0
        assert "staleness_max" not in ran.summary["theory"]


@pytest.mark.parametrize(
    "scenario",
    [
        "--mode ksync --count gradients --rest ignore",
        "--mode asgd --server-time exponential:.1 --latency-s .5",
        "--mode kasync --k 4 --latency-s 1",
        "--mode ssgd --slowdown 0=3",
    ],
)
def test_no_prediction_is_made_outside_its_assumptions(scenario: str, cli: CommandLine) -> None:
    """Whatever theory says of a long run, the measurement is within a tenth of it."""
    compared = cli(f"{SIM} {scenario} --num-workers 8 --steps 1000 --workload none").summary["theory"]
    assert compared
    for entry in compared.values():
        assert entry["relative_difference"] is None or abs(entry["relative_difference"]) < 0.1


def test_a_loss_that_time_ends_on_is_told_as_divergence(cli: CommandLine) -> None:
    """Where the last update before --max-seconds leaves no finite loss, the run has diverged."""
    ran = cli("--engine sim --mode ssgd --steps 9 --lr 1e38 --max-seconds 1.5 --workload digits")
    assert ran.code == 3
    assert ran.summary["stopped_by"] == "diverged"


def test_two_runs_without_a_name_never_collide(tmp_path: Path) -> None:
    """Runs that chose the same default name in the same second get two folders."""
    cfg = config("ssgd", workload="none", out=str(tmp_path))
    cluster = open_cluster(cfg, make_workload(cfg)).__enter__()
    records = [RunRecord(cfg), RunRecord(cfg)]
    for record in records:
        record.open(started=time.time(), cluster=cluster)
        record.close_streams()
    assert len({record.path for record in records}) == 2


def test_an_evaluation_that_fails_leaves_a_summary(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the last evaluation raises, the record is completed and says that the run failed."""

    def evaluate(workload: Workload, w: Any, models: Any = None) -> None:
        if np.any(w != workload.objective.initial_weights(0)):
            raise RuntimeError("planted")

    monkeypatch.setattr(Workload, "evaluate", evaluate)
    ran = cli(f"{SIM} --mode ssgd --steps 3 --eval-every 0")
    assert ran.code == 1
    assert ran.summary["stopped_by"] == "failed"
    assert "planted" in ran.summary["error"]


def test_a_worker_without_a_measured_task_is_as_fast_as_the_others(cli: CommandLine) -> None:
    """--engine both replays the measured times by worker; one that had no part in the run gets them all."""
    ran = cli(f"{SIM} --mode asgd --num-workers 3 --steps 4 --slowdown 2=1000")
    timing = measured_timing(TimingConfig(), ran.record)
    law = timing.compute_law
    assert isinstance(law, Trace)
    assert sorted(law.rows[2]) == sorted([*law.rows[0], *law.rows[1]])
    assert len(law.rows[0]) + len(law.rows[1]) == 12


def test_what_is_taken_back_is_written_again(tmp_path: Path) -> None:
    """Updates that are recorded already are not written twice; taken back, as by a rollback, they are."""
    options: dict[str, Any] = {"num_workers": 2, "steps": 3, "workload": "none"}
    ran = quick_run("asgd", **options)
    record = RunRecord(config("asgd", **options, out=str(tmp_path), run_name="r"))
    record.open(started=0.0, cluster=ran.cluster)

    def recorded() -> list[int]:
        for update in ran.updates:
            record.update(update)
        record.flush()
        lines = (tmp_path / "r/updates.jsonl").read_text().splitlines()
        return [json.loads(line)["version"] for line in lines]

    whole = list(range(1, 7))
    assert recorded() == whole
    record.recorded_to = 6
    assert recorded() == whole
    record.cut(version=0, evals_length=0)
    assert recorded() == whole
    record.close_streams()
    record.release()
