"""A change of one bit anywhere is seen, whatever processor this is: no hash is kept for one kind alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import ROOT
from golden_base import MOVED, Git, Line, moved
from golden_lattice import command, made
from golden_left import moved as moved_from_file
from golden_left import read
from msgspec import structs

from dsgd.core import aggregators, ledger, rules, time_laws
from dsgd.engines import replay
from dsgd.engines.ray.transport import messages
from dsgd.records import writer
from dsgd.running import resuming
from dsgd.running.checkpoints import checkpointer
from dsgd.transforms import codecs


def flipped(x: Any) -> Any:
    """Return an array whose largest number differs in its last bit, or bytes whose first does."""
    if isinstance(x, bytes):
        return bytes([x[0] ^ 1, *x[1:]])
    changed = np.array(x)
    largest = int(np.abs(changed).argmax())
    changed.reshape(-1)[largest : largest + 1].view(np.uint8)[0] ^= 1
    return changed


def given(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what makes, of a function, one whose result is changed."""
    return lambda function: lambda *args, **more: change(function(*args, **more))


def sent(begin: Any) -> Any:
    """Return a `begin` that flips a bit of what is sent to a process."""

    def begun(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.small = flipped(self.small)

    return begun


def written(append: Any) -> Any:
    """Return an `append` that moves the times in a record by their last bit."""
    return lambda self, name, line: append(self, name, structs.replace(line, t_s=np.nextafter(line.t_s, 9e9)))


class Planted(NamedTuple):
    """A change of one bit."""

    owner: Any
    name: str
    changed: Callable[[Any], Any]
    row: str
    file: str
    """In which it shows."""


SAVED = "--mode asgd --record none --trace-last 0 --checkpoint-every 3 | stop@20"
RECORDED = "--mode ssgd --checkpoint-every 2"
RULED = "--mode ksync --backup 1 --count gradients --momentum .5"
CODED = "--mode ssgd --compress int8"
LIED = "--mode ssgd --aggregate median --faults lie:1=signflip"
SENT = "ray: --mode ssgd --checkpoint-every 3 | stop@10"
CHECKPOINT = "0 checkpoints/00000020"

in_result = given(flipped)
in_weights = given(lambda w: w._replace(vector=flipped(w.vector)))
in_last_part = given(lambda parts: [*parts[:-1], flipped(bytes(parts[-1]))])
in_ledger = given(lambda state: replace(state, cancelled_s=flipped(state.cancelled_s)))
in_state = given(
    lambda state: replace(state, weights=state.weights._replace(vector=flipped(state.weights.vector)))
)

PLANTED: Mapping[str, Planted] = {
    "codec": Planted(codecs.Int8, "decode", in_result, CODED, "0 saw"),
    "aggregator": Planted(aggregators.Aggregation, "__call__", in_result, LIED, "0 updates.jsonl"),
    "ledger": Planted(ledger.Ledger, "state", in_ledger, SAVED, CHECKPOINT),
    "checkpoint": Planted(checkpointer, "to_parts", in_last_part, SAVED, CHECKPOINT),
    "resume": Planted(resuming, "from_bytes", in_state, SAVED, "1 saw"),
    "replay": Planted(replay.ReplayCluster, "combine", in_weights, RECORDED, "replay"),
    "Ray's wire": Planted(messages.SentVector, "__init__", sent, SENT, "0 weights"),
    "law of times": Planted(time_laws.ShiftedExponential, "sample", in_result, RECORDED, "0 updates.jsonl"),
    "rule": Planted(rules.Momentum, "__call__", in_result, RULED, "0 saw"),
    "record's writer": Planted(writer.RunRecord, "_append", written, RECORDED, "0 evals.jsonl"),
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_bit_is_seen(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file that it changes, beside what is kept for all processors."""
    owner, name, changed, row, file = PLANTED[place]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(owner, name, changed(getattr(owner, name)))
    assert file in moved_from_file(made(command(row)), read()[row])


OLD_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
    "OPENBLAS_CORETYPE": "Nehalem", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
}  # fmt: skip
"""A processor without AVX and fused products, played: each library then takes other routines."""


@pytest.mark.thorough
def test_another_processor_leaves_the_same() -> None:
    """Most runs bit for bit, the others what is kept of them."""
    tests = ("tests/records/test_golden_lattice.py", "tests/strategies/test_golden.py")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-m", "not ray", *tests],
        cwd=ROOT, env={**os.environ, **OLD_PROCESSOR}, check=True, timeout=600,
    )  # fmt: skip


# --- golden_base.py -----------------------------------------------------------------------------------------


class Clone:
    """A repository whose commits are hours apart."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hours = folder, 0.0
        (folder / "tests/golden").mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        at = f"{1.7e9 + 3600 * self.hours:.0f} +0000"
        who = {"NAME": "x", "EMAIL": "x", "DATE": at}
        environment = {f"GIT_{role}_{it}": who[it] for role in ("AUTHOR", "COMMITTER") for it in who}
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.check_output(command, env={**os.environ, **environment}, text=True).strip()

    def commit(self, subject: str, hours: float, moves: str = "") -> str:
        """Make a commit, `hours` after the last one; moves: the content of moved.txt in it."""
        self.hours += hours
        (self.folder / MOVED).write_text(moves)
        self.git("add", ".")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path, git: None) -> Clone:
    return Clone(tmp_path)


def test_a_branch_is_compared_with_where_it_left_main(clone: Clone) -> None:
    """However old that is."""
    left_main = clone.commit("one", 0)
    clone.git("update-ref", "refs/remotes/origin/main", left_main)
    clone.git("checkout", "-q", "-b", "mine")
    clone.commit("two", 0.1)
    clone.commit("three", 100)
    assert Git(clone.folder).before_the_change() == left_main


def test_main_is_compared_with_what_it_was_six_hours_before_its_end(clone: Clone) -> None:
    """Also where the clone's only branch ends where origin's does."""
    clone.commit("one", 0)
    before = clone.commit("two", 5)
    clone.commit("three", 4)
    head = clone.commit("four", 3)
    assert Git(clone.folder).before_the_change() == before
    clone.git("update-ref", "refs/remotes/origin/main", head)
    assert Git(clone.folder).before_the_change() == before


def test_a_young_or_shallow_clone_has_nothing_to_compare_with(clone: Clone, tmp_path: Path) -> None:
    """Nor has a folder that is none."""
    clone.commit("one", 0)
    clone.commit("two", 1)
    assert Git(clone.folder).before_the_change() == ""
    (none := tmp_path / "none").mkdir()
    (none / ".git").write_text("nothing")
    assert Git(none).before_the_change() == ""


def test_a_line_says_what_its_commit_moves(clone: Clone) -> None:
    """Lines of commits since the base count, also once they are removed; those of earlier commits must go."""
    base = clone.commit("old", 0, moves="--mode a\tupdates.jsonl\told\n")
    clone.commit("moves", 7, moves="--mode a\tupdates.jsonl\told\n*\tconfig.yaml\tmoves\n")
    git = Git(clone.folder)
    declared, wrong = git.moved_since(base)
    assert declared == {Line("*", "config.yaml", "moves")}
    assert len(wrong) == 1
    assert "old" in wrong[0]
    clone.commit("removes", 1)
    assert git.moved_since(base) == (declared, [])
    (clone.folder / MOVED).write_text("--mode b\t*\tto come\n")
    assert git.moved_since(base) == ({*declared, Line("--mode b", "*", "to come")}, [])


def test_a_line_covers_a_file_in_each_attempt() -> None:
    """A line with a run covers that run's file; one with `*` covers every run's."""
    line = Line("--mode a", "updates.jsonl", "x")
    assert line.covers("--mode a", "0 updates.jsonl")
    assert line.covers("--mode a", "1 updates.jsonl")
    assert not line.covers("--mode b", "0 updates.jsonl")
    assert not line.covers("--mode a", "0 saw")
    assert Line("*", "*", "x").covers("--mode b", "ended")


def test_what_has_moved_is_named_by_run_and_file() -> None:
    """Another end, hash, or number of files; a run that cannot be made now, or could not be made although it
    was kept; one that was not kept is new.
    """
    one = {"ended": "budget 2", "bits": {"0 saw": "a", "0 weights": "b"}}
    more = {"ended": "budget 3", "bits": {"0 saw": "a", "0 weights": "c", "0 faults.jsonl": "d"}}
    none = {"error": "gone"}
    files = [("run", file) for file in ("0 faults.jsonl", "0 weights", "ended")]
    assert moved({"run": one}, {"run": more}, {"run"}) == files
    assert moved({"run": one}, {"run": one}, {"run"}) == []
    assert moved({"run": none}, {"run": one}, {}) == []
    assert len(moved({"run": none}, {"run": one}, {"run"})) == 1
    assert len(moved({"run": one}, {"run": none}, {"run"})) == 1
