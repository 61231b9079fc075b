"""Checkpoints on a disk: what is loaded is whole and the newest, whatever was killed, altered or full."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ROOT, run_python
from test_full_disk import on_disk
from test_full_disk import pytestmark as needs_mount

from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import (
    Part,
    Store,
    forget_after,
    keep_newest,
    name_of,
    newest_whole,
    require_whole,
    version_of,
)


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
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import keep_newest, name_of

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
    points = int(run_python("-c", KILLED_AT_EACH_LINE, tmp_path).stdout)
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
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import keep_newest, name_of

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


# --- A disk that is full ------------------------------------------------------------------------------------

UNTIL_FULL = """
from pathlib import Path
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import name_of, newest_whole, version_of

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
