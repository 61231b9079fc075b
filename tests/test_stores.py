"""Stores of checkpoints: what is loaded is whole and the newest, whatever was killed, altered or full."""

from __future__ import annotations

import errno
import http.client
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, stored
from test_full_disk import on_disk
from test_full_disk import pytestmark as needs_mount

from dsgd.checkpoints import s3_store
from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.s3_store import S3Store
from dsgd.checkpoints.store import (
    Part,
    Store,
    forget_after,
    keep_newest,
    name_of,
    newest_whole,
    require_whole,
    version_of,
)
from dsgd.checkpoints.store_faults import FaultyStore
from dsgd.faults.faults_text import parse_faults


def put(store: Store, version: int, content: bytes) -> str:
    """Write a checkpoint; return its name."""
    parts: Sequence[Part] = [content[:7], memoryview(content)[7:]]
    name = name_of(version, parts)
    store.write(name, parts)
    return name


def content_of(version: int, size: int = 3000) -> bytes:
    return random.Random(version).randbytes(size)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "run/checkpoints")


# --- The law of loading, on a disk --------------------------------------------------------------------------


def test_what_was_written_last_is_what_is_loaded(store: DiskStore) -> None:
    """The newest checkpoint comes back byte for byte, by its version and not by its time."""
    assert newest_whole(store) == (None, b"", [])
    for version in (10, 99_999_999, 100_000_000, 20):
        put(store, version, content_of(version))
    assert [version_of(name) for name in store.names()] == [10, 20, 99_999_999, 100_000_000]
    name, content, skipped = newest_whole(store)
    assert (version_of(name or ""), content, skipped) == (100_000_000, content_of(100_000_000), [])


@pytest.mark.parametrize("size", [0, 1, 8, 9, 100, 1499, 2999])
def test_a_torn_checkpoint_is_not_loaded(size: int, store: DiskStore) -> None:
    """Cut anywhere, to nothing too: the one before it is loaded, and the reason for the other is given."""
    good, torn = put(store, 1, content_of(1)), put(store, 2, content_of(2))
    os.truncate(store.folder / torn, size)
    name, content, [(skipped, why)] = newest_whole(store)
    assert (name, content, skipped) == (good, content_of(1), torn)
    assert "empty" in why if size == 0 else f"its {size:,} bytes" in why
    assert "\n" not in why


def test_no_flipped_bit_is_loaded(store: DiskStore) -> None:
    """One bit at any of 1,000 places: never the altered bytes, always the newest good ones."""
    draws = random.Random(1)
    good, bad = put(store, 1, content_of(1)), put(store, 2, content_of(2))
    whole = content_of(2)
    for place in draws.sample(range(8 * len(whole)), 1000):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        (store.folder / bad).write_bytes(changed)
        found = newest_whole(store)
        assert (found.name, found.content) == (good, content_of(1)), f"bit {place}"
    (store.folder / bad).write_bytes(whole)
    assert newest_whole(store).name == bad


def test_what_is_no_checkpoint_of_the_run_is_passed_over(store: DiskStore) -> None:
    """Other files, a checkpoint under another's name and another run's: the newest of this run is loaded."""
    good, other = put(store, 1, b"run a, 1"), put(store, 2, b"run b, 2")
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "00000009.safetensors").write_bytes(b"no digest")
    shutil.copy(store.folder / good, store.folder / name_of(3, [b"something else"]))
    (store.folder / name_of(4, [b"a folder"])).mkdir()

    def ours(content: bytes) -> None:
        if not content.startswith(b"run a"):
            raise ValueError("it belongs to another run")

    found = newest_whole(store, ours)
    assert (found.name, found.content) == (good, b"run a, 1")
    assert [version_of(name) for name, _ in found.skipped] == [4, 3, 2]
    assert found.skipped[-1] == (other, "it belongs to another run")


