"""Theory beside measurement: what looks like a contradiction is one, and what is one looks like it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.random import default_rng

from dsgd.core.time_laws import parse_law
from dsgd.records.schema import Compared
from dsgd.running.execute import execute
from dsgd.running.predict.predictions import compare, of_drawn_times
from dsgd.running.predict.verdicts import COMPARED, CONTRADICTIONS, in_words, lines, verdict_on
from dsgd.running.quick_run import config
from dsgd.strategies import load
from dsgd.theory.closed_forms import ClosedForms
from dsgd.theory.laws_of_times import quantile
from dsgd.theory.order_statistics import order_statistic_skewness
from dsgd.theory.uncertainty import LEVEL, Estimate, standard_errors_allowed

EXPONENTIAL = "exponential:1"
SCENARIOS: Mapping[str, tuple[str, list[int], dict[str, Any]]] = {
    # name: mode, numbers of workers, options
    "asgd": ("asgd", [2, 8], {}),
    "asgd constant": ("asgd", [1, 3, 8], {"compute_time": "constant:1"}),
    "asgd constant, unequal": ("asgd", [3], {"compute_time": "constant:1", "slowdown": "0=1.37,1=2.71"}),
    "asgd constant, nearly equal": ("asgd", [2, 5], {"compute_time": "constant:1", "slowdown": "0=1.001"}),
    "asgd unequal": ("asgd", [3, 8], {"slowdown": "0=4"}),
    "asgd uniform": ("asgd", [3, 8], {"compute_time": "uniform:.5,1.5"}),
    "asgd normal": ("asgd", [8], {"compute_time": "normal:1,.05"}),
    "asgd lognormal": ("asgd", [4], {"compute_time": "lognormal:1,1"}),
    "asgd pareto 1.5": ("asgd", [8], {"compute_time": "pareto:1.5,1"}),
    "asgd pareto 4.5": ("asgd", [2, 8], {"compute_time": "pareto:4.5,1"}),
    "asgd markov": ("asgd", [2], {"compute_time": "markov:1,5,.05,.2"}),
    "asgd with a server": ("asgd", [2, 8], {"server_time": "exponential:.1", "latency_s": 0.1}),
    "asgd with a busy server": ("asgd", [1, 8], {"server_time": "exponential:.5"}),
    "asgd with slow links": ("asgd", [4], {"server_bytes_per_s": 100.0, "workload": "quadratic"}),
    "dcasgd": ("dcasgd", [4], {}),
    "ssgd": ("ssgd", [1, 2, 8], {}),
    "ssgd constant": ("ssgd", [3], {"compute_time": "constant:.3"}),
    "ssgd unequal": ("ssgd", [8], {"slowdown": "0=3"}),
    "ssgd lognormal": ("ssgd", [8], {"compute_time": "lognormal:1,1"}),
    "ssgd pareto 2.5": ("ssgd", [8], {"compute_time": "pareto:2.5,1"}),
    "ssgd markov": ("ssgd", [1, 8], {"compute_time": "markov:1,5,.05,.2"}),
    "ssgd markov, alternating": ("ssgd", [2], {"compute_time": "markov:1,5,1,1"}),
    "ksync": ("ksync", [8], {"k": 2}),
    "ksync pareto 1.5": ("ksync", [8], {"k": 4, "compute_time": "pareto:1.5,1"}),
    "ksync batches": ("ksync", [8], {"k": 4, "count": "gradients"}),
    "kasync": ("kasync", [8], {"k": 3}),
    "kasync uniform": ("kasync", [8], {"k": 3, "compute_time": "uniform:.5,1.5"}),
    "kasync batches, unequal": ("kasync", [8], {"k": 3, "count": "gradients", "slowdown": "0=3"}),
    "ssp 0": ("ssp", [2, 8], {"slack": 0.0}),
    "ssp 1": ("ssp", [2, 8], {"slack": 1.0}),
    "ssp 3, unequal": ("ssp", [2], {"slack": 3.0, "slowdown": "0=2"}),
    "ssp 10, constant, unequal": (
        "ssp",
        [5],
        {"slack": 3.0, "compute_time": "constant:1", "slowdown": "0=1.3"},
    ),
    "dssp": ("dssp", [4], {}),
    "ringmaster": ("ringmaster", [4], {}),
    "rennala": ("rennala", [4], {}),
    "localsgd": ("localsgd", [2, 8], {"local_steps": 8}),
    "localsgd, one worker": ("localsgd", [1], {"local_steps": 4, "compute_time": "lognormal:1,.5"}),
    "easgd": ("easgd", [3], {"local_steps": 5, "exchange": "async"}),
    "diloco": ("diloco", [4], {"local_steps": 4, "exchange": "async", "slowdown": "0=3"}),
}
SEEDS = {1: 4, 10: 4, 100: 20, 500: 40, 3000: 6}  # how many, by the updates of a run


def compared(mode: str, updates: int, seed: int, num_workers: int, **options: Any) -> dict[str, Any]:
    """Return `theory` of the summary of a run of at least so many updates."""
    cfg = config(
        mode,
        **{"workload": "none", "num_workers": num_workers, "compute_time": EXPONENTIAL, "seed": seed}
        | options,
    )
    per_update = {"ssgd": num_workers, "localsgd": num_workers, "ksync": 4, "kasync": 3}.get(mode, 1)
    h = getattr(cfg, "local_steps", 1)
    rounds = -(-updates * per_update // num_workers)
    theory: dict[str, Any] = execute(replace(cfg, steps=rounds * h), evaluate=False).summary["theory"]
    return theory


def most_by_chance(comparisons: int, at: float = 1e-3) -> int:
    """Return the number of contradictions that correct runs exceed with a probability below `at`.

    Their number is at most binomial with the level's rate.
    """
    p = 1 - LEVEL
    term, more, k = (1 - p) ** comparisons, 1 - (1 - p) ** comparisons, 0
    while more >= at:
        k += 1
        term *= p / (1 - p) * (comparisons - k + 1) / k
        more -= term
    return k


def count() -> tuple[Counter[str | int], Counter[str | int]]:
    """Return comparisons with chance in them, and contradictions: by scenario, by length, and all."""
    comparisons, wrong = Counter[str | int](), Counter[str | int]()
    for name, (mode, numbers, options) in SCENARIOS.items():
        for num_workers, (updates, seeds) in product(numbers, SEEDS.items()):
            for seed in range(seeds):
                for entry in compared(mode, updates, seed, num_workers, **options).values():
                    for group in (name, updates, "all"):
                        comparisons[group] += bool(entry["standard_error"])
                        wrong[group] += entry["verdict"] in CONTRADICTIONS
    return comparisons, wrong


@pytest.mark.thorough
def test_correct_runs_look_like_contradictions_no_more_often_than_the_level_says() -> None:
    """Over modes, laws, workers, lengths and seeds, contradictions are as rare as the level says: in all runs
    together, at each length, and in each scenario.
    """
    comparisons, wrong = count()
    assert comparisons["all"] > 2000
    for group, found in wrong.items():
        assert found <= most_by_chance(comparisons[group], at=1e-3 / len(wrong)), (group, wrong, comparisons)


WRONG: Mapping[str, tuple[str, dict[str, Any], int, ClosedForms]] = {
    # name: mode, options, updates, formulas with a mistake
    "own update counted as staleness": ("asgd", {}, 2000, ClosedForms(staleness_mean=lambda: 8.0)),
    "P for P + 1": ("asgd", {}, 8000, ClosedForms(s_per_update=lambda: 1 / 9)),
    "fresh in one of P - 1": ("asgd", {}, 40_000, ClosedForms(staleness_pmf=lambda tau: 1 / 7)),
    "H_(P-1) for H_P": ("ssgd", {}, 10_000, ClosedForms(s_per_update=lambda: 2.5929)),
    "the mean for the slowest": ("ssgd", {}, 500, ClosedForms(s_per_update=lambda: 1.0)),
    "staleness in a synchronous mode": ("ssgd", {}, 1, ClosedForms(staleness_mean=lambda: 0.5)),
    "constant times, 1 % too long": (
        "asgd",
        {"compute_time": "constant:1"},
        8000,
        ClosedForms(s_per_update=lambda: 1.01 / 8),
    ),
    "P for P - K": ("kasync", {"k": 3}, 1000, ClosedForms(staleness_mean=lambda: 8 / 3)),
    "slack + 1 steps": (
        "ssp",
        {"slack": 1.0},
        20_000,
        ClosedForms(staleness_mean=lambda: 5.165, memory=lambda: 30.0),  # that of slack 2
    ),
    "a bound one too low": ("ssp", {"slack": 0.0}, 100, ClosedForms(staleness_max=lambda: 6.0)),
    "a gap one too low": ("ssp", {"slack": 2.0}, 300, ClosedForms(clock_gap_max=lambda: 2.0)),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_formula_looks_like_a_contradiction(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is long enough contradicts a formula that is wrong, with every seed."""
    mode, options, updates, forms = WRONG[mistake]
    monkeypatch.setattr(load(mode), "theory", lambda cfg: forms)
    for seed in range(4):
        (entry,) = compared(mode, updates, seed, num_workers=8, **options).values()
        if mistake == "staleness in a synchronous mode":
            assert entry["verdict"] == "too short to compare"
            (entry,) = compared(mode, 500, seed, num_workers=8, **options).values()
        assert entry["verdict"] in CONTRADICTIONS


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize(("mode", "updates"), [("ssgd", 500), ("asgd", 3000), ("ssp", 6000)])
def test_standard_errors_are_neither_too_small_nor_too_large(mode: str, updates: int) -> None:
    """Over 60 seeds, times per update lie as far from theory as their standard errors say."""
    entries = [compared(mode, updates, seed, 4)["s_per_update"] for seed in range(60)]
    scores = [(entry["measured"] - entry["theory"]) / entry["standard_error"] for entry in entries]
    assert 0.7 < float(np.sqrt(np.mean(np.square(scores)))) < 1.3
    assert abs(np.mean(scores)) < 3 / math.sqrt(60)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("asgd", {}),
        ("ssgd", {"slowdown": "0=3"}),
        ("ssp", {"slack": 0.0}),
        ("ssp", {"slack": 2.0, "slowdown": "0=2"}),
        ("localsgd", {"local_steps": 4}),
        ("kasync", {"k": 8}),
    ],
)
def test_constant_times_are_exact(mode: str, options: dict[str, Any]) -> None:
    """Where nothing is left to chance, the steady part gives theory's value to rounding, with no noise."""
    entries = compared(mode, 2000, 0, 8, **{"compute_time": "constant:.7", **options})
    values = {name: entry for name, entry in entries.items() if not name.endswith("_max")}
    assert "s_per_update" in values
    for entry in values.values():
        assert entry["verdict"] == "agrees"
        assert entry["standard_error"] == 0
        assert entry["measured"] == pytest.approx(entry["theory"], rel=1e-9)


