"""The metrics: what Prometheus gets over HTTP is what the run did."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
from conftest import PATIENCE_S, ROOT, CommandLine, Ran, needs, wait_for
from prometheus_client.parser import text_string_to_metric_families

from dsgd.core.protocol import Update
from dsgd.metrics import Tally, families
from dsgd.process.interruptions import Interruptions
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config, run
from dsgd.show.live.observers import Observers
from dsgd.show.live.prometheus import STALENESS_BUCKETS, RunMetrics, RunsCollector
from dsgd.show.watching_options import LiveConfig
from main import main

SIM = "--engine sim --compute-time exponential:1"
LINGER_S = 100


class Scrape:
    """A text that Prometheus would read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def __call__(self, name: str, **labels: object) -> float:
        """Return the sum over all series of this name with these labels; NaN if there are none."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        found = [s.value for s in self._samples if s.name == name and wanted <= set(s.labels.items())]
        return sum(found) if found else math.nan

    def labels(self, name: str) -> list[dict[str, str]]:
        return [s.labels for s in self._samples if s.name == name]


def scrape(url: str) -> Scrape:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.read().decode())


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def watched(cli: CommandLine, text: str, look: Callable[[str, Path], None]) -> Ran:
    """Run with the metrics' port open and `look` at it from a thread; then end the lingering by ctrl-C."""
    port, ended, failures = free_port(), threading.Event(), []
    record = cli.out / f"watched{len(list(cli.out.glob('watched*')))}"

    def watch() -> None:
        try:
            look(f"http://127.0.0.1:{port}/metrics", record)
        except BaseException as failure:
            failures.append(failure)
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    began_s = time.monotonic()
    ran = cli(f"{text} --metrics-port {port} --metrics-linger-s {LINGER_S} --run-name {record.name}")
    ended.set()
    thread.join()
    if failures:
        raise failures[0]
    assert time.monotonic() - began_s < LINGER_S
    return ran._replace(record=record)


def scraped(cli: CommandLine, text: str) -> tuple[Scrape, Ran]:
    """Run, and scrape once the record is complete."""
    found = []

    def look(url: str, record: Path) -> None:
        wait_for((record / "summary.json").exists)
        found.append(scrape(url))

    ran = watched(cli, text, look)
    return found[0], ran


def status_of(url: str) -> int:
    """Return the status of an answer; 0 where nothing answers yet."""
    with suppress(urllib3.exceptions.HTTPError):
        return urllib3.request("GET", url, retries=False, timeout=PATIENCE_S).status
    return 0


