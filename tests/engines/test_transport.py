"""How tasks and vectors travel between a driver and hosts on its machine: the same bytes as through Ray."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import socket
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import CommandLine, needs, python, wait_for
from hypothesis import given
from hypothesis import strategies as st

from dsgd.core.protocol import Engine, Update
from dsgd.core.tasks import LocalSGD, gradient
from dsgd.core.weights import CHUNK, Weights
from dsgd.data import make_workload
from dsgd.engines.ray.transport.arena import Arena, rounded
from dsgd.engines.ray.transport.local_link import Door, HostLink
from dsgd.engines.ray.transport.messages import INLINE_BYTES, STOP, STOPPING, TASKS_KEPT
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.strategies import load, modes

LARGE = INLINE_BYTES // 4 + 1  # weights: the least that travel in blocks
MEMORY = "memfd:dsgd-vectors"

# --- the arena ----------------------------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


def taken(descriptor: int) -> int:
    """Return how many bytes of memory a nameless file has."""
    return 512 * os.fstat(descriptor).st_blocks


@given(st.integers(1, 1 << 40))
def test_a_block_is_little_larger_than_what_is_asked_for(num_bytes: int) -> None:
    """At most an eighth or a page, so that few sizes serve all."""
    assert num_bytes <= rounded(num_bytes) < max(num_bytes * 1.125, num_bytes + 4096) + 1


def test_a_block_is_used_again_once_no_view_of_it_is_left(arena: Arena) -> None:
    """And not before: a slice of a slice keeps all of it."""
    block = arena.block(100_000)
    at, part = arena.where(block), block.view(np.float32)[10:20][::2]
    del block
    assert arena.where(arena.block(100_000)) != at
    del part
    assert arena.where(arena.block(100_000)) == at


def test_old_vectors_are_as_they_were_while_the_arena_grows(arena: Arena) -> None:
    """Each block shows what was written to it, whatever number of others there are by now."""
    blocks = [arena.block(70_000 + 1000 * n) for n in range(200)]
    for n, block in enumerate(blocks):
        block[:] = n
    assert [set(block.tolist()) for block in blocks[::20]] == [{n} for n in range(0, 200, 20)]


def test_an_arena_takes_only_what_is_written_to_and_gives_it_back() -> None:
    """Closed, it has the memory of those blocks alone that somebody still looks at; later not even that."""
    arena = Arena()
    descriptor = os.dup(arena.descriptor)
    kept, other = arena.block(1_000_000), arena.block(2_000_000)
    assert taken(descriptor) == 0
    kept[:], other[:] = 1, 2
    assert 3_000_000 <= taken(descriptor) < 3_100_000
    del other
    assert taken(descriptor) >= 3_000_000  # to be used again
    arena.close()
    assert 1_000_000 <= taken(descriptor) < 1_100_000
    assert kept.min() == 1
    del kept
    assert taken(descriptor) == 0
    os.close(descriptor)


# --- links --------------------------------------------------------------------------------------------------


@pytest.fixture
def door(arena: Arena) -> Iterator[Door]:
    door = Door(arena, 4)
    yield door
    door.close()
    for host in Host.begun:
        host.go.set()
        host.join()
    Host.begun.clear()


class Host(threading.Thread):
    """The other end of a link: takes messages when `go` is set, until one is empty."""

    begun: ClassVar[list[Host]] = []

    def __init__(self, door: Door, token: bytes | None = None) -> None:
        super().__init__(daemon=True)
        self._door, self._token = door, token or door.token
        self.go, self.joined, self.got, self.error = threading.Event(), threading.Event(), list[bytes](), ""
        self.stopped: list[bytes] = []
        self.begun.append(self)
        self.start()

    def run(self) -> None:
        try:
            self.link = HostLink(self._door.address, self._token, 7, self._stops)
        except OSError as error:
            self.error = str(error)
            return
        self.joined.set()
        self.go.wait()
        with self.link._socket:
            while message := self.link.next():
                self.got.append(message)

    def _stops(self, message: memoryview) -> bool:
        if is_stop := len(message) == STOPPING.size:
            self.stopped.append(bytes(message))
        return is_stop


def test_messages_come_in_order_and_the_end_comes_last(door: Door) -> None:
    """Also where the other side does not read for a long time: the driver never waits for it."""
    host = Host(door)
    assert door.receive(5) == (7, None)
    sent = [bytes([n]) * 60_000 for n in range(100)]  # far more than a socket holds
    for message in sent:
        door.send(7, message[:10], message[10:])
    host.go.set()
    while len(host.got) < 100:
        assert door.receive(0.01) is None
    assert host.got == sent
    host.link.send(b"last words")
    host.link._socket.shutdown(socket.SHUT_RDWR)
    assert [bytes(came[1] or b"?") for _ in range(2) if (came := door.receive(5))] == [b"last words", b"?"]


def test_a_stop_is_heard_before_the_tasks_that_came_earlier(door: Door) -> None:
    """So a task that waits in the queue is stopped before it begins; and a sleep ends at once."""
    host = Host(door)
    assert door.receive(5) == (7, None)
    stop = STOPPING.pack(STOP, 1, 1)
    for message in (b"one", b"two", stop):
        door.send(7, message)
    host.joined.wait()
    began_s = time.perf_counter()
    host.link.wait(30.0, lambda: bool(host.stopped))
    assert time.perf_counter() - began_s < 10
    assert (host.stopped, host.got) == ([stop], [])
    host.go.set()
    while len(host.got) < 2:
        assert door.receive(0.01) is None
    assert host.got == [b"one", b"two"]


def test_a_process_without_the_token_is_refused(door: Door) -> None:
    """Whoever says anything else than the token, of whatever length, learns nothing and gets nothing."""
    host = Host(door, secrets.token_bytes(16))
    while host.is_alive():
        assert door.receive(0.01) is None
    assert "refused" in host.error or "reset" in host.error
    for hello in (b"", b"x", door.token, door.token + b"1234567", door.token + b"123456789"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(door.address)
            stranger.send(hello or b"\0")
            assert door.receive(0.1) is None
            assert door.receive(0.1) is None
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


def test_a_process_that_ends_before_it_is_admitted_was_never_there(door: Door) -> None:
    """It has shown the token and is gone: nothing is reported, and the next link is admitted as ever."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.connect(door.address)
        gone.send(struct.pack("16sq", door.token, 7))
    assert door.receive(0.01) is None
    assert Host(door).error == ""
    assert door.receive(5) == (7, None)


