"""trace.json: a well-formed trace, and a true one."""

from __future__ import annotations

import json
import resource
import signal
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, CommandLine, python

from dsgd.core.fault_seen import FaultSeen
from dsgd.records.schema import RecordedFault, encode
from dsgd.records.trace import write_trace

SIM = "--engine sim --quiet --compute-time exponential:1"
NETWORK = "--latency-s .25 --server-time exponential:.05"
SERVER = 1

Event = dict[str, Any]

FIELDS = {  # of the trace-event format, and of each of its events that trace.json has
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "args"},
    "i": {"ph", "s", "pid", "tid", "ts", "name", "args"},
    "C": {"ph", "pid", "tid", "ts", "name", "args"},
    "M": {"ph", "pid", "tid", "ts", "name", "args"},
    "s": {"ph", "pid", "tid", "ts", "cat", "name", "id"},
    "t": {"ph", "pid", "tid", "ts", "cat", "name", "id"},
    "f": {"ph", "bp", "pid", "tid", "ts", "cat", "name", "id"},
}


def checked(record: Path) -> list[Event]:
    """Return the events of a record's trace, which is well-formed: viewers would show all of it."""
    trace = json.loads((record / "trace.json").read_text(), parse_constant=pytest.fail)
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    for event in events:
        assert set(event) == FIELDS[event["ph"]]
        for whole in {"pid", "tid", "ts", "dur", "id"} & set(event):
            assert type(event[whole]) is int
            assert event[whole] >= 0
        assert isinstance(event["name"], str)
        assert event["name"]
    _check_names(events)
    _check_counters(events)
    _check_arrows(events, _check_slices(events))
    return events


def _check_names(events: list[Event]) -> None:
    names = Counter((e["name"], e["tid"]) for e in events if e["ph"] == "M")
    assert set(names.values()) == {1}
    assert {name for name, _ in names} == {"process_name", "thread_name", "thread_sort_index"}
    assert {e["pid"] for e in events} == {1}
    assert {e["tid"] for e in events} <= {tid for name, tid in names if name == "thread_name"}


def _check_counters(events: list[Event]) -> None:
    for event in events:
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
            assert len(event["args"]) == 1


