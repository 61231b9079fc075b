"""What a network's file system, or one in user space, lacks: the run goes on, and no second one writes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S
from test_resume import OPTIONS, Kill, contents, killed_in, run

from dsgd.compare import finished_runs
from dsgd.config import TrainConfig
from dsgd.engines.ray.connection.credentials import guard_token
from dsgd.models.datasets.mapped import Mapped
from dsgd.process import locks
from dsgd.process.locks import FolderLock, HeldError
from dsgd.process.outcomes import UsageError
from dsgd.strategies import configured


def refusing(number: int, real: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Any:
    """Return a call of the system that fails."""

    def act(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **named)

    return act


def is_folder(descriptor: int, *_: object) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def lacks(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Make calls of the system fail as on a file system that lacks something."""
    name, _, number = what.partition(" ")
    code = getattr(errno, number, 0)
    match name:
        case "locks":
            monkeypatch.setattr(fcntl, "flock", refusing(code, fcntl.flock))
        case "locks-of-folders":  # NFS
            monkeypatch.setattr(fcntl, "flock", refusing(errno.EBADF, fcntl.flock, is_folder))
        case "fsync":
            monkeypatch.setattr(os, "fsync", refusing(code, os.fsync))
        case "rename":
            monkeypatch.setattr(Path, "rename", refusing(code, Path.rename, lambda old, _: old.is_file()))
        case "rename-over":
            over = refusing(code, Path.rename, lambda _, new: Path(new).exists())
            monkeypatch.setattr(Path, "rename", over)


def left(folder: Path) -> list[str]:
    """Return what is left in a folder, without the one claim that always stays."""
    claims = [path for path in folder.glob(".writer-*") if path.read_text() == "free"]
    assert len(claims) <= 1
    return sorted(path.name for path in folder.iterdir() if path not in claims)


LOCKS = ["locks ENOLCK", "locks EOPNOTSUPP", "locks ENOSYS", "locks EINVAL", "locks-of-folders"]
OTHERS = ["fsync EINVAL", "fsync EOPNOTSUPP"]
RENAMES = ["rename ENOSYS", "rename-over EEXIST"]


@pytest.fixture
def cfg(tmp_path: Path) -> Callable[[str], TrainConfig]:
    options = {**OPTIONS, "mode": "asgd", "out": str(tmp_path)}
    return lambda name: configured({**options, "run_name": name})


@pytest.fixture
def other_process() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Act in another process, which then stands still until the test is over; return its number."""
    started = []

    def begun(act: Callable[[], object]) -> int:
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            kept = act()
            os.write(writes, b"." if kept is None or kept else b"-")
            time.sleep(PATIENCE_S)
            os._exit(3)
        started.append(pid)
        os.close(writes)
        assert os.read(reads, 1) == b"."
        os.close(reads)
        return pid

    yield begun
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("what", [*LOCKS, *OTHERS, *RENAMES])
def test_a_run_goes_on_without(
    what: str, cfg: Callable[[str], TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun, killed and resumed there, it leaves the record that it leaves here, and nothing else."""
    whole = run(cfg("whole"))
    lacks(monkeypatch, what)
    killed_in(lambda: run(cfg("cut"), Kill(40)))
    ended = run(cfg("cut"), resume="killed")
    assert whole.path
    assert ended.path
    assert contents(ended.path) == contents(whole.path)
    assert left(ended.path) == left(whole.path)