def test_of_many_damaged_ones_the_newest_good_one_is_found(store: DiskStore) -> None:
    """Any set of checkpoints damaged in any way: the newest that is not, or none; never an error."""
    draws = random.Random(2)
    for _ in range(40):
        shutil.rmtree(store.folder, ignore_errors=True)
        names = [put(store, version, content_of(version, 100)) for version in range(6)]
        good = None
        for name in names:
            match draws.randrange(5):
                case 0:
                    os.truncate(store.folder / name, draws.randrange(100))
                case 1:
                    (store.folder / name).unlink()
                case 2:
                    (store.folder / name).write_bytes(draws.randbytes(100))
                case _:
                    good = name
        assert newest_whole(store).name == good


def test_a_damaged_checkpoint_can_be_written_again(store: DiskStore) -> None:
    """A run that comes to a damaged checkpoint's version again has it whole; a whole one is left alone."""
    name = put(store, 1, content_of(1))
    before = (store.folder / name).stat()
    put(store, 1, content_of(1))
    assert (store.folder / name).stat().st_ino == before.st_ino
    os.truncate(store.folder / name, 5)
    put(store, 1, content_of(1))
    assert newest_whole(store).name == name


def test_the_newest_are_kept(store: DiskStore) -> None:
    """Retention removes the oldest; going on from one forgets what it did not lead to."""
    names = [put(store, version, content_of(version)) for version in range(6)]
    keep_newest(store, 9)
    assert store.names() == names
    keep_newest(store, 4)
    assert store.names() == names[2:]
    other = put(store, 3, b"another attempt's")
    forget_after(store, names[3])
    assert store.names() == names[2:4]
    assert other not in store.names()
    forget_after(store, None)
    assert store.names() == []
    store.remove(names[0])


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """A file in the folder's place: OSError with the place and the reason, in one line."""
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(OSError, match=r"checkpoints.*cannot be written.*choose another folder"):
        put(DiskStore(tmp_path / "checkpoints"), 1, b"x")


# --- Killed while writing -----------------------------------------------------------------------------------

KILLED_AT_EACH_LINE = """
import os, signal, sys
from pathlib import Path
from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.store import keep_newest, name_of

def write_and_keep(k):
    store, content = DiskStore(Path(sys.argv[1]) / str(k)), bytes(range(256)) * 100
    for version in (1, 2):
        store.write(name_of(version, [b"%d" % version, content]), [b"%d" % version, content])
    lines = 0
    def count(frame, event, arg):
        nonlocal lines
        if "/dsgd/" in frame.f_code.co_filename:
            lines += event == "line"
            if lines > k:
                os.kill(os.getpid(), signal.SIGKILL)
        return count
    sys.settrace(count)
    store.write(name_of(3, [b"3", content]), [b"3", content])
    keep_newest(store, 2)
    sys.settrace(None)

for k in range(1000):
    if not (child := os.fork()):
        write_and_keep(k)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        print(k)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
"""


def test_killed_at_any_line_a_write_leaves_the_newest_whole(tmp_path: Path) -> None:
    """SIGKILL at each line of writing and retention: all that has a checkpoint's name is whole, the newest is
    the new one or the one before it, and the next write clears what was left.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EACH_LINE, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    points = int(done.stdout)
    assert points > 30
    newest = set()
    for k in range(points):
        store = DiskStore(tmp_path / str(k))
        for name in store.names():
            require_whole(name, store.read(name))
        found = newest_whole(store)
        newest.add(version_of(found.name or ""))
        put(store, 4, b"the next")
        assert not list(store.folder.glob("*.partial"))
    assert newest == {2, 3}


KILLED_AT_ANY_TIME = """
import sys
from pathlib import Path
from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.store import keep_newest, name_of

store, content = DiskStore(Path(sys.argv[1])), bytes(8_000_000)
for version in range(10**6):
    parts = [b"%8d" % version, content]
    store.write(name_of(version, parts), parts)
    print(version, flush=True)
    keep_newest(store, 2)
"""


def test_killed_at_any_time_a_writer_has_lost_nothing(tmp_path: Path) -> None:
    """SIGKILL at random times in a row of large checkpoints: what was said to be written is there, whole."""
    draws = random.Random(3)
    for k in range(8):
        folder = tmp_path / str(k)
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED_AT_ANY_TIME, str(folder)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert writer.stdout
        writer.stdout.readline()
        time.sleep(draws.uniform(0, 0.05))
        writer.kill()
        said = [0, *map(int, writer.stdout.read().split())]
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        found = newest_whole(DiskStore(folder))
        assert found.skipped == []
        assert version_of(found.name or "") in (said[-1], said[-1] + 1)
        shutil.rmtree(folder)


# --- Faults that were asked for -----------------------------------------------------------------------------


class EngineClock:
    """Engine seconds, which pass as a test says."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


