"""Makes the runs of golden/lattice.txt, and returns what they leave."""

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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from golden_left import Left, digest, left, tolerance, unchanging, without_values
from virtual_ray import virtual_ray

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
EXACT = "--workload quadratic --dim 7 --optima .25 --grad-noise .5 --lr .0625"
"""Every product is with a power of two and every sum is of few numbers, which are added one after the other:
no processor has another way to compute it."""
ROWS = [
    line
    for line in (ROOT / "tests/golden/lattice.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
_ON_RAY = "ray: "
"""Before a row on Ray's engine, in virtual time."""
CHECKPOINT = re.compile(r"(\d+)-\w+\.safetensors")
# The machine's; compared as a value; and the source of a workload, which is held in test_workload.py.
NOT_COMPARED = ("meta.json", "summary.json", "workload.py")
_DIGEST = re.compile(rb"(?<=digest\\\":\\\")[0-9a-f]{64}")


def command(row: str) -> str:
    """Return the command of a row, with the engine before it, and after it what ends its attempts."""
    options = row.removeprefix(_ON_RAY)
    common = COMMON if "--workload" in row else f"{COMMON} {EXACT}"
    return f"{_ON_RAY if options != row else ''}{common} {options}"


def tolerance_of(row: str) -> float:
    """Return by how much a row's sums may differ between processors; 0: no bit may."""
    return tolerance(**dict(re.findall(r"--(mode|workload|inner|precision) (\S+)", command(row))))


class Witness(Watcher):
    """Takes down what a watcher sees, in order; at an update it does what the cut says."""

    def __init__(self, cut: str) -> None:
        self._how, _, at = cut.partition("@")
        self._at = int(at or -1)
        self.saw, self.unchanging = hashlib.sha256(), hashlib.sha256()

    def _take_down(self, *what: Any, value: Any = None) -> None:
        self.saw.update(repr((what, value)).encode())
        self.unchanging.update(repr(what).encode())

    def started(self, running: Running) -> None:
        self._path, self._tally = running.path, running.tally
        self._take_down("started", running.tally.updates)

    def updated(self, update: Update) -> None:
        w, tally = update.weights, self._tally
        value = update.loss, digest(w.vector.tobytes())
        self._take_down("updated", w.version, update.finished_s, tally.updates, tally.gradients, value=value)
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
        self._take_down("evaluated", *of, self._tally.updates, value=found.loss)

    def fault(self, fault: FaultSeen) -> None:
        self._take_down("fault", tuple(fault), dict(self._tally.faults))

    def ended(self) -> None:
        self._take_down("ended", self._tally.updates)


def made(command: str) -> Left:
    """Make a run in the working folder, cut as its command says, and return what it has left."""
    options, _, cuts = command.removeprefix(_ON_RAY).partition(" | ")
    has_record, more, resume = cuts != "no record", "", None
    own = re.findall(r"tests/\S+\.py", options)
    for path in own:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, path)
    ends: list[str] = []
    files: dict[str, tuple[bytes, bytes | None]] = {}
    for attempt, cut in enumerate([*cuts.split(", "), ""] if cuts and has_record else [""]):
        witness = Witness(cut)
        run = f"{options}{more}"
        ended = attempted(run, witness, resume, has_record=has_record, on_ray=command.startswith(_ON_RAY))
        if cut.startswith("kill"):
            assert ended.path
            shutil.rmtree(ended.path)
            shutil.move("killed", ended.path)
            resume = "killed"
            continue
        resume = ended.stopped_by
        ends.append(f"{resume} {ended.tally.updates}")
        found = {
            "saw": (witness.saw.digest(), witness.unchanging.digest()),
            "weights": (ended.weights.vector.tobytes(), None),
            "summary": summary_of(ended),
        }
        if ended.path:
            # Without faults a busy disk decides which checkpoints are left out; that of the end is not.
            found |= record_of(ended.path, only_last_checkpoint=not ended.cfg.fault.faults)
        files |= {f"{attempt} {name}": content for name, content in found.items()}
        more = f" --steps {cut[6:]}" if cut.startswith("steps=") else more
    if ended.path:
        replay = replay_of(ended.path).encode()
        files["replay"] = replay, replay
    losses = [e.found.loss for e in ended.evaluations if math.isfinite(e.found.loss)]
    return left(", ".join(ends), files, losses[-1] if losses else 0.0, ended.weights.vector)


def attempted(
    options: str, witness: Witness, resume: str | None, *, has_record: bool, on_ray: bool = False
) -> Ended:
    """Make a run, or go on with it."""
    cfg = parse(shlex.split(options))
    record = RunRecord(cfg, resume=resume is not None) if has_record else None
    with Interruptions() as stops, virtual_ray(cfg) if on_ray else nullcontext() as engine:
        return execute(cfg, [witness], record=record, interruptions=stops, resume=resume, engine=engine)


def record_of(record: Path, *, only_last_checkpoint: bool) -> dict[str, tuple[bytes, bytes | None]]:
    """Return the contents of a record's files, wherever it lies, and what no processor changes in them."""
    files = {str(path.relative_to(record)): path for path in sorted(record.rglob("*")) if path.is_file()}
    checkpoints = [name for name in files if CHECKPOINT.search(name)]
    left_out = {*NOT_COMPARED, *(checkpoints[:-1] if only_last_checkpoint else ())}
    found = {}
    for name, path in files.items():
        if name not in left_out:
            content = path.read_bytes()
            # The options name a file of the user's by its path, and a checkpoint has their hash.
            content = _DIGEST.sub(b"0" * 64, content.replace(str(Path.cwd()).encode(), b""))
            found[CHECKPOINT.sub(r"\1", name)] = content, unchanging(name, content)
    return found


def replay_of(record: Path) -> str:
    """Return what a replay of a record finds, or why there is none."""
    try:
        replay = compared(recorded_run(record))
    except RecordError as error:
        return str(error).removeprefix(f"{record}: ")
    return replay.differs or f"{replay.updates} updates, {replay.same_weights}"


def summary_of(ended: Ended) -> tuple[bytes, bytes]:
    """Return what is said of a run, less what depends on the machine's speed; formulas to 12 digits."""
    numbers = {name: value for name, value in ended.summary.items() if name not in ("wall_s", "startup_s")}
    said = json.loads(
        json.dumps([numbers, ended.notes], default=str), parse_float=lambda x: f"{float(x):.12g}"
    )
    return json.dumps(said).encode(), json.dumps(without_values(said)).encode()