@pytest.mark.parametrize("what", ["nothing", *LOCKS])
def test_a_second_writer_is_found(
    what: str,
    tmp_path: Path,
    other_process: Callable[[Callable[[], object]], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While another process writes, nobody else does, also if two ask at once; once it is killed, one may."""
    lacks(monkeypatch, what)
    holder = other_process(lambda: FolderLock(tmp_path))
    with pytest.raises(HeldError):
        FolderLock(tmp_path)
    with (
        pytest.raises(UsageError, match="another process is running this experiment"),
        finished_runs.locked(tmp_path, patience_s=0.1),
    ):
        pass
    os.kill(holder, signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:  # the system needs a moment
        try:
            lock = FolderLock(tmp_path)
            break
        except HeldError:
            assert time.monotonic() < deadline_s
    with pytest.raises(HeldError):
        FolderLock(tmp_path)
    lock.close()
    FolderLock(tmp_path).close()
    assert left(tmp_path) == []


@pytest.mark.parametrize("what", ["locks ENOLCK", "locks-of-folders"])
def test_of_many_that_ask_at_once_one_gets_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve processes ask over and over, each writes a line while it has the lock: no two lines mix."""
    lacks(monkeypatch, what)
    log = tmp_path.with_suffix(".log")

    def write(number: int) -> None:
        for _ in range(30):
            try:
                lock = FolderLock(tmp_path)
            except HeldError:
                time.sleep(0.001)
                continue
            for word in ("begins", "ends"):
                with log.open("a") as file:
                    file.write(f"{number} {word}\n")
                time.sleep(0.0005)
            lock.close()

    children = []
    for number in range(12):
        if not (pid := os.fork()):
            write(number)
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 12
    said = log.read_text().splitlines()
    assert len(said) > 20
    for begins, ends in zip(said[::2], said[1::2], strict=True):
        assert ends == begins.replace("begins", "ends")


def test_who_has_looked_long_ago_finds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have come and gone meanwhile, and one writes: a claim of a lower number is given back."""
    lacks(monkeypatch, "locks ENOLCK")
    for _ in range(4):
        FolderLock(tmp_path).close()
    lock, looks, seen = FolderLock(tmp_path), locks._newest, [0]
    monkeypatch.setattr(locks, "_newest", lambda folder: seen.pop() if seen else looks(folder))
    with pytest.raises(HeldError):
        FolderLock(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".writer-5"]
    lock.close()


def test_a_file_that_was_removed_while_it_was_waited_for_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS: who then has the old file locked has locked nothing that others see, and tries again."""
    lacks(monkeypatch, "locks-of-folders")
    lock, files = fcntl.flock, [tmp_path / ".lock"]

    def late(descriptor: int, how: int) -> None:
        if not is_folder(descriptor) and files:
            files.pop().unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    FolderLock(tmp_path)
    with pytest.raises(HeldError):
        FolderLock(tmp_path)


def test_a_claim_of_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its process lives is not known here: the line says which file to remove if it does not."""
    lacks(monkeypatch, "locks ENOLCK")
    for content, who in (("elsewhere 12 345\n", " of process 12 on elsewhere"), ("", ""), ("\0 x", "")):
        (tmp_path / ".writer-3").write_text(content)
        with pytest.raises(HeldError) as refused:
            FolderLock(tmp_path)
        assert refused.value.remedy.startswith(f"; if it has ended, remove {tmp_path / '.writer-3'}{who}")


def test_the_run_says_so_in_one_line(
    cfg: Callable[[str], TrainConfig], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no locks; where a file can be locked, nothing is missing."""
    lacks(monkeypatch, "locks ENOLCK")
    ended = run(cfg("noted"))
    assert caplog.messages == [
        f"{ended.path}: its file system has no locks; .writer-1 keeps other processes out"
    ]


def test_a_file_that_cannot_be_shared_is_mapped_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are the same, and nobody can write to them."""
    np.arange(12.0).tofile(tmp_path / "data")
    real = mmap.mmap

    def of_this_process_alone(descriptor: int, length: int, access: int, offset: int) -> Any:
        if access == mmap.ACCESS_READ:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(descriptor, length, access=access, offset=offset)

    monkeypatch.setattr(mmap, "mmap", of_this_process_alone)
    mapped = Mapped(str(tmp_path / "data"), np.dtype(float), (3, 4))
    assert np.array_equal(mapped[1], [4, 5, 6, 7])
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize("what", ["chmod", "link"])
def test_a_home_without_rights_or_links_keeps_no_token(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the environment then, and what lies in the home is not believed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    if what == "link":
        monkeypatch.setattr(os, "link", refusing(errno.EPERM, os.link))
    else:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray/auth_token").write_text("known to all")
        monkeypatch.setattr(Path, "chmod", lambda *_: None)
    guard_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
