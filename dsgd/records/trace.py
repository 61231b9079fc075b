"""trace.json: when workers computed, waited and sent, in the Chrome trace-event format that Perfetto opens.

It is drawn from the other files of a record alone. docs/observing.md says how to read it.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.core.update_counts import MOST_LISTED
from dsgd.process.files import whole_file
from dsgd.records.reader import read_evaluations, read_faults, read_options
from dsgd.records.schema import (
    RecordedEvaluation,
    RecordedFault,
    RecordedTask,
    RecordedUpdate,
    decode,
    update_type,
)

_TAIL_BYTES = 1_000_000  # of updates.jsonl: some 4,000 tasks, a trace of 3 to 4 MB, 0.2 s
_LINE_BYTES = 10_000_000  # a longer update is not drawn unasked: viewers do not open it
_LAST_S = 9e9  # viewers count nanoseconds in 64 bits, 292 years
_PROCESS, _SERVER, _FIRST_WORKER = 1, 1, 2  # the process, and its threads: one is a track


def write_trace(record: Path, last: int | None = None) -> None:
    """Write `record`/trace.json, from the last updates in its updates.jsonl.

    last: how many updates; None: those in the last MB, or the last one if it is below 10 MB. Without any, no
    file is made.
    Raises OSError, and RecordError for a line that is not an update.
    """
    updates = _last_updates(record / "updates.jsonl", last)
    if not updates:
        return
    config = read_options(record)
    at_us = _at_us(updates)
    free_tid = _FIRST_WORKER + config["num_workers"]
    faults = _placed(_in_window(read_faults(record), updates), at_us[updates[-1].version], free_tid)
    events = chain(
        _names(config, updates, faults),
        _server(updates, at_us),
        _workers(updates, unlisted="cancelled" if config["record"] == "all" else "not recorded"),
        _arrows(updates, at_us),
        _faults(faults),
        _counters(updates, at_us, read_evaluations(record)),
    )
    with whole_file(record / "trace.json") as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(map(_ENCODE, events)).encode())
        file.write(b"\n]}\n")


_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode

Event = dict[str, Any]


def _last_updates(path: Path, last: int | None) -> list[RecordedUpdate]:
    with path.open("rb") as file:
        if last is None and path.stat().st_size > _TAIL_BYTES:
            file.seek(-_TAIL_BYTES, os.SEEK_END)
            file.readline()  # the rest of a line that begins before
            if lines := file.readlines():
                return _whole(lines, path)
            file.seek(-min(path.stat().st_size, _LINE_BYTES), os.SEEK_END)
            if file.tell() and b"\n" not in file.read(_LINE_BYTES - _TAIL_BYTES):
                return []
            file.seek(0)
            last = 1
        return _whole(deque(file, last), path)


def _whole(lines: Iterable[bytes], path: Path) -> list[RecordedUpdate]:
    """Return the whole lines; one cut off by a full disk is left out."""
    return [decode(line, update_type(), path) for line in lines if line.endswith(b"\n")]


def _us(seconds: float) -> int:
    """Whole microseconds: with fractions, rounding in a viewer could make neighbours overlap."""
    return round(min(seconds, _LAST_S) * 1e6)


def _at_us(updates: list[RecordedUpdate]) -> dict[int, int]:
    """Return when each version became current, including the initial weights if the window reaches them.

    Updates of one instant are put 1 µs apart: an arrow needs a slice of some width to begin in.
    """
    at_us = {0: 0} if updates[0].version == 1 else {}
    free_us = len(at_us)
    for update in updates:
        at_us[update.version] = max(_us(update.t_s), free_us)
        free_us = at_us[update.version] + 1
    return at_us


def _names(
    config: Mapping[str, Any], updates: list[RecordedUpdate], faults: Sequence[_Fault]
) -> Iterator[Event]:
    """Name the tracks, of very many workers those that have tasks here. Faults are below whom they hit."""

    def name(kind: str, tid: int, value: str | int) -> Event:
        key = "sort_index" if kind == "thread_sort_index" else "name"
        return {"ph": "M", "pid": _PROCESS, "tid": tid, "ts": 0, "name": kind, "args": {key: value}}

    workers = config["num_workers"]
    yield name("process_name", _SERVER, f"{config['mode']} on {config['engine']}, {workers} workers")
    present: Iterable[int] = range(workers)
    if workers > MOST_LISTED:
        present = sorted({task.worker for update in updates for task in (*update.gradients, *update.ignored)})
    threads = [(_FIRST_WORKER + worker, f"worker {worker}") for worker in present]
    tracks = {tid: (tid, thread) for tid, thread in [(_SERVER, "server"), *threads]}
    for fault in faults:
        of = "server" if fault.below == _SERVER else f"worker {fault.below - _FIRST_WORKER}"
        tracks[fault.tid] = (fault.below, f"{of}: faults")
    for place, (tid, (_, thread)) in enumerate(
        sorted(tracks.items(), key=lambda track: (track[1][0], track[0]))
    ):
        yield name("thread_name", tid, thread)
        yield name("thread_sort_index", tid, place)


def _slice(tid: int, name: str, begin_us: int, end_us: int, args: Mapping[str, Any]) -> Event:
    return {
        "ph": "X", "pid": _PROCESS, "tid": tid, "ts": begin_us, "dur": end_us - begin_us, "name": name,
        "args": args,
    }  # fmt: skip


class _Fault(NamedTuple):
    """A fault as one track shows it."""

    tid: int
    """Its track; faults of a worker that overlap are on different ones."""
    below: int
    """The track of whom it hit."""
    begin_us: int
    end_us: int
    of: RecordedFault


def _in_window(faults: Iterable[RecordedFault], updates: list[RecordedUpdate]) -> list[RecordedFault]:
    """Return the faults that ended after the first update shown, in the order in which they began."""
    from_s = 0.0 if updates[0].version == 1 else updates[0].t_s
    shown = [f for f in faults if f.over_s is None or f.over_s >= from_s]
    return sorted(shown, key=lambda fault: fault.t_s)


def _placed(faults: Iterable[RecordedFault], last_us: int, free_tid: int) -> list[_Fault]:
    """Give faults tracks below those of their workers, or of the server where they have none.

    last_us: the end of the trace, and of the faults that never were over.
    """
    until_us: dict[int, dict[int, int]] = {}  # by track of a worker, then by track of its faults
    placed: list[_Fault] = []
    for fault in faults:
        begin_us = _us(fault.t_s)
        over_us = last_us if fault.over_s is None else _us(fault.over_s)
        end_us = max(begin_us, over_us)
        for below in [_FIRST_WORKER + worker for worker in fault.workers] or [_SERVER]:
            own = until_us.setdefault(below, {})
            tid = next((tid for tid, taken_us in own.items() if taken_us <= begin_us), free_tid)
            free_tid += tid == free_tid
            own[tid] = end_us
            placed.append(_Fault(tid, below, begin_us, end_us, fault))
    return placed


def _faults(faults: Iterable[_Fault]) -> Iterator[Event]:
    """Yield a mark where each fault began, and a slice from there until it was over."""
    for tid, _, begin_us, end_us, of in faults:
        asked = "--faults" if of.asked else "by itself"
        args = {
            "what was done": of.text, "asked": asked, "update": of.update, "detected_s": of.detected_s,
            "recovered_s": of.recovered_s, "repeated": of.repeated, "wasted": of.wasted,
        }  # fmt: skip
        yield {
            "ph": "i", "s": "t", "pid": _PROCESS, "tid": tid, "ts": begin_us, "name": of.kind, "args": args
        }  # fmt: skip
        if begin_us < end_us:
            name = f"{of.kind}, not over at the end" if of.over_s is None else of.kind
            yield _slice(tid, name, begin_us, end_us, args)


def _server(updates: list[RecordedUpdate], at_us: Mapping[int, int]) -> Iterator[Event]:
    """Yield a slice per update, lasting until the next: the time while its weights were the latest."""
    if 0 in at_us:
        yield _slice(_SERVER, "initial weights", at_us[0], at_us[1], {})
    for update, after in zip(updates, [*updates[1:], None], strict=True):
        begin_us = at_us[update.version]
        end_us = at_us[after.version] if after else begin_us + 1
        args = {"t_s": update.t_s, "tasks": len(update.gradients), "loss": update.loss}
        yield _slice(_SERVER, f"update {update.version}", begin_us, end_us, args)


def _workers(updates: list[RecordedUpdate], unlisted: str) -> Iterator[Event]:
    """Yield what each worker did: compute slices with transfers around them, and what lies between.

    unlisted: what to call a time in which a worker took mini-batches that no update lists.
    """
    tasks: dict[int, list[tuple[RecordedTask, str]]] = {}
    for update in updates:
        for task in update.gradients:
            tasks.setdefault(task.worker, []).append((task, "compute"))
        for task in update.ignored:
            tasks.setdefault(task.worker, []).append((task, "ignored"))
    for worker, own in tasks.items():
        tid = _FIRST_WORKER + worker
        own.sort(key=lambda entry: entry[0].step)
        for task, name in own:
            yield from _task(tid, task, name)
        spans = [(task.step, task.batches, task.started_s, task.finished_s) for task, _ in own]
        if updates[0].version == 1:  # then the time before the first task is known too
            spans.insert(0, (0, 0, 0.0, 0.0))
        for (step, done, _, from_s), (next_step, _, to_s, _) in pairwise(spans):
            begin_us, end_us = _us(from_s), _us(to_s)
            if begin_us < end_us:
                batches = next_step - step - done
                name, args = (unlisted, {"batches": batches}) if batches else ("wait", {})
                yield _slice(tid, name, begin_us, end_us, args)


def _task(tid: int, task: RecordedTask, name: str) -> Iterator[Event]:
    begin_us, from_us, to_us, end_us = _stations_us(task)
    args = {"step": task.step, "batches": task.batches, "loss": task.loss, "staleness": task.staleness}
    if begin_us < from_us:
        yield _slice(tid, "transfer", begin_us, from_us, {})
    yield _slice(tid, name, from_us, to_us, args)
    if to_us < end_us:
        yield _slice(tid, "transfer", to_us, end_us, {})


def _stations_us(task: RecordedTask) -> tuple[int, int, int, int]:
    """Return when a task was given out, began to compute, ended computing, and was back.

    Only the sum of both transfers is known. Half each is exact for latency, which is the same
    both ways.
    """
    begin_us, end_us = _us(task.started_s), _us(task.finished_s)
    compute_us = min(_us(task.compute_s), end_us - begin_us)
    from_us = begin_us + (end_us - begin_us - compute_us) // 2
    return begin_us, from_us, from_us + compute_us, end_us


def _arrows(updates: list[RecordedUpdate], at_us: Mapping[int, int]) -> Iterator[Event]:
    """Yield an arrow per task, from the update that it read, through its computing, to the one it made."""
    number = 0
    for update in updates:
        for task in update.gradients:
            read = update.version - 1 - task.staleness
            if read not in at_us:  # it is before the first update shown, or was not recorded
                continue
            number += 1
            end = {"pid": _PROCESS, "cat": "arrow", "name": "read to made", "id": number}
            yield {"ph": "s", "tid": _SERVER, "ts": at_us[read], **end}
            _, from_us, to_us, _ = _stations_us(task)
            through_us = max(from_us, at_us[read])
            if through_us < to_us:
                yield {"ph": "t", "tid": _FIRST_WORKER + task.worker, "ts": through_us, **end}
            yield {"ph": "f", "bp": "e", "tid": _SERVER, "ts": at_us[update.version], **end}


def _counters(
    updates: list[RecordedUpdate], at_us: Mapping[int, int], evals: Iterable[RecordedEvaluation]
) -> Iterator[Event]:
    def count(name: str, ts_us: int, key: str, value: float) -> Event:
        return {"ph": "C", "pid": _PROCESS, "tid": _SERVER, "ts": ts_us, "name": name, "args": {key: value}}

    for update in updates:
        ts_us = at_us[update.version]
        staleness = [task.staleness for task in update.gradients]
        yield count("staleness", ts_us, "mean", sum(staleness) / len(staleness))
        if update.loss is not None:
            yield count("loss", ts_us, "training", update.loss)
    for evaluation in evals:
        if evaluation.version in at_us and evaluation.loss is not None:
            yield count("loss held out", at_us[evaluation.version], "evaluation", evaluation.loss)