def faulty(store: Store, text: str, clock: EngineClock, seed: int = 0) -> FaultyStore:
    return FaultyStore(store, parse_faults(text), seed=seed, now_s=clock.now_s, sleep=clock.sleep)


@pytest.mark.parametrize("kind", ["torn", "rot"])
@pytest.mark.parametrize("trigger", ["t=25", "update=30"])
def test_a_checkpoint_is_damaged_once_as_asked(kind: str, trigger: str, store: DiskStore) -> None:
    """A fault torn or rot damages the first checkpoint that is due, anywhere in it, and is recorded."""
    good, lengths = [name_of(v, [content_of(v)]) for v in (10, 20, 40)], set()
    for seed in range(20):
        shutil.rmtree(store.folder, ignore_errors=True)
        clock = EngineClock()
        around = faulty(store, f"kill:1@t=1; {kind}@{trigger}; spot:mtbf=9", clock, seed)
        for version in (10, 20, 30, 40):
            clock.s = version
            put(around, version, content_of(version))
            if version == 30:
                assert newest_whole(around).name == good[1]
        found = newest_whole(around)
        assert found.name == good[2]
        assert [name for name in around.names() if not _is_whole(around, name)] == [
            name_of(30, [content_of(30)])
        ]
        [seen] = around.seen
        assert (seen.kind, seen.update, seen.asked, seen.t_s) == (
            kind,
            30,
            True,
            25 if "t=" in trigger else 30,
        )
        assert name_of(30, [content_of(30)]) in seen.text
        lengths.add(len(around.read(name_of(30, [content_of(30)]))))
    assert len(lengths) > 15 if kind == "torn" else lengths == {3000}


def _is_whole(store: Store, name: str) -> bool:
    try:
        require_whole(name, store.read(name))
    except ValueError:
        return False
    return True


def test_a_full_disk_is_full_as_long_as_asked(store: DiskStore) -> None:
    """While it is full each write fails with ENOSPC and nothing is lost; then it goes on."""
    clock = EngineClock()
    around = faulty(store, "full@t=15+20", clock)
    for version in (10, 20, 30, 40):
        clock.s = version
        if version in (20, 30):
            with pytest.raises(OSError, match="No space left") as raised:
                put(around, version, content_of(version))
            assert raised.value.errno == errno.ENOSPC
        else:
            put(around, version, content_of(version))
    assert [version_of(name) for name in store.names()] == [10, 40]
    [seen] = around.seen
    assert (seen.t_s, seen.recovered_s, seen.text) == (15, 20, "checkpoints that found the disk full: 2")


def test_a_slow_disk_takes_longer_and_loses_nothing(store: DiskStore) -> None:
    """Each checkpoint takes so many engine seconds longer, while it lasts; a run may end in it."""
    clock = EngineClock()
    around = faulty(store, "slow-disk=3@update=20+10; slow-disk=1@t=100+9", clock)
    for version in (10, 20, 22):
        put(around, version, content_of(version))
    assert clock.s == 6
    clock.s = 100
    put(around, 100, content_of(100))
    assert clock.s == 101
    around.end()
    assert [(s.t_s, s.recovered_s) for s in around.seen] == [(0, 10), (100, None)]
    assert len(store.names()) == 4


def test_faults_leave_what_is_there(store: DiskStore) -> None:
    """Under any faults of the store there are never fewer good checkpoints than before they began."""
    put(store, 1, content_of(1))
    clock = EngineClock()
    around = faulty(store, "torn@t=2; rot@t=3; full@t=4+1; torn@update=5; rot@update=6", clock)
    for version in (2, 3, 4, 5, 6):
        clock.s = version
        try:
            put(around, version, content_of(version))
        except OSError:
            assert version == 4
        assert newest_whole(around).content == content_of(1)
    clock.s = 7
    put(around, 7, content_of(7))
    assert newest_whole(around).content == content_of(7)
    assert [seen.kind for seen in around.seen] == ["torn", "rot", "full", "torn", "rot"]


