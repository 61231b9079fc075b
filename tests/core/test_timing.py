"""Compute times: every law has the mean and variance it claims, and draws are pure functions."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.core.time_laws import Exponential, Markov, parse_law
from dsgd.core.timing import ComputeTimes, sleep_heterogeneity

LAWS = ["none", "constant:1.5", "exponential:2", "shifted-exponential:1,.5", "uniform:.5,1.5", "normal:1,.1"]
LAWS += ["normal:.5,1", "lognormal:1,.5", "pareto:5,1", "markov:1,5,.3,.4"]


@pytest.mark.parametrize("text", LAWS)
def test_a_law_has_the_mean_and_variance_it_claims(text: str) -> None:
    """Over 400 workers x 256 steps, mean and variance lie within 5 standard errors of the closed forms."""
    law = parse_law(text)
    times = ComputeTimes(law, seed=3)
    # Workers are independent, a worker's steps may not be: standard errors are taken over workers.
    draws = np.array([[times.seconds(w, k) for k in range(256)] for w in range(400)])
    assert draws.min() >= 0
    means = draws.mean(axis=1)
    assert abs(means.mean() - law.mean_s) <= 5 * means.std() / 20 + 1e-12
    squares = ((draws - law.mean_s) ** 2).mean(axis=1)
    assert abs(squares.mean() - law.variance_s2) <= 5 * squares.std() / 20 + 1e-12


@pytest.mark.parametrize(
    ("text", "mean", "variance"), [("pareto:1,1", math.inf, math.inf), ("pareto:1.5,1", 3, math.inf)]
)
def test_heavy_tails_have_no_moments(text: str, mean: float, variance: float) -> None:
    """A Pareto law has no mean for alpha <= 1 and no variance for alpha <= 2, and says so."""
    law = parse_law(text)
    assert law.mean_s == pytest.approx(mean)
    assert law.variance_s2 == variance


def test_a_markov_worker_stays_fast_or_slow_for_a_geometric_time() -> None:
    """The share of fast steps followed by a slow one is P(fast to slow), and the other way round."""
    times = ComputeTimes(Markov(1.0, 5.0, 0.05, 0.2), seed=0)
    slow = np.array([[times.seconds(w, k) == 5 for k in range(640)] for w in range(200)])
    before, after = slow[:, :-1], slow[:, 1:]
    assert after[~before].mean() == pytest.approx(0.05, abs=0.003)
    assert (~after[before]).mean() == pytest.approx(0.2, abs=0.01)


@given(
    text=st.sampled_from([*LAWS, "pareto:1.1,1"]),
    seed=st.integers(0, 2**62),
    worker=st.integers(0, 9999),
    steps=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
)
def test_a_draw_does_not_depend_on_what_was_drawn_before(
    text: str, seed: int, worker: int, steps: list[int]
) -> None:
    """A restarted worker, which draws from the middle, draws the same times."""
    law = parse_law(text)
    used = ComputeTimes(law, seed)
    for step in steps:
        assert used.seconds(worker, step) == ComputeTimes(law, seed).seconds(worker, step)
    assert pickle.loads(pickle.dumps(used)).seconds(worker, 0) == used.seconds(worker, 0)


def test_workers_and_seeds_draw_different_numbers() -> None:
    """No two workers, seeds or steps share their draws."""
    draws = [
        ComputeTimes(Exponential(1.0), seed).seconds(w, k)
        for seed in (0, 1)
        for w in range(8)
        for k in range(300)
    ]
    assert len(set(draws)) == len(draws)


def test_a_task_of_h_local_steps_draws_h_times() -> None:
    """The time of a task is the sum of its mini-batches' times."""
    times = ComputeTimes(Exponential(1.0), 0, {1: 3.0})
    assert times.total(1, 120, 20) == pytest.approx(sum(times.seconds(1, k) for k in range(120, 140)))


def test_slowdown_multiplies_a_workers_times() -> None:
    """--slowdown 1=3: worker 1's draws are three times what they were, worker 0's are the same."""
    plain, slowed = ComputeTimes(Exponential(1.0), 0), ComputeTimes(Exponential(1.0), 0, {1: 3.0})
    for step in range(200):
        assert slowed.seconds(1, step) == pytest.approx(3 * plain.seconds(1, step))
        assert slowed.seconds(0, step) == plain.seconds(0, step)


def test_a_trace_is_replayed_in_order_and_again(tmp_path: Path) -> None:
    """Worker i replays its own rows, from the start again at their end."""
    path = tmp_path / "times.csv"
    path.write_text("worker,seconds\n0,1\n1,7\n0,2\n1,8\n0,3\n")
    times = ComputeTimes(parse_law(f"trace:{path}"), 0)
    assert [times.seconds(0, k) for k in range(5)] == [1, 2, 3, 1, 2]
    assert [times.seconds(1, k) for k in range(130)][-2:] == [7, 8]
    path.write_text("seconds\n1\n2\n")
    assert [ComputeTimes(parse_law(f"trace:{path}"), 0).seconds(5, k) for k in range(3)] == [1, 2, 1]


def test_a_real_step_lasts_the_longer_of_computing_and_drawing() -> None:
    """On Ray the sleep is what real computing leaves of the drawn time; without a law, of the slowdown."""
    slept: list[float] = []
    constant = ComputeTimes(parse_law("constant:1"), 0, {1: 4.0})
    sleep_heterogeneity(constant, 0, 0, 2, computed_s=0.5, sleep=slept.append)
    sleep_heterogeneity(constant, 1, 0, 1, computed_s=0.5, sleep=slept.append)
    sleep_heterogeneity(constant, 0, 0, 1, computed_s=1.5, sleep=slept.append)
    real = ComputeTimes(parse_law("none"), 0, {1: 4.0})
    sleep_heterogeneity(real, 0, 0, 1, computed_s=0.5, sleep=slept.append)
    sleep_heterogeneity(real, 1, 0, 1, computed_s=0.5, sleep=slept.append)
    assert slept == [1.5, 3.5, 1.5]
