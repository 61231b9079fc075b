"""What a run shows and keeps, once it goes on after a resume: a table of all outputs."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from test_resume import Kill, contents, killed, killed_in, lines, run

from dsgd.compare.worker import execute_recorded
from dsgd.config import TrainConfig
from dsgd.core.protocol import Update
from dsgd.process.interruptions import Interruptions
from dsgd.running.keeper import Running, Watcher
from dsgd.show.live import logs
from dsgd.show.live.followed_run import FollowedRun
from dsgd.show.live.observers import Observers
from dsgd.show.watching_options import LiveConfig, LogConfig
from dsgd.strategies import configured

OPTIONS = {
    "mode": "asgd", "engine": "sim", "num_workers": 3, "steps": 40, "eval_every": 5,
    "compute_time": "exponential:1", "checkpoint_every": "3", "faults": "kill:1@update=12",
    "tensorboard": True, "log_format": "json",
}  # fmt: skip


def points(record: Path) -> list[tuple[str, int, float, float]]:
    """Return all that the files for TensorBoard have: tag, step, value, seconds since the start."""
    found, began_s = [], None
    for file in sorted((record / "tensorboard").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            began_s = began_s or event.wall_time
            for value in event.summary.value:
                number = value.tensor.float_val[0]
                found.append((value.tag, event.step, number, round(event.wall_time - began_s, 4)))
    return found


def shown_by_tensorboard(record: Path) -> Mapping[str, Any]:
    board = EventAccumulator(str(record / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    return {tag: [(p.step, p.value) for p in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def on_the_live_page(record: Path) -> Mapping[str, Any]:
    followed = FollowedRun(record, "run")
    while followed.read():
        pass
    shown = followed.view()
    return {name: x for name, x in shown.items() if name not in ("name", "note", "wrote_s", "given")}


OUTPUTS: Mapping[str, Callable[[Path], Any]] = {
    "record": contents,
    "trace": lambda record: (record / "trace.json").read_bytes(),
    "tensorboard": lambda record: sorted(points(record)),
    "tensorboard, shown": shown_by_tensorboard,
    "live page": on_the_live_page,
}


@pytest.fixture
def cfg(tmp_path: Path) -> Callable[..., TrainConfig]:
    def of(run_name: str, **others: Any) -> TrainConfig:
        return configured({**OPTIONS, "out": str(tmp_path), "run_name": run_name, **others})

    return of


@pytest.mark.parametrize(
    "options", [{}, {"mode": "localsgd", "local_steps": 2}, {"record": "every:4"}], ids=str
)
def test_each_output_goes_on_as_if_nothing_had_been(
    cfg: Callable[..., TrainConfig], options: Mapping[str, Any]
) -> None:
    """Killed twice and resumed twice: every file, point and curve is that of the run never killed."""
    whole, cut = run(cfg("whole", **options)), cfg("cut", **options)
    killed(cut, 8)
    for file in (Path(cut.output.out) / "cut" / "tensorboard").iterdir():  # of one that was killed meanwhile
        file.with_name(f"{file.name}.partial").write_bytes(file.read_bytes())
    killed_in(lambda: run(cut, Kill(16), resume="killed"))
    ended = run(cut, resume="killed")
    assert whole.path
    assert ended.path
    for name, of in OUTPUTS.items():
        whole_one, this = of(whole.path), of(ended.path)
        if name == "live page":  # what the last attempt took
            assert 0 <= this.pop("took_s") <= 60
            whole_one.pop("took_s")
        assert this == whole_one, name


def test_a_finished_run_that_gets_more_steps_shows_each_point_once(cfg: Callable[..., TrainConfig]) -> None:
    """And again more: the steps of each tag only grow, and its evaluations are those of the record."""
    for steps, resume in ((20, None), (30, "budget"), (40, "budget")):
        ended = run(cfg("cut", steps=steps), resume=resume)
    assert ended.path
    found = points(ended.path)
    for tag in {tag for tag, *_ in found}:
        steps_of = [step for other, step, *_ in found if other == tag]
        assert steps_of == sorted({*steps_of}), tag
    evaluated = [line["gradients"] for line in lines(ended.path, "evals.jsonl")]
    assert [step for tag, step, *_ in found if tag == "eval/loss"] == evaluated
    assert max(step for _, step, *_ in found) == 40 * 3
    shown = on_the_live_page(ended.path)
    assert shown["gradients"] == 120
    assert len(shown["train"]["t_s"]) == len(lines(ended.path, "updates.jsonl"))


DIVERGES = {"mode": "ssgd", "workload": "quadratic", "lr": 30.0, "steps": 100, "on_divergence": "rollback"}


@pytest.mark.parametrize(
    ("kind", "options"), [("driver", {"faults": "driver@update=20"}), ("divergence", DIVERGES)]
)
def test_a_run_that_goes_back_takes_its_points_back(
    cfg: Callable[..., TrainConfig], kind: str, options: Mapping[str, Any]
) -> None:
    """A point is there once, however often its update was made; evaluations are those of the record."""
    ended = run(cfg("back", **options))
    assert ended.path
    assert kind in {fault.kind for fault in ended.faults}
    found = [(tag, step) for tag, step, *_ in points(ended.path) if not tag.startswith("fault/")]
    assert len(found) == len({*found})
    evaluated = [line["gradients"] for line in lines(ended.path, "evals.jsonl") if line["loss"] is not None]
    assert [step for tag, step in found if tag == "eval/loss"] == evaluated


class Numbers(Watcher):
    """Reads the metrics and counts the log when the run has ended."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def started(self, running: Running) -> None:
        self.began_s, self.updates = running.tally.last_update_s, running.tally.updates

    def updated(self, update: Update) -> None:
        exporter = self._observers.exporter
        assert exporter
        if update.weights.version % 7 == 0:
            with urllib.request.urlopen(exporter.url) as answer:
                text = answer.read().decode()
            found = [s for family in text_string_to_metric_families(text) for s in family.samples]
            label = {s.name: "le" if s.name == "dsgd_update_seconds_bucket" else "worker" for s in found}
            self.samples = {(s.name, s.labels.get(label[s.name], "")): s.value for s in found}
            self.at_s, self.at = update.finished_s, update.weights.version