# --- S3, over HTTP ------------------------------------------------------------------------------------------


class Unreliable:
    """A server in front of S3 that passes requests on, or fails as `fails` says."""

    def __init__(self, endpoint: str) -> None:
        self.asked: list[str] = []
        """Each request: method, path and query."""
        self.fails: Callable[[str, int], str] = lambda asked, times: ""
        """What happens to a request that came so many times: nothing, a status like 503, hang (no answer),
        lost (it is carried out, and its answer is lost), or cut (half of the answer comes).
        """
        self._ended = threading.Event()
        unreliable, host = self, endpoint.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = f"{self.command} {self.path}"
                unreliable.asked.append(asked)
                how = unreliable.fails(asked, unreliable.asked.count(asked))
                if how == "hang":
                    unreliable._ended.wait(20)
                    self.close_connection = True
                    return
                if how.isdigit():
                    self.send_response(int(how))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                there = http.client.HTTPConnection(host)
                there.request(self.command, self.path, body, dict(self.headers))
                answer = there.getresponse()
                content = answer.read()
                there.close()
                if how == "lost":
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
                self.send_header("Content-Length", str(length or 0))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if how == "cut" else content)
                self.close_connection = how == "cut"

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def end(self) -> None:
        self._ended.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def unreliable(aws: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unreliable]:
    """Put a server that may fail in front of S3."""
    there = Unreliable(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", there.url)
    thread = threading.Thread(target=there.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield there
    there.end()
    thread.join()


def s3(read_timeout_s: float = 30.0) -> S3Store:
    """Return a store with its own client, as the environment says."""
    import boto3
    from botocore.config import Config

    config = Config(read_timeout=read_timeout_s, retries={"total_max_attempts": 3})
    client = boto3.Session().client("s3", config=config)
    return S3Store(client, "lab", "a/checkpoints/", "s3://lab/a/checkpoints")


def uploads_left(aws: Any) -> int:
    return len(aws.list_multipart_uploads(Bucket="lab").get("Uploads", []))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Upload in parts of the least size; return a size of three parts."""
    monkeypatch.setattr(s3_store, "_PART_BYTES", 5 << 20)
    return (10 << 20) + 12_345


def test_s3_has_what_was_written(aws: Any, small_parts: int) -> None:
    """Small and large, in parts: the same bytes come back, newest last, and retention removes them."""
    store = s3()
    names = [put(store, v, content_of(v, size)) for v, size in ((1, 0), (2, 100), (3, small_parts))]
    assert store.names() == names
    assert newest_whole(store).content == content_of(3, small_parts)
    keep_newest(store, 1)
    assert [*stored(aws)] == [f"a/checkpoints/{names[2]}"]
    assert uploads_left(aws) == 0


@pytest.mark.parametrize("size", [100, 6 << 20])
def test_an_object_that_is_there_is_never_overwritten(aws: Any, small_parts: int, size: int) -> None:
    """Whatever is under a checkpoint's name stays; a damaged one is passed over by the reader."""
    name = name_of(1, [content_of(1, size)])
    aws.put_object(Bucket="lab", Key=f"a/checkpoints/{name}", Body=b"damaged")
    put(s3(), 1, content_of(1, size))
    assert stored(aws) == {f"a/checkpoints/{name}": b"damaged"}
    assert newest_whole(s3()).name is None
    assert uploads_left(aws) == 0


@pytest.mark.parametrize("how", ["500", "503", "lost", "hang"])
@pytest.mark.parametrize("what", ["PUT", "POST", "GET"])
def test_what_fails_for_a_moment_is_repeated(
    unreliable: Unreliable, aws: Any, small_parts: int, what: str, how: str
) -> None:
    """5xx, a lost answer or none at all, once for each request of a kind: the checkpoint is there whole."""
    unreliable.fails = lambda asked, times: how if asked.startswith(what) and times == 1 else ""
    store = s3(read_timeout_s=0.5)
    name = put(store, 1, content_of(1, small_parts))
    assert newest_whole(store) == (name, content_of(1, small_parts), [])
    assert uploads_left(aws) == 0 or (what, how) in {("POST", "lost"), ("POST", "hang")}


def test_an_answer_that_breaks_off_is_asked_for_again(unreliable: Unreliable, small_parts: int) -> None:
    """A download cut in the middle is repeated; the bytes are those that were written."""
    store = s3()
    name = put(store, 1, content_of(1, small_parts))
    unreliable.fails = lambda asked, times: "cut" if name in asked and times == 1 else ""
    assert newest_whole(store) == (name, content_of(1, small_parts), [])


@pytest.mark.parametrize("failing", ["?uploads", "partNumber=1", "partNumber=3", "uploadId="])
def test_a_failed_upload_leaves_nothing_to_be_seen(
    unreliable: Unreliable, aws: Any, small_parts: int, failing: str
) -> None:
    """S3 fails for good at any step: OSError in one line, no object, no parts; the one before is loaded."""
    store = s3()
    before = put(store, 1, content_of(1))
    unreliable.fails = lambda asked, times: (
        "503" if failing in asked and not asked.startswith("DELETE") else ""
    )
    with pytest.raises(OSError, match="S3 fails") as raised:
        put(store, 2, content_of(2, small_parts))
    assert "\n" not in str(raised.value)
    assert newest_whole(store).name == before
    assert [*stored(aws)] == [f"a/checkpoints/{before}"]
    assert uploads_left(aws) == 0


def test_a_refusal_is_a_failure_of_the_store(unreliable: Unreliable) -> None:
    """403, which a user could correct, is for a run that goes on an OSError like any other."""
    unreliable.fails = lambda asked, times: "403"
    for use in (s3().names, lambda: put(s3(), 1, b"x"), lambda: s3().read("x"), lambda: s3().remove("x")):
        with pytest.raises(OSError, match="S3 refuses"):
            use()


KILLED_UPLOADING = """
import boto3
from dsgd.checkpoints import s3_store
from dsgd.checkpoints.store import name_of

s3_store._PART_BYTES = 5 << 20
store = s3_store.S3Store(boto3.client("s3"), "lab", "a/checkpoints/", "s3://lab/a/checkpoints")
content = bytes(12 << 20)
store.write(name_of(2, [content]), [content])
"""


@pytest.mark.parametrize("at", ["GET /lab?uploads", "POST", "partNumber=1", "partNumber=3", "uploadId="])
def test_an_upload_that_is_killed_leaves_no_object(unreliable: Unreliable, aws: Any, at: str) -> None:
    """SIGKILL at any request: the checkpoint before is the newest, and the next write removes the parts."""
    store = s3()
    before = put(store, 1, content_of(1))
    reached = threading.Event()

    def stop(asked: str, times: int) -> str:
        if reached.is_set() or not (at in asked if at != "uploadId=" else _completes(asked)):
            return ""
        reached.set()
        return "hang"

    unreliable.fails = stop
    writer = subprocess.Popen([sys.executable, "-c", KILLED_UPLOADING], cwd=ROOT)
    assert reached.wait(60)
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    assert newest_whole(store).name == before
    assert [*stored(aws)] == [f"a/checkpoints/{before}"]
    put(s3(), 3, content_of(3))
    assert uploads_left(aws) == 0
    assert newest_whole(store).content == content_of(3)


def _completes(asked: str) -> bool:
    return asked.startswith("POST") and "uploadId=" in asked


# --- A disk that is full ------------------------------------------------------------------------------------

UNTIL_FULL = """
from pathlib import Path
from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.store import name_of, newest_whole, version_of

store = DiskStore(Path("checkpoints"))
for version in range(9):
    content = b"%d" % version + bytes(300_000)
    try:
        store.write(name_of(version, [content]), [content])
    except OSError as error:
        print(error)
        break
found = newest_whole(store)
print(version, version_of(found.name), len(found.skipped), len(found.content))
store.remove(store.names()[0])
store.write(name_of(version, [content]), [content])
print(version_of(newest_whole(store).name))
"""


@needs_mount
def test_a_full_disk_costs_the_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    """On a disk with room for three the fourth fails with the remedy, the third is loaded, nothing is left of
    the fourth; with room made it is written.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "until_full.py").write_text(UNTIL_FULL)
    ran = on_disk(disk, f"PYTHONPATH={ROOT} {sys.executable} ../until_full.py")
    assert ran.err == ""
    error, full, after = ran.out.splitlines()
    assert "cannot be written (No space left on device); make room there" in error
    assert full == "3 2 0 300001"
    assert after == "3"
    assert {version_of(Path(name).name) for name in ran.files} == {1, 2, 3}


# --- In another node's memory -------------------------------------------------------------------------------

HEAD_AND_TWO_NODES = """
import sys
import dsgd.cluster.ray_connection
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1) for _ in range(2))}
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(nodes[line.strip()])
    print("removed", flush=True)
