"""A worker that is a group of ranks, simulated: how long its mini-batches last, how often it is lost."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from test_timing import LAWS

from dsgd.config import TrainConfig
from dsgd.core.rescaled_laws import rescaled
from dsgd.core.rng import Purpose, at
from dsgd.core.time_laws import parse_law
from dsgd.engines.configured_network import island_of
from dsgd.running.predict.predictions import predict
from dsgd.running.quick_run import config, run
from dsgd.theory.islands import island_collectives_time
from dsgd.theory.order_statistics import (
    order_statistic_mean,
    order_statistic_mean_by_quadrature,
    slowest_mean,
)


@pytest.mark.parametrize("text", LAWS)
def test_a_rescaled_law_draws_a_share_of_the_same_times_and_a_constant_more(text: str) -> None:
    """Each draw of factor X + plus is that of X at the same place, rescaled; so are mean and variance."""
    law = parse_law(text)
    other = rescaled(rescaled(law, 0.5, 3.0), 0.5, 1.0)  # X/4 + 2.5
    first, second = (one.sample(at(1, Purpose.COMPUTE_TIME, 2, 3), 256) for one in (law, other))
    np.testing.assert_allclose(second, first / 4 + 2.5, rtol=1e-13)
    assert other.mean_s == pytest.approx(law.mean_s / 4 + 2.5)
    assert other.variance_s2 == pytest.approx(law.variance_s2 / 16)


@pytest.mark.parametrize("text", ["lognormal:1,.5", "pareto:5,1", "normal:.5,1"])
def test_the_slowest_of_shifted_times_is_the_slowest_of_the_others_and_the_shift(text: str) -> None:
    """E[max (X + c)] = E[max X] + c: by the formula, by quadrature, and for workers that differ."""
    law = parse_law(text)
    shifted = rescaled(law, 1.0, 0.25)
    expected = order_statistic_mean(law, 8, 8) + 0.25
    assert order_statistic_mean(shifted, 8, 8) == pytest.approx(expected, rel=1e-9)
    assert order_statistic_mean_by_quadrature(shifted, 8, 8) == pytest.approx(expected, rel=1e-6)
    one_hardly_slower = np.array([1.0] * 7 + [1 + 1e-9])
    assert slowest_mean(shifted, one_hardly_slower) == pytest.approx(expected, rel=1e-6)


ISLAND: dict[str, Any] = {
    "workload": "none",
    "ranks_per_worker": 4,
    "padding_mb": 8,
    "rank_link": "1e7,.01",
}
"""Workers of 4 ranks each, 10 MB/s and 10 ms apart, with messages of 8 MB."""


def island(**options: object) -> TrainConfig:
    """Return a run of such workers."""
    return config("ssgd", **(ISLAND | options))


@pytest.mark.parametrize(
    ("parallel", "seconds"),
    [
        ("fsdp", 3 * 3 * (0.01 + 0.2)),  # three rings of four: 3 steps of 2 MB each
        ("hsdp:2", 3 * (0.01 + 0.4) + 2 * (0.01 + 0.2)),  # three of two with 4 MB, then a sum of 4 MB by two
        ("ddp", 2 * 3 * (0.01 + 0.2)),  # the two rings of an all-reduce
    ],
)
def test_an_island_takes_its_share_of_the_time_and_its_collectives(parallel: str, seconds: float) -> None:
    """A round of constant mini-batches of X s lasts X/G and the collectives, on the simulator's clock."""
    cfg = island(parallel=parallel, compute_time="constant:2", num_workers=2, steps=10)
    assert island_of(cfg).collectives_s(8e6) == pytest.approx(seconds)
    copies = {"fsdp": 1, "hsdp:2": 2, "ddp": 4}[parallel]
    assert island_collectives_time(4, copies, 8e6, 0.01, 1e7) == pytest.approx(seconds)
    assert predict(cfg)["s_per_update"] == pytest.approx(0.5 + seconds)
    outcome = run("ssgd", **ISLAND, parallel=parallel, compute_time="constant:2")
    assert outcome.s_per_update == pytest.approx(0.5 + seconds)


def test_weights_in_bfloat16_are_gathered_in_half_the_time() -> None:
    """bf16 halves what FSDP gathers, twice, not the gradient's sums; parts of a mini-batch gather anew."""
    module = {"workload": "gpt", "padding_mb": 0, "rank_link": "1e7", "batch_size": 8}
    plain, half, parts = (
        island_of(island(**module, **options)).collectives_s(8e6)
        for options in ({}, {"precision": "bf16"}, {"accumulate": 2})
    )
    assert (plain, half, parts) == pytest.approx((1.8, 1.2, 3.0))
    copies = island_of(island(**module, parallel="ddp", precision="bf16"))
    assert copies.collectives_s(8e6) == pytest.approx(1.2)


def test_an_island_is_lost_as_often_as_all_its_ranks() -> None:
    """G ranks, each lost every G M seconds and G times as slow, are one process lost every M seconds."""
    outcomes = [
        run(
            "asgd",
            workload="none",
            num_workers=4,
            steps=300,
            compute_time=f"constant:{ranks}",
            ranks_per_worker=ranks,
            faults=f"spot:mtbf={50 * ranks},back=20",
            restarts="1,within=20",
            restart_s=5.0,
        )
        for ranks in (1, 4)
    ]
    one, four = ([update.finished_s for update in outcome.updates] for outcome in outcomes)
    assert one == four
    assert sum(outcomes[1].cluster.restarts) > 10
    predictions = [predict(outcome.cfg)["s_per_update"] for outcome in outcomes]
    assert predictions[0] == pytest.approx(predictions[1])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"engine": "ray", "workload": "gpt", "padding_mb": 0},
            "--rank-link 1e7,.01: has no effect with --engine ray, only with --engine sim",
        ),
        (
            {"engine": "ray", "rank_link": "none"},
            "--ranks-per-worker 4: ranks share a module on Ray; give a --workload, or use --engine sim",
        ),
        (
            {"ranks_per_worker": 1},
            "--rank-link 1e7,.01: is for a worker of several ranks; give",
        ),
    ],
)
def test_what_is_only_simulated_is_refused_in_a_line(options: dict[str, object], line: str) -> None:
    """Links between ranks exist in the simulator alone, and ranks without a module too."""
    with pytest.raises(ValueError, match=f"^{re.escape(line)}"):
        island(**options)
