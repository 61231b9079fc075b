"""The Ray engine: real actors, one shared cluster, faults on purpose."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import PATIENCE_S, CommandLine, python, run_python

from dsgd.core.protocol import ClusterError, Engine, Update
from dsgd.core.time_laws import parse_law
from dsgd.core.timing import ComputeTimes
from dsgd.data import make_workload
from dsgd.models.objectives.quadratic import Quadratic
from dsgd.records.writer import RunRecord
from dsgd.running import execute as execution
from dsgd.running.execute import execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import QuickRun, Workers, assert_close, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import load

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


# Workers that compute gradients import torch first, which takes most of a short run's time: who needs no
# weights asks for none, and runs that several laws look at are made once.
SCHEDULE: dict[str, Any] = {"engine": "ray", "num_workers": 3, "workload": "none"}
IN_STEP = ("ssgd", "localsgd", "diloco", "easgd")  # whose weights do not depend on who is faster


TWO_WORKERS: dict[str, Any] = {"num_workers": 2, "steps": 24}
PATIENT = f"--start-timeout-s {PATIENCE_S:g}"
"""For a run that starts its own cluster while those of other tests are running."""


def learning(mode: str) -> dict[str, Any]:
    return {**TWO_WORKERS, "momentum": 0.0 if mode == "diloco" else 0.5}


@pytest.fixture(scope="module")
def workers(ray_cluster: str) -> Iterator[Workers]:
    with Workers(**TWO_WORKERS) as workers:
        yield workers


@pytest.fixture(scope="module")
def undisturbed(workers: Workers) -> Mapping[str, QuickRun]:
    """Return, by mode, a run of two real workers to which nothing happens."""
    return {mode: workers.run(mode, **learning(mode)) for mode in IN_STEP}


class OfTheDriverAlone(Quadratic):
    """Needs a module that workers do not find."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("of_the_driver_alone",)


def test_a_module_that_workers_do_not_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose arguments cannot be unpickled is never made; the run ends with why."""
    cfg = config("ssgd", engine="ray", workload="quadratic", num_workers=1, steps=1)
    workload = make_workload(cfg)._replace(objective=OfTheDriverAlone(4))
    monkeypatch.setattr(execution, "make_workload", lambda cfg, **_: workload)
    with pytest.raises(ClusterError, match="No module named 'of_the_driver_alone'"):
        execute(cfg, evaluate=False)


@pytest.mark.parametrize(
    "mode", ["ssgd", "asgd", "ssp", "localsgd", "kasync", "ringmaster", "easgd", "streaming", "adpsgd"]
)
def test_a_mode_learns_on_ray(mode: str, workers: Workers, tmp_path: Path) -> None:
    """A mode of each kind spends its budget on real workers and ends below the loss it began with; a replay
    of its record gives the same bytes. (What all modes make there: tests/engines/test_transport.py.)
    """
    cfg = config(mode, **{**workers.options, "steps": 40}, out=str(tmp_path))
    ended = execute(cfg, record=RunRecord(cfg), engine=workers.fresh())
    assert (ended.error, ended.notes) == (None, ())
    assert ended.path
    assert ended.summary["gradients"] >= 40 * 2
    assert ended.summary["engine"] == "ray"
    assert ended.summary["eval"]["loss"] < ended.evaluations[0].found.loss
    again = compared(recorded_run(ended.path))
    assert (again.differs, again.same_weights) == (None, True)


def test_ssp_with_slack_0_ends_and_is_ssgd_with_summed_gradients(workers: Workers) -> None:
    """On real workers too, slack 0 never deadlocks and keeps to its rounds."""
    ssp = workers.run("ssp", steps=15, slack=0.0, lr=0.02)
    ssgd = run("ssgd", engine="sim", num_workers=2, steps=15, lr=0.04)
    assert len(ssp.updates) == 30
    assert_close(ssp.w, ssgd.w)


@pytest.mark.thorough
def test_ssp_with_slack_0_ends_where_two_workers_share_a_process() -> None:
    """Neither waits for the other, though one process computes for both."""
    ssp = run("ssp", engine="ray", num_workers=3, hosts=2, steps=15, slack=0.0, lr=0.02)
    assert len(ssp.updates) == 45
    assert_close(ssp.w, run("ssgd", engine="sim", num_workers=3, steps=15, lr=0.06).w)


def test_ssp_keeps_its_bound_in_wall_time() -> None:
    """A slow worker: no gap above slack + 1, no staleness above (P-1)(2 slack+1)."""
    outcome = run("ssp", **SCHEDULE, steps=12, slack=2.0, compute_time="constant:.005", slowdown="0=6")
    assert outcome.tally.clock_gap_max <= 3
    assert max(outcome.staleness) <= 2 * 5


@pytest.fixture(scope="module")
def idlers(ray_cluster: str) -> Iterator[Workers]:
    with Workers(**SCHEDULE) as workers:
        yield workers


def test_asgd_staleness_is_p_minus_1_on_real_workers(idlers: Workers) -> None:
    """On Ray as in the simulator, N gradients and the tasks in flight share N (P - 1) updates of age."""
    outcome = idlers.run("asgd", steps=40)
    n, last = len(outcome.updates), dict.fromkeys(range(3), 0)
    for update in outcome.updates:
        last[update.dones[0].worker] = update.weights.version
    assert sum(outcome.staleness) + sum(n - version for version in last.values()) == n * 2


def test_nobody_starves(idlers: Workers) -> None:
    """However fast the others are, every worker's results are taken, to the end."""
    outcome = idlers.run("asgd", steps=200)
    assert {d.worker for d in outcome.dones[-200:]} == {0, 1, 2}


