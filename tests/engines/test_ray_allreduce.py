"""All-reduce on real processes: the server's weights, the formula's bytes, and processes that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import wait_for
from dst.kills import Killer
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # untyped

from dsgd.core.protocol import ClusterError, Done, Engine, Update
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.engines.ray.exchange.allreduce import RayAllReduce
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.keeper import Watcher
from dsgd.running.quick_run import Workers, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import configured

if TYPE_CHECKING:
    from dsgd.engines.ray.driver.host_process import HostProcess
    from dsgd.engines.ray.driver.news import Answered

DETERMINISTIC: dict[str, dict[str, Any]] = {
    "ssgd": {"momentum": 0.9, "clip_norm": 0.5},
    "localsgd": {"local_steps": 3},
    "diloco": {"local_steps": 3},
    "easgd": {"local_steps": 3},
    "adacomm": {"local_steps": 3, "interval_s": 1e9},
}
SMALL: dict[str, Any] = {
    "num_workers": 3,
    "steps": 7,
    "workload": "quadratic",
    "optima": "0,.5,2",
    "dim": 40,
    "eval_every": 3,
}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "asgd", "topology": "allreduce"}, "topology allreduce: needs a mode in which every update"),
        ({"mode": "ssgd", "topology": "allreduce:halving"}, "is only simulated"),
        ({"mode": "ssgd", "topology": "allreduce", "aggregate": "median"}, "use --aggregate mean"),
        ({"mode": "diloco", "topology": "allreduce", "exchange": "async"}, "needs a mode in which every"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], why: str) -> None:
    """In one line that names the option, before anything starts."""
    with pytest.raises(ValueError, match=why):
        config(**{"engine": "ray", "num_workers": 4, **options})


REAL: dict[str, Any] = {
    "engine": "ray",
    "topology": "allreduce",
    "hosts": 2,
}  # three workers on two processes


@pytest.fixture(scope="module")
def workers(ray_cluster: str) -> Iterator[Workers]:
    with Workers(**SMALL, **REAL) as workers:
        yield workers


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnRay:
    @pytest.mark.parametrize("mode", DETERMINISTIC)
    def test_the_weights_are_a_servers(self, mode: str, workers: Workers) -> None:
        """Those of a simulated server, bit for bit, with its losses and evaluations; and the bytes between
        workers are those of the simulated all-reduce.
        """
        options = {**SMALL, **DETERMINISTIC[mode]}
        real = workers.run(mode, **DETERMINISTIC[mode])
        assert same_bytes(real, run(mode, engine="sim", **options))
        simulated = run(mode, engine="sim", topology="allreduce", **options)
        ours, theirs = (ran.cluster.traffic.by_direction for ran in (real, simulated))
        assert (
            ours["between_workers"] == theirs["between_workers"] == 4 * 40 * 2 * (3 - 1) * len(real.updates)
        )
        assert not ours["to_workers"]

    @pytest.mark.thorough
    def test_the_steps_of_processes_without_a_link_go_through_ray(self) -> None:
        """As on another machine: the same weights, with slots, states and a kill."""
        options = {**SMALL, "local_steps": 3, "transport": "ray", "on_loss": "rehost", "restarts": "9"}
        killer = Killer(4, seed=2, every=2, when=["any"])
        real = run("diloco", killer, engine="ray", topology="allreduce", **options)
        assert same_bytes(real, run("diloco", engine="sim", **SMALL, local_steps=3))

    @pytest.mark.thorough
    def test_large_vectors_and_slots_are_a_servers(self) -> None:
        """Of 100,000 weights, in chunks, for every process its own copy."""
        options = {**SMALL, "dim": 100_000, "optimizer": "adamw", "clip_norm": 1.0}
        assert same_bytes(run("ssgd", **options, **REAL), run("ssgd", engine="sim", **options))

    @pytest.mark.thorough
    def test_a_ring_differs_by_rounding(self) -> None:
        """After seven steps no weight is off by more than some roundings."""
        real = run("ssgd", **SMALL, **{**REAL, "topology": "allreduce:ring"})
        exact = run("ssgd", engine="sim", **SMALL)
        np.testing.assert_allclose(real.w, exact.w, rtol=1e-5)

    @pytest.mark.crossing(one_in=2)
    @pytest.mark.parametrize("mode", ["ssgd", "easgd"])
    def test_processes_killed_at_any_time_change_nothing(self, mode: str) -> None:
        """SIGKILL of random processes in a task, while a group is formed or in the midst of the sum: the
        weights are those of a run without kills.
        """
        options = {**SMALL, **DETERMINISTIC[mode], "steps": 12}
        killer = Killer(6, seed=len(mode), when=["any", "forming"])
        faults = {"on_loss": "rehost", "spares": 1, "restarts": "100"}
        killed = run(mode, killer, engine="ray", topology="allreduce", **options, **faults)
        killer.wait()
        assert killer.killed
        assert same_bytes(killed, run(mode, engine="sim", **options))

    @pytest.mark.thorough
    def test_a_process_killed_while_a_group_forms_holds_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It ends when the others know that it is there and connect: they leave, long before torch would end
        its attempt, and the weights are those of a run without kills.
        """
        meet, kills = RayAllReduce._meet, list[threading.Thread]()

        def meet_and_kill(cluster: RayAllReduce, members: Sequence[HostProcess]) -> None:
            meet(cluster, members)
            if not kills:
                os.kill(members[0].pid, signal.SIGSTOP)  # before it hears of the group
                kills.append(threading.Thread(target=kill, args=(cluster._store, members)))
                kills[0].start()

        def kill(store: tuple[str, TCPStore], members: Sequence[HostProcess]) -> None:
            PrefixStore("epoch1/0", store[1]).set("here0", "")  # on behalf of the stopped one
            # The others say how they are reached.
            wait_for(lambda: store[1].num_keys() > len(members) + 1)
            os.kill(members[0].pid, signal.SIGKILL)
            times.append(time.monotonic())

        monkeypatch.setattr(RayAllReduce, "_meet", meet_and_kill)
        times = list[float]()

        def note(cluster: Engine, update: Update) -> None:
            times.append(time.monotonic())

        killed = run("ssgd", note, **SMALL, engine="ray", topology="allreduce", on_loss="rehost")
        kills[0].join()
        assert times[1] - times[0] < 15  # seconds; torch would connect for 20
        assert same_bytes(killed, run("ssgd", engine="sim", **SMALL))

    @pytest.mark.thorough
    def test_the_group_goes_on_without_a_member_that_is_dropped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its process ends when its value has come in and others' have not: the step is taken, the others
        make the next ones without it, and a replay has the same weights.
        """
        answered, members = RayAllReduce._answered, list[int]()

        def end(cluster: RayAllReduce, news: Answered) -> Done | None:
            done = answered(cluster, news)
            if done and (done.worker, done.read) == (1, 2):
                os.kill(news.sent.process.pid, signal.SIGKILL)
            return done

        class Count(Watcher):
            def updated(self, update: Update) -> None:
                members.append(len(update.dones))

        monkeypatch.setattr(RayAllReduce, "_answered", end)
        asked = {**SMALL, "mode": "ssgd", "engine": "ray", "topology": "allreduce", "on_loss": "drop"}
        more = {"restarts": "0", "compute_time": "constant:.01", "slowdown": "0=4"}
        cfg = configured({**asked, **more, "out": str(tmp_path), "run_name": "a"})
        assert execute(cfg, [Count()], record=RunRecord(cfg)).error is None
        assert (members[0], members[-1]) == (3, 2)
        found = compared(recorded_run(tmp_path / "a"))
        assert (found.differs, found.same_weights) == (None, True)

    @pytest.mark.thorough
    def test_a_value_is_fetched_when_it_is_looked_at(self) -> None:
        """A task's value and an update's slots stay in their processes, and whoever asks gets them."""
        seen: list[tuple[Any, ...]] = []

        def look(cluster: Engine, update: Update) -> None:
            values = [done.value.tobytes() for done in update.dones]
            seen.append((values, update.weights.slots["velocity"].tobytes()))

        options = {**SMALL, "momentum": 0.9, "steps": 2}
        for engine in (REAL, {"engine": "sim"}):
            run("ssgd", look, **options, **engine)
        assert seen[:2] == seen[2:]

    @pytest.mark.thorough
    def test_the_weights_are_lost_with_all_processes(self) -> None:
        """Where no copy is left, one line says what to do."""
        options = {**SMALL, **REAL, "hosts": 1}
        with pytest.raises(ClusterError, match=r"all processes that held version \d of .* with --resume"):
            run("ssgd", **options, faults="kill:0@update=2")

    @pytest.mark.thorough
    def test_weights_that_are_lost_with_all_processes_are_those_of_the_last_snapshot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SIGKILLs of both processes right after an update, then in the midst of a sum: the run goes back by
        itself each time, to the bytes of a run without kills, and can be replayed.
        """
        options = {**SMALL, "momentum": 0.9, "eval_every": 2, "steps": 9}
        step, killed = SentTasks.step, list[int]()

        def kill_all(tasks: SentTasks, process: HostProcess, version: int, part: bytes) -> None:
            step(tasks, process, version, part)
            if version == 7 and not killed:
                killed.extend(other.pid for other in tasks._links.values())
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

        monkeypatch.setattr(SentTasks, "step", kill_all)
        asked = {"mode": "ssgd", "out": str(tmp_path), "run_name": "a", "trace_last": 0}
        more = {"faults": "kill:0,1@update=3", "on_divergence": "rollback"}
        cfg = configured({**asked, **options, **REAL, **more})
        ended = execute(cfg, record=RunRecord(cfg))
        assert (ended.error, len(killed)) == (None, 2)
        assert ended.weights.vector.tobytes() == run("ssgd", engine="sim", **options).w.tobytes()
        recorded = recorded_run(tmp_path / "a")
        back = [(f.update, f.back_to) for f in recorded.faults if f.kind == "lost-weights"]
        assert back == [(3, 2), (7, 6)]
        found = compared(recorded)
        assert (found.differs, found.same_weights) == (None, True)

    @pytest.mark.thorough
    def test_a_run_goes_on_from_a_checkpoint(self, tmp_path: Path) -> None:
        """The driver fetches weights and slots for it: a run that is cut off goes on to the same bytes."""
        options = {**SMALL, "momentum": 0.9}
        asked = {"mode": "ssgd", "out": str(tmp_path), "run_name": "a", "trace_last": 0}
        cfg = configured({**asked, **options, **REAL, "checkpoint_every": "1e-6"})
        cut = execute(cfg, [Interrupt(at=4)], record=RunRecord(cfg))
        assert (cut.stopped_by, cut.weights.version) == ("interrupted", 4)
        ended = execute(cfg, record=RunRecord(cfg, resume=True), resume="interrupted")
        assert (ended.error, ended.weights.version) == (None, 7)
        whole = run("ssgd", engine="sim", **options)
        assert ended.weights.vector.tobytes() == whole.w.tobytes()


class Interrupt(Watcher):
    """Ends a run as ctrl-C does, after an update."""

    def __init__(self, at: int) -> None:
        self._at = at

    def updated(self, update: Update) -> None:
        if update.weights.version == self._at:
            raise KeyboardInterrupt
