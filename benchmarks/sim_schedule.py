"""How fast the simulator schedules: gradients a second without any weights.

    python benchmarks/sim_schedule.py

Runs the product as a user does (main.py, ASGD, `--dataset none --record none`) with 64 to 8,192 workers
and prints gradients a second, and the cost of one relative to 64 workers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from dsgd.__main__ import main

GRADIENTS = 1 << 20


def gradients_per_s(num_workers: int, law: str, out: str) -> float:
    name = f"w{num_workers}-{law.partition(':')[0]}"
    options = f"--mode asgd --engine sim --dataset none --record none --quiet --compute-time {law}"
    options += (
        f" --num-workers {num_workers} --steps {GRADIENTS // num_workers} --out {out} --run-name {name}"
    )
    assert main(options.split()) == 0
    summary = json.loads((Path(out) / name / "summary.json").read_text())
    return float(summary["gradients"] / summary["wall_s"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        for law in ("none", "exponential:1"):
            rates = {p: max(gradients_per_s(p, law, f"{out}/{k}") for k in range(3)) for p in (64, 512, 8192)}
            for num_workers, rate in rates.items():
                print(
                    f"{law:14} {num_workers:5} workers: {rate:9,.0f} gradients/s, "
                    f"{rates[64] / rate:.2f} x the cost of 64 workers"
                )
