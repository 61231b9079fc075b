"""All-reduce with faults, simulated: the weights of a run without faults, and what a lost value costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.core.protocol import ClusterError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run

SMALL: dict[str, Any] = {
    "num_workers": 4,
    "steps": 12,
    "workload": "quadratic",
    "optima": "0,.5,1,2",
    "dim": 3,
    "compute_time": "uniform:1,3",
}
LOSSES: dict[str, Any] = {"restart_s": 1.5, "restarts": "3,within=.001"}
REDUCED: dict[str, Any] = {"topology": "allreduce", "latency_s": 0.01, "bytes_per_s": 1000.0}
FAULTS = {
    "kill": "kill:1@t=4.5; kill:0@t=11; kill:2,3@t=17",
    "between updates": "kill:1@update=2; kill:0@update=4",
    "node": "node:b@t=6",
    "others": "pause:1=5@t=3; slow:0=4@t=6+5; cut:2@t=9+2",
    "members": "leave:2@step=5; join:2@t=14",
}


POLICIES: list[dict[str, Any]] = [{}, {"on_loss": "rehost"}, {"spares": 1}, {"suspect_after": 4.0}]
CASES = [
    *(
        (faults, {**LOSSES, **policy})
        for faults in ("kill", "between updates", "node")
        for policy in POLICIES
    ),
    *((faults, policy) for faults in ("others", "members") for policy in (POLICIES[0], POLICIES[-1])),
]


@pytest.mark.crossing
@pytest.mark.parametrize(("faults", "policy"), CASES, ids=str)
@pytest.mark.parametrize("mode", ["ssgd", "diloco"])
def test_no_fault_changes_the_weights(mode: str, faults: str, policy: dict[str, Any]) -> None:
    """Whatever is lost is computed again: the bytes are those without faults, and time is all it costs."""
    nodes = {"nodes": 2} if faults == "node" else {}
    asked = {**SMALL, **policy, **nodes, "faults": FAULTS[faults]}
    reduced = run(mode, **asked, **REDUCED)
    undisturbed = run(mode, **SMALL, **REDUCED)
    if faults != "members":
        assert same_bytes(reduced, undisturbed)
        assert reduced.cluster.now_s >= undisturbed.cluster.now_s
    assert reduced.cluster.now_s == run(mode, **asked, **REDUCED).cluster.now_s


@pytest.mark.parametrize("at_s", [2.0, 3.01], ids=["before the sum", "in the midst of it"])
def test_a_lost_value_costs_its_task_and_a_new_group(at_s: float) -> None:
    """Workers take 1 s and 3 s, and the first is lost when its value is there: the spare computes it again
    as soon as both are wanted, and the new group takes a quarter of a second.
    """
    asked: dict[str, Any] = {
        "num_workers": 2, "steps": 2, "workload": "quadratic", "dim": 1, "compute_time": "constant:1",
        "slowdown": "1=3", "spares": 1, "topology": "allreduce", "latency_s": 0.01, "regroup_s": 0.25,
    }  # fmt: skip
    first, second = run("ssgd", **asked, faults=f"kill:0@t={at_s + 3.02}").updates
    assert first.finished_s == pytest.approx(3.02)
    wanted_s = max(3.02 + 3, at_s + 3.02)
    assert second.finished_s == pytest.approx(wanted_s + 1 + 0.25 + 0.02)


def test_weights_that_all_have_lost_end_a_run_without_checkpoints() -> None:
    """One line says so, and what to do."""
    asked = {**SMALL, **LOSSES, "faults": "kill:0,1,2,3@t=9"}
    with pytest.raises(ClusterError, match=r"all processes that held version 3 .* give --checkpoint-every"):
        run("ssgd", **asked, **REDUCED)


@pytest.mark.parametrize("mode", ["ssgd", "diloco"])
@pytest.mark.parametrize(
    "faults", ["kill:0,1,2,3@update=3", "kill:0,1@t=11; kill:2,3@t=11.5; kill:0,1,2,3@t=20.3"]
)
def test_weights_that_all_have_lost_are_those_of_the_last_checkpoint(
    mode: str, faults: str, tmp_path: Path
) -> None:
    """The run goes back to it, once all processes are back, and ends with the bytes of the run without
    faults; its record says so, and can be replayed.
    """
    options = {**SMALL, "local_steps": 2} if mode == "diloco" else SMALL
    asked = {**options, **LOSSES, **REDUCED, "faults": faults, "checkpoint_every": "1"}
    cfg = config(mode, **{**asked, "out": str(tmp_path), "run_name": "a"})
    ended = execute(cfg, record=RunRecord(cfg))
    assert ended.error is None
    assert ended.weights.vector.tobytes() == run(mode, **options).w.tobytes()
    recorded = recorded_run(tmp_path / "a")
    back = [fault for fault in recorded.faults if fault.kind == "lost-weights"]
    assert back
    assert all(fault.back_to is not None and fault.back_to <= fault.update for fault in back)
    assert all(fault.recovered_s == pytest.approx(1.5) for fault in back)
    found = compared(recorded)
    assert (found.differs, found.same_weights) == (None, True)


def test_a_driver_that_is_lost_goes_on_with_the_same_group(tmp_path: Path) -> None:
    """From its checkpoint, with new processes, to the bytes of the run to which nothing happened."""
    asked = {**SMALL, **LOSSES, **REDUCED, "faults": "kill:1@t=5; driver@t=16+1", "checkpoint_every": "4"}
    cfg = config("ssgd", **{**asked, "out": str(tmp_path), "run_name": "a"})
    ended = execute(cfg, record=RunRecord(cfg))
    assert ended.error is None
    assert ended.weights.vector.tobytes() == run("ssgd", **SMALL).w.tobytes()


@pytest.mark.parametrize("held", ["", "+6"])
def test_another_computes_the_value_of_a_worker_that_left_with_its_process(held: str) -> None:
    """Under drop nobody waits for the new process: 1 s until all have computed, .5 s of an exchange, 1 s for
    the value that is lost, and 1.5 s for the exchange anew.
    """
    options: dict[str, Any] = {"num_workers": 4, "steps": 6, "workload": "quadratic", "dim": 1000}
    options |= {"restart_s": 1.0, "compute_time": "constant:1", "bytes_per_s": 4000.0}
    faults: dict[str, Any] = {"faults": f"kill:1@t=1.5{held}", "on_loss": "drop", "topology": "allreduce"}
    outcome = run("ssgd", **options, **faults)
    assert outcome.updates[0].finished_s == 4.0
