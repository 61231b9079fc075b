"""Faults as data: what the option's text means, what cannot happen, and when each is due."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.records.reader import read_yaml
from dsgd.running.quick_run import config
from dsgd.scenario.fault import PROCESS, Fault, Spot, Trigger
from dsgd.scenario.fault_plan import Plan, outside_at_first
from dsgd.scenario.faults_text import parse_faults
from main import main

SECONDS = st.floats(0, 1e6, allow_nan=False)
TRIGGERS = st.one_of(
    st.builds(Trigger, st.just("t"), SECONDS),
    st.builds(Trigger, st.sampled_from(["update", "step"]), st.integers(1, 10**6).map(float)),
)
WORKERS = st.lists(st.integers(0, 20), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def faults_of_processes(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from([kind for kind in PROCESS if kind != "node"]))
    sized = kind in ("pause", "slow")
    lasting = {"cut": SECONDS, "pause": st.none()}.get(kind, st.none() | SECONDS)
    lasts_s = draw(lasting)
    grows = kind == "slow" and lasts_s is not None and draw(st.booleans())
    return Fault(
        kind=kind,
        workers=draw(WORKERS),
        trigger=draw(TRIGGERS),
        size=draw(st.floats(0.01, 1e6)) if sized else 0.0,
        from_size=draw(st.floats(0.01, 9)) if grows else None,
        lasts_s=lasts_s,
    )


@given(st.lists(faults_of_processes(), max_size=4))
def test_a_fault_is_written_as_it_is_read(faults: list[Fault]) -> None:
    """The text of any faults means exactly these faults."""
    assert parse_faults("; ".join(map(str, faults))) == tuple(faults)


def test_a_file_lists_faults(tmp_path: Path) -> None:
    """A YAML file means what its lines mean."""
    path = tmp_path / "some.yaml"
    path.write_text("- kill:2@update=100\n- spot:mtbf=600,back=60\n")
    assert parse_faults(str(path)) == parse_faults("kill:2@update=100; spot:mtbf=600,back=60")
    for content, words in (("kill: 2", "must be a list"), ("- [", "is not YAML"), ("- 3", "must be a list")):
        path.write_text(content)
        with pytest.raises(ValueError, match=words):
            parse_faults(str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        parse_faults(str(tmp_path / "other.yaml"))


def test_a_record_has_the_faults_of_the_file(cli: CommandLine, tmp_path: Path) -> None:
    """config.yaml lists the faults themselves: a replay needs no file, which may have changed since."""
    path = tmp_path / "some.yaml"
    path.write_text("- leave:1@update=3\n- join:1@t=9\n")
    ran = cli(f"--engine sim --mode asgd --num-workers 3 --steps 9 --workload none --faults {path}")
    assert read_yaml(ran.record / "config.yaml")["faults"] == "leave:1@update=3; join:1@t=9"
    path.unlink()
    assert main(["replay", str(ran.record)]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("melt:1@t=3", "there is no kind 'melt'"),
        ("kill:1", "is not a fault"),
        ("kill:1@", "is not a fault"),
        ("kill@t=3", "name the workers"),
        ("kill:0,s1@t=3", "name the workers"),
        ("pause:s1=3@t=3", "name the workers"),
        ("kill:s1@step=3", "use t= or update= for servers"),
        ("kill:a@t=3", "name the workers"),
        ("kill:1@when=3", "a trigger is"),
        ("kill:1@t=soon", "must be a finite number"),
        ("kill:1@t=-1", "must be a finite number"),
        ("kill:1@t=inf", "must be a finite number"),
        ("kill:1@update=1.5", "needs a whole number"),
        ("kill:1@update=0", "the first update has number 1"),
        ("kill:1=4@t=3", "kill has no size"),
        ("pause:1@t=3", "say how much"),
        ("pause:1=0@t=3", "must be above 0"),
        ("pause:1=1~2@t=3", "only slow can grow"),
        ("pause:1=5@t=3+2", "pause has no duration"),
        ("slow:1=0~2@t=3+2", "must be above 0"),
        ("slow:1=1~2@t=3", "say for how many seconds"),
        ("cut:1@t=3", "say for how many seconds"),
        ("node:1@t=3", "name the node by its letter"),
        ("node:b@step=3", "use t= or update="),
        ("driver:1@t=3", "driver names no worker"),
        ("driver@step=3", "use t= or update="),
        ("join:1@step=3", "use t= or update="),
        ("leave:1@t=3+5", "give a join"),
        ("torn@step=3", "use t= or update="),
        ("spot:back=3", "write spot:mtbf"),
        ("spot:mtbf=0", "mtbf must be above 0"),
        ("kill:4@t=1", "workers are numbered 0 to 3"),
        ("node:b@t=1", "--nodes 1 gives only a"),
        ("kill:1@update=41", "at most 40 updates"),
        ("join:0,1,2,3@t=1", "all workers begin outside"),
        ("leave:0,1@t=3; leave:2,3@update=4", "all members leave"),
        ("join:3@t=9; leave:0,1,2@t=5; leave:3@t=20", "all members have left, and none joins"),
        ("leave:1@t=3; leave:1@t=6", "worker 1 is no member at that time"),
        ("leave:1@t=3; join:1@t=6; join:1@t=7", "worker 1 is a member already"),
        ("torn@t=3", "give --checkpoint-every"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(cli: CommandLine, text: str, words: str) -> None:
    """What cannot happen is said in one line that names --faults, and no record is begun."""
    ran = cli("--engine sim --mode ssgd --steps 10 --faults", text)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "--faults" in ran.err
    assert words in ran.err
    assert not ran.record.exists()


@pytest.mark.parametrize("disk", ["", "torn@t=99; "])
def test_faults_that_come_too_late_are_named(cli: CommandLine, disk: str) -> None:
    """By time, by the last update, by a step that no task has, of the disk: in one line, three by name."""
    late = f"{disk}kill:1@t=99; leave:0@update=10; kill:1@step=10"
    ran = cli("--engine sim --steps 10 --checkpoint-every 5 --faults", f"pause:1=2@step=9; {late}")
    named = late.replace("; kill:1@step=10", " and 1 more") if disk else late
    assert ran.err.endswith(f"note: the run was over before these faults could happen: {named}\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 5}, "--hosts 5: must be at most --num-workers 4"),
        ({"min_workers": 5, "on_loss": "drop"}, "--min-workers 5: must be at most --num-workers 4"),
        ({"min_workers": 2}, "--min-workers 2: has no effect"),
        ({"nodes": 5}, "--nodes 5: must be at most the number of processes, 4"),
        ({"hosts": 1, "suspect_after": 3.0}, "--suspect-after 3.0: needs a second process"),
        ({"spares": 1}, "--spares 1: has no effect in the simulator"),
        ({"restart_s": 1.0, "faults": "leave:1@t=4"}, "--restart-s 1.0: has no effect in the simulator"),
        ({"restart_s": 1.0, "faults": "kill:1@t=4", "engine": "ray"}, "--restart-s 1.0: has no effect"),
        ({"faults": "driver@t=4+5", "engine": "ray"}, "nothing starts a real driver again"),
    ],
)
def test_options_of_faults_go_together(options: dict[str, Any], words: str) -> None:
    """An option that is impossible, or has no effect, is named with the remedy."""
    with pytest.raises(ValueError, match=words):
        config("ssgd", **options)


def test_members_that_losses_take_away_are_not_known_before() -> None:
    """Under drop a lost process's worker leaves and joins: what the schedule says of members may be right."""
    text = "leave:1@t=3; leave:1@t=6"
    assert config("ssgd", on_loss="drop", faults=f"{text}; kill:1@t=4").fault.fault_list
    with pytest.raises(ValueError, match="no member"):
        config("ssgd", on_loss="drop", faults=text)