cluster.shutdown()
"""

DRIVER = """
import os, signal, sys
from dsgd.cluster.ray_connection import connect
from dsgd.checkpoints.peer_store import PeerStore
from dsgd.checkpoints.store import name_of, newest_whole, version_of
import ray
from ray._private.state import actors

connect()
store = PeerStore("lab/a", patience_s=float(sys.argv[2]))
if sys.argv[1] == "write":
    for version in (1, 2):
        parts = [bytes(1 << 20), b"%d" % version]
        store.write(name_of(version, parts), parts)
    [keeper] = [a for a in actors().values() if a["Name"] == "keeper:lab/a" and a["State"] == "ALIVE"]
    assert keeper["Address"]["NodeID"] != ray.get_runtime_context().get_node_id()
    print(keeper["Address"]["NodeID"], keeper["Pid"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
found = newest_whole(store)
print(found.name and version_of(found.name), len(found.content), found.skipped)
if sys.argv[1] == "close":
    store.close()
    print(store.names())
"""


def drive(address: str | None, what: str, patience_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Be the driver of a run, in a separate process."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, what, str(patience_s)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=environment | ({"RAY_ADDRESS": address} if address else {}),
    )  # fmt: skip


@pytest.fixture
def nodes() -> Iterator[tuple[str, Callable[[str], None]]]:
    """Start a cluster of three nodes; yield its address and what removes one of the two that are no head."""
    with subprocess.Popen(
        [sys.executable, "-c", HEAD_AND_TWO_NODES],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as cluster:  # fmt: skip
        assert cluster.stdin
        assert cluster.stdout

        def remove(node: str) -> None:
            assert cluster.stdin
            assert cluster.stdout
            cluster.stdin.write(f"{node}\n")
            cluster.stdin.flush()
            assert cluster.stdout.readline() == "removed\n"

        yield cluster.stdout.readline().strip(), remove
        cluster.stdin.close()
        assert cluster.wait(60) == 0


@pytest.mark.ray
def test_a_copy_in_another_nodes_memory_outlives_the_driver(nodes: tuple[str, Callable[[str], None]]) -> None:
    """The next driver finds the checkpoints of a killed one. A lost node costs the copy: the next one has
    another keeper. The run's end, or an hour without a call, ends it; no process is left.
    """
    address, remove = nodes
    first = drive(address, "write")
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert drive(address, "read").stdout == f"2 {(1 << 20) + 1} []\n"
    node, _ = first.stdout.split()
    remove(node)
    assert drive(address, "read").stdout == "None 0 []\n"
    second = drive(address, "write")
    other, pid = second.stdout.split()
    assert other != node
    assert drive(address, "close").stdout == f"2 {(1 << 20) + 1} []\n[]\n"
    wait_until_gone(int(pid))
    *_, pid = drive(address, "write", patience_s=1).stdout.split()
    wait_until_gone(int(pid))


def wait_until_gone(pid: int) -> None:
    until_s = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until_s, "it is still there"
        time.sleep(0.05)


@pytest.mark.ray
def test_a_single_node_cannot_keep_a_copy_for_another() -> None:
    """The tier peer on a cluster that ends with the run is refused, in one line with the remedy."""
    done = drive(None, "read")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ValueError: --checkpoint-every peer: the cluster on this machine ends with the run"
    )
    assert "RAY_ADDRESS" in last
