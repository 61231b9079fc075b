"""What scheduling costs: counted in executed lines, so that no clock decides."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from dsgd.running.quick_run import run
from dsgd.strategies import modes

COUNTED = ("/dsgd/strategies/", "/dsgd/core/", "/dsgd/scenario/", "/dsgd/engines/")
# As many as at 16 workers at most: a larger round of K results is more work, but not more for each of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "adacomm": {"local_steps": 1, "interval_s": 1e9},
    "localsgd": {"local_steps": 1},
    "easgd": {"local_steps": 1, "exchange": "async"},
    "diloco": {"local_steps": 1, "exchange": "async"},
}


def lines_per_mini_batch(mode: str, num_workers: int, mini_batches: int) -> float:
    """Return how many lines of strategy and simulator are executed for each mini-batch that is handled."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not any(part in frame.f_code.co_filename for part in COUNTED):
            return None
        lines += event == "line"
        return count

    options: dict[str, Any] = {
        "num_workers": num_workers,
        "steps": mini_batches // num_workers,
        "workload": "none",
    }
    before = sys.gettrace()
    sys.settrace(count)
    try:
        outcome = run(mode, compute_time="exponential:1", **options, **OPTIONS.get(mode, {}))
    finally:
        sys.settrace(before)
    return lines / (outcome.tally.gradients + outcome.tally.ignored + sum(outcome.cluster.cancelled))


@pytest.mark.crossing(one_in=4)
@pytest.mark.parametrize("mode", modes())
def test_a_mini_batch_costs_no_more_with_many_workers(mode: str) -> None:
    """From 16 to 256 workers the lines for each mini-batch grow by no more than log P does: twice."""
    assert lines_per_mini_batch(mode, 256, 2048) < 2 * lines_per_mini_batch(mode, 16, 2048)
