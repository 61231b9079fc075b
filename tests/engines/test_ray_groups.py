"""Workers that are groups of ranks, on real Ray with real process groups (gloo): they have the simulator's
bytes, whatever is killed, and go on from the checkpoints of groups of another size.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, CommandLine
from test_resume import run as run_recorded
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # untyped

from dsgd.core.protocol import ClusterError, Engine, Update
from dsgd.core.weights import Vector
from dsgd.engines.ray.driver.cluster import RayCluster
from dsgd.engines.ray.worker.rank_meeting import LOCAL, RankMeeting, RankMissing, meet
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import QuickRun, Workers, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run

# Five rows of weights for two ranks, and one.
WORKLOAD = str(Path(__file__).parents[1] / "workloads/sized.py")
FAILS = str(Path(__file__).parents[1] / "workloads/fails_in_a_rank.py")
SMALL: dict[str, Any] = {"workload": WORKLOAD, "width": 5, "num_workers": 2, "batch_size": 9, "eval_every": 0}
# A run has up to four processes here, on two cores that the other tests use too.
ON_RAY: dict[str, Any] = {"engine": "ray", "ranks_per_worker": 2, "start_timeout_s": PATIENCE_S}
DILOCO: dict[str, Any] = {"mode": "diloco", "steps": 24, "local_steps": 2, "lr": 0.01, **SMALL}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--ranks-per-worker 2 --engine ray", "ranks share a module on Ray; give a --workload"),
        ("W --parallel ddp", "--parallel ddp: is for a worker of several ranks; give --ranks-per-worker 2"),
        ("W --parallel fsdp,experts", "--parallel fsdp,experts: is for a worker of several ranks"),
        ("W --ranks-per-worker 4 --parallel hsdp:3", "hsdp:3: R must divide --ranks-per-worker 4"),
        ("W --ranks-per-worker 2 --parallel hsdp:x", "R must be a whole number of copies of at least 1"),
        ("W --ranks-per-worker 64", "--ranks-per-worker 64: each rank needs a sample of a mini-batch"),
        ("W --ranks-per-worker 2 --gpus-per-worker .5 --engine ray", "each rank needs its own GPU"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: str, why: str, cli: CommandLine) -> None:
    """Before anything starts, with the option, the rule and the remedy."""
    ran = cli(options.replace("W", f"--workload {WORKLOAD}"))
    assert ran.code == 2
    assert why in ran.err
    assert ran.err.count("\n") == 1


def test_a_rank_that_never_joins_is_named() -> None:
    """The others wait no longer than the meeting says."""
    store = TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    meeting = RankMeeting("worker 3", LOCAL, store.port, ranks=3, device="cpu", within_s=0.1)
    with pytest.raises(
        RankMissing, match=r"worker 3: ranks 1, 2 of its group of 3 did not join within 0\.1 s"
    ):
        meet(meeting, 0, LOCAL, store)


def distance(a: Vector, b: Vector, first: Vector) -> float:
    """Return how far a is from b, as a share of how far b has moved."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b - first))


def first_of(ran: QuickRun) -> Vector:
    return ran.updates[0].dones[0].origin.vector


class Kill(Watcher):
    """SIGKILLs a rank of worker 0 after each of these updates, while tasks are on their way."""

    def __init__(self, by_version: Mapping[int, int]) -> None:
        self._by_version = by_version
        self.pids: set[int] = set()
        """All processes that were seen."""

    def __call__(self, cluster: Engine, update: Update) -> None:
        engine: Any = cluster
        while not isinstance(engine, RayCluster):  # something is around it
            engine = engine.inner
        by_worker = engine.rank_pids
        self.pids.update(pid for pids in by_worker for pid in pids)
        rank = self._by_version.get(update.weights.version)
        if rank is not None:
            os.kill(by_worker[0][rank], signal.SIGKILL)

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        self(self._cluster, update)

    def left(self) -> set[int]:
        """Return the processes that still live, after a while."""
        until_s = time.monotonic() + PATIENCE_S
        while (left := {pid for pid in self.pids if lives(pid)}) and time.monotonic() < until_s:
            time.sleep(0.01)
        return left


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def simulated() -> QuickRun:
    """Return DiLoCo between two groups of two, each computed by one process in two parts."""
    return run(**DILOCO, ranks_per_worker=2)


