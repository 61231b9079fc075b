"""Where a run can go on from, and with which options."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from dsgd.config import TrainConfig
from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.model import Evaluation
from dsgd.core.protocol import Evaluated
from dsgd.core.routing import ExpertUse
from dsgd.core.weights import Vector
from dsgd.process.outcomes import is_result
from dsgd.records.reader import (
    length_to,
    read_brief_summary,
    read_evaluations,
    read_faults,
    read_meta,
    read_updates,
    whole_length,
)
from dsgd.records.s3 import CHECKPOINTS
from dsgd.records.schema import RecordedEvaluation, RecordedUpdate, RecordError
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import MemoryStore, Store, newest_whole
from dsgd.records.tensorboard import Kept
from dsgd.running.checkpoints.checkpointer import Tier
from dsgd.running.checkpoints.codec import Vocabulary
from dsgd.running.checkpoints.run_state import RunState, from_bytes
from dsgd.running.checkpoints.store_faults import FaultyStore
from dsgd.scenario.fault import STORE, Fault, named

if TYPE_CHECKING:
    from dsgd.records.writer import RunRecord

_KEPT = 3
_UPDATES = "updates.jsonl"


class FinishedError(ValueError):
    """A run has ended with a result, and is asked for no more than it has."""

    def __init__(self, ending: str, remedy: str) -> None:
        """Make it from how the run ended, and what the user can do."""
        super().__init__(f"is finished ({ending}); {remedy}")
        self.ending = ending


class OtherOptionsError(Exception):
    """A whole checkpoint is of a run with other options: it may be good, and what it is compared with bad."""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run goes on."""

    state: RunState | None
    """Of its newest whole checkpoint; None: it begins again."""
    checkpoint: str | None
    """Its name; later ones are removed once the run goes on, as it makes others."""
    why: str
    """How the attempt before ended, as far as is known."""
    skipped: Sequence[tuple[str, str]]
    """Newer checkpoints that cannot be used, and why."""
    evaluations: list[Evaluated]
    """Those that were done by then."""
    lengths: Mapping[str, int]
    """Bytes of the record's files that are kept."""
    later: Sequence[RecordedUpdate] = ()
    """Updates after the checkpoint: on Ray none that was applied is lost."""
    all_faults: Sequence[FaultSeen] = ()
    """The lines of faults.jsonl that are kept."""

    @property
    def later_faults(self) -> Sequence[FaultSeen]:
        """Those after the checkpoint."""
        return self.all_faults[self.state.faults_noted if self.state else 0 :]

    def faults_given(self, cfg: TrainConfig, state: ClusterState) -> Mapping[str, Any] | None:
        """Return which faults have happened by the state: also timed ones, one of which may have ended the
        driver.
        """
        if state.faults is None:
            return None
        drivers = [fault.t_s for fault in self.all_faults if fault.kind == "driver"]
        until_s = max([state.now_s, *drivers])
        asked = named(fault for fault in cfg.fault.of_engine if isinstance(fault, Fault))
        timed = {name for name, f in asked.items() if f.trigger.of == "t" and f.trigger.at <= until_s}
        return {**state.faults, "given": sorted({*state.faults["given"], *timed})}


def unfinished(path: Path, was: Mapping[str, Any], cfg: TrainConfig) -> str:
    """Return how a run ended, as far as is known.

    Raises FinishedError if it is finished, and these options ask for no more than it has, ValueError if that
    cannot be read. was: its own options.
    """
    if not (path / "summary.json").exists():
        return "killed"
    try:
        ending = read_brief_summary(path).stopped_by
    except RecordError as error:
        raise ValueError(f"{error}; remove that file, and the run goes on from its checkpoint") from None
    more = {
        "budget": cfg.steps > was["steps"],
        "seconds": cfg.stop.max_seconds > was.get("max_seconds", math.inf),
        "target-loss": cfg.stop.target_loss is None or cfg.stop.target_loss < was["target_loss"],
    }
    if is_result(ending) and not more.get(ending):
        remedy = {
            "budget": f"give more --steps than {was['steps']}",
            "seconds": f"give more --max-seconds than {was.get('max_seconds')}",
            "target-loss": f"give a lower --target-loss than {was.get('target_loss')}",
        }.get(ending, "start another run with a lower --lr")
        raise FinishedError(ending, remedy)
    return ending


