"""How fast the simulator schedules: gradients a second without any weights.

    python benchmarks/sim_schedule.py

Runs ASGD as a user does (`--dataset none --record none`) with 64 to 8,192 workers and prints gradients a
second, and the cost of one relative to 64 workers.
"""

from __future__ import annotations

import tempfile

from dsgd.execution.execute import execute
from dsgd.execution.quick import config
from dsgd.records.writer import RunRecord

GRADIENTS = 1 << 20


def gradients_per_s(num_workers: int, law: str, out: str) -> float:
    steps = GRADIENTS // num_workers
    options = {"num_workers": num_workers, "steps": steps, "compute_time": law}
    cfg = config("asgd", dataset="none", record="none", out=out, **options)
    ended = execute(cfg, record=RunRecord(cfg))
    assert not ended.error, ended.error
    return ended.tally.gradients / ended.wall_s


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        for law in ("none", "exponential:1"):
            rates = {p: max(gradients_per_s(p, law, out) for _ in range(3)) for p in (64, 512, 8192)}
            for num_workers, rate in rates.items():
                print(
                    f"{law:14} {num_workers:5} workers: {rate:9,.0f} gradients/s, "
                    f"{rates[64] / rate:.2f} x the cost of 64 workers"
                )