def test_few_tasks_are_kept_as_they_are_sent() -> None:
    """Of a mode that makes another task for each update, no more than the limit."""
    from dsgd.engines.ray.driver.sent_tasks import SentTasks

    tasks, w = SentTasks(0, 0), Weights(np.empty(0, np.float32))
    made = []
    for n in range(2 * TASKS_KEPT):
        task = LocalSGD(batches=1, lr=1e-3 * n)
        assert tasks.flight(task, w, 0.0, n).pickled is tasks.flight(task, w, 0.0, n).pickled
        made.append(weakref.ref(task))
        del task
    assert sum(task() is not None for task in made) == TASKS_KEPT


def test_a_closed_door_writes_to_no_other_file(arena: Arena, tmp_path: Path) -> None:
    """Ray's threads may report after the end, when the number of its descriptor is another file's."""
    door = Door(arena, 1)
    door.close()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context((tmp_path / f"{n}").open("wb")) for n in range(8)]
        door.wake()
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 8


def test_many_links_are_allowed_their_descriptors(arena: Arena) -> None:
    """The limit of open files grows as far as it may: a thousand hosts need more than a shell's."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(limits[1], 300)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        Door(arena, 1000).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft >= min(hard, 1000)
        assert hard == limits[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@needs("root")
def test_another_user_is_refused(door: Door) -> None:
    """The kernel says who is at the other end: the right token does not help."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child only calls the kernel
        child = os.fork()
    if not child:
        os.setuid(65534)
        with contextlib.suppress(BaseException):
            HostLink(door.address, door.token, 7, lambda message: False)
            os._exit(1)
        os._exit(0)
    status = (0, 0)
    while not status[0]:
        assert door.receive(0.01) is None
        status = os.waitpid(child, os.WNOHANG)
    assert os.waitstatus_to_exitcode(status[1]) == 0


# --- on Ray -------------------------------------------------------------------------------------------------