def _check_slices(events: list[Event]) -> dict[int, list[Event]]:
    """Slices of a track neither overlap nor nest."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda e: e["ts"])
        for one, two in pairwise(slices):
            assert one["ts"] + one["dur"] <= two["ts"]
    return tracks


def _check_arrows(events: list[Event], tracks: dict[int, list[Event]]) -> None:
    """Arrows have a start and an end, in this order in time, and each point is in a slice of some width."""
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]].append(event)
            assert slice_at(tracks, event)["dur"] > 0
            assert event.get("bp") == ("e" if event["ph"] == "f" else None)
    for points in arrows.values():
        assert "".join(e["ph"] for e in points) in ("sf", "stf")
        assert [e["ts"] for e in points] == sorted(e["ts"] for e in points)
        assert len({(e["cat"], e["name"]) for e in points}) == 1
        assert points[0]["tid"] == points[-1]["tid"] == SERVER


def slice_at(tracks: dict[int, list[Event]], point: Event) -> Event:
    found = [e for e in tracks[point["tid"]] if e["ts"] <= point["ts"] < e["ts"] + e["dur"]]
    assert len(found) == 1
    return found[0]


def slices(events: list[Event], tid: int, *names: str) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and e["tid"] == tid and (not names or e["name"] in names)]


def us(seconds: float) -> int:
    return round(seconds * 1e6)


@pytest.mark.parametrize(
    "scenario",
    [
        "--mode asgd",
        f"--mode asgd {NETWORK}",
        "--mode ssgd --compute-time constant:1 --num-workers 5",
        "--mode asgd --compute-time constant:1",  # P updates at one instant
        "--mode asgd --compute-time constant:0",  # all of them
        "--mode asgd --compute-time constant:1e-9 --latency-s 1e-7",
        "--mode asgd --compute-time constant:1e200",
        f"--mode localsgd --local-steps 3 {NETWORK}",
        "--mode ksync --backup 2",
        f"--mode ksync --backup 2 --rest ignore {NETWORK}",
        "--mode kasync --k 3 --count gradients",
        f"--mode ringmaster {NETWORK}",
        "--mode asgd --record every:7",
        "--mode asgd --trace-last 9",
        "--mode asgd --workload none --num-workers 40",
        "--mode asgd --lr 1e6 --workload quadratic --optima 1,2,3,4",  # diverges
    ],
)
def test_a_trace_is_well_formed(scenario: str, cli: CommandLine) -> None:
    """In all modes, laws and networks: known fields, no overlap on a track, no arrow without its two ends."""
    checked(cli(f"{SIM} --steps 25 {scenario}").record)


@pytest.mark.parametrize("times", [f"exponential:1 {NETWORK}", "constant:1"])
def test_each_update_has_a_slice_and_each_task_an_arrow(times: str, cli: CommandLine) -> None:
    """The server's slices are the updates; arrows lead from what a task read, through its computing, to its
    update. That holds for updates of one instant too, which are moved apart by a microsecond each.
    """
    ran = cli(f"{SIM} --mode asgd --steps 25 --compute-time {times}")
    events, updates = checked(ran.record), ran.lines("updates.jsonl")
    server = slices(events, SERVER)
    assert [e["name"] for e in server] == ["initial weights", *(f"update {u['version']}" for u in updates)]
    moved = [e["ts"] - us(u["t_s"]) for e, u in zip(server[1:], updates, strict=True)]
    assert moved == ([0, 1, 2, 3] * 25 if times == "constant:1" else [0] * 100)
    tracks = {tid: slices(events, tid) for tid in range(1, 6)}
    arrows = [[slice_at(tracks, e) for e in events if e.get("id") == n] for n in range(1, len(updates) + 1)]
    for (read, computed, made), update in zip(arrows, updates, strict=True):
        (task,) = update["gradients"]
        assert made["name"] == f"update {update['version']}"
        version = update["version"] - 1 - task["staleness"]
        assert read["name"] == (f"update {version}" if version else "initial weights")
        assert computed["name"] == "compute"
        assert computed["args"]["step"] == task["step"]
        assert computed["tid"] == 2 + task["worker"]


def test_a_workers_slices_add_up(cli: CommandLine) -> None:
    """Compute slices last compute_s, transfers take the rest of a task, waits what is between two tasks."""
    ran = cli(f"{SIM} --mode ssgd --steps 25 --slowdown 1=3 {NETWORK}")
    events = checked(ran.record)
    for worker in range(4):
        tasks = [g for u in ran.lines("updates.jsonl") for g in u["gradients"] if g["worker"] == worker]
        computed = slices(events, 2 + worker, "compute")
        assert [e["dur"] for e in computed] == [us(g["compute_s"]) for g in tasks]
        whole = slices(events, 2 + worker)
        assert sum(e["dur"] for e in whole) == us(tasks[-1]["finished_s"])
        assert len(slices(events, 2 + worker, "transfer")) == 2 * len(tasks)
        waited = sum(e["dur"] for e in slices(events, 2 + worker, "wait"))
        between = sum(two["started_s"] - one["finished_s"] for one, two in pairwise(tasks))
        assert waited == pytest.approx(us(between), abs=len(tasks))


def test_with_latency_alone_computing_is_where_it_was(cli: CommandLine) -> None:
    """The same time both ways: half each is right, to the microsecond."""
    events = checked(cli(f"{SIM} --mode asgd --steps 5 --latency-s .25").record)
    for worker in range(4):
        for one, two in pairwise(slices(events, 2 + worker, "transfer", "compute")):
            assert one["ts"] + one["dur"] == two["ts"]
        assert {e["dur"] for e in slices(events, 2 + worker, "transfer")} <= {
            249_999, 250_000, 250_001
        }  # fmt: skip


def test_ignored_tasks_are_shown(cli: CommandLine) -> None:
    """All discarded work of a worker is on its track, under a separate name."""
    ran = cli(f"{SIM} --mode ksync --backup 1 --rest ignore --slowdown 0=2 --steps 50 {NETWORK}")
    shown = Counter(e["name"] for e in checked(ran.record) if e["ph"] == "X")
    assert shown["compute"] == ran.summary["gradients"]
    assert shown["ignored"] == ran.summary["wasted"]["ignored"] > 0
    assert not shown["cancelled"]


def test_cancelled_tasks_are_shown(cli: CommandLine) -> None:
    """A time in which tasks were cancelled is a slice, with the mini-batches that no update lists."""
    ran = cli(f"{SIM} --mode ksync --backup 1 --slowdown 0=2 --steps 50")
    cancelled = slices(checked(ran.record), 2, "cancelled")
    applied = [g["step"] for u in ran.lines("updates.jsonl") for g in u["gradients"] if g["worker"] == 0]
    assert sum(e["args"]["batches"] for e in cancelled) == max(applied) + 1 - len(applied) > 0


def test_what_was_not_recorded_is_not_taken_for_waiting(cli: CommandLine) -> None:
    """With --record every:N the time between two recorded tasks is called what it is."""
    events = checked(cli(f"{SIM} --mode asgd --steps 50 --record every:3").record)
    assert slices(events, 2, "not recorded")
    assert not slices(events, 2, "cancelled", "wait")


def test_the_counters_are_the_records(cli: CommandLine) -> None:
    """Loss and staleness of each update, and the loss of each evaluation."""
    ran = cli(f"{SIM} --mode asgd --steps 20")
    counts: dict[str, list[float]] = defaultdict(list)
    for event in checked(ran.record):
        if event["ph"] == "C":
            counts[event["name"]] += event["args"].values()
    updates = ran.lines("updates.jsonl")
    assert counts == {
        "loss": [u["loss"] for u in updates],
        "staleness": [u["gradients"][0]["staleness"] for u in updates],
        "loss held out": [e["loss"] for e in ran.lines("evals.jsonl")],
    }


FAULTS = [
    FaultSeen(0.5, "kill", (1,), True, 0, 0, "worker 1 got a new process", 0.1, 1.0, repeated=1),
    FaultSeen(2.0, "slow", (0, 2), True, 2, 2, "nothing", None, 9.0),
    FaultSeen(3.0, "pause", (0,), True, 5, 5, "waited", 0.0, 1.5),
    FaultSeen(3.5, "leave", (3,), False, 6, 6, "its step goes to others"),
    FaultSeen(4.0, "driver", (), True, 7, 7, "went on from its checkpoint", 0.0, 2.0),
    FaultSeen(5.0, "cut", (0,), True, 8, 8, "nothing passes"),
]


def with_faults(record: Path, faults: list[FaultSeen]) -> list[Event]:
    """Return the events of a record's trace as it would be had the run had these faults."""
    lines = [encode(RecordedFault(**fault._asdict())) + b"\n" for fault in faults]
    (record / "faults.jsonl").write_bytes(b"".join(lines))
    write_trace(record, 1000)
    return checked(record)


