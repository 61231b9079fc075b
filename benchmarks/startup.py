"""How long it takes from the command to the first update, against what Ray and torch need alone.

    python benchmarks/startup.py

Ray: `main.py --num-workers 2 --steps 1` to the end of its first update, against a bare script that starts
Ray, makes two actors that import torch and calls each once. Simulator: the same with `--engine sim`,
against a bare `import torch`. Both are timed from outside, process start included; medians of
alternating turns. Needs compiled byte code (`make setup` makes it).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import medians

ROOT = Path(__file__).parents[1]
TURNS = 5

BARE_RAY = """
import os
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=0)
class Actor:
    def __init__(self):
        import torch
    def call(self):
        return None
actors = [Actor.remote() for _ in range(2)]
ray.get([actor.call.remote() for actor in actors])
import time
print(time.monotonic())
"""


BARE_TORCH = "import torch, time; print(time.monotonic())"


def bare_s(code: str) -> float:
    """Return when a process prints the time."""
    began_s = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return float(out) - began_s


def ours_s(engine: str) -> float:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(ROOT / "main.py"), "--engine", engine, "--num-workers", "2"]
        command += ["--steps", "1", "--eval-every", "0", "--out", out, "--run-name", "r", "--quiet"]
        began_s = time.time()
        subprocess.run(command, check=True, capture_output=True)
        summary = json.loads((Path(out) / "r" / "summary.json").read_text())
        meta = json.loads((Path(out) / "r" / "meta.json").read_text())
        # The record's start is when main() began; what the interpreter took before is added.
        return float(meta["started_epoch_s"] - began_s + summary["startup_s"] + summary["wall_s"])


if __name__ == "__main__":
    for engine, name, bare in (
        ("ray", "bare Ray with torch", BARE_RAY),
        ("sim", "import torch", BARE_TORCH),
    ):
        sides = partial(bare_s, bare), partial(ours_s, engine)
        medians(1, sides)  # from now on the files are in memory
        alone_s, first_s = medians(TURNS, sides)
        print(
            f"--engine {engine}: first update after {first_s:.2f} s, {name} {alone_s:.2f} s: "
            f"{first_s / alone_s:.2f} x"
        )
