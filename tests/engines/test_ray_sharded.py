"""Several real servers: the bits of one, whatever is killed, and what is lost with a slice."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import wait_for
from hypothesis import given
from hypothesis import strategies as st
from test_ray_allreduce import Interrupt

from dsgd.core import chunked
from dsgd.core.aggregators import Aggregation, Krum
from dsgd.core.protocol import ClusterError, Engine, Update
from dsgd.core.rng import Purpose, generator
from dsgd.core.rules import (
    Adam,
    Arrived,
    ByStaleness,
    Clip,
    Compensate,
    Decay,
    Descend,
    Momentum,
    Moved,
    Reduction,
    chain,
    combine,
)
from dsgd.core.slices import Slices
from dsgd.core.weights import CHUNK, Weights
from dsgd.engines.ray.worker.slice_server import Read, SliceServer
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import configured

RULES = {
    "compensated": chain(ByStaleness(1), Compensate(0.5, adaptive=True), Momentum(0.9), Descend(0.1)),
    "adamw": chain(Adam(), Decay(0.01), Descend(0.1)),
    "moved": chain(Moved(), Momentum(0.9, nesterov=True), Descend(0.7)),
    "leaving out": chain(Adam(), Decay(0.01), Momentum(0.9), Descend(0.1)).leaving_out(),
}


@given(st.integers(0, 10 * CHUNK), st.integers(1, 12))
def test_slices_are_the_whole_and_equally_long(num_weights: int, count: int) -> None:
    """One after the other, without a gap; they differ by a weight, or by a chunk where all have one."""
    slices = Slices(num_weights, count)
    (first, *_), (*_, last) = zip(*slices.bounds, strict=True)
    assert (first, last, len(slices.bounds)) == (0, num_weights, count)
    assert all(a[1] == b[0] for a, b in zip(slices.bounds, slices.bounds[1:], strict=False))
    lengths = [hi - lo for lo, hi in slices.bounds]
    aligned = num_weights >= count * CHUNK
    assert max(lengths) - min(lengths) < (2 * CHUNK if aligned else 2)
    if aligned:
        assert slices.whole_chunks
        assert all(lo % CHUNK == 0 for lo, _ in slices.bounds)


@pytest.mark.parametrize("num_weights", [101, 2])
@pytest.mark.parametrize("name", RULES)
def test_servers_take_the_step_of_one(name: str, num_weights: int) -> None:
    """Each on its slice, with its slots, for stale results too: together they hold the bits of the whole; and
    so they do where there are more servers than weights.
    """
    draws, rule, slices = np.random.default_rng(3), RULES[name], Slices(num_weights, 3)
    w = Weights(draws.standard_normal(num_weights, np.float32))
    servers = [SliceServer() for _ in slices.bounds]
    for server, part in zip(servers, slices.of(w.vector), strict=True):
        server.hold(Weights(part))
    read = w
    for version in range(4):
        arrived = [Arrived(draws.standard_normal(num_weights, np.float32), read, n) for n in range(2)]
        for result in arrived:
            result.value[version:60:2] = -0.0  # some are left out, each time others
        reads = [Read(result.worker, result.read, 2) for result in arrived]
        for number, server in enumerate(servers):
            vectors = [slices.of(vector)[number] for vector in (*(a.value for a in arrived), read.vector)]
            server.step(rule, None, reads, *vectors)
        read, w = w, combine(rule, w, arrived)
        assert np.concatenate([server.held().vector for server in servers]).tobytes() == w.vector.tobytes()
    for slot, vector in w.slots.items():
        slots = [server.slots()[slot] for server in servers if server.slots()]
        assert np.concatenate(slots).tobytes() == vector.tobytes()


def test_what_a_step_needs_of_whole_vectors_is_a_sum_over_the_servers() -> None:
    """Inner products, then squares, chunk by chunk in their order: the bits of one server."""
    draws, slices = np.random.default_rng(4), Slices(3 * CHUNK + 5, 2)
    rule = chain(Clip(0.5), Descend(0.1)).aggregated(Aggregation(Krum(0)))
    w = Weights(draws.standard_normal(3 * CHUNK + 5, np.float32))
    arrived = [Arrived(draws.standard_normal(len(w.vector), np.float32), w, n) for n in range(3)]
    reads = [Read(n, 0) for n in range(3)]
    servers = [SliceServer(), SliceServer()]
    values = list(zip(*(slices.of(result.value) for result in arrived), strict=True))
    for server, part in zip(servers, slices.of(w.vector), strict=True):
        server.hold(Weights(part))
    asked = list(zip(servers, values, strict=True))
    first, *others = [gram for server, here in asked for gram in server.grams(rule, reads, *here)]
    gram = sum(others, first)
    squares = sum(s for server, here in asked for s in server.squares(rule, gram, reads, *here))
    made = [server.step(rule, Reduction(gram, squares), reads, *here)[1] for server, here in asked]
    whole = chunked.combine(rule, w, arrived, lambda: np.empty_like(w.vector))
    assert np.concatenate(made).tobytes() == whole.vector.tobytes()


# --- on Ray -------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"num_workers": 3, "steps": 9, "workload": "quadratic", "optima": "0,.5,2", "dim": 40}
SHARDED: dict[str, Any] = {"engine": "ray", "topology": "sharded:2", "hosts": 2}
BACKED_UP: dict[str, Any] = SHARDED | {"topology": "sharded:2,replicas=2"}
KILLED: dict[str, Any] = BACKED_UP | {"on_loss": "rehost", "spares": 1, "restarts": "100"}


COMPRESSED: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {"compress": "topk:.1", "momentum": 0.9, "clip_norm": 0.5}),
    ("diloco", {"compress": "powersgd:1", "error_feedback": "ef21", "local_steps": 2}),
    ("ssgd", {"compress": "qsgd:4", "compress_down": "topk:.2", "dim": 2 * CHUNK + 1, "aggregate": "krum:0"}),
]


class Killer:
    """After every second update, kills a process some time later, by chance: of a primary, of a backup, of a
    host, in turn.
    """

    def __init__(self) -> None:
        self.servers: set[int] = set()
        self._draws = generator(5, Purpose.FAULT)
        self._timers: list[threading.Timer] = []

    def __call__(self, cluster: Engine, update: Update) -> None:
        from dsgd.engines.ray.exchange.sharded import RaySharded

        assert isinstance(cluster, RaySharded)
        by_slice = cluster.servers.pids
        self.servers.update(pid for pids in by_slice for pid in pids)
        turn, odd = divmod(update.weights.version, 2)
        servers = by_slice[turn % 2]
        if odd and len(servers) == 2:  # or the other one may not have its state yet
            pid = (*servers, cluster.pids[0])[turn % 3]
            timer = threading.Timer(float(self._draws.uniform(0, 0.02)), self._kill, [pid])
            timer.start()
            self._timers.append(timer)

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def wait(self) -> None:
        for timer in self._timers:
            timer.join()


def serves(pid: int) -> bool:
    """Whether a process is that of a server."""
    with contextlib.suppress(OSError):
        return b"SliceServer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestOnRay:
    @pytest.mark.thorough
    def test_processes_killed_at_any_time_change_nothing(self) -> None:
        """SIGKILL of primaries, backups and hosts, idle, in a step or while another starts: the weights are
        those of one simulated server, the bytes are the formula's, and no process is left.
        """
        options = {**SMALL, "steps": 14, "dim": 2 * CHUNK + 1, "momentum": 0.9, "clip_norm": 0.5}
        options["compute_time"] = "constant:.02"  # so that the last loss is noticed before the end
        killer = Killer()
        killed = run("ssgd", killer, **options, **KILLED, faults="kill:s0@update=6")
        killer.wait()
        assert same_bytes(killed, run("ssgd", engine="sim", **options))
        moved = killed.cluster.traffic.by_direction
        assert moved["to_server"] == moved["between_servers"] == 4 * options["dim"] * 3 * 14
        lost = [seen for seen in killed.cluster.faults_seen if "server" in seen.text]
        assert len(lost) >= 3
        assert [seen.asked for seen in lost].count(True) == 1
        assert len(killer.servers) > 4
        wait_for(lambda: not any(map(serves, killer.servers)), "the end of its servers")

    @pytest.mark.parametrize("engine", [pytest.param("ray", marks=pytest.mark.thorough), "sim"])
    def test_a_server_that_is_lost_too_often_ends_the_run(self, engine: str) -> None:
        """With its backup there, in the same words on both engines."""
        asked = {**SMALL, **BACKED_UP, "engine": engine, "restarts": "0"}
        with pytest.raises(ClusterError, match=r"^server 1 was lost more than 0 times"):
            run("ssgd", **asked, faults="kill:s1@update=2")

    @pytest.mark.thorough
    def test_a_slice_without_a_backup_is_lost_with_its_server(self) -> None:
        """One line says which, and what to do."""

        def kill(cluster: Engine, update: Update) -> None:
            from dsgd.engines.ray.exchange.sharded import RaySharded

            assert isinstance(cluster, RaySharded)
            if update.weights.version == 2:
                os.kill(cluster.servers.pids[1][0], signal.SIGKILL)

        with pytest.raises(
            ClusterError, match=r"^server 1 died .* --resume, and give replicas=2 with --topology for one,"
        ):
            run("diloco", kill, **SMALL, **SHARDED, local_steps=3)

    def test_a_slice_that_is_lost_is_that_of_the_last_snapshot(self, tmp_path: Path) -> None:
        """A server that is killed has no backup: new ones begin with what the driver has kept, and the record
        says so.
        """
        from dsgd.engines.ray.exchange.sharded import RaySharded

        killed = list[int]()

        class Kill(Watcher):
            def started(self, running: Running) -> None:
                self.cluster = running.cluster

            def updated(self, update: Update) -> None:
                assert isinstance(self.cluster, RaySharded)
                if update.weights.version == 4 and not killed:
                    killed.extend(self.cluster.servers.pids[1])
                    os.kill(killed[0], signal.SIGKILL)

        options = {**SMALL, **SHARDED, "hosts": 1, "eval_every": 1, "on_divergence": "rollback"}
        asked = {"mode": "asgd", "momentum": 0.9, "out": str(tmp_path), "run_name": "a", "trace_last": 0}
        cfg = configured({**options, **asked})
        ended = execute(cfg, [Kill()], record=RunRecord(cfg))
        assert (ended.error, len(killed)) == (None, 1)
        recorded = recorded_run(tmp_path / "a")
        (back,) = (fault for fault in recorded.faults if fault.kind == "lost-weights")
        assert back.back_to is not None
        assert back.back_to <= back.update
        found = compared(recorded)
        assert (found.differs, found.same_weights) == (None, True)

    @pytest.mark.thorough
    def test_a_second_loss_before_the_new_backup_has_the_slice_ends_the_run(self) -> None:
        """One line says so, and what to do."""

        def kill(cluster: Engine, update: Update) -> None:
            from dsgd.engines.ray.exchange.sharded import RaySharded

            assert isinstance(cluster, RaySharded)
            primary, backup = cluster.servers.pids[0]
            os.kill(backup, signal.SIGSTOP)  # so it cannot hand on what it holds
            os.kill(primary, signal.SIGKILL)
            cluster.servers._lose(0, cluster.servers._slices[0][0])
            os.kill(backup, signal.SIGKILL)
            cluster.servers.ask("slots", [()] * 2)

        with pytest.raises(ClusterError, match=r"^server 0 died .* and its backup are lost; .* --resume"):
            run("ssgd", kill, **SMALL, engine="ray", topology="server,replicas=2", hosts=1)

    @pytest.mark.thorough
    @pytest.mark.parametrize(("mode", "options"), COMPRESSED)
    def test_compressed_results_are_those_of_one_server(self, mode: str, options: dict[str, Any]) -> None:
        """Servers decode their slices, or the driver does: weights and bytes are the simulator's."""
        real = run(mode, **{**SMALL, **SHARDED, "hosts": 1, **options})
        simulated = run(mode, engine="sim", topology="sharded:2", **{**SMALL, **options})
        assert same_bytes(real, simulated)
        assert real.cluster.traffic.by_direction == simulated.cluster.traffic.by_direction

    @pytest.mark.thorough
    def test_a_run_without_a_barrier_goes_on_from_a_checkpoint_and_replays(self, tmp_path: Path) -> None:
        """Cut off after an update and gone on with, and a server killed, its record gives the same bytes."""
        options = {**SMALL, **BACKED_UP, "hosts": 1, "momentum": 0.9, "clip_norm": 0.5}
        asked = {"mode": "asgd", "out": str(tmp_path), "run_name": "a", "faults": "kill:s1@update=20"}
        cfg = configured({**asked, **options, "checkpoint_every": "1e-6", "compute_time": "exponential:.004"})
        cut = execute(cfg, [Interrupt(at=12)], record=RunRecord(cfg))
        assert (cut.stopped_by, cut.weights.version) == ("interrupted", 12)
        ended = execute(cfg, record=RunRecord(cfg, resume=True), resume="interrupted")
        assert (ended.error, ended.weights.version) == (None, 27)
        found = compared(recorded_run(tmp_path / "a"))
        assert (found.differs, found.same_weights) == (None, True)
