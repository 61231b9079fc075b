"""A run is a value that goes on: pausing, sharing, going back and replaying change no bit."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dsgd
from dsgd.config import TrainConfig
from dsgd.core.protocol import Update
from dsgd.records.writer import RunRecord
from dsgd.running.checkpoints.codec import vocabulary
from dsgd.running.checkpoints.run_state import from_bytes, to_parts
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Moment, RunKeeper, Watcher
from dsgd.running.quick_run import config
from dsgd.running.replaying import recorded_run, replayed_run
from dsgd.running.simulating import simulation
from dsgd.strategies import modes, strategy_of

BASE: dict[str, Any] = {
    "num_workers": 4, "steps": 40, "lr": 0.05, "eval_every": 3,
    "compute_time": "exponential:1", "slowdown": "0=3",
}  # fmt: skip
OF_ENGINE = "kill:0@t=4+1; pause:1=2@t=8; slow:2=4@t=10+9; cut:3@t=15+3; driver@t=12.3+3; driver@update=30"
FAULTS: dict[str, Any] = {
    "faults": f"{OF_ENGINE}; torn@t=9; slow-disk=.5@t=17+9; rot@update=28", "checkpoint_every": "4"
}  # fmt: skip
SOME_STEPS = ("localsgd", "diloco", "easgd", "noloco", "streaming")


class Versions(Watcher):
    """Keeps a digest of each version of the weights, and when it was there."""

    def __init__(self, seen: Mapping[int, Any] | None = None) -> None:
        self.seen = dict(seen or {})

    def updated(self, update: Update) -> None:
        w = update.weights
        self.seen[w.version] = hashlib.sha256(w.vector.tobytes()).hexdigest(), update.finished_s, update.loss


class Paused(NamedTuple):
    """A run that pauses, and the one with the same options that does not."""

    keeper: RunKeeper
    versions: Versions
    ended: Ended
    batch: Versions

    @classmethod
    def of(cls, cfg: TrainConfig) -> Paused:
        batch, versions = Versions(), Versions()
        ended = execute(cfg, [batch])
        assert not ended.error
        return cls(simulation(cfg, [versions]), versions, ended, batch)

    def require_same(self, keeper: RunKeeper, versions: Versions) -> None:
        """Require that a run is, in all that is kept of it, the one that has not paused."""
        keeper.evaluations.submit_last()
        keeper.evaluations.collect(wait=True)
        assert keeper.run.over == self.ended.stopped_by
        assert versions.seen == self.batch.seen
        assert keeper.evaluations.found == self.ended.evaluations
        assert keeper.run.tally.state() == self.ended.tally.state()


def go_on_by_chance(runs: list[Paused], draws: random.Random) -> list[tuple[Moment, dict[int, Any]]]:
    """Take runs to their ends, in turn and by random steps; return a moment of each."""
    moments = [(paused.keeper.moment(), dict[int, Any]()) for paused in runs]
    while going := [n for n, paused in enumerate(runs) if not paused.keeper.run.over]:
        keeper, versions, *_ = runs[which := draws.choice(going)]
        if draws.random() < 0.5:
            keeper.advance(keeper.run.tally.last_update_s + draws.expovariate(0.3))
        else:
            keeper.advance(updates=draws.randint(1, 9))
        if not keeper.run.over and draws.random() < 0.3:
            moments[which] = keeper.moment(), dict(versions.seen)
    return moments


@pytest.mark.crossing
@pytest.mark.parametrize(
    "learns",
    [{"workload": "xor", **FAULTS}, {"workload": "quadratic", "dim": 3, "grad_noise": 0.5}],
    ids=["xor, faults", "quadratic"],
)
@pytest.mark.parametrize("mode", modes())
def test_runs_that_pause_beside_each_other_are_those_that_do_not(mode: str, learns: dict[str, Any]) -> None:
    """Two of a mode in one process, by random steps; and from a moment of each, back on its engine, on
    another, and from the bytes of a checkpoint.
    """
    options = {**BASE, **learns, **({"local_steps": 3} if mode in SOME_STEPS else {})}
    options |= {"fragments": 2} if mode == "streaming" else {}
    cfgs = [config(mode, **options, seed=seed) for seed in (0, 1)]
    runs = [Paused.of(cfg) for cfg in cfgs]
    moments = go_on_by_chance(runs, random.Random(0))
    for cfg, paused, (moment, seen) in zip(cfgs, runs, moments, strict=True):
        paused.require_same(paused.keeper, paused.versions)
        known = vocabulary(strategy_of(cfg))
        in_bytes = moment._replace(state=from_bytes(b"".join(to_parts(moment.state, known)), known))
        others = [(simulation(cfg, [its := Versions(seen)]), its, then) for then in (moment, in_bytes)]
        paused.versions.seen = dict(seen)
        for keeper, versions, then in ((paused.keeper, paused.versions, moment), *others):
            keeper.go_to(then)
            keeper.advance()
            paused.require_same(keeper, versions)


LATER = [
    "kill:1@t=18+2", "kill:0,2@update=33", "pause:3=4@step=20", "cut:0,1@t=19+3", "slow:3=1~4@t=17.5+6",
    "leave:2@t=20", "driver@t=21+1; driver@t=21+1", "driver@update=31; full@t=18+5",
    "torn@t=18; driver@update=40", "lie:1=signflip@t=18", "lie:0,3=ipm@update=32+6; kill:0@t=17.2",
    "spot:mtbf=60,back=1; kill:2@step=25", "crash:mtbf=40,back=1",
]  # fmt: skip
BEFORE = {
    "processes": "kill:0@t=4+1; pause:1=2@step=3; driver@update=9; lie:2=gaussian@t=5+20",
    "the disk, too": "torn@t=9; slow-disk=.5@t=15+9; kill:0@t=4+1; kill:0@t=4+1; driver@t=12+3; spot:mtbf=90",
}


@pytest.mark.crossing(one_in=5)
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
@pytest.mark.parametrize("later", LATER)
def test_a_text_with_more_faults_shares_all_that_was_before_them(later: str, before: str) -> None:
    """A run whose `--faults` have some that come later goes on from the moments of the one without them."""
    for mode in ("ssgd", "asgd", "localsgd") if "lie" in before + later else ("ssp", "dpsgd", "asgd"):
        options = {**BASE, "checkpoint_every": "4", "restarts": "1000"}
        options |= {"local_steps": 3} if mode == "localsgd" else {}
        shorter = simulation(config(mode, **options, faults=before), [seen := Versions()])
        while shorter.run.tally.last_update_s < 17 and shorter.run.weights.version < 25:
            then, until_then = shorter.moment(), dict(seen.seen)
            shorter.advance(updates=1)
        drawn = any(
            kind in later for kind in ("spot", "crash", "full", "torn")
        )  # by their places in the text
        for text in [f"{before}; {later}", *([] if drawn else [f"{later}; {before}"])]:
            cfg = config(mode, **options, faults=text)
            whole, rest = Versions(), Versions(until_then)
            longer, from_then = simulation(cfg, [whole]), simulation(cfg, [rest])
            from_then.go_to(then)
            assert longer.advance() == from_then.advance() == "budget"
            assert rest.seen == whole.seen
            noted = [[f._replace(text="") for f in keeper.run.faults.noted] for keeper in (from_then, longer)]
            assert noted[0] == noted[1]  # checkpoints' names, in texts, have the digest of all options
            assert from_then.run.tally.state() == longer.run.tally.state()
            assert from_then.evaluations.found == longer.evaluations.found


def test_runs_of_a_module_share_it() -> None:
    """A torch module, its data and its objective are values too: runs that take turns do not disturb them."""
    options = {**BASE, "workload": "digits_cnn", "num_workers": 2, "steps": 6, "slowdown": ""}
    runs = [Paused.of(config(mode, **options)) for mode in ("ssgd", "asgd", "dpsgd")]
    go_on_by_chance(runs, random.Random(0))
    for paused in runs:
        paused.require_same(paused.keeper, paused.versions)
    assert len({id(paused.keeper.run.workload.objective) for paused in runs}) == 1


def test_a_run_that_has_come_so_far_does_not_go_on() -> None:
    """`advance` to a time that is past makes no update; to a later one it makes as few as are needed."""
    keeper = simulation(config("asgd", **BASE))
    assert keeper.advance(5.0) is None
    version, at_s = keeper.run.weights.version, keeper.run.tally.last_update_s
    assert at_s >= 5.0
    keeper.advance(5.0)
    assert keeper.run.advance(4.0) is None
    assert keeper.run.weights.version == version
    keeper.advance(updates=3)
    assert keeper.run.weights.version == version + 3


def test_faults_of_the_disk_need_no_record() -> None:
    """A run in memory has checkpoints that are torn, and goes on from the one before."""
    keeper = simulation(config("asgd", **BASE, **FAULTS))
    keeper.advance()
    drivers = [fault.text for fault in keeper.run.faults.noted if fault.kind == "driver"]
    assert [bool(re.search(r"was skipped: its [\d,]+ bytes", text)) for text in drivers] == [False, True]


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd", "ringmaster", "dpsgd"])
def test_a_schedule_is_that_of_the_run(mode: str) -> None:
    """The same versions at the same times as with gradients, where messages take the time of its vectors."""
    asked = {"num_workers": 4, "steps": 30, "compute_time": "exponential:1", "bytes_per_s": 4e4}
    ended = execute(config(mode, **asked, workload="digits", hidden="none"))
    found = dsgd.schedule(mode, **asked, num_weights=ended.weights.vector.size, workload="digits", lr=3.0)
    tally = ended.tally
    assert (found.updates, found.gradients) == (tally.updates, tally.gradients)
    assert found.clock_s == pytest.approx(tally.last_update_s)
    assert found.staleness == dict(sorted(tally.staleness_counts.items()))


def test_a_record_is_a_run_too(tmp_path: Path) -> None:
    """It stops at any version, and goes on to the record's last bytes."""
    cfg = config("asgd", **BASE, out=str(tmp_path), run_name="it")
    ended = execute(cfg, record=RunRecord(cfg))
    made, last = replayed_run(recorded_run(tmp_path / "it"))
    made.advance(updates=50)
    assert (made.weights.version, last) == (50, 160)
    made.advance()
    assert made.weights.vector.tobytes() == ended.weights.vector.tobytes()
    assert made.tally.state()["staleness_counts"] == ended.tally.staleness_counts