def newest_state(
    cfg: TrainConfig,
    path: Path | None,
    places: Mapping[str, Store],
    known: Vocabulary,
    digest: str,
    device: str = "cpu",
) -> tuple[RunState | None, str | None, Sequence[tuple[str, str]]]:
    """Return the newest whole checkpoint of a run and its name, None without any; and which were skipped,
    and why.

    path: its record's, which must stand where the checkpoint was taken. places, known, digest, device: as of
    `resume_point`. Raises OtherOptionsError.
    """

    def usable(content: bytes) -> RunState:
        state = from_bytes(content, known)
        if path is None:
            return state
        if state.digest != digest:
            raise OtherOptionsError
        for name, length in state.lengths.items():
            if not _goes_on_at(path / name, length):
                raise ValueError(f"{name} of the record is not as it was then")
        if not _rolls_forward(cfg, device) and length_to(
            path / _UPDATES, state.weights.version
        ) != state.lengths.get(_UPDATES, 0):
            raise ValueError(f"{_UPDATES} of the record has not the same updates as then")
        return state

    candidates = [newest_whole(store, usable) for store in places.values()]
    skipped = [skipped for found in candidates for skipped in found.skipped]
    found = max(candidates, key=lambda found: found.name or "")
    return usable(found.content) if found.name else None, found.name, skipped


def _goes_on_at(file: Path, length: int) -> bool:
    """Whether a growing file is there, and so many bytes of it are whole lines."""
    if not file.is_file():
        return False
    with file.open("rb") as lines:
        lines.seek(max(0, length - 1))
        return not length or lines.read(1) == b"\n"


def _rolls_forward(cfg: TrainConfig, device: str) -> bool:
    """Whether a run that goes on computes what was recorded after its checkpoint again: this process does,
    and needs the workers' kind of device, which the head of a cluster may not have.
    """
    if cfg.engine != "ray" or cfg.output.record_every != 1:
        return False
    if device == "cpu":
        return True
    import torch

    return torch.cuda.is_available()


def resume_point(
    cfg: TrainConfig,
    path: Path,
    places: Mapping[str, Store],
    known: Vocabulary,
    why: str,
    *,
    digest: str,
    device: str = "cpu",
) -> ResumePoint:
    """Return where the run of a record goes on from: its newest whole checkpoint, or its beginning.

    places: where its checkpoints lie. known: what its tasks may be. why: how it ended. digest: of its
    options. device: of torch, on which the workers compute. Raises ValueError for a record that is damaged,
    or whose checkpoint is of other options.
    """
    try:
        state, name, skipped = newest_state(cfg, path, places, known, digest, device)
    except OtherOptionsError:
        raise ValueError(
            f"--resume {path}: its newest checkpoint is of a run with other options than {path}/config.yaml "
            "has; put that file back as it was"
        ) from None
    collected, noted, version = (
        (state.collected, state.faults_noted, state.weights.version) if state else (0, 0, 0)
    )
    later = list[RecordedUpdate]()
    lengths = dict(state.lengths) if state else {}
    try:
        evaluations = [
            _evaluated(line) for _, line in zip(range(collected), read_evaluations(path), strict=False)
        ]
        kept_faults = None if _rolls_forward(cfg, device) else noted
        recorded = islice(read_faults(path), kept_faults) if kept_faults != 0 else ()
        all_faults = [FaultSeen(**asdict(fault)) for fault in recorded]
        if kept_faults is None:
            later = [update for update in read_updates(path) if update.version > version]
            for expected, update in enumerate(later, version + 1):
                if update.version != expected:
                    raise RecordError(f"{path / _UPDATES}: has no update {expected}")
            lengths |= {name: whole_length(path / name) for name in ("updates.jsonl", "faults.jsonl")}
    except RecordError as error:
        raise ValueError(f"--resume {path}: {error}; the record is damaged") from None
    return ResumePoint(
        state=state,
        checkpoint=name,
        why=why,
        skipped=skipped,
        evaluations=evaluations,
        lengths=lengths,
        later=later,
        all_faults=all_faults,
    )


