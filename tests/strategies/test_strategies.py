"""Laws of the single strategies, and the equalities between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.running.quick_run import assert_close, config, run
from dsgd.strategies import modes, tuned_by

EXPONENTIAL: dict[str, Any] = {"workload": "none", "num_workers": 8, "compute_time": "exponential:1"}


def test_ssp_with_slack_0_is_ssgd_with_summed_gradients() -> None:
    """After each round, SSP(0) has the weights of SSGD with a P times larger step."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 30, "compute_time": "exponential:1"}
    ssp = run("ssp", slack=0.0, lr=0.02, **options)
    ssgd = run("ssgd", lr=0.08, **options)
    for k, update in enumerate(ssgd.updates, start=1):
        assert_close(ssp.updates[4 * k - 1].weights.vector, update.weights.vector)


def test_lr_scaling_makes_ssp_with_slack_0_ssgd() -> None:
    """With --lr-scaling workers, SSP(0) and SSGD move equally far at the same --lr."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 30, "compute_time": "exponential:1", "lr": 0.1}
    assert_close(run("ssp", slack=0.0, lr_scaling="workers", **options).w, run("ssgd", **options).w)


def test_ssgd_on_p_workers_is_one_worker_on_the_p_fold_batch() -> None:
    """When each worker's mini-batch is its whole shard, P workers make the steps of one with all samples."""
    many = run("ssgd", num_workers=4, samples=512, batch_size=128, steps=25)
    one = run("ssgd", num_workers=1, samples=512, batch_size=512, steps=25)
    assert_close(many.w, one.w)


@pytest.mark.parametrize(
    ("mode", "option", "value"),
    [(m, o, x) for m in modes() for o, tried in tuned_by(config(m)).items() for x in tried],
)
def test_what_auto_tries_is_valid_and_leaves_the_times_alone(mode: str, option: str, value: float) -> None:
    """So the loss at the end of a budget can choose it; the default is among the values."""
    usual = run(mode, **EXPONENTIAL)
    assert getattr(usual.cfg, option) in tuned_by(usual.cfg)[option]
    assert run(mode, **(EXPONENTIAL | {option: value})).s_per_update == usual.s_per_update


def test_local_sgd_spends_any_number_of_steps() -> None:
    """The last round is shorter where H does not divide the budget."""
    outcome = run("localsgd", num_workers=3, steps=19, local_steps=8, workload="none")
    assert [u.dones[0].batches for u in outcome.updates] == [8, 8, 3]


def test_local_sgd_reports_the_mean_distance_to_the_average() -> None:
    """With two workers whose optima lie at 0 and 1, one local step from w drifts by lr a |x_0 - x_1| / 2."""
    outcome = run(
        "localsgd", num_workers=2, steps=1, local_steps=1, lr=0.1, workload="quadratic", optima="0,1", dim=1
    )
    assert outcome.updates[0].measured["drift"] == pytest.approx(0.05, rel=1e-5)
    assert run("localsgd", num_workers=1, steps=8).updates[0].measured["drift"] == 0


@settings(max_examples=40, deadline=None)
@given(
    num_workers=st.integers(1, 8),
    slack=st.integers(0, 6),
    seed=st.integers(0, 1000),
    law=st.sampled_from(["exponential:1", "pareto:1.2,1", "uniform:0,1", "constant:1"]),
    slow=st.sampled_from(["", "0=10"]),
)
def test_ssp_never_breaks_its_bound(num_workers: int, slack: int, seed: int, law: str, slow: str) -> None:
    """A worker starts at most `slack` ahead, so no gap passes slack + 1 and no staleness (P-1)(2 slack+1)."""
    clocks, gaps = [0] * num_workers, []

    def look(cluster: Any, update: Any) -> None:
        clocks[update.dones[0].worker] += 1
        gaps.append(max(clocks) - min(clocks))
        for worker in cluster.in_flight:
            assert clocks[worker] - min(clocks) <= slack

    outcome = run(
        "ssp", look, slack=float(slack), num_workers=num_workers, steps=60, seed=seed, workload="none",
        compute_time=law, slowdown=slow,
    )  # fmt: skip
    assert max(gaps) == outcome.tally.clock_gap_max <= slack + 1
    assert max(outcome.staleness) <= (num_workers - 1) * (2 * slack + 1)


def test_ssp_waits_only_at_its_bound() -> None:
    """Until the slack is used up, SSP's fast workers run as freely as ASGD's."""
    slow = run(
        "ssp",
        workload="none",
        num_workers=2,
        compute_time="constant:1",
        slowdown="0=100",
        slack=10.0,
        steps=6,
    )
    fast = [d for d in slow.dones if d.worker == 1]
    assert [d.finished_s for d in fast] == list(range(1, 12))


def test_a_slow_worker_takes_a_smaller_share_in_asgd() -> None:
    """The budget is pooled: a worker 4 times slower gives a quarter of what each other worker gives."""
    outcome = run(
        "asgd", workload="none", num_workers=3, compute_time="constant:1", slowdown="0=4", steps=300
    )
    shares = Counter(d.worker for d in outcome.dones)
    assert shares[1] / shares[0] == pytest.approx(4, rel=0.02)
    assert abs(shares[1] - shares[2]) <= 1


def test_an_update_of_ssgd_lasts_as_long_as_its_slowest_worker() -> None:
    """Each update ends when the longest of its P tasks does, and the next tasks all begin then."""
    outcome = run("ssgd", **EXPONENTIAL, steps=50)
    ended_s = 0.0
    for update in outcome.updates:
        assert {done.started_s for done in update.dones} == {ended_s}
        ended_s = max(done.finished_s for done in update.dones)
        assert ended_s == max(done.started_s + done.compute_s for done in update.dones)