def test_what_is_too_short_says_how_long_is_long_enough() -> None:
    """A run that is compared is one of at least the updates that a shorter one asks for."""
    for mode, workers in (("asgd", 8), ("ssgd", 8), ("ssp", 3)):
        short = compared(mode, 10, 0, workers)
        asked = [e["needs_updates"] for e in short.values() if e["verdict"] == "too short to compare"]
        assert lines(short)[-1] == f"a run of {max(asked):,} updates is long enough to compare"
        long = compared(mode, max(asked), 0, workers)
        assert {e["verdict"] for e in long.values()} <= set(COMPARED)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"compute_time": "pareto:1.5,1"}, "too heavy a tail to compare"),
        ({"compute_time": "markov:1,2,1,1"}, "never settles"),
        ({"workload": "quadratic", "lr": 1e30}, "diverged"),
    ],
)
def test_what_cannot_be_compared_says_why(options: dict[str, Any], why: str) -> None:
    """Infinite variance, times that never forget their start, divergence: neither error nor verdict."""
    for entry in compared("asgd", 5000, 0, 4, **options).values():
        assert entry["verdict"] == why
        assert entry["standard_error"] is None
        assert entry["needs_updates"] is None


@pytest.mark.parametrize(
    ("stopped_by", "restarts", "why"), [("failed", 0, "failed"), ("budget", 1, "workers were lost")]
)
def test_a_run_that_theory_does_not_describe_is_not_compared(
    stopped_by: str, restarts: int, why: str
) -> None:
    """After a failure, or with a worker lost on the way, averages are not compared, but bounds are."""
    cfg = config("ssp", slack=1.0, workload="none", num_workers=4, steps=2000, compute_time=EXPONENTIAL)
    ended = execute(cfg, evaluate=False)
    summary, totals = ended.summary, ended.tally.totals
    assert {e["verdict"] for e in compare(cfg, summary, totals, "budget", 0).values()} <= set(COMPARED)
    entries = compare(cfg, summary, totals, stopped_by, restarts)
    verdicts = {name: entry["verdict"] for name, entry in entries.items()}
    assert verdicts == {
        "staleness_mean": why, "s_per_update": why, "staleness_max": "kept", "clock_gap_max": "kept"
    }  # fmt: skip