def assert_same(got: Scrape, summary: dict[str, Any]) -> None:
    """Assert that the metrics equal summary.json, exactly where nothing is added up in another order."""
    assert got("dsgd_updates_total") == summary["updates"]
    assert got("dsgd_gradients_total") == summary["gradients"]
    assert got("dsgd_samples_total") == summary["samples"]
    counts = {int(value): n for value, n in summary["staleness"]["counts"].items()}
    assert got("dsgd_staleness_updates_count") == sum(counts.values())
    assert got("dsgd_staleness_updates_sum") == sum(value * n for value, n in counts.items())
    assert got("dsgd_staleness_max_updates") == summary["staleness"]["max"]
    promised = {name: entry["theory"] for name, entry in summary["theory"].items()}
    always_fresh = 0 if promised.get("staleness_mean") == 0 else math.nan
    expected = promised.get("staleness_max", always_fresh)
    assert got("dsgd_staleness_bound_updates") == pytest.approx(expected, nan_ok=True)
    for bound in (*STALENESS_BUCKETS, math.inf):
        name = "+Inf" if bound == math.inf else str(bound)
        within = sum(n for value, n in counts.items() if value <= bound)
        assert got("dsgd_staleness_updates_bucket", le=name) == within
    for worker, mean in summary["staleness"]["by_worker"].items():
        total = got("dsgd_staleness_updates_sum", worker=worker)
        assert total / got("dsgd_staleness_updates_count", worker=worker) == mean
    assert got("dsgd_train_loss") == summary["loss"]["last"]
    assert got("dsgd_eval_loss") == summary["eval"]["loss"]
    assert got("dsgd_eval_accuracy") == summary["eval"]["accuracy"]
    for direction, moved in summary["bytes"].items():
        assert got("dsgd_bytes_total", direction=direction) == moved
    for worker, totals in summary["workers"].items():
        assert got("dsgd_worker_sent_bytes_total", worker=worker) == totals["sent_bytes"]
        assert got("dsgd_worker_received_bytes_total", worker=worker) == totals["received_bytes"]
        assert got("dsgd_exchange_seconds_total", worker=worker) >= 0  # a difference of three times, rounded
    applied = got("dsgd_staleness_updates_count")
    assert got("dsgd_exchange_seconds_total") / applied == pytest.approx(summary["exchange_s"], abs=1e-6)
    rate = summary["samples"] / summary["clock_s"] if summary["clock_s"] else math.nan
    assert got("dsgd_samples_per_second") == pytest.approx(rate, nan_ok=True)
    assert got("dsgd_experiment_loss") == summary["eval"]["loss"]
    assert got("dsgd_learning_rate") == 0.1
    assert got("dsgd_tasks_in_flight") == 0
    assert got("dsgd_memory_bytes", process="driver") > 1e7
    drift = got("dsgd_localsgd_drift")
    assert math.isnan(drift) if summary["drift"] is None else drift == summary["drift"]
    steps = [worker["steps"] for worker in summary["workers"].values()]
    assert got("dsgd_clock_gap_steps") == max(steps) - min(steps)
    assert got("dsgd_update_seconds_count") == summary["updates"]
    assert got("dsgd_update_seconds_sum") == summary["clock_s"]
    for worker, totals in summary["workers"].items():
        assert got("dsgd_worker_restarts_total", worker=worker) == totals["restarts"]
        # The summary knows of tasks in flight and of cancelled ones, which never come in.
        assert got("dsgd_compute_seconds_sum", worker=worker) <= totals["busy_s"] + 1e-6
        assert got("dsgd_wait_seconds_sum", worker=worker) <= totals["idle_s"] + 1e-6
        tasks = got("dsgd_compute_seconds_count", worker=worker)
        assert got("dsgd_wait_seconds_count", worker=worker) == tasks
        if summary["mode"] != "localsgd":  # where a task is one mini-batch
            assert tasks == totals["steps"]
    assert got("dsgd_run_active") == 0
    (info,) = got.labels("dsgd_run_info")
    assert info["mode"] == summary["mode"]
    assert info["engine"] == summary["engine"]
    assert info["num_workers"] == str(summary["num_workers"])
    assert {"dataset", "git_commit", "version"} <= set(info)


@pytest.mark.parametrize(
    "mode",
    [
        "ssgd",
        "asgd --slowdown 0=3",
        "ssp --slack 1 --latency-s .2",
        "localsgd --local-steps 4",
        "ksync --k 2 --rest ignore --slowdown 0=3",
        "ksync --k 3 --count gradients",
        "ringmaster --delay-bound 3 --slowdown 0=9",
    ],
)
def test_at_the_end_prometheus_holds_the_summary(mode: str, cli: CommandLine) -> None:
    """Each figure of summary.json that is a metric equals it over HTTP, in the simulator."""
    got, ran = scraped(cli, f"{SIM} --mode {mode} --steps 60")
    assert ran.code == 0
    assert_same(got, ran.summary)
    assert {labels["run_id"] for labels in got.labels("dsgd_run_info")} == {ran.record.name}
    assert got("dsgd_last_update_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    assert (
        0 < got("dsgd_startup_seconds", until="workers") < got("dsgd_startup_seconds", until="first_update")
    )
    if "ignore" in mode:
        assert ran.summary["wasted"]["ignored"] > 0