# Two workers on one host, which computes tasks in the order in which they come: so the order of all answers
# is nearly always the same (Ray may start two calls, or report two answers, in another), and so are weights.
SHARED: dict[str, Any] = {"engine": "ray", "num_workers": 2, "hosts": 1, "workload": "quadratic", "steps": 60}
# Some decide by the clock unless they are given no choice.
NO_CHOICE: Mapping[str, Mapping[str, Any]] = {
    "adacomm": {"interval_s": 1e9, "local_steps": 2},
    "dssp": {"slack_low": 1, "slack_high": 1},
}
SHARDED = {"topology": "sharded:2"}
SIZES = {"small": (100, 0.0), "padded": (100, 0.1), "large": (LARGE, 0.0)}


class Computers:
    """A cluster for each way to travel, whose processes serve one mode after another; the last one's weights
    are with several servers.
    """

    def __init__(self, size: str, made: contextlib.ExitStack) -> None:
        from dsgd.engines.open_cluster import open_cluster

        dim, padding_mb = SIZES[size]
        self.options = SHARED | {"dim": dim, "padding_mb": padding_mb}
        self._clusters = []
        ways: list[dict[str, Any]] = [{"transport": "local"}, {"transport": "ray"}]
        for way in [*ways, SHARDED] if size == "small" else ways:
            cfg = config("ssgd", **self.options, **way)
            cluster = made.enter_context(open_cluster(cfg, make_workload(cfg)))
            self._clusters.append((cluster, cluster.state(), way))

    def weights(self, mode: str) -> list[tuple[list[list[int]], list[bytes]]]:
        """Return, for each way, whose results made the first updates of a mode, and the weights."""
        cfg = config(mode, **self.options, **NO_CHOICE.get(mode, {}))
        found = []
        for cluster, first, way in self._clusters:
            if way is SHARDED and not (cfg.traits.has_server and mode != "streaming"):
                continue
            w = Weights(make_workload(cfg).objective.initial_weights(0))
            updates = islice(load(mode).train(cluster, w, cfg), 8)
            seen = [([done.worker for done in u.dones], u.weights.vector.tobytes()) for u in updates]
            found.append(([workers for workers, _ in seen], [weights for _, weights in seen]))
            cluster.restore(first)
        return found


@pytest.fixture(scope="module", params=SIZES)
def computers(ray_cluster: str, request: pytest.FixtureRequest) -> Iterator[Computers]:
    with contextlib.ExitStack() as made:
        yield Computers(request.param, made)


@pytest.mark.crossing
@pytest.mark.ray
@pytest.mark.parametrize("mode", modes())
def test_every_mode_has_the_same_bytes_beside_ray_and_through_it(computers: Computers, mode: str) -> None:
    """Small vectors in messages, padded and large ones in blocks, states that go from task to task; and in
    slices to several servers: results that come in the same order make the same weights.
    """
    (order, beside), *through = computers.weights(mode)
    assert len(beside) == 8
    assert all(weights == beside for workers, weights in through if workers == order)


