"""A replay is the run: in its recorded order, every version of the weights has the bytes that it had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import ROOT, CommandLine, Ran
from dst.fault_schedule import drawn

import dsgd
from dsgd.config import TrainConfig
from dsgd.conformance.restart import SCENARIOS
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.cluster_state import ClusterState
from dsgd.core.protocol import Engine, Update
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.engines.replay import ReplayCluster, rolled_forward
from dsgd.records.reader import read_updates
from dsgd.records.schema import RecordedFault, RecordError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import Workers, config
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import modes, strategy_of
from main import main

SCENARIO = {"num_workers": 4, "steps": 48, "workload": "xor"}
VARIANTS = [
    pytest.param(mode, dict(variant), scenario, id=f"{mode} {variant} {scenario}")
    for mode in modes()
    for variant in Subject(mode).laws.variants
    for scenario in SCENARIOS
]


class Cuts(Watcher):
    """Keeps the cluster and the weights as they were after each update, where checkpoints are taken."""

    def __init__(self) -> None:
        self.kept: list[tuple[ClusterState, Weights]] = []

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        self._cluster.reached(update.weights.version)  # the faults that come with the update belong to it
        self.kept.append((self._cluster.state(), update.weights))


def recorded(folder: Path, mode: str, engine: Engine | None = None, /, **options: Any) -> tuple[Path, Cuts]:
    """Run with a record, on a new engine unless one is given; return its folder, and the run as it was after
    each update.
    """
    possible = Subject(mode).possible({**SCENARIO, "out": str(folder), **options})
    cfg, cuts = config(mode, **possible), Cuts()
    ended = execute(cfg, [cuts], record=RunRecord(cfg), engine=engine)
    assert ended.error is None
    assert ended.path
    return ended.path, cuts


def rolled(
    cfg: TrainConfig,
    path: Path,
    after: tuple[ClusterState, Weights] | None = None,
    faults: Sequence[RecordedFault] = (),
) -> tuple[ReplayCluster, list[Update]]:
    """Roll a recorded run forward from its beginning, or from what it was `after` some update."""
    cluster, w = beginning(cfg, path, after, faults)
    return cluster, list(rolled_forward(cluster, cluster.last_version, strategy_of(cfg).train, w, cfg))


def beginning(
    cfg: TrainConfig, path: Path, after: tuple[ClusterState, Weights] | None, faults: Sequence[RecordedFault]
) -> tuple[ReplayCluster, Weights]:
    """Return a replay of a record, and its weights, at the run's beginning or `after` some update."""
    workload = make_workload(cfg)
    first = after[1].version if after else 0
    updates = (update for update in read_updates(path) if update.version > first)
    cluster = ReplayCluster(cfg, workload, updates, faults)
    if after:
        cluster.restore(after[0])
        return cluster, after[1]
    return cluster, Weights(workload.objective.initial_weights(cfg.seed))


def of_all_engines(state: ClusterState) -> dict[str, Any]:
    """Return what a cluster's state has on every engine, comparable."""
    flights = [(f.worker, f.task, f.origin.version, f.origin.vector.tobytes()) for f in state.flights]
    names = ("workers", "clocks", "slowest", "fastest", "steps", "came_in_s", "given", "cancelled", "came_in")
    whole = {name: getattr(state, name) for name in names}
    states = {worker: vector.tobytes() for worker, vector in state.states.items()}
    idle = {state.latest, *state.waiting} - {None}
    return {**whole, "workers": tuple(state.workers), "flights": flights, "states": states, "idle": idle}


def dropped(state: ClusterState) -> Sequence[int]:
    """Return the workers that have left with their process, and join again with a new one."""
    assert state.hosts is not None
    found: Sequence[int] = state.hosts["dropped"]
    return found


