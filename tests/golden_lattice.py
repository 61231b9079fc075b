"""Makes the runs of golden/lattice.txt, and returns hashes of all that they leave."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Evaluated, Update
from dsgd.process.interruptions import Interruptions
from dsgd.records.schema import RecordError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.replaying import compared, recorded_run
from dsgd.show.terminal.cli import parse

ROOT = Path(__file__).parents[1]
COMMON = (
    "--engine sim --num-workers 4 --steps 24 --lr .05 --eval-every 3 --trace-last 5 "
    "--compute-time exponential:1 --slowdown 0=3 --out runs --run-name it"
)
ROWS = [
    line
    for line in (ROOT / "tests/golden/lattice.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
CHECKPOINT = re.compile(r"(\d+)-\w+\.safetensors")
# The machine's; compared as a value; and the source of a workload, which is held in test_workload.py.
NOT_COMPARED = ("meta.json", "summary.json", "workload.py")


class Left(NamedTuple):
    """What is kept of a row."""

    ended: str
    """How each attempt ended, and after how many updates."""
    loss: float | None
    """Of the last evaluation, if it is finite."""
    hashes: dict[str, str]
    """By attempt and file; `saw` is what its watchers saw, `replay` what a replay of the record finds."""


class Witness(Watcher):
    """Takes down what a watcher sees, in order; at an update it does what the cut says."""

    def __init__(self, cut: str) -> None:
        self._how, _, at = cut.partition("@")
        self._at = int(at or -1)
        self.saw = hashlib.sha256()

    def _take_down(self, *what: Any) -> None:
        self.saw.update(repr(what).encode())

    def started(self, running: Running) -> None:
        self._path, self._tally = running.path, running.tally
        self._take_down("started", running.tally.updates)

    def updated(self, update: Update) -> None:
        w, tally = update.weights, self._tally
        counted = tally.updates, tally.gradients, digest(w.vector.tobytes())
        self._take_down("updated", w.version, update.finished_s, update.loss, *counted)
        if w.version == self._at:
            self._cut()

    def _cut(self) -> None:
        if self._how == "raise":
            raise RuntimeError("a watcher's mistake")
        if self._how == "kill":
            assert self._path
            while not [*self._path.glob("checkpoints/*.safetensors")]:
                time.sleep(0.005)
            shutil.copytree(self._path, "killed")  # all that has left the process
        os.kill(os.getpid(), signal.SIGINT)

    def evaluated(self, evaluated: Evaluated) -> None:
        *of, found = evaluated
        self._take_down("evaluated", *of, found.loss, self._tally.updates)

    def fault(self, fault: FaultSeen) -> None:
        self._take_down("fault", tuple(fault), dict(self._tally.faults))

    def ended(self) -> None:
        self._take_down("ended", self._tally.updates)


def made(row: str) -> Left:
    """Make a run in the working folder, cut as its row says, and return what it has left."""
    options, _, cuts = row.partition(" | ")
    has_record, more, resume = cuts != "no record", "", None
    own = re.findall(r"tests/\S+\.py", options)
    for path in own:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, path)
    ends: list[str] = []
    hashes: dict[str, str] = {}
    for attempt, cut in enumerate([*cuts.split(", "), ""] if cuts and has_record else [""]):
        witness = Witness(cut)
        ended = attempted(f"{COMMON} {options}{more}", witness, resume, has_record=has_record)
        if cut.startswith("kill"):
            assert ended.path
            shutil.rmtree(ended.path)
            shutil.move("killed", ended.path)
            resume = "killed"
            continue
        resume = ended.stopped_by
        ends.append(f"{resume} {ended.tally.updates}")
        saw, weights = witness.saw.hexdigest(), digest(ended.weights.vector.tobytes())
        found = {"saw": saw, "weights": weights, "summary": digest(text_of(ended))}
        if ended.path:
            # Without faults a busy disk decides which checkpoints are left out; that of the end is not.
            found |= record_of(ended.path, own=bool(own), only_last_checkpoint=not ended.cfg.fault.faults)
        hashes |= {f"{attempt} {name}": content[:8] for name, content in found.items()}
        more = f" --steps {cut[6:]}" if cut.startswith("steps=") else more
    if ended.path:
        hashes["replay"] = replay_of(ended.path)
    losses = [e.found.loss for e in ended.evaluations if math.isfinite(e.found.loss)]
    return Left(", ".join(ends), losses[-1] if losses else None, hashes)


def attempted(command: str, witness: Witness, resume: str | None, *, has_record: bool) -> Ended:
    """Make a run, or go on with it."""
    cfg = parse(shlex.split(command))
    record = RunRecord(cfg, resume=resume is not None) if has_record else None
    with Interruptions() as interruptions:
        return execute(cfg, [witness], record=record, interruptions=interruptions, resume=resume)


def record_of(record: Path, *, own: bool, only_last_checkpoint: bool) -> dict[str, str]:
    """Return the hashes of a record's files; with a file of the user's own, of those without its path."""
    files = {str(path.relative_to(record)): path for path in sorted(record.rglob("*")) if path.is_file()}
    checkpoints = [name for name in files if CHECKPOINT.search(name)]
    left_out = {*NOT_COMPARED, *(checkpoints[:-1] if only_last_checkpoint else ())}
    left_out |= {"config.yaml", *checkpoints} if own else set()
    return {
        CHECKPOINT.sub(r"\1", name): digest(path.read_bytes())
        for name, path in files.items()
        if name not in left_out
    }


def replay_of(record: Path) -> str:
    """Return what a replay of a record finds, or why there is none."""
    try:
        replay = compared(recorded_run(record))
    except RecordError as error:
        return str(error).removeprefix(f"{record}: ")
    return replay.differs or f"{replay.updates} updates, {replay.same_weights}"


def text_of(ended: Ended) -> bytes:
    """Return what is said of a run as text, less what depends on the machine's speed."""
    numbers = {name: value for name, value in ended.summary.items() if name not in ("wall_s", "startup_s")}
    return json.dumps([numbers, ended.notes], default=str).encode()


def digest(content: bytes) -> str:
    """Return the digest of a content."""
    return hashlib.sha256(content).hexdigest()
