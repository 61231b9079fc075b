"""Random schedules with a record: resumed after a cut it is the same, replayed it has the same weights."""

from __future__ import annotations

import shlex

import pytest
from dst.__main__ import schedule_of
from dst.recorded_schedules import drawn_for_a_record, is_kept

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.engines.replay import ReplayCluster
from dsgd.scenario.fault import STORE
from dsgd.strategies import modes

ALL = [Subject(mode) for mode in modes()]

DROP = "--on-loss drop --faults"
FOUND = {
    "all lost at an update": f"--mode ssgd --num-workers 4 --steps 9 {DROP} kill:0,1,2,3@update=2",
    "all lost at a step": f"--mode noloco --num-workers 5 --steps 7 {DROP} kill:0,1,2,3,4@step=6",
    "lost during an exchange": "--mode diloco --num-workers 6 --steps 60 --compute-time lognormal:1,.5 "
    f"--topology allreduce:halving {DROP} spot:mtbf=60,back=4",
    "gone after its next task began": "--mode asgd --num-workers 2 --steps 3 --faults leave:1@update=2",
    "back before the strategy waits": f"--mode noloco --num-workers 2 --steps 9 {DROP} node:a@update=1",
    "gone in two ways": "--mode sgp --num-workers 5 --steps 10 --seed 689 --spares 2 --compute-time "
    f"uniform:.5,1.5 {DROP} 'join:3@t=22; leave:1@update=11; kill:0,1,2,3,4@update=12'",
    "in while the server stands still": "--mode kasync --num-workers 10 --steps 4 --count gradients "
    "--compute-time exponential:1 --checkpoint-cost-s .4",
    "slow disk": "--mode asgd --num-workers 3 --steps 12 --compute-time exponential:1 "
    "--faults slow-disk=1.5@t=2+6",
    "a damaged checkpoint's digest": "--mode ringmaster --num-workers 7 --steps 3 --workload none "
    "--delay-bound 3 --rest ignore --hosts 6 --checkpoint-every .5 --faults rot@t=2.3",
    "drawn losses in a checkpoint": "--mode localsgd --num-workers 5 --steps 8 --seed 451 --local-steps 7 "
    "--checkpoint-every 8 --faults 'spot:mtbf=100,back=3; torn@t=14'",
    "theory of members before the cut": f"--mode dpsgd --num-workers 2 --steps 2 {DROP} kill:1@t=1.1+3",
}
"""What random schedules, or an attack, have found, made small."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str) -> None:
    """It is replayed, and resumed after several of its updates."""
    given = FOUND[name] if "--checkpoint-every" in FOUND[name] else f"{FOUND[name]} --checkpoint-every 1"
    is_kept(schedule_of(["--engine", "sim", *shlex.split(given)]), cuts=4)


@pytest.mark.crossing(one_in=8)
@pytest.mark.parametrize("first", range(0, 320, 8))
def test_random_schedules_are_kept(first: int) -> None:
    """A sample; `make dst` runs 10,000."""
    for seed in range(first, first + 8):
        is_kept(drawn_for_a_record(seed, ALL))


def test_the_schedules_have_what_a_record_may_meet() -> None:
    """Each fault of a disk, each topology, divergence, and the loss of everybody at one moment."""
    options = [drawn_for_a_record(seed, ALL).options for seed in range(300)]
    for topology in ("sharded:2", "allreduce", "allreduce:ring", "allreduce:halving"):
        assert sum(one.get("topology") == topology for one in options) > 2, topology
    for kind in STORE:
        assert sum(f"{kind}@" in one["faults"] or f"{kind}=" in one["faults"] for one in options) > 10, kind
    everybody = [",".join(map(str, range(one["num_workers"]))) for one in options]
    lost = [f"kill:{all_}@" in one["faults"] for one, all_ in zip(options, everybody, strict=True)]
    assert sum(lost) > 50
    assert sum(one.get("on_divergence") == "rollback" for one in options) > 30


def test_a_replay_that_misses_what_happens_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: members change only where the strategy waits."""
    monkeypatch.setattr(ReplayCluster, "_change_at_once", lambda self, version: None)
    found = shlex.split(f"--engine sim --checkpoint-every 1 {FOUND['lost during an exchange']}")
    with pytest.raises(Broken, match="as a replay"):
        is_kept(schedule_of(found), cuts=0)