def test_faults_are_below_whom_they_hit(cli: CommandLine) -> None:
    """Each fault has, on a track right below its worker's, a mark at its beginning, a slice until its end."""
    ran = cli(f"{SIM} --mode asgd --num-workers 4 --steps 25")
    events = with_faults(ran.record, FAULTS)
    name = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    place = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [name[tid] for tid in sorted(place, key=place.__getitem__)] == [
        "server", "server: faults", "worker 0", "worker 0: faults", "worker 0: faults",
        "worker 1", "worker 1: faults", "worker 2", "worker 2: faults", "worker 3", "worker 3: faults",
    ]  # fmt: skip
    marks = sorted((e["ts"], name[e["tid"]], e["name"]) for e in events if e["ph"] == "i")
    hit = [(f, f"worker {w}" if f.workers else "server") for f in FAULTS for w in f.workers or [0]]
    assert marks == sorted((us(f.t_s), f"{who}: faults", f.kind) for f, who in hit)
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e["ph"] == "X" and "faults" in name[e["tid"]]
    )
    lasting = [f for f, _ in hit if f.recovered_s]
    end_us = us(ran.lines("updates.jsonl")[-1]["t_s"])
    assert spans == sorted(
        [(us(f.t_s), us(f.t_s + (f.recovered_s or 0)), f.kind) for f in lasting]
        + [(us(5.0), end_us, "cut, not over at the end")]
    )
    killed = next(e for e in events if e["ph"] == "X" and e["name"] == "kill")
    assert killed["args"] == {
        "what was done": "worker 1 got a new process", "asked": "--faults", "update": 0, "detected_s": 0.1,
        "recovered_s": 1.0, "repeated": 1, "wasted": 0,
    }  # fmt: skip