def observed(cfg: TrainConfig, *others: Watcher, resume: str | None = None) -> Numbers:
    """Run with metrics and a log, a line an update."""
    live, log = LiveConfig(metrics_port=0), LogConfig(log_format="json")
    with Observers(live, log, quiet=False) as observers:
        numbers = Numbers(observers)
        run(cfg, *observers.watchers(), numbers, *others, resume=resume)
    return numbers


def test_metrics_count_what_this_process_has_seen(cfg: Callable[..., TrainConfig]) -> None:
    """No worker has waited, and no update lasted, since before the process began; the run's own counts, its
    greatest staleness among them, go on.
    """
    cut = cfg("cut", metrics_port=0)
    killed(cut, 61)
    seen = observed(cut, resume="killed")
    assert seen.began_s > 10
    passed_s, samples = seen.at_s - seen.began_s, seen.samples
    assert samples["dsgd_update_seconds_sum", ""] == pytest.approx(passed_s)
    assert samples["dsgd_update_seconds_count", ""] == seen.at - seen.updates
    assert samples["dsgd_updates_total", ""] == seen.at
    times = [line["t_s"] for line in lines(Path(cut.output.out) / "cut", "updates.jsonl")]
    apart = [later - t_s for t_s, later in pairwise(times[seen.updates - 1 : seen.at])]
    assert samples["dsgd_update_seconds_bucket", "5.0"] == sum(seconds <= 5 for seconds in apart) > 0
    for worker in "012":
        waited_s = samples["dsgd_wait_seconds_sum", worker]
        assert 0 <= waited_s <= passed_s
    counted = [task["staleness"] for line in lines(Path(cut.output.out) / "cut", "updates.jsonl")
               for task in line["gradients"] if line["version"] <= seen.at]  # fmt: skip
    assert samples["dsgd_staleness_max_updates", ""] == max(counted)


def test_a_log_goes_on_with_the_same_lines(
    cfg: Callable[..., TrainConfig], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of a line after a resume is that of the run never killed, its rates too."""
    monkeypatch.setattr(logs, "LINE_S", 0.0)

    def logged() -> dict[int, Any]:
        found = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        return {line["updates"]: {**line, "time": 0, "run": ""} for line in found if "samples_per_s" in line}

    observed(cfg("whole"))
    whole = logged()
    cut = cfg("cut")
    killed(cut, 40)
    capsys.readouterr()
    observed(cut, resume="killed")
    after = logged()
    assert 80 < len(after) < len(whole)
    assert after == {updates: whole[updates] for updates in after}


@pytest.mark.parametrize("by_s", [3600.0, -3600.0], ids=["forward", "back"])
def test_durations_do_not_move_with_the_machines_clock(
    cfg: Callable[..., TrainConfig], by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set by an hour before the first task, and again in mid-run: each duration is what a stop watch says."""
    label, set_by, began_s = time.time, 0.0, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: label() + set_by)

    class Clock(Watcher):
        def started(self, running: Running) -> None:
            nonlocal set_by
            set_by += by_s

        def updated(self, update: Update) -> None:
            nonlocal set_by
            set_by += by_s * (update.weights.version == 30)

    set_by = -by_s
    outcome = execute_recorded(cfg("clock"), Interruptions(), [Clock()])
    passed_s = time.monotonic() - began_s
    record = Path(cfg("clock").output.out) / "clock"
    summary, shown = json.loads((record / "summary.json").read_text()), on_the_live_page(record)
    assert set_by == by_s
    for took_s in (summary["startup_s"], summary["wall_s"], outcome.seconds, shown["took_s"]):
        assert 0 <= took_s <= passed_s + 0.1
    steps = [step for tag, step, *_ in points(record) if tag == "update/loss"]
    assert steps == sorted({*steps})