IN_STEP: dict[str, Any] = {"engine": "ray", "num_workers": 2, "workload": "quadratic", "dim": LARGE}
DILOCO: dict[str, Any] = IN_STEP | {"steps": 16, "local_steps": 2}


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_losses_and_second_copies_change_no_byte_of_large_vectors() -> None:
    """Each task is sent twice, and processes are killed: nobody writes to memory that another reads."""
    from dsgd.engines.ray.driver.cluster import RayCluster

    def kill(cluster: Engine, update: Update) -> None:
        if update.weights.version in (2, 4):
            assert isinstance(cluster, RayCluster)
            door = cluster._tasks._door
            assert isinstance(door, Door)
            process = cluster._running[update.weights.version // 2 - 1]
            assert process.link is not None
            ended = select.poll()
            ended.register(door._sockets[process.link], 0)
            os.kill(process.pid, signal.SIGKILL)
            assert ended.poll(10_000)  # the kernel has closed the link

    wary: dict[str, Any] = {"suspect_after": 1e-9, "on_loss": "rehost", "spares": 1}
    disturbed = run("diloco", kill, **DILOCO, **wary, transport="local")
    assert {seen.kind for seen in disturbed.cluster.faults_seen} >= {"kill", "suspect"}
    assert same_bytes(disturbed, run("diloco", **DILOCO, hosts=1, transport="ray"))


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_step_on_a_part_of_large_vectors_is_that_of_the_simulator() -> None:
    """A fragment of more weights than are stepped on at once is no whole vector, nor sent as one."""
    fragments: dict[str, Any] = {**DILOCO, "dim": 2 * CHUNK + 9, "fragments": 2, "local_steps": 4}
    assert same_bytes(run("streaming", **fragments), run("streaming", **{**fragments, "engine": "sim"}))


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_block_of_a_cancelled_task_is_kept_until_its_process_answers_or_ends() -> None:
    """It may write there to the end; when it is killed, the descriptors and the memory are given back."""
    from dsgd.engines.ray.driver.cluster import RayCluster

    cfg = config("ssgd", **IN_STEP, steps=2, transport="local")
    before = len(os.listdir("/proc/self/fd"))
    with RayCluster(cfg, make_workload(cfg)) as cluster:
        tasks, w = cluster._tasks, Weights(np.ones(LARGE, np.float32))
        arena, pid = tasks._arena, cluster.pids[0]
        assert arena
        opened = len(os.listdir("/proc/self/fd"))

        def fresh(count: int) -> set[int]:
            vectors = [tasks.fresh() for _ in range(count)]
            return {arena.where(vector) for vector in vectors}

        def cancelled() -> int:
            cluster.start(0, gradient, w)
            (sent,) = tasks._by_worker[0]
            assert sent.value is not None
            at = arena.where(sent.value)
            cluster.cancel(0)
            return at

        def one_task() -> None:
            cluster.start(0, gradient, w)
            while cluster.next_done() is None:
                pass

        os.kill(pid, signal.SIGSTOP)
        at = cancelled()
        assert at not in fresh(50)
        os.kill(pid, signal.SIGCONT)
        one_task()  # its answer comes after that of the cancelled one
        assert at in fresh(50)

        os.kill(pid, signal.SIGSTOP)
        at = cancelled()
        os.kill(pid, signal.SIGKILL)
        one_task()  # by the new process
        assert at in fresh(50)
        assert cluster.pids[0] != pid
        assert len(os.listdir("/proc/self/fd")) <= opened
        assert not Path(f"/proc/{pid}").exists()
    assert len(os.listdir("/proc/self/fd")) <= before + 8  # Ray's own vary


@pytest.mark.ray
def test_a_killed_driver_leaves_no_process_and_no_memory(ray_cluster: str, tmp_path: Path) -> None:
    """SIGKILL: each host sees the end of its link, and ends; the kernel takes the memory."""
    command = "main.py --mode ssgd --num-workers 2 --workload none --steps 100000 --padding-mb 1 --quiet"
    line = f"{command} --transport local --max-seconds 1000 --out {tmp_path} --run-name r"
    process = python(*line.split(), env=os.environ | {"RAY_ADDRESS": ray_cluster})
    try:
        updates = tmp_path / "r" / "updates.jsonl"
        wait_for(lambda: process.poll() is not None or (updates.exists() and updates.stat().st_size))
        (memory,) = arenas_of(process.pid)
        users = having(memory)
        assert len(users) == 3
    finally:
        process.kill()
        process.communicate()
    wait_for(lambda: not (having(memory) or any(map(descriptors, users))), "processes to end")


def descriptors(pid: int) -> int:
    """Return how many files a process has open; none once it has ended."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def arenas_of(pid: int) -> set[str]:
    """Return the arenas that a process has mapped, by inode."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {line.split()[4] for line in lines if MEMORY in line}
    return set()


def having(arena: str) -> set[int]:
    """Return the processes that have mapped an arena."""
    return {int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and arena in arenas_of(int(pid))}


def test_local_and_several_nodes_exclude_each_other(cli: CommandLine) -> None:
    """Refused in one line before anything starts: the second node stands for another machine."""
    ran = cli("--mode ssgd --num-workers 2 --nodes 2 --transport local")
    assert ran.code == 2
    assert "--transport local: needs all workers on the driver's machine" in ran.err
    assert ran.err.count("\n") == 1