def test_tokens_are_counted_of_language_models_alone(cli: CommandLine) -> None:
    """They are the samples times the windows' length, in the record and over HTTP."""
    got, ran = scraped(cli, f"{SIM} --mode asgd {LANGUAGE} --steps 3")
    assert ran.summary["tokens"] == ran.summary["samples"] * 16 == got("dsgd_tokens_total") > 0
    assert got("dsgd_tokens_per_second") == ran.summary["tokens"] / ran.summary["clock_s"]
    other, ran = scraped(cli, f"{SIM} --mode asgd --steps 3")
    assert "tokens" not in ran.summary
    assert math.isnan(other("dsgd_tokens_total"))
    assert math.isnan(other("dsgd_tokens_per_second"))


def test_a_driver_is_ready_while_a_run_has_its_workers_and_alive_as_long_as_it_answers(
    cli: CommandLine,
) -> None:
    def during(url: str, _: Path) -> None:
        ready = url.replace("/metrics", "/readyz")
        wait_for(lambda: status_of(ready) == 200)

    def after(url: str, record: Path) -> None:
        wait_for((record / "summary.json").exists)
        paths = ("/readyz", "/healthz")
        assert [status_of(url.replace("/metrics", path)) for path in paths] == [503, 200]

    watched(cli, f"{SIM} --mode asgd --steps 10000000 --workload none --record none", during)
    watched(cli, f"{SIM} --mode asgd --steps 1", after)


@pytest.mark.crossing(one_in=2)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("mode", ["localsgd", "ksync --k 1 --rest ignore"])
def test_at_the_end_prometheus_holds_the_summary_on_ray(mode: str, cli: CommandLine) -> None:
    """Each figure of summary.json that is a metric equals it over HTTP, on real workers."""
    got, ran = scraped(cli, f"--mode {mode} --num-workers 2 --steps 30")
    assert ran.code == 0
    assert_same(got, ran.summary)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_lost_worker_is_counted(cli: CommandLine) -> None:
    """A worker killed during the run shows as one restart of that worker, as in the summary."""
    found = []

    def look(url: str, record: Path) -> None:
        wait_for((record / "meta.json").exists)
        os.kill(json.loads((record / "meta.json").read_text())["worker_pids"][1], signal.SIGKILL)
        wait_for((record / "summary.json").exists)
        found.append(scrape(url))

    ran = watched(cli, "--num-workers 2 --steps 60 --compute-time constant:.02", look)
    assert_same(found[0], ran.summary)
    assert found[0]("dsgd_worker_restarts_total", worker=1) == 1
    assert found[0]("dsgd_worker_restarts_total", worker=0) == 0


@pytest.mark.parametrize("mode", ["ssgd", "localsgd --local-steps 4", "asgd", "ssgd --latency-s .3"])
def test_seconds_of_computing_and_waiting_are_the_summarys(mode: str, cli: CommandLine) -> None:
    """Waiting is the summary's idle_s and, where no task is in flight at the end, computing its busy_s."""
    got, ran = scraped(cli, f"{SIM} --mode {mode} --steps 60 --slowdown 1=3")
    for worker, totals in ran.summary["workers"].items():
        waited = got("dsgd_wait_seconds_sum", worker=worker)
        assert waited == pytest.approx(totals["idle_s"], abs=1e-6)
        if mode != "asgd":
            computed = got("dsgd_compute_seconds_sum", worker=worker)
            assert computed == pytest.approx(totals["busy_s"], abs=1e-6)