# What decides by the clock, cancels, discards or keeps state; test_ray.py replays every mode by default.
ON_RAY: list[tuple[str, dict[str, Any]]] = [
    ("adacomm", {"interval_s": 0.02, "local_steps": 8}),
    ("diloco", {"exchange": "async", "local_steps": 3}),
    ("dssp", {"slack_low": 0, "slack_high": 3, "momentum": 0.5}),
    ("easgd", {"exchange": "async", "local_steps": 3, "momentum": 0.5}),
    ("ksync", {"k": 2, "count": "gradients", "rest": "ignore"}),
    ("ringmaster", {"delay_bound": 2.0}),
]
REAL = {"engine": "ray", "num_workers": 3, "steps": 24, "device": "cpu"}


@pytest.fixture(scope="module")
def workers(ray_cluster: str) -> Iterator[Workers]:
    with Workers(**{**SCENARIO, **REAL}, compute_time="exponential:.004") as workers:
        yield workers


@pytest.mark.ray
@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize(("mode", "variant"), ON_RAY)
def test_a_run_of_real_workers_replays(
    mode: str, variant: dict[str, Any], workers: Workers, tmp_path: Path
) -> None:
    """A record of real workers replays bit for bit, whatever the clock has decided, and so does its second
    half from the state that the cluster was in.
    """
    path, cuts = recorded(tmp_path, mode, workers.fresh(), **{**workers.options, **variant})
    run = recorded_run(path)
    found = compared(run)
    assert (found.differs, found.same_weights) == (None, True)
    cluster, _ = rolled(run.cfg, path, cuts.kept[len(cuts.kept) // 2])
    assert of_all_engines(cluster.state()) == of_all_engines(cuts.kept[-1][0])


# Of the changes that come with one update or step, a strategy sees several at once.
TOGETHER = (
    "leave:1@update=3; join:3@update=3; leave:0@step=7; join:1@update=7; join:0@update=7; leave:3@update=7"
)
CLOSE = "leave:0@t=.1; join:0@t=.1003; leave:1@t=.1006; join:1@t=.1009; leave:2@t=.101; join:2@t=.12"
KILLED = "kill:1@update=3; leave:2@update=3; join:1@update=4"
ELASTIC: list[tuple[str, dict[str, Any]]] = [
    ("diloco", {"faults": TOGETHER, "hosts": 1, "num_workers": 4, "local_steps": 1}),
    ("asgd", {"faults": TOGETHER, "hosts": 1, "num_workers": 4, "workload": "none"}),
    ("localsgd", {"faults": CLOSE, "hosts": 1, "local_steps": 1, "workload": "none"}),
    ("ssp", {"faults": KILLED, "on_loss": "drop", "workload": "none", "steps": 60}),
]


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("mode", "options"), ELASTIC)
def test_real_members_come_and_go_in_a_replay_as_they_did(
    mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Several changes at one moment, close together, or with a killed process: at every update the replay has
    given the strategy as many answers, and has the same members, tasks, states and bytes.
    """
    path, cuts = recorded(tmp_path, mode, **{**REAL, "compute_time": "exponential:.01", **options})
    run = recorded_run(path)
    assert compared(run).differs is None
    assert {fault.kind for fault in run.faults} >= {"leave", "join"}
    middle = cuts.kept[len(cuts.kept) // 2]
    for after in (None, middle):
        cluster, w = beginning(run.cfg, path, after, run.faults)
        updates = rolled_forward(cluster, cluster.last_version, strategy_of(run.cfg).train, w, run.cfg)
        for update, (state, was) in zip(updates, cuts.kept[w.version :], strict=True):
            assert update.weights.vector.tobytes() == was.vector.tobytes()
            assert of_all_engines(cluster.state()) == of_all_engines(state)
            assert cluster.state().engine == state.engine
            assert dropped(cluster.state()) == dropped(state)


@pytest.mark.crossing(one_in=2)
@pytest.mark.ray
@pytest.mark.parametrize(("mode", "options"), [("diloco", {"local_steps": 4}), ("asgd", {})])
def test_a_run_rolls_forward_and_goes_on(
    mode: str, options: dict[str, Any], workers: Workers, tmp_path: Path
) -> None:
    """From a checkpoint a replay reaches the last recorded update, and real workers go on from there: with a
    barrier to the bytes of the run that never stopped; without one, every mini-batch is taken once.
    """
    path, cuts = recorded(tmp_path, mode, workers.fresh(), **workers.options, **options)
    cfg = recorded_run(path).cfg
    lost_at = 2 * len(cuts.kept) // 3
    workload, checkpoint = make_workload(cfg), cuts.kept[lost_at // 2]
    log = [u for u in islice(read_updates(path), lost_at) if u.version > checkpoint[1].version]
    replay = ReplayCluster(cfg, workload, log)
    replay.restore(checkpoint[0])
    train = strategy_of(cfg).train
    w = [update.weights for update in rolled_forward(replay, replay.last_version, train, checkpoint[1], cfg)][
        -1
    ]
    assert w.vector.tobytes() == cuts.kept[lost_at - 1][1].vector.tobytes()
    taken = {(t.worker, step) for u in islice(read_updates(path), lost_at) for t in u.gradients
             for step in range(t.step, t.step + t.batches)}  # fmt: skip
    # On new processes; one that carries all workers starts sooner.
    with open_cluster(replace(cfg, fault=replace(cfg.fault, hosts=1)), workload) as cluster:
        cluster.restore(replace(replay.state(), hosts=None))  # a state of three does not fit one
        for update in train(cluster, w, cfg):
            w = update.weights
            for done in update.dones:
                new = {(done.worker, step) for step in range(done.step, done.step + done.batches)}
                assert not new & taken
                taken |= new
            if len(taken) >= cfg.budget:
                break
    assert len(taken) == cfg.budget
    if mode == "diloco":
        assert w.vector.tobytes() == cuts.kept[-1][1].vector.tobytes()


@pytest.mark.crossing
@pytest.mark.parametrize(("mode", "variant", "scenario"), VARIANTS)
def test_every_mode_replays_in_the_simulator(
    mode: str, variant: dict[str, Any], scenario: str, tmp_path: Path
) -> None:
    """Each variant, with equal times, a network and states, is replayed bit for bit, and the cluster is then
    as it was: from the beginning, and from a cut in the middle.
    """
    path, cuts = recorded(tmp_path, mode, **SCENARIOS[scenario], **variant)
    run = recorded_run(path)
    found = compared(run)
    assert (found.differs, found.same_weights, found.updates) == (None, True, len(cuts.kept))
    middle = len(cuts.kept) // 2
    for after in (None, cuts.kept[middle]):
        cluster, updates = rolled(run.cfg, path, after)
        kept = cuts.kept[after[1].version if after else 0 :]
        assert [u.weights.vector.tobytes() for u in updates] == [w.vector.tobytes() for _, w in kept]
        assert of_all_engines(cluster.state()) == of_all_engines(cuts.kept[-1][0])


MEMBERS = [
    ("leave:1@t=3; join:1@t=9; leave:0,2@t=12; join:0,2@t=15", {}),
    ("leave:2@update=4; join:2@update=9; join:4@t=6; leave:1@step=6; join:1@t=30", {"num_workers": 5}),
    ("kill:1@t=3+2; kill:2@update=5+4; node:a@t=20+3", {"on_loss": "drop", "nodes": 2}),
    ("kill:0@t=4+3; pause:1=4@t=3; cut:3@t=9+3", {"on_loss": "rehost", "suspect_after": 5.0}),
]


@pytest.mark.crossing
@pytest.mark.parametrize("compute_time", ["constant:1", "exponential:1"])
@pytest.mark.parametrize("mode", modes())
@pytest.mark.parametrize(("faults", "options"), MEMBERS)
def test_members_leave_and_join_again_in_a_replay(
    mode: str, faults: str, options: dict[str, Any], compute_time: str, tmp_path: Path
) -> None:
    """Whoever leaves, joins, or is lost with its process: the replay has the same members at the same places
    in the order of events, among equal times too.
    """
    scene = {"workload": "quadratic", "grad_noise": 0.5, "lr": 0.01, "compute_time": compute_time}
    path, cuts = recorded(tmp_path, mode, **scene, faults=faults, **options)
    run = recorded_run(path)
    found = compared(run)
    assert (found.differs, found.same_weights) == (None, True)
    assert {fault.kind for fault in run.faults} & {"leave", "join", "kill"}
    cluster, _ = rolled(run.cfg, path, cuts.kept[len(cuts.kept) // 3], faults=run.faults)
    assert of_all_engines(cluster.state()) == of_all_engines(cuts.kept[-1][0])


def test_random_schedules_of_faults_replay(tmp_path: Path) -> None:
    """Runs with random options and faults, a lost driver among them, are replayed bit for bit, or refused."""
    replays, refused = 0, list[tuple[str, str]]()
    for seed in range(60):
        schedule = drawn(seed, [Subject(mode) for mode in modes()])
        cfg = schedule.config()
        cfg = replace(cfg, output=replace(cfg.output, out=str(tmp_path), run_name=f"seed{seed}"))
        ended = execute(cfg, record=RunRecord(cfg), evaluate=False)
        if not ended.tally.updates:
            continue
        assert ended.path
        try:
            found = compared(recorded_run(ended.path))
        except RecordError as error:
            refused.append((str(error), str(schedule.options["faults"])))
            continue
        assert (found.differs, found.same_weights) == (None, True), schedule
        replays += 1
    assert replays > 40
    for reason, faults in refused:
        assert "lost its driver and went back while members came and went" in reason
        assert "driver" in faults


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "diloco", "dssp"])
@pytest.mark.parametrize("faults", ["", "driver@t=4+2; driver@update=9", "driver@update=12; kill:1@t=3"])
def test_a_run_that_rolls_back_replays(mode: str, faults: str, tmp_path: Path) -> None:
    """Each part with the step size that it was computed with, whatever a lost driver took back too."""
    options: dict[str, Any] = {"workload": "quadratic", "lr": 30.0, "steps": 60, "eval_every": 2}
    options |= {"compute_time": "exponential:1", "on_divergence": "rollback", "checkpoint_every": "3"}
    options["faults"] = faults
    if mode == "diloco":
        options |= {"inner": "sgd", "local_steps": 2}
    path, _ = recorded(tmp_path, mode, **options)
    run = recorded_run(path)
    assert [fault.kind for fault in run.faults].count("divergence") > 1
    found = compared(run)
    assert (found.differs, found.same_weights) == (None, True)


def test_a_run_from_another_runs_weights_replays(tmp_path: Path) -> None:
    """From the same weights; if those have changed meanwhile, it is refused."""
    first, _ = recorded(tmp_path, "asgd", run_name="first")
    second, _ = recorded(tmp_path, "ssgd", run_name="second", init_from=str(first))
    found = compared(recorded_run(second))
    assert (found.differs, found.same_weights) == (None, True)
    np.save(first / "weights.npy", np.load(first / "weights.npy") + 1)
    with pytest.raises(RecordError, match=r"do not have the digest in summary\.json"):
        compared(recorded_run(second))
    (first / "summary.json").unlink()
    with pytest.raises(RecordError, match="are not the weights that the run began with"):
        compared(recorded_run(second))
    (first / "weights.npy").unlink()
    with pytest.raises(RecordError, match=r"has no weights\.npy"):
        compared(recorded_run(second))


# --- The command --------------------------------------------------------------------------------------------

ASGD = "--engine sim --mode asgd --num-workers 3 --steps 20 --compute-time exponential:1 --quiet"


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Call `main.py replay` in this process."""

    def call(run: object, *more: str) -> Said:
        code = main(["replay", str(run), *more])
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture
def asgd(cli: CommandLine) -> Ran:
    return cli(ASGD)


Lines = list[dict[str, Any]]


def changed(ran: Ran, change: Callable[[Lines], object], name: str = "updates.jsonl") -> Path:
    """Return a copy of a record in which a file's lines were changed."""
    copy = ran.record.with_name("changed")
    shutil.copytree(ran.record, copy)
    lines = ran.lines(name)
    change(lines)
    (copy / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return copy


def test_the_command_says_what_it_compared(asgd: Ran, replay: Callable[..., Said]) -> None:
    """A few lines: how much was computed again, in which time, and that it is the same; exit code 0."""
    said = replay(asgd.record)
    assert (said.code, said.err) == (0, "")
    for part in (
        "asgd on sim, 3 workers",
        "60 updates of 60 tasks",
        "virtual s",
        "same losses",
        "the same bytes",
    ):
        assert part in said.out
    assert asgd.summary["weights_sha256"] in said.out
    assert len(said.out.splitlines()) == 4


def test_a_changed_loss_is_found(asgd: Ran, replay: Callable[..., Said]) -> None:
    """One loss that differs in its last digits: the update and the task are named, exit code 1; and as the
    weights are the same, it was the record that was changed.
    """

    def change(lines: Lines) -> None:
        lines[30]["gradients"][0]["loss"] += 1e-12

    task = asgd.lines("updates.jsonl")[30]["gradients"][0]
    said = replay(changed(asgd, change))
    assert said.code == 1
    assert f"update 31: worker {task['worker']}'s mini-batch {task['step']} has loss" in said.out
    assert "the same bytes" in said.out
    assert "changed after it was written" in said.out


def test_a_changed_order_is_found(asgd: Ran, replay: Callable[..., Said]) -> None:
    """Two tasks that came in in the other order make other weights, and the first update that differs."""

    def change(lines: Lines) -> None:
        one, other = lines[30]["gradients"][0], lines[31]["gradients"][0]
        assert one["worker"] != other["worker"]
        one["finished_s"], other["finished_s"] = other["finished_s"], one["finished_s"]

    said = replay(changed(asgd, change))
    assert said.code == 1
    assert "update 31: made of worker" in said.out
    assert "other bytes" in said.out


def test_a_task_that_is_missing_is_found(asgd: Ran, replay: Callable[..., Said]) -> None:
    """A task under another number never comes in: the update that waits for it is named."""

    def change(lines: Lines) -> None:
        lines[-1]["gradients"][0]["step"] += 100

    said = replay(changed(asgd, change))
    assert said.code == 1
    assert "update 60: " in said.out


def test_other_libraries_are_named_as_the_reason(asgd: Ran, replay: Callable[..., Said]) -> None:
    """Where a record was made with another torch and the weights differ, the versions are said."""
    copy = changed(asgd, lambda lines: lines[5]["gradients"][0].update(loss=9.0))
    for name, field, value in (("meta.json", "versions", {"torch": "1.0", "numpy": "1.0"}),
                               ("summary.json", "weights_sha256", "0" * 64)):  # fmt: skip
        content = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps(content | {field: value}))
    said = replay(copy)
    assert said.code == 1
    assert "torch 1.0 there, " in said.out


def test_until_stops_at_a_version_and_saves_its_weights(asgd: Ran, replay: Callable[..., Said]) -> None:
    """--until V --save FILE: the weights of that version, which a run of that length has too."""
    file = asgd.record.parent / "w.npy"
    said = replay(asgd.record, "--until", "30", "--save", str(file))
    assert said.code == 0
    assert "30 updates" in said.out
    assert "of version 30" in said.out
    weights = [update.weights.vector for update in dsgd.replay(asgd.record)][29]
    assert np.load(file).tobytes() == weights.tobytes()


def test_a_killed_run_replays_as_far_as_it_was_written(asgd: Ran, replay: Callable[..., Said]) -> None:
    """Without summary.json, and with a torn last line: its updates are compared, and that is said."""
    copy = changed(asgd, lambda lines: lines.pop())
    for name in ("summary.json", "weights.npy"):
        (copy / name).unlink()
    with (copy / "updates.jsonl").open("a") as file:
        file.write('{"version": 60, "t_s": 1')
    said = replay(copy)
    assert said.code == 0
    assert "59 updates of 59 tasks" in said.out
    assert "the record has no last weights" in said.out


def test_what_cannot_be_replayed_is_refused_in_one_line(
    cli: CommandLine, asgd: Ran, replay: Callable[..., Said], tmp_path: Path
) -> None:
    """No record, not all updates, none at all, a lost strategy file: exit code 2, the reason, one line."""
    thinned = cli(f"{ASGD} --record every:2").record
    none = cli(f"{ASGD} --record none").record
    gap = changed(asgd, lambda lines: lines.pop(10))
    faulty = cli(f"{ASGD} --faults leave:1@t=5").record
    with (faulty / "faults.jsonl").open("a") as file:
        lost: dict[str, Any] = {"t_s": 9, "kind": "driver", "workers": [], "asked": True, "update": 9}
        lost |= {"came_in": 9, "text": ""}
        file.write(json.dumps(lost) + "\n")
    empty = asgd.record.with_name("empty")
    shutil.copytree(asgd.record, empty)
    (empty / "updates.jsonl").write_text("")
    own = tmp_path / "train_mine.py"
    own.write_text((ROOT / "train_asgd.py").read_text().replace('mode: str = "asgd"', 'mode: str = "mine"'))
    mine = cli(f"{ASGD.replace('--mode asgd', '')} --strategy-file {own}").record
    assert replay(mine).code == 0
    own.unlink()
    (tmp_path / "other").mkdir()
    for run, reason in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "other", "not a run record"),
        (thinned, "--record every:2"),
        (none, "--record none"),
        (gap, "update 12 follows update 10"),
        (faulty, "lost its driver and went back while members came and went"),
        (empty, "has no update"),
        (mine, "train_mine.py"),
    ):
        said = replay(run)
        assert said.code == 2, run
        assert reason in said.err
        assert str(run) in said.err
        assert len(said.err.strip().splitlines()) == 1
    assert "must be at least 1" in replay(asgd.record, "--until", "0").err