def test_both_engines_draw_the_same_times() -> None:
    """A task on Ray lasts what the simulator says, or as long as it really computes, never less."""
    options: dict[str, Any] = {
        "num_workers": 2,
        "steps": 10,
        "workload": "none",
        "compute_time": "exponential:.02",
    }
    real, simulated = run("ssgd", engine="ray", **options), run("ssgd", engine="sim", **options)
    for a, b in zip(real.dones, simulated.dones, strict=True):
        assert (a.worker, a.step) == (b.worker, b.step)
        assert a.compute_s >= b.compute_s


@pytest.mark.thorough
def test_more_workers_than_cores_run() -> None:
    """Workers ask for no CPU, so six of them start on a cluster of two."""
    assert run("ssgd", engine="ray", num_workers=6, steps=2, workload="none").tally.gradients == 12


@pytest.mark.crossing
@pytest.mark.parametrize("padding_mb", [0.3, 0.01])
def test_small_and_large_vectors_give_the_same_weights(
    padding_mb: float, undisturbed: Mapping[str, QuickRun]
) -> None:
    """Vectors inside the call or in the object store: the same bytes arrive."""
    padded = run("ssgd", engine="ray", **learning("ssgd"), hosts=1, transport="ray", padding_mb=padding_mb)
    assert same_bytes(padded, undisturbed["ssgd"])


def kill(*, worker: int, at_update: int) -> Callable[[Engine, Update], None]:
    """Return an `on_update` that kills a worker's process after an update."""

    def on_update(cluster: Engine, update: Update) -> None:
        if update.weights.version == at_update:
            os.kill(cluster.pids[worker], signal.SIGKILL)

    return on_update


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize("mode", IN_STEP)
def test_a_killed_worker_changes_nothing(
    mode: str, workers: Workers, undisturbed: Mapping[str, QuickRun]
) -> None:
    """Its task is repeated from the same bytes and state, so every version of the weights is the same."""
    killed = workers.run(mode, kill(worker=1, at_update=2), **learning(mode))
    assert list(killed.cluster.restarts) == [0, 1]
    assert same_bytes(undisturbed[mode], killed)