@pytest.fixture(scope="module")
def groups(ray_cluster: str) -> Iterator[Workers]:
    """Yield two groups of two: one becomes slow, one is cut off; a group that loses a rank leaves."""
    faults = {"faults": "slow:0=3@update=4+.1; cut:1@update=8+.1", "on_loss": "drop"}
    with Workers(**SMALL, **ON_RAY, compute_time="exponential:.004", **faults) as workers:
        yield workers


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnRay:
    @pytest.mark.thorough
    def test_a_group_carries_several_workers_and_repeats_their_tasks(self) -> None:
        """A follower is killed while servers have slices, and a codec the whole value: with momentum, and the
        norm over all ranks, these are the simulator's bytes, to 1e-5 of what moved those of one process.
        """
        how: dict[str, Any] = {
            "mode": "localsgd",
            "steps": 12,
            "local_steps": 3,
            "clip_norm": 0.1,
            "momentum": 0.5,
            **SMALL,
        }
        how |= {"compress": "topk:.5"}
        kill, alone = Kill({2: 1}), run(**how)
        hurt = run(**how, **ON_RAY, hosts=1, topology="sharded:2", on_update=kill)
        assert same_bytes(hurt, run(**how, ranks_per_worker=2))
        assert 0 < distance(hurt.w, alone.w, first_of(alone)) < 1e-5
        assert hurt.cluster.restarts == [1, 1]
        assert not kill.left()

    @pytest.mark.thorough
    def test_a_rank_that_fails_ends_the_run_with_its_error(self, caplog: pytest.LogCaptureFixture) -> None:
        """And not with that of the rank that waits for it, or never. What it has printed until then is in the
        driver's log, marked with it.
        """
        caplog.set_level("INFO", "dsgd.worker")
        fails: dict[str, Any] = {"workload": FAILS, "num_workers": 2, "steps": 4, "eval_every": 0}
        with pytest.raises(ClusterError, match="worker 1 failed in its task: ZeroDivisionError"):
            run("ssgd", **fails, **ON_RAY, hosts=1)
        said = [(record.message, vars(record)["rank"]) for record in caplog.records]
        assert ("the loss for the 11. time", "worker 0 rank 1") in said
        assert ("the loss for the 12. time", "worker 1 rank 1") in said

    @pytest.mark.thorough
    @pytest.mark.parametrize("options", [{"overlap": 1}, {"pattern": "sequential", "compress": "topk:.5"}])
    def test_fragments_are_exchanged_between_groups(self, options: dict[str, Any], groups: Workers) -> None:
        """Ranks have what lies in their slices of a fragment, neighbours or not: the simulator's bytes."""
        how: dict[str, Any] = {"steps": 24, "local_steps": 4, "lr": 0.01, **options}
        simulated = run("streaming", **SMALL, **how, ranks_per_worker=2)
        assert same_bytes(groups.run("streaming", **how), simulated)

    @pytest.mark.crossing(one_in=3)
    @pytest.mark.parametrize("mode", ["kasync", "asgd", "ssp"])
    def test_without_a_barrier_a_replay_has_the_bytes(
        self, mode: str, groups: Workers, tmp_path: Path
    ) -> None:
        """Of groups that are slow, cut off, or gone with one of their ranks."""
        cfg = config(mode, **{**groups.options, "steps": 60, "out": str(tmp_path)})
        kill, engine = Kill({30: 1} if mode == "kasync" else {}), groups.fresh()
        ended = execute(cfg, [kill], record=RunRecord(cfg), engine=engine)
        assert (ended.error, ended.tally.gradients) == (None, 2 * 60)
        found = compared(recorded_run(Path(str(ended.path))))
        kinds = {"slow", "cut"} | ({"kill", "leave"} if mode == "kasync" else set())
        assert {fault.kind for fault in engine.faults_seen} >= kinds
        assert (found.differs, found.same_weights) == (None, True)

    @pytest.mark.thorough
    def test_islands_all_reduce_rank_by_rank_whatever_is_killed(self, simulated: QuickRun) -> None:
        """Weights that stay in the ranks have the bytes of a simulated server's, also when a leader and a
        follower are killed in the midst: their group dies and returns as one, and nothing is left behind.
        """
        kill, shared = Kill({3: 0, 8: 1}), set(os.listdir("/dev/shm"))
        hurt = run(**DILOCO, **ON_RAY, topology="allreduce", on_update=kill)
        assert same_bytes(hurt, simulated)
        assert hurt.cluster.restarts == [2, 0]
        assert len(kill.pids) == 2 * 2 + 2 * 2
        assert [fault.kind for fault in hurt.cluster.faults_seen] == ["kill", "kill"]
        assert not kill.left()
        assert set(os.listdir("/dev/shm")) <= shared

    @pytest.mark.thorough
    def test_a_run_goes_on_with_groups_of_another_size(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: str
    ) -> None:
        """From the checkpoints of others, with the workers' states: to rounding, with the weights of a run
        that never stopped.
        """
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
        how = {**DILOCO, "engine": "ray", "hosts": 1, "out": str(tmp_path), "run_name": "r"}
        how |= {"checkpoint_every": "1e9"}
        for ranks, steps in ((1, 8), (2, 16), (1, 24)):
            cfg = config(**{**how, "steps": steps, "ranks_per_worker": ranks})
            ended = run_recorded(cfg, resume=None if steps == 8 else "budget")
            assert (ended.error, ended.tally.gradients) == (None, 2 * steps)
        alone = run(**DILOCO)
        assert distance(ended.weights.vector, alone.w, first_of(alone)) < 1e-4