def test_from_python_updates_can_be_looked_at(asgd: Ran) -> None:
    """dsgd.replay yields updates with what each task read and computed, and stops where one differs."""
    updates = list(dsgd.replay(asgd.record))
    assert [update.weights.version for update in updates] == list(range(1, 61))
    first = updates[0]
    assert first.dones[0].origin.version == 0
    moved = first.dones[0].origin.vector - 0.1 * first.dones[0].value
    np.testing.assert_allclose(first.weights.vector, moved, rtol=1e-6)
    copy = changed(asgd, lambda lines: lines[30]["gradients"][0].update(loss=9.0))
    with pytest.raises(ValueError, match="update 31: worker"):
        list(dsgd.replay(copy))
    assert len(list(dsgd.replay(copy, check=False, until=40))) == 40
    result = dsgd.run("asgd", engine="sim", steps=4, out=asgd.record.parent)
    assert len(list(dsgd.replay(result))) == 16
    with pytest.raises(ValueError, match="out="):
        dsgd.replay(dsgd.run("asgd", engine="sim", steps=4))


# Labels are wrong by the clock, and so is AdaComm's choice: the driver is away, or the server stands still.
WRONG = "lie:2=labelflip@t"
CLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("asgd", {"faults": f"{WRONG}=2+3; driver@update=5+2"}),
    ("asgd", {"faults": f"{WRONG}=13+1; driver@update=5; driver@t=4+9", "checkpoint_every": "2"}),
    ("ssgd", {"faults": f"{WRONG}=2+3", "checkpoint_every": "1", "checkpoint_cost_s": 1.5}),
    (
        "localsgd",
        {"faults": f"{WRONG}=5+30; kill:s0@update=1+20", "topology": "server,replicas=2", "local_steps": 2},
    ),
    ("adacomm", {"faults": "driver@t=2+30", "interval_s": 9.0, "local_steps": 4}),
    ("ssgd", {"faults": f"{WRONG}=9+9", "topology": "allreduce", "latency_s": 2.0, "compress": "none"}),
]


@pytest.mark.parametrize(("mode", "options"), CLOCKS)
def test_a_replays_clock_goes_on_when_the_runs_did(
    mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """After the driver's absence, and after the server stood still, all that is decided by the time is the
    same.
    """
    scene = {"num_workers": 3, "steps": 12, "compute_time": "exponential:1", "compress": "int8", **options}
    path, _ = recorded(tmp_path, mode, **scene)
    found = compared(recorded_run(path))
    assert (found.differs, found.same_weights) == (None, True)