def test_on_ray_only_what_holds_for_any_times_can_be_contradicted() -> None:
    """ASGD's mean staleness is P - 1 whatever times are; its time and its share of fresh gradients are those
    of the drawn times, to which Ray adds real ones.
    """
    cfg = config("asgd", compute_time=EXPONENTIAL, num_workers=4)
    assert of_drawn_times(cfg) == set()
    assert of_drawn_times(replace(cfg, engine="ray")) == {"s_per_update", "staleness_p0"}
    slower = Estimate(0.3, 0.001, 20)
    assert verdict_on(0.25, slower, of_drawn_times=True) == "differs by real time"
    assert in_words("differs by real time", 0.25, slower) == "+20.0%: messages and computing take time too"


def test_a_record_without_standard_errors_is_shown_as_before() -> None:
    """An entry of an older summary.json can be read, and its line has the difference only."""
    old = b'{"theory": 7.0, "measured": 6.93, "relative_difference": -0.01}'
    entry = msgspec.json.decode(old, type=Compared)
    assert (entry.standard_error, entry.verdict) == (None, "")
    assert lines({"staleness_mean": msgspec.to_builtins(entry)}) == [
        "7 mean staleness, measured 6.93 (-1.0%)"
    ]


@pytest.mark.parametrize("batches", [6, 10, 32, 150])
def test_the_quantile_is_students(batches: int) -> None:
    """The expansion is within 1 % of SciPy's quantile."""
    from scipy.stats import t

    assert standard_errors_allowed(batches) == pytest.approx(t.ppf((1 + LEVEL) / 2, batches - 1), rel=0.01)


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize(
    "law",
    [
        "exponential:2",
        "shifted-exponential:3,1",
        "uniform:1,3",
        "normal:1,.5",
        "lognormal:1,.4",
        "pareto:9,1",
    ],
)
def test_the_skewness_of_an_order_statistic_is_that_of_draws(law: str, k: int) -> None:
    """The formula agrees with the k-th smallest of 8 draws, 400,000 times."""
    drawn = np.sort(quantile(parse_law(law), default_rng(0).random((400_000, 8))))[:, k - 1]
    centred = drawn - drawn.mean()
    skewness = (centred**3).mean() / (centred**2).mean() ** 1.5
    assert order_statistic_skewness(parse_law(law), k, 8) == pytest.approx(skewness, rel=0.05, abs=0.03)
