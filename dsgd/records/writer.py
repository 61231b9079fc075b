"""The record that a run leaves: main.py feeds it, docs/record.md describes its files."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors.numpy
import yaml
from msgspec import Struct
from msgspec.structs import replace

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.option_rules import options
from dsgd.core.protocol import Done, Engine, Evaluated, Update
from dsgd.core.routing import ExpertUse, routing_numbers
from dsgd.core.update_counts import finite
from dsgd.core.weights import Vector
from dsgd.metrics import taken_of_updates
from dsgd.process.endings import end_if_copy
from dsgd.process.environment import ROOT, of_git
from dsgd.process.files import GrowingFile, WriteError, Writing, synced, whole_file
from dsgd.process.locks import FolderLock, HeldError
from dsgd.records import workload_copy
from dsgd.records.fixed_options import options_digest, options_written
from dsgd.records.output_options import OutputConfig
from dsgd.records.reader import length_to, read_meta, written_options
from dsgd.records.schema import (
    LaterAttempt,
    Meta,
    RecordedEvaluation,
    RecordedFault,
    RecordedRouting,
    RecordedTask,
    built,
    encode,
    encode_file,
    summary_type,
    update_type,
)
from dsgd.records.stores.store import Store
from dsgd.records.tensorboard import NOTHING, Kept, TensorBoard, require_tensorboard
from dsgd.records.trace import write_trace

_FLUSH_S = 1.0  # a killed simulation loses at most the updates of this many seconds


class RunRecord:
    """The folder that a run leaves; see docs/record.md for its files."""

    def __init__(self, cfg: TrainConfig, *, resume: bool = False, bucket: Store | None = None) -> None:
        """Find the record's folder, without making it.

        resume: the folder is there, and its run goes on; from now on no other process can.
        bucket: for checkpoints in S3.
        Raises ValueError, naming the option, when the name is taken or nothing can be written there, or when
        another process has the run that is to go on.
        """
        self._cfg = cfg
        self._lock: FolderLock | None = None
        self._steps_before: int | None = None
        self.bucket = bucket
        self.options = options(cfg)
        """As its config.yaml has them."""
        if resume:
            self.path = cfg.output.folder / str(cfg.output.run_name)
            self._take_lock()
            before = written_options(self.path)
            self.options = options_written(cfg, before)
            self._steps_before = before["steps"] if before.get("steps", cfg.steps) < cfg.steps else None
        else:
            self.path = free_path(cfg.output, default_name(cfg))
        self._every = cfg.output.record_every
        if cfg.output.tensorboard:
            require_tensorboard()
        self._line, self._taken = update_type(), taken_of_updates()
        self.recorded_to = 0
        """Updates up to this version are there already: they are only computed again."""
        self._real: Engine | None = None
        """The cluster of a run on Ray: a simulation goes on from its checkpoint exactly."""
        self._streams: dict[str, GrowingFile] = {}
        self._tensorboard: TensorBoard | None = None
        self._flushed_s = time.monotonic()

    def open(
        self,
        *,
        started: float,
        cluster: Engine,
        weights: Vector | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the folder and write what is known before the first update.

        weights: the first ones, where they are another run's. about: the workload's model and data.

        Raises ValueError where the folder cannot be made, WriteError where nothing can be written in it; then
        there is no folder.
        """
        self._real = cluster if self._cfg.engine == "ray" else None
        meta = replace(_meta(started, cluster), options_sha256=options_digest(self.options))
        if weights is not None:
            meta = replace(meta, init_sha256=hashlib.sha256(weights.tobytes()).hexdigest())
        workload = self._cfg.data.module
        code = {} if workload is None else workload_copy.contents_of(workload)
        if code:
            meta = replace(
                meta,
                workload_sha256=workload_copy.digest(code[workload_copy.COPY]),
                workload_files=workload_copy.digests(code),
                workload=dict(about or {}),
            )
        self._make_folder()
        self._take_lock()
        try:
            with whole_file(self.path / "config.yaml") as file:
                file.write(config_text(self.options).encode())
            for name, content in code.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                with whole_file(self.path / name) as file:
                    file.write(content)
            write_file(self.path / "meta.json", meta)
            self._open_streams({})
        except WriteError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def reopen(
        self,
        lengths: Mapping[str, int],
        *,
        version: int,
        why: str,
        started: float,
        cluster: Engine,
        kept: Kept = NOTHING,
    ) -> None:
        """Go on with a record: keep so many bytes of each growing file, and what is known of the new attempt.

        version: from which it goes on. why: the attempt before ended, as far as is known. kept: of points for
        TensorBoard.
        """
        self._real = cluster if self._cfg.engine == "ray" else None
        meta = read_meta(self.path)
        attempt = LaterAttempt(
            started_epoch_s=started,
            from_version=version,
            why=why,
            host=socket.gethostname(),
            pid=os.getpid(),
            worker_pids=list(cluster.pids),
            steps_before=self._steps_before,
        )
        # First remove what marks the run as ended: if this is killed next, the record says that it goes on.
        for name in ("summary.json", "weights.npy", workload_copy.CARRIED, "trace.json"):
            with Writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)
        with whole_file(self.path / "config.yaml") as file:
            file.write(config_text(self.options).encode())
        meta = replace(meta, options_sha256=options_digest(self.options))  # older records have none
        write_file(self.path / "meta.json", replace(meta, attempts=(*meta.attempts, attempt)))
        self._open_streams(lengths, kept)

    def _open_streams(self, lengths: Mapping[str, int], kept: Kept = NOTHING) -> None:
        try:
            for name, buffering in (("updates.jsonl", 1 << 16), ("evals.jsonl", -1), ("faults.jsonl", -1)):
                length = lengths.get(name, 0)
                self._streams[name] = GrowingFile(self.path / name, buffering, length=length)
        except WriteError:
            for stream in self._streams.values():
                stream.close()
            raise
        if self._cfg.output.tensorboard:
            with Writing(self.path / "tensorboard"):
                self._tensorboard = TensorBoard(self.path / "tensorboard", self._cfg.budget, kept)

    def _take_lock(self) -> None:
        try:
            self._lock = FolderLock(self.path)
        except HeldError as error:
            rule = f"its run is still going on; wait for it, or end it{error.remedy}"
            raise ValueError(f"{self.path}: {rule}") from None
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be read ({error.strerror}); give a run's folder") from None

    @property
    def lengths(self) -> dict[str, int]:
        """Bytes of the growing files so far."""
        return {name: stream.length for name, stream in self._streams.items()}

    def cut(self, version: int, evals_length: int, kept: Kept = NOTHING) -> None:
        """Remove the updates after a version, the evaluations beyond so many bytes of their file, and points
        for TensorBoard that are not kept.
        """
        self._streams["updates.jsonl"].flush()
        self._streams["updates.jsonl"].cut(length_to(self.path / "updates.jsonl", version))
        self._streams["evals.jsonl"].cut(evals_length)
        self.recorded_to = min(self.recorded_to, version)
        if self._tensorboard:
            self._tensorboard.cut(kept)

    def flush(self) -> None:
        """Hand what is buffered to the system: from then on it outlives this process."""
        for stream in self._streams.values():
            stream.flush()

    def sync(self) -> None:
        """Wait until what was flushed is on the disk; from any thread."""
        for stream in self._streams.values():
            stream.sync()

    def _make_folder(self) -> None:
        """Make the folder; if another run took the default name meanwhile, take the next one."""
        while True:
            try:
                return self.path.mkdir(parents=True)
            except FileExistsError:
                if self._cfg.output.run_name:
                    raise ValueError(
                        f"--run-name {self.path.name}: taken meanwhile in {self.path.parent}; choose another"
                    ) from None
                self.path = free_path(self._cfg.output, default_name(self._cfg))
            except OSError as error:
                raise ValueError(
                    f"--out {self.path.parent}: cannot be written to ({error.strerror}); "
                    "choose another folder"
                ) from None

    @property
    def follows_updates(self) -> bool:
        """Whether any update leaves something in the record."""
        return bool(self._every or self._tensorboard)

    def update(self, update: Update) -> None:
        """Append an update to updates.jsonl, if `--record` has it written."""
        end_if_copy()
        if self._tensorboard:
            self._tensorboard.update(update)
        version = update.weights.version
        if not self._every or (version - 1) % self._every or version <= self.recorded_to:
            return
        line = self._line(
            version=version,
            t_s=update.finished_s,
            loss=finite(update.loss),
            gradients=tuple([_task(update, done) for done in update.dones]),
            ignored=tuple([_task(update, done) for done in update.ignored]),
            extra={name: finite(value) for name, value in update.extra.items()} if update.extra else {},
            sent=self._sent(),
            **{name: finite(of(update)) for name, of in self._taken.items()},
        )
        updates = self._streams["updates.jsonl"]
        updates.write(encode(line) + b"\n")
        # On Ray, where the next update may take long, each line is written at once.
        if self._cfg.engine == "ray" or time.monotonic() - self._flushed_s > _FLUSH_S:
            updates.flush()
            self._flushed_s = time.monotonic()

    def _sent(self) -> dict[str, tuple[int, ...]]:
        """Return what the run has sent, if its tasks alone do not say that."""
        if self._real is None or not self._real.traffic.by_chance:
            return {}
        self._real.traffic.by_chance = False
        return {name: tuple(counts) for name, counts in self._real.traffic.state().items()}

    def evaluation(self, evaluated: Evaluated) -> None:
        """Append an evaluation to evals.jsonl."""
        if self._tensorboard:
            self._tensorboard.evaluation(evaluated)
        line = RecordedEvaluation(
            version=evaluated.version,
            t_s=evaluated.t_s,
            gradients=evaluated.gradients,
            bytes=evaluated.bytes,
            loss=finite(evaluated.found.loss),
            accuracy=evaluated.found.accuracy,
            bits_per_byte=finite(evaluated.found.bits_per_byte),
            experts=_recorded(evaluated.found.experts),
        )
        self._append("evals.jsonl", line)

    def fault(self, fault: FaultSeen) -> None:
        """Append a fault to faults.jsonl, at once: the next fault may end this process."""
        if self._tensorboard:
            self._tensorboard.fault(fault)
        self._append("faults.jsonl", RecordedFault(**fault._asdict()))

    def _append(self, name: str, line: Struct) -> None:
        stream = self._streams[name]
        stream.write(encode(line) + b"\n")
        stream.flush()

    def close_streams(self) -> None:
        """Write what is buffered; raises OSError if it cannot be."""
        for stream in self._streams.values():
            stream.close()
        if self._tensorboard:
            self._tensorboard.close()

    def draw_trace(self) -> None:
        """Write trace.json, after `close_streams`; raises OSError if it cannot be written."""
        last = self._cfg.output.trace_last
        if last != 0 and self._every:
            write_trace(self.path, last)

    def keep_logs(self, logs: Mapping[str, str]) -> None:
        """Write the end of processes' logs, by their names, after those of an earlier attempt.

        A disk that is full ends no run here: what follows says so.
        """
        folder = self.path / "logs"
        with suppress(OSError):
            for name, text in logs.items():
                folder.mkdir(exist_ok=True)
                with (folder / f"{name.replace(' ', '-')}.txt").open("a") as file:
                    file.write(text)

    def close(
        self, weights: Vector, summary: dict[str, Any], carried: Mapping[str, Vector] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Write the last weights and summary.json; return the summary as written.

        carried: what else an evaluation of a module needs, by name.
        """
        if carried:
            with whole_file(self.path / workload_copy.CARRIED) as file:
                file.write(safetensors.numpy.save(dict(carried)))
        with whole_file(self.path / "weights.npy") as file:
            saved = io.BytesIO()  # numpy's own errors of a full disk have neither a number nor a reason
            np.save(saved, weights)
            file.write(saved.getbuffer())
        summary = summary | {"weights_sha256": hashlib.sha256(weights.tobytes()).hexdigest()}
        write_file(self.path / "summary.json", built(summary, summary_type()))
        return summary

    def release(self) -> None:
        """Let other processes go on with the run."""
        if self._lock:
            self._lock.close()


def _task(update: Update, done: Done) -> RecordedTask:
    return RecordedTask(
        worker=done.worker,
        step=done.step,
        batches=done.batches,
        staleness=update.staleness(done),
        started_s=done.started_s,
        finished_s=done.finished_s,
        compute_s=done.compute_s,
        loss=finite(done.loss),
    )


def free_path(output: OutputConfig, default_name: str) -> Path:
    """Return the folder of a new record, which does not exist yet.

    Raises ValueError, naming the option, when the name is taken or nothing can be written there.
    """
    out = output.folder
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            out.stat()
    except OSError as error:  # like a name that is too long
        shown = f"{str(out)[:60]}…" if len(str(out)) > 60 else out
        raise ValueError(
            f"--out {shown}: cannot be a folder ({error.strerror}); choose another folder"
        ) from None
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise ValueError(
            f"--out {out}: {parent} is not a folder that can be written to; choose another folder"
        )
    if output.run_name:
        path = out / output.run_name
        if path.exists():
            raise ValueError(
                f"--run-name {output.run_name}: {path} is taken and is never overwritten; choose another name"
            )
        return path
    names = (default_name + suffix for suffix in ("", *(f"-{n}" for n in range(2, 10_000))))
    return next(out / name for name in names if not (out / name).exists())


def config_text(given: Mapping[str, Any]) -> str:
    """Return the config.yaml of a run with these options."""
    return yaml.safe_dump(given, sort_keys=False)


def default_name(cfg: TrainConfig) -> str:
    """Return the name of a run that was given none."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{cfg.mode}-w{cfg.num_workers}-s{cfg.seed}"


def _recorded(use: ExpertUse | None) -> RecordedRouting | None:
    """Return how experts are used, as evals.jsonl has it."""
    numbers = routing_numbers(use)
    if use is None or numbers is None:
        return None
    whole = {name: getattr(use, name) for name in ("load", "entropy", "capacity")}
    return RecordedRouting(**whole, workers=dict(use.workers), **numbers)  # type: ignore[arg-type]


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, env=of_git())
    except (OSError, subprocess.CalledProcessError):
        return None
    return asked.stdout.strip()


@cache  # what this process has imported, whatever is committed or installed meanwhile
def _commit() -> tuple[str | None, bool | None]:
    """Return the commit of the code, and whether it has changes; None for code that git does not know."""
    if _git("ls-files", "--error-unmatch", "dsgd") is None:
        return None, None
    changes = _git("status", "--porcelain", ".")
    return _git("rev-parse", "HEAD"), None if changes is None else bool(changes)


_version = cache(version)  # this reads a file


def _meta(started: float, cluster: Engine) -> Meta:
    commit, is_dirty = _commit()
    return Meta(
        started_epoch_s=started,
        started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        command=sys.argv,
        git_commit=os.environ.get("DSGD_GIT_COMMIT") or commit,  # an image has no .git
        git_dirty=is_dirty,
        versions={
            "python": platform.python_version(),
            **{name: _version(name) for name in ("ray", "torch", "numpy")},
        },
        host=socket.gethostname(),
        platform=platform.platform(),
        cpus=os.cpu_count(),
        device=cluster.device,
        worker_pids=list(cluster.pids),
    )


def write_file(path: Path, value: Struct) -> None:
    """Write a file of a record, whole or not at all."""
    with whole_file(path) as file:
        file.write(encode_file(value))
        synced(file)