def test_a_scrape_sees_whole_updates(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run goes on, what is scraped is of one moment, and no counter ever falls."""
    scrapes: list[Scrape] = []
    seen, add = threading.Event(), RunMetrics.add

    def add_and_wait(metrics: RunMetrics, update: Update) -> None:
        add(metrics, update)
        if update.weights.version == 3000:  # in the middle, so that it is seen at least here
            seen.wait(PATIENCE_S)

    def look(url: str, record: Path) -> None:
        wait_for((record / "meta.json").exists)
        while not (record / "summary.json").exists():
            scrapes.append(got := scrape(url))
            if got.labels("dsgd_run_info") and got("dsgd_updates_total"):
                seen.set()

    monkeypatch.setattr(RunMetrics, "add", add_and_wait)

    seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of whatever they do
    try:
        ran = watched(
            cli, f"{SIM} --mode asgd --num-workers 3 --steps 2000 --workload none --record none", look
        )
    finally:
        sys.setswitchinterval(seconds)
    before = 0.0
    for got in scrapes:
        if not got.labels("dsgd_run_info"):  # the run was about to begin
            continue
        updates = got("dsgd_updates_total")
        for name in ("gradients_total", "staleness_updates_count", "compute_seconds_count"):
            assert got(f"dsgd_{name}") == updates
        assert got("dsgd_wait_seconds_count") == updates
        assert got("dsgd_update_seconds_count") == updates >= before
        before = updates
    assert any(0 < got("dsgd_updates_total") < ran.summary["updates"] for got in scrapes)


def test_a_loss_that_is_not_finite_is_exported(cli: CommandLine) -> None:
    """A diverged run shows the loss that ended it, for an alert to find."""
    got, ran = scraped(cli, "--engine sim --mode asgd --workload quadratic --lr 1e30 --steps 50")
    assert ran.code == 3
    assert got.labels("dsgd_train_loss")
    assert not math.isfinite(got("dsgd_train_loss"))


def test_runs_of_one_process_differ_by_their_labels(tmp_path: Path) -> None:
    """Two runs one after another are scraped side by side, each under its mode and its record's name."""
    with Interruptions() as interruptions, Observers(LiveConfig(metrics_port=0), quiet=True) as observers:
        for mode, steps in (("ssgd", 5), ("asgd", 7)):
            cfg = config(mode, steps=steps, out=str(tmp_path), run_name=f"my-{mode}", quiet=True)
            ended = execute(cfg, observers.watchers(), record=RunRecord(cfg), interruptions=interruptions)
            assert ended.stopped_by == "budget"
        assert observers.exporter
        got = scrape(observers.exporter.url)
    assert got("dsgd_gradients_total", mode="ssgd", run_id="my-ssgd") == 4 * 5
    assert got("dsgd_gradients_total", mode="asgd", run_id="my-asgd") == 4 * 7
    assert got("dsgd_run_active") == 0


def test_runs_that_ended_long_ago_are_no_longer_shown() -> None:
    """However many runs a process makes, the last sixteen and those that go on are kept."""
    outcome, runs = run("ssgd", num_workers=2, steps=2), RunsCollector()
    tally = Tally(2, 32, outcome.cluster.clocks)
    for number in range(40):
        metrics = RunMetrics("ssgd", f"run{number}", {}, outcome.cluster, tally)
        runs.add(metrics)
        if number:
            metrics.finish()
    info = next(family for family in runs.collect() if family.name == "dsgd_run")
    assert [s.labels["run_id"] for s in info.samples] == ["run0", *(f"run{n}" for n in range(23, 40))]


LANGUAGE = "--workload gpt --size 100k --context 16 --batch-size 2"
HAVE_ALL = ("ssgd", "adacomm", "dpsgd", f"localsgd {LANGUAGE} --experts 2 --top-k 1 --capacity 1")
"""Modes, with options, that together have all metrics."""


@needs("promtool")
@pytest.mark.parametrize("mode", HAVE_ALL)
def test_the_text_passes_promtool(cli: CommandLine, mode: str) -> None:
    """Prometheus's own linter has nothing to say."""
    got, _ = scraped(cli, f"{SIM} --mode {mode} --steps 20")
    checked = ["promtool", "check", "metrics"]
    said = subprocess.run(checked, input=got.text, capture_output=True, text=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_names_types_and_labels_are_those_of_the_contract(cli: CommandLine) -> None:
    found = dict[str, Any]()
    for mode in HAVE_ALL:
        got, _ = scraped(cli, f"{SIM} --mode {mode} --steps 20")
        found |= {f.name: f for f in text_string_to_metric_families(got.text) if f.samples}
    for name, family in families().items():
        parsed = found[name.removesuffix("_total") if family.kind == "counter" else name]
        assert parsed.type == ("gauge" if family.kind == "info" else family.kind)
        assert parsed.samples
        for sample in parsed.samples:
            assert set(sample.labels) - {"le"} == {"mode", "run_id", *family.labels}


def test_the_metrics_are_documented() -> None:
    """docs/observing.md has a row for each metric, with its type and its labels, and for no other."""
    rows = re.findall(
        r"^\| `(dsgd_\w+)`.*? \| (\w+) \|([^|]*)\|", (ROOT / "docs/observing.md").read_text(), re.M
    )
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {name: (family.kind, family.labels) for name, family in families().items()}


def test_without_the_option_prometheus_client_is_not_imported(tmp_path: Path) -> None:
    """A run that nobody watches pays for no exporter, not even its import."""
    code = (
        "import sys; from main import main; "
        "main('--engine sim --steps 2 --workload none --quiet --out'.split() + sys.argv[1:]); "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True)
    assert (ran.returncode, ran.stderr) == (0, b"")


# ---- experiments

EXPERIMENT = """
title: Two modes
question: Which one?
base: {{engine: {engine}, num_workers: 2, steps: 5}}
variants: {{ssgd: {{mode: ssgd}}, asgd: {{mode: asgd}}}}
seeds: 1
"""


def test_simulations_of_an_experiment_have_no_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run in other processes: one line says so and names what to use, and nothing is run."""
    (tmp_path / "two.yaml").write_text(EXPERIMENT.format(engine="sim"))
    arguments = ["compare", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--metrics-port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--metrics-port" in line
    assert "--dashboard" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_an_experiment_on_ray_is_scraped_at_one_port(tmp_path: Path) -> None:
    """Its runs are distinguished by mode and run_id, and stay for as long as was asked after the last."""
    (tmp_path / "two.yaml").write_text(EXPERIMENT.format(engine="ray"))
    port, found = free_port(), []

    def watch() -> None:
        try:
            wait_for((tmp_path / "out" / "two" / "report.html").exists)
            found.append(scrape(f"http://127.0.0.1:{port}/metrics"))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    options = f"--metrics-port {port} --metrics-linger-s {LINGER_S}"
    arguments = ["compare", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "out")]
    assert main([*arguments, *options.split()]) == 0
    thread.join()
    for mode in ("ssgd", "asgd"):
        record = tmp_path / "out" / "two" / f"{mode}-s0"
        summary = json.loads((record / "summary.json").read_text())
        assert found[0]("dsgd_updates_total", mode=mode, run_id=record.name) == summary["updates"]


# ---- lingering


def test_a_finished_run_stays_for_as_long_as_was_asked(cli: CommandLine) -> None:
    """Without ctrl-C the wait ends by itself, and the exit code is the run's."""
    assert cli(f"{SIM} --steps 5 --metrics-port 0 --metrics-linger-s .2").code == 0


def test_ctrl_c_during_the_wait_leaves_the_exit_code(cli: CommandLine) -> None:
    """A diverged run that lingers and is interrupted ends with 3, not 130."""
    _, ran = scraped(cli, "--engine sim --mode asgd --workload quadratic --lr 1e30 --steps 50")
    assert ran.code == 3


def test_an_interrupted_run_does_not_linger(cli: CommandLine) -> None:
    """Ctrl-C during the run ends the lingering too: no second one is needed."""

    def look(url: str, record: Path) -> None:
        wait_for((record / "meta.json").exists)

    ran = watched(cli, f"{SIM} --mode asgd --steps 1000000 --record none --workload none", look)
    assert ran.code == 130
    assert ran.summary["stopped_by"] == "interrupted"


def test_a_taken_port_ends_the_run_before_it_begins(cli: CommandLine) -> None:
    """Exit 2, one line that names the option, no record; the other port is given back."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options in (f"--metrics-port {port}", f"--metrics-port 0 --dashboard {port}"):
            ran = cli(f"{SIM} --steps 5 {options} --quiet")
            assert ran.code == 2
            (line,) = ran.err.splitlines()
            assert options.rpartition("--")[2].split()[0] in line
            assert "in use" in line
            assert not cli.out.exists()