def test_a_window_shows_the_faults_that_reach_into_it(cli: CommandLine) -> None:
    """A trace of the last updates leaves out the faults that were over before it."""
    ran = cli(f"{SIM} --mode asgd --num-workers 4 --steps 25 --trace-last 5")
    from_s = ran.lines("updates.jsonl")[-5]["t_s"]
    over, into = FAULTS[0], FAULTS[1]._replace(recovered_s=from_s - 1.0)
    lines = [encode(RecordedFault(**fault._asdict())) + b"\n" for fault in (over, into)]
    (ran.record / "faults.jsonl").write_bytes(b"".join(lines))
    write_trace(ran.record, 5)
    assert {e["name"] for e in checked(ran.record) if e["ph"] == "i"} == {"slow"}


def test_trace_last_keeps_the_last_updates(cli: CommandLine) -> None:
    """N updates, whatever they are; 0 and --record none make no trace."""
    ran = cli(f"{SIM} --mode asgd --steps 20 --trace-last 7")
    assert [e["name"] for e in slices(checked(ran.record), SERVER)] == [f"update {v}" for v in range(74, 81)]
    assert not (cli(f"{SIM} --steps 5 --trace-last 0").record / "trace.json").exists()
    assert not (cli(f"{SIM} --steps 5 --record none").record / "trace.json").exists()


def test_a_long_run_has_a_small_trace(tmp_path: Path) -> None:
    """Unless asked for more, a trace stays below 5 MB, and shows at least the last update."""
    task = {"step": 0, "batches": 1, "staleness": 0, "started_s": 0.123456789, "finished_s": 1.23456789}
    task |= {"compute_s": 1.0, "loss": 0.123456789}

    def lines(workers: int, updates: int) -> str:
        tasks = [task | {"worker": worker} for worker in range(workers)]
        return "".join(
            json.dumps(
                {"version": v, "t_s": 1.5 * v, "loss": 0.1, "gradients": [t | {"step": v} for t in tasks]}
            )
            + "\n"
            for v in range(1, updates + 1)
        )

    (tmp_path / "evals.jsonl").write_text("")
    for workers, updates in ((4, 10_000), (8_000, 2)):
        (tmp_path / "config.yaml").write_text(
            f"{{mode: ssgd, engine: sim, num_workers: {workers}, steps: 1, seed: 0, record: all}}"
        )
        (tmp_path / "updates.jsonl").write_text(lines(workers, updates))
        write_trace(tmp_path)
        assert 500_000 < (tmp_path / "trace.json").stat().st_size < 5_000_000
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert slices(events, SERVER)[-1]["name"] == f"update {updates}"


def test_an_interrupted_run_has_its_trace(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed, diverged or interrupted: trace.json shows what was recorded."""
    from dsgd.strategies import train_asgd

    real = train_asgd.train

    def train(*arguments: Any) -> Any:
        for update in real(*arguments):
            yield update
            if update.weights.version == 30:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train_asgd, "train", train)
    ran = cli(f"{SIM} --mode asgd --steps 50")
    assert ran.code == 130
    assert slices(checked(ran.record), SERVER)[-1]["name"] == "update 30"


def test_a_trace_without_room_fails_the_run_and_spares_the_rest(tmp_path: Path) -> None:
    """A disk too full for trace.json: exit 1, one line, and all other files are whole."""

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    arguments = f"main.py {SIM} --mode asgd --workload none --steps 120 --out {tmp_path} --run-name r"
    process = python(*arguments.split(), preexec_fn=small_files_only)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert len(err.strip().splitlines()) == 1
    assert "cannot be written (File too large); raise the limit on a file's size (ulimit -f)" in err
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "config.yaml", "meta.json", "updates.jsonl", "evals.jsonl", "faults.jsonl", "weights.npy",
        "summary.json",
    }  # fmt: skip
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["stopped_by"] == "failed"
    assert summary["updates"] == len((tmp_path / "r" / "updates.jsonl").read_text().splitlines()) == 480