def test_who_begins_outside() -> None:
    """Those whose first leave or join is a join begin outside; times decide, else the order of the text."""
    assert outside_at_first(parse_faults("join:4@t=10; join:5@t=10; kill:1@t=1")) == {4, 5}
    assert outside_at_first(parse_faults("join:4@t=10; leave:4@t=3")) == set()
    assert outside_at_first(parse_faults("join:4@t=10; leave:4@update=3")) == {4}


def everything_due(plan: Plan, until_s: float = 100.0) -> list[tuple[float, Fault]]:
    due = []
    while plan.next_s <= until_s:
        due.append(plan.pop_timed())
    return due


def due(plan: Plan) -> list[tuple[str, tuple[int, ...]]]:
    """Take out what an update or a step has triggered."""
    return [(fault.kind, fault.workers) for fault in iter(lambda: plan.pop_due(-math.inf), None)]


def test_a_fault_is_due_once() -> None:
    """By time in order, by update at that update, by step when the task contains it; and never again."""
    faults = parse_faults("kill:1@t=9; kill:2@t=3; pause:0=1@update=7; kill:0,1@step=5")
    plan = Plan(faults, seed=0, hosts=3)
    assert [(at_s, fault.workers) for at_s, fault in everything_due(plan)] == [(3, (2,)), (9, (1,))]
    assert not plan.at_update(6)
    assert [fault.kind for fault in plan.at_update(7)] == ["pause"]
    assert due(plan) == [("pause", (0,))]
    assert not plan.at_update(7)
    plan.at_step(0, 0, 5)
    assert not due(plan)
    plan.at_step(1, 4, 2)
    plan.at_step(0, 5, 1)
    assert due(plan) == [("kill", (1,)), ("kill", (0,))]
    plan.at_step(0, 5, 1)
    plan.at_step(2, 5, 1)
    assert not due(plan)