def test_a_killed_worker_does_not_stop_the_others() -> None:
    """Under ASGD the others go on while a lost worker returns, and it takes part again."""

    class TakesPartAgain(Exception):
        pass

    meanwhile: list[int] = []

    def on_update(cluster: Engine, update: Update) -> None:
        kill(worker=0, at_update=10)(cluster, update)
        if cluster.restarts[0]:
            meanwhile.append(update.dones[0].worker)
            if meanwhile[-1] == 0:
                raise TakesPartAgain

    with pytest.raises(TakesPartAgain):
        run("asgd", on_update, **SCHEDULE, steps=1_000_000, compute_time="constant:.01")
    assert len(meanwhile) > 1


class Kill(Watcher):
    """Kills a worker's process after an update."""

    def __init__(self, *, worker: int, at_update: int) -> None:
        self._kill = kill(worker=worker, at_update=at_update)

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        self._kill(self._cluster, update)


@pytest.mark.thorough
def test_a_worker_that_keeps_dying_fails_the_run(tmp_path: Path) -> None:
    """After --restarts the run fails in one line that names the worker; the record is kept."""
    cfg = config("ssgd", engine="ray", num_workers=2, steps=50, restarts="0", out=str(tmp_path))
    ended = execute(cfg, [Kill(worker=1, at_update=2)], record=RunRecord(cfg))
    assert ended.stopped_by == "failed"
    assert ended.error
    assert "worker 1 died" in ended.error
    assert "--restarts" in ended.error
    assert not ended.traceback
    assert ended.path
    written = json.loads((ended.path / "summary.json").read_text())
    assert (written["stopped_by"], written["error"], written["updates"]) == ("failed", ended.error, 2)


def test_missing_resources_are_an_error_after_a_bounded_wait(cli: CommandLine) -> None:
    """GPUs that a cluster lacks: what was asked and what is there, and no hang."""
    ran = cli("--device cuda --gpus-per-worker 2 --num-workers 3 --steps 2 --start-timeout-s 3")
    assert ran.code == 1
    for part in ("--start-timeout-s 3", "2 GPU each", "has 0 in all", "3 workers"):
        assert part in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert not ran.record.exists()


def test_max_seconds_ends_a_run_that_waits() -> None:
    """A worker that takes too long does not hold a run beyond --max-seconds."""
    ended = execute(config("ssgd", **SCHEDULE, steps=3, compute_time="constant:10000", max_seconds=0.5))
    assert ended.stopped_by == "seconds"  # long before the first of its tasks has ended
    assert ended.tally.updates == 0


def test_a_cancelled_task_ends_at_once() -> None:
    """A worker that is cancelled in a task of hours makes its next one, of no time, at once."""
    from dsgd.core.tasks import gradient
    from dsgd.core.weights import Weights
    from dsgd.data import make_workload
    from dsgd.engines.open_cluster import open_cluster

    law = "markov:0,10000,.5,.5"
    drawn = (ComputeTimes(parse_law(law), seed) for seed in itertools.count())
    seed = next(seed for seed, times in enumerate(drawn) if times.seconds(0, 0) > 0 == times.seconds(0, 1))
    cfg = config("asgd", **SCHEDULE, compute_time=law, seed=seed)
    with open_cluster(cfg, make_workload(cfg)) as cluster:
        w = Weights(np.zeros(0, np.float32))
        cluster.start(0, gradient, w)
        cluster.cancel(0)
        cluster.start(0, gradient, w)
        done = cluster.next_done()
        assert done
        assert done.step == 1
        assert cluster.cancelled[0] == 1