def kept_of(state: RunState | None, found: Sequence[Evaluated], faults: int) -> Kept:
    """Return what stays of points that were made, in a run that goes on from a state; found: evaluations."""
    gradients, t_s = (state.tally["gradients"], state.tally["last_update_s"]) if state else (0, 0.0)
    return Kept(gradients, found[-1].gradients if found else -1, faults, t_s)


def require_same_start(cfg: TrainConfig, path: Path, first: Vector) -> None:
    """Raise ValueError if a run that begins again would begin with other weights than it did."""
    expected = read_meta(path).init_sha256
    if expected is not None and hashlib.sha256(first.tobytes()).hexdigest() != expected:
        raise ValueError(
            f"--init-from {cfg.checkpoint.init_from}: are no longer the weights that {path} began with, and "
            "it has no whole checkpoint; start another run"
        )


def _evaluated(line: RecordedEvaluation) -> Evaluated:
    loss = math.nan if line.loss is None else line.loss
    use = None
    if (seen := line.experts) is not None:
        use = ExpertUse(
            seen.load, seen.entropy, seen.capacity, seen.workers, seen.agreement, seen.agreement_with_server
        )
    found = Evaluation(loss, line.accuracy, line.bits_per_byte, use)
    return Evaluated(line.version, line.t_s, line.gradients, line.bytes, found)


def stores_of(cfg: TrainConfig, record: RunRecord | None = None) -> dict[str, Store]:
    """Return the places for the checkpoints of a run, the disk always among them, where resumes look first.

    Without a record they are kept in this process: as values, and as files only for faults of the disk.
    The process is connected to Ray's cluster, if that carries the workers. Raises ValueError, naming the
    option, for a place that cannot be had.
    """
    disk: Store = DiskStore(record.path / CHECKPOINTS) if record else MemoryStore()
    fails = any(isinstance(fault, Fault) and fault.kind in STORE for fault in cfg.fault.fault_list)
    if fails:
        # In the simulator the server stands still meanwhile.
        sleep = (lambda seconds: None) if cfg.engine == "sim" else time.sleep
        disk = FaultyStore(disk, cfg.fault.fault_list, seed=cfg.seed, sleep=sleep)
    if record is None:
        return {"disk": disk} if fails else {}
    asked = cfg.checkpoint.checkpoint_tiers
    places = {"disk": disk}
    if "peer" in asked:
        from dsgd.running.checkpoints.peer_store import PeerStore

        # By its place, so that a resume from another folder finds it.
        name = f"{cfg.output.out}/{record.path.name}" if record.bucket else str(record.path.resolve())
        places["peer"] = PeerStore(name)
    if "s3" in asked:
        assert record.bucket, "an --out that is no bucket is refused"
        places["s3"] = record.bucket
    return places


def tiers_of(cfg: TrainConfig, places: Mapping[str, Store]) -> list[Tier]:
    """Return when each place gets a checkpoint, and how many it keeps.

    places: none, for a run without a record; its checkpoints are then only kept in this process.
    """
    kept = cfg.checkpoint.kept_by_tier
    return [
        Tier(
            name,
            places.get(name),
            every_s=every_s,
            keep=kept.get(name, _KEPT),
            mtbf_s=cfg.checkpoint.mtbf,
            cost_s=cfg.checkpoint.checkpoint_cost_s if cfg.engine == "sim" else None,
        )
        for name, every_s in cfg.checkpoint.checkpoint_tiers.items()
    ]
