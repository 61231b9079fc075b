"""Laws that every strategy keeps: each `train_<mode>.py` is found and held to them.

    pytest tests/strategies/test_conformance.py --strategy-file my/train_mine.py     # your own strategy

The laws are in dsgd/conformance, where `main.py check` and a user's test find them too. Which of them
concern a strategy, and its limiting cases, its file declares in `LAWS` (dsgd.strategies.conformance).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dst.law import SCHEDULES, survives_random_faults
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.conformance import LawCheck, checks_of, law_checks
from dsgd.conformance.laws_of_runs import ON_REAL_WORKERS, holds_in
from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.option_rules import options
from dsgd.running.quick_run import Workers
from dsgd.strategies import configured, modes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Hold the file of --strategy-file to the laws, or else all modes."""
    file = metafunc.config.getoption("--strategy-file")
    subjects = [Subject.of(file)] if file else [Subject(mode) for mode in modes()]
    if "check" in metafunc.fixturenames:
        real = metafunc.definition.get_closest_marker("ray") is not None
        if real and not file:  # test_ray.py runs the other modes on real workers
            subjects = [subject for subject in subjects if subject.laws.deterministic is not None]
        checks = [check for subject in subjects for check in checks_of(subject) if check.needs_ray == real]
        metafunc.parametrize("check", checks, ids=str)
    elif "subject" in metafunc.fixturenames:
        metafunc.parametrize("subject", subjects, ids=[subject.mode for subject in subjects])


def test_a_strategy_keeps(check: LawCheck) -> None:
    """Each strategy keeps every law that concerns it; the sentence is the law's own."""
    if check.law is survives_random_faults:
        check = replace(check, case={"schedules": SCHEDULES // 5})
    check()


@pytest.mark.thorough
def test_a_strategy_survives_all_schedules(subject: Subject) -> None:
    """As many random faults as a user's own strategy is held to."""
    survives_random_faults(subject)


def test_the_package_alone_has_all_other_laws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the law of random faults needs a checkout, and does not come from a folder without it."""
    here = checks_of("asgd")
    monkeypatch.setattr(law_checks, "TESTS", tmp_path)
    assert checks_of("asgd") == [check for check in here if check.law is not survives_random_faults]
    assert len(checks_of("asgd")) == len(here) - 1


@pytest.fixture(scope="module")
def workers(ray_cluster: str, request: pytest.FixtureRequest) -> Iterator[Workers | None]:
    """Start workers for all modes; a user's file needs some that get its code."""
    if request.config.getoption("--strategy-file"):
        yield None
        return
    with Workers(**ON_REAL_WORKERS) as workers:
        yield workers


@pytest.mark.ray
def test_on_real_workers_a_strategy_keeps(check: LawCheck, workers: Workers | None) -> None:
    """The same for the law that needs real workers."""
    replace(check, case={"workers": workers})()


@settings(max_examples=25, deadline=None)
@given(
    num_workers=st.integers(1, 9),
    steps=st.integers(1, 25),
    seed=st.integers(0, 2**40),
    law=st.sampled_from(
        ["none", "constant:0", "constant:2", "exponential:1", "pareto:1.1,1", "markov:1,9,.2,.2"]
    ),
    latency_s=st.sampled_from([0.0, 0.5]),
    server=st.sampled_from(["none", "constant:.3"]),
)
def test_no_scenario_breaks_a_strategy(
    subject: Subject, num_workers: int, steps: int, seed: int, law: str, latency_s: float, server: str
) -> None:
    """Whatever the scenario: the run ends, time never runs backwards, and no worker idles for good."""
    size = {"num_workers": num_workers, "steps": steps, "seed": seed, "workload": "none"}
    scenario = {"compute_time": law, "latency_s": latency_s, "server_time": server}
    holds_in(subject, {**size, **scenario, "max_seconds": math.inf})  # a tail without a mean may last


def test_an_option_that_it_does_not_have_is_refused(subject: Subject) -> None:
    """A configuration is not made from options of which one is not the strategy's."""
    with pytest.raises(ValueError, match="no_such: there is no such option in --mode"):
        configured({**options(subject.config()), "no_such": 1})