@pytest.mark.thorough
def test_both_engines_side_by_side(cli: CommandLine) -> None:
    """--engine both leaves a record an engine and a comparison; SSGD's losses agree to rounding."""
    ran = cli("--engine both --mode ssgd --num-workers 2 --steps 20 --compute-time exponential:.01")
    assert ran.code == 0
    compared = json.loads((ran.record / "comparison.json").read_text())
    assert compared["loss_at_the_end"]["ray"] == pytest.approx(compared["loss_at_the_end"]["sim"], rel=1e-4)
    assert compared["staleness_distance"]["total_variation"] == 0
    assert compared["s_per_update"]["sim"] <= compared["s_per_update"]["ray"]
    for engine in ("ray", "sim"):
        assert json.loads((ran.record / engine / "summary.json").read_text())["engine"] == engine


def test_an_error_in_a_task_names_the_worker(workers: Workers) -> None:
    """What a task raises on a worker fails the run with the worker's number."""
    from dsgd.core.tasks import gradient
    from dsgd.core.weights import Weights

    cluster = workers.fresh()
    cluster.start(1, gradient, Weights(np.zeros(3, np.float32)))  # the model has 65 weights
    with pytest.raises(ClusterError, match="worker 1 failed in its task: RuntimeError"):
        cluster.next_done()


def test_the_clock_starts_when_all_workers_are_ready() -> None:
    """The start barrier: the clock stands at zero after the last worker's process has begun."""
    zeros_s: list[float] = []
    begun_s: list[float] = []

    def look(cluster: Engine, update: Update) -> None:
        zeros_s.append(time.clock_gettime(time.CLOCK_BOOTTIME) - cluster.now_s)
        ticks = [
            int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[19]) for pid in cluster.pids
        ]
        begun_s.extend(n / os.sysconf("SC_CLK_TCK") for n in ticks)

    run("ssgd", look, **SCHEDULE, steps=1)
    assert len(begun_s) == 3
    assert max(begun_s) < min(zeros_s)


def test_runs_on_the_same_workers_share_no_fault_and_no_second(idlers: Workers) -> None:
    """A run knows nothing of what happened in the one before it, and its clock begins at zero."""
    hurt = idlers.run("ssgd", kill(worker=1, at_update=2), steps=4)
    assert [fault.kind for fault in hurt.cluster.faults_seen] == ["kill"]
    before_s = time.perf_counter()
    engine = idlers.run("ssgd", steps=4).cluster
    assert engine.now_s <= time.perf_counter() - before_s
    assert (engine.faults_seen, engine.restarts) == ([], [0, 0, 0])


@pytest.mark.thorough
def test_evaluation_is_recorded_off_the_clock(cli: CommandLine) -> None:
    """Evaluations come from a thread, in order, and the last one is of the last weights."""
    ran = cli("--mode ssgd --num-workers 2 --steps 30 --eval-every 10 --quiet")
    evals = ran.lines("evals.jsonl")
    assert [e["version"] for e in evals] == [0, 10, 20, 30]
    assert ran.summary["eval"]["loss"] == evals[-1]["loss"]


@pytest.mark.thorough
def test_a_target_loss_is_reached_on_ray(cli: CommandLine) -> None:
    """The run stops soon after an evaluation at or below the target."""
    ran = cli("--mode ssgd --num-workers 2 --steps 3000 --target-loss .6 --eval-every 5 --quiet")
    assert ran.summary["stopped_by"] == "target-loss"
    assert min(e["loss"] for e in ran.lines("evals.jsonl")) <= 0.6


