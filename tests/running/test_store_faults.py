"""Faults of a place for checkpoints that were asked for: each does what it says, and nothing is lost."""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from test_disk_store import content_of, put

from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import Store, name_of, newest_whole, require_whole, version_of
from dsgd.running.checkpoints.store_faults import FaultyStore
from dsgd.scenario.faults_text import parse_faults


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "run/checkpoints")


class Engine:
    """What a store needs of a run: seconds, which pass as a test says; a task comes in each second."""

    def __init__(self, store: Store, text: str, seed: int = 0) -> None:
        self.s = 0.0
        self.store = FaultyStore(store, parse_faults(text), seed=seed, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.s += seconds

    def checkpoint(self, version: int, s: float | None = None) -> None:
        """Reach a version, at a second, and write it."""
        self.s = version if s is None else s
        self.store.reached(self.s, version, lambda: int(self.s))
        put(self.store, version, content_of(version))


@pytest.mark.parametrize("kind", ["torn", "rot"])
@pytest.mark.parametrize("trigger", ["t=25", "update=30"])
def test_a_checkpoint_is_damaged_once_as_asked(kind: str, trigger: str, store: DiskStore) -> None:
    """A fault torn or rot damages the first checkpoint that is due, anywhere in it, and is recorded."""
    good, lengths = [name_of(v, [content_of(v)]) for v in (10, 20, 40)], set()
    for seed in range(20):
        shutil.rmtree(store.folder, ignore_errors=True)
        engine = Engine(store, f"kill:1@t=1; {kind}@{trigger}; spot:mtbf=9", seed)
        for version in (10, 20, 30, 40):
            engine.checkpoint(version)
            if version == 30:
                assert newest_whole(engine.store).name == good[1]
        found = newest_whole(engine.store)
        assert found.name == good[2]
        bad = name_of(30, [content_of(30)])
        assert [name for name in engine.store.names() if not _is_whole(engine.store, name)] == [bad]
        [seen] = engine.store.seen
        began_s = 25 if "t=" in trigger else 30
        assert seen[:6] == (began_s, kind, (), True, 30, 30)
        assert bad in seen.text
        lengths.add(len(engine.store.read(bad)))
    assert len(lengths) > 15 if kind == "torn" else lengths == {3000}


def _is_whole(store: Store, name: str) -> bool:
    try:
        require_whole(name, store.read(name))
    except ValueError:
        return False
    return True


def test_a_full_disk_is_full_as_long_as_asked(store: DiskStore) -> None:
    """While it is full each write fails with ENOSPC and nothing is lost; then it goes on."""
    engine = Engine(store, "full@t=15+20")
    for version in (10, 20, 30, 40):
        if version in (20, 30):
            with pytest.raises(OSError, match="No space left") as raised:
                engine.checkpoint(version)
            assert raised.value.errno == errno.ENOSPC
        else:
            engine.checkpoint(version)
    assert [version_of(name) for name in store.names()] == [10, 40]
    [seen] = engine.store.seen
    assert (seen.t_s, seen.update, seen.came_in, seen.recovered_s) == (15, 20, 20, 20)
    assert seen.text == "the disk was full for 2 checkpoints"


def test_a_slow_disk_takes_longer_and_loses_nothing(store: DiskStore) -> None:
    """Each checkpoint takes so many engine seconds longer, while it lasts; a run may end in it."""
    engine = Engine(store, "slow-disk=3@update=20+10; slow-disk=1@t=100+9")
    for version in (10, 20, 22):
        engine.checkpoint(version)
    assert engine.s == 25
    engine.checkpoint(100)
    assert engine.s == 101
    engine.store.end()
    assert [(s.t_s, s.recovered_s) for s in engine.store.seen] == [(20, 10), (100, None)]
    assert len(store.names()) == 4


def test_faults_leave_what_is_there(store: DiskStore) -> None:
    """Under any faults of the store there are never fewer good checkpoints than before they began."""
    put(store, 1, content_of(1))
    engine = Engine(store, "torn@t=2; rot@t=3; full@t=4+1; torn@update=5; rot@update=6")
    for version in (2, 3, 4, 5, 6):
        try:
            engine.checkpoint(version)
        except OSError:
            assert version == 4
        assert newest_whole(engine.store).content == content_of(1)
    engine.checkpoint(7)
    assert newest_whole(engine.store).content == content_of(7)
    assert [seen.kind for seen in engine.store.seen] == ["torn", "rot", "full", "torn", "rot"]


@pytest.mark.parametrize("cut", range(2, 8))
def test_a_store_that_goes_on_has_each_fault_once(cut: int, store: DiskStore) -> None:
    """Between any two checkpoints: from its position on it does and records what it would have."""
    text = "torn@t=2.5; full@update=4+1.5; slow-disk=.5@t=5+9; rot@t=6.5"

    def followed(engine: Engine, versions: range) -> None:
        for version in versions:
            with suppress(OSError):
                engine.checkpoint(version, engine.s + 1)

    whole, before = Engine(store, text), Engine(store, text)
    followed(whole, range(10))
    whole.store.end()
    followed(before, range(cut))
    after = Engine(store, text)
    after.s = before.s
    after.store.go_to(json.loads(json.dumps(before.store.position())))
    followed(after, range(cut, 10))
    after.store.end()
    assert [*before.store.seen, *after.store.seen] == whole.store.seen
    assert len(whole.store.seen) == 4


def test_positions_of_older_checkpoints_hold(store: DiskStore) -> None:
    """There a number stood for a fault, and those that wait were said, not those that had begun."""
    engine = Engine(store, "torn@t=2; kill:1@t=1; slow-disk=3@t=3+9; rot@t=8; torn@t=2")
    engine.store.go_to({"waiting": [2, 3], "begun": [[1, 3.0, 4, 5, 0]]})
    begun = [["slow-disk=3@t=3+9", 3.0, 4, 5, 0]]
    assert engine.store.position() == {"given": ["torn@t=2", "slow-disk=3@t=3+9"], "begun": begun}


def test_what_is_recorded_as_over_does_not_happen_again(store: DiskStore) -> None:
    """A run that is rolled forward, from a checkpoint before its faults, leaves out those that it had."""
    text = "torn@t=2; full@update=4+2; rot@t=8"
    first, second = Engine(store, text), Engine(store, text)
    for version in range(7):
        with suppress(OSError):
            first.checkpoint(version)
    assert [seen.kind for seen in first.store.seen] == ["torn", "full"]
    second.store.leave_out(first.store.seen)
    for version in range(10):
        second.checkpoint(version)
    assert [seen.kind for seen in second.store.seen] == ["rot"]