def test_the_loss_of_the_driver_waits_for_nothing() -> None:
    """What the same update triggers is due all the same, when the strategy next waits."""
    plan = Plan(parse_faults("driver@update=7; leave:1@update=7"), seed=0, hosts=3)
    assert [fault.kind for fault in plan.at_update(7)] == ["driver", "leave"]
    assert due(plan) == [("leave", (1,))]


def test_a_plan_goes_on_from_its_position() -> None:
    """From any position, which is JSON, the same follows, in another plan and in the same one."""
    faults = parse_faults("spot:mtbf=7,back=2; kill:1@t=9; driver@t=20; pause:0=1@update=7; kill:0@step=5")
    whole = everything_due(Plan(faults, seed=3, hosts=3))
    for n in range(len(whole)):
        plan = Plan(faults, seed=3, hosts=3)
        assert [plan.pop_timed() for _ in range(n)] == whole[:n]
        plan.at_update(7)
        plan.at_step(0, 5, 1)
        position = json.loads(json.dumps(plan.position()))
        other = Plan(faults, seed=3, hosts=3)
        other.go_to(position)
        assert everything_due(other) == whole[n:]
        assert not other.at_update(7)
        assert due(other) == [("pause", (0,)), ("kill", (0,))]
        everything_due(plan)
        plan.go_to(position)
        assert everything_due(plan) == whole[n:]
        assert len(due(plan)) == 2


def test_positions_of_older_checkpoints_hold() -> None:
    """There a number stood for a fault, and for each worker that triggers it by its steps."""
    asked = "driver@t=20; kill:1@t=9; spot:mtbf=7; pause:0=1@update=7; kill:0,2@step=5; kill:1@t=9"
    faults = parse_faults(asked)
    plan = Plan(faults, seed=3, hosts=3)
    plan.go_to({"given": [~(2 * 5 + 3), 1, 2], "losses": [[0, 0, 4, 8.5], [0, 1, 2, 30.0], [0, 2, 2, 40.0]]})
    assert plan.position()["given"] == ["kill:1@t=9", "kill:2@step=5", "pause:0=1@update=7"]
    assert [plan.pop_timed()[0] for _ in range(2)] == [8.5, 9.0]
    assert not plan.at_update(7)
    plan.at_step(2, 5, 1)
    plan.at_step(0, 5, 1)
    assert due(plan) == [("kill", (0,))]
    assert "kill:1@t=9 #2" in plan.position()["given"]
    with pytest.raises(ValueError, match="'kill:3@t=9' is none of the run's faults"):
        plan.go_to({**plan.position(), "due": ["kill:3@t=9"]})


@settings(max_examples=20)
@given(st.integers(0, 100), st.floats(1, 100))
def test_spot_is_a_poisson_process(seed: int, mtbf_s: float) -> None:
    """Each host's losses are the same for the same seed, and mtbf + back apart on average."""
    plan = Plan((Spot(mtbf_s, 5.0),), seed=seed, hosts=2)
    lost = everything_due(plan, until_s=400 * (mtbf_s + 5))
    assert lost == everything_due(Plan((Spot(mtbf_s, 5.0),), seed=seed, hosts=2), 400 * (mtbf_s + 5))
    for host in (0, 1):
        times = [at_s for at_s, fault in lost if fault.hosts == (host,)]
        assert min(b - a for a, b in pairwise(times)) >= 5
        assert 280 < len(times) < 560  # 400 expected, with a standard deviation of at most 20