def _processes_with(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that inherited `mark` in their environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text()
    return found


@pytest.mark.thorough
def test_workers_that_rays_memory_monitor_kills_while_they_start_are_one_line(tmp_path: Path) -> None:
    """Exit 1, why they ended, and the options that help."""
    monitor = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "50"}
    process = python("main.py", "--quiet", "--out", str(tmp_path), env=os.environ | monitor)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.count("\n")) == (1, 1)
    for part in ("a worker died while it started", "low on memory", "--num-workers", "--start-timeout-s"):
        assert part in err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stage", "which"), [("gcs_server", signal.SIGINT), ("default_worker", signal.SIGTERM)]
)
def test_a_signal_while_ray_starts_leaves_nothing_behind(
    stage: str, which: signal.Signals, tmp_path: Path
) -> None:
    """As the cluster starts, or its workers: exit 130, at most one line, no record and no process."""
    mark = f"dsgd-test-{uuid.uuid4().hex}"
    command = f"main.py {PATIENT} --num-workers 2 --steps 1000000 --out {tmp_path / 'runs'} --run-name r"
    process = python(*command.split(), env=os.environ | {"DSGD_TEST_MARK": mark})
    until = time.monotonic() + PATIENCE_S
    while not any(stage in line for line in _processes_with(mark).values()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(which)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert len(err.strip().splitlines()) <= 1
    assert not (tmp_path / "runs").exists()
    assert not _processes_with(mark)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:1", ("--start-timeout-s 1", "unset")),
        ("http://127.0.0.1:8265", ("is the dashboard's address", "like HOST:6379")),
    ],
)
def test_a_ray_address_that_does_not_answer_is_an_error(
    address: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """After a bounded wait, in one line that names the variable; never a hang."""
    arguments = ["--start-timeout-s", "1", "--out", str(tmp_path / "runs")]
    done = run_python("main.py", *arguments, env={"RAY_ADDRESS": address})
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    for part in (f"RAY_ADDRESS={address}", *parts):
        assert part in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_signal_ends_a_private_cluster_and_leaves_a_record(tmp_path: Path) -> None:
    """ctrl-C, to the whole group, as a terminal does: exit 130, a record, no process left."""
    out = tmp_path / "runs"
    process = python(*f"main.py {PATIENT} --num-workers 2 --steps 1000000 --out {out} --run-name r".split())
    updates = out / "r" / "updates.jsonl"
    until = time.monotonic() + PATIENCE_S
    while not (updates.exists() and updates.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert err == ""
    summary = json.loads((out / "r" / "summary.json").read_text())
    assert summary["stopped_by"] == "interrupted"
    assert len(updates.read_text().splitlines()) == summary["updates"]
    pids = json.loads((out / "r" / "meta.json").read_text())["worker_pids"]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    left = [other for other in psutil.process_iter(["cmdline", "status"]) if group_of(other) == process.pid]
    assert not [other.info for other in left if other.info["status"] != psutil.STATUS_ZOMBIE]


def group_of(process: psutil.Process) -> int | None:
    """Return a process's group; None if it has ended."""
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


@pytest.mark.thorough
def test_an_existing_cluster_is_used_and_left_running(ray_cluster: str, tmp_path: Path) -> None:
    """With RAY_ADDRESS set, a run joins that cluster and leaves it as it was."""
    import ray

    arguments = f"main.py --num-workers 2 --steps 3 --workload none --out {tmp_path} --run-name r --quiet"

    def alive() -> set[str]:
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]

    before = alive()
    done = run_python(*arguments.split(), env={"RAY_ADDRESS": ray_cluster})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "r")
    assert alive() == before
    assert np.load(tmp_path / "r" / "weights.npy").size == 0


def test_train_begun_anew_on_real_workers_goes_on(workers: Workers) -> None:
    """The restart law on Ray: every second update a new `train` on the same workers, and the same weights."""
    from dsgd.core.weights import Weights
    from dsgd.data import make_workload

    whole = workers.run("localsgd", steps=16, local_steps=3)
    cfg, cluster = whole.cfg, workers.fresh()
    w = Weights(make_workload(cfg).objective.initial_weights(cfg.seed))
    while cluster.given < cfg.budget:
        for update in itertools.islice(load(cfg.mode).train(cluster, w, cfg), 2):
            w = update.weights
    assert w.version == len(whole.updates) == 6
    assert w.vector.tobytes() == whole.w.tobytes()
