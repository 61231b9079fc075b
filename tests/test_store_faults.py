"""Faults of a place for checkpoints that were asked for: each does what it says, and nothing is lost."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from test_disk_store import content_of, put

from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.store import Store, name_of, newest_whole, require_whole, version_of
from dsgd.checkpoints.store_faults import FaultyStore
from dsgd.faults.faults_text import parse_faults


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "run/checkpoints")


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
