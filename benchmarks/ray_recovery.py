"""How long a worker's task waits when its process is lost, or silent.

    python benchmarks/ray_recovery.py

SSGD with 2 workers. A process is killed every four seconds, which is enough to replace the one before.
The time from the kill until its task has been sent to another process is measured; then the time from
stopping a process until its task is suspected.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dst.kills import killed, options, spread

from dsgd.engines.ray.connection.connect import connect
from dsgd.running.quick_run import run

KILLS, SUSPECT_AFTER = 8, 0.5
EVERY: dict[str, Any] = {"every": 40, "compute_time": "constant:.1"}


def to_end_s() -> float:
    """Return how long the kernel takes to end a Python that has imported torch."""
    command = [sys.executable, "-c", "import torch; print('ready', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        began_s = time.perf_counter()
        process.kill()
        process.wait()
        return time.perf_counter() - began_s


if __name__ == "__main__":
    print(f"the kernel ends a process: {spread([to_end_s() for _ in range(KILLS)])}")
    connection = connect()
    spare = killed("ssgd", KILLS, spares=1, **EVERY)
    print(f"a spare takes over: {spread(spare.moved_s)} (aim: 50 ms)")
    rehost = killed("ssgd", KILLS, on_loss="rehost", **EVERY)
    print(f"another host carries it: {spread(rehost.moved_s)} (aim: 50 ms)")
    replace = killed("ssgd", KILLS, **EVERY)
    print(f"a new process: {spread(replace.waited_s)} (aim: 4,000 ms)")
    stopped = run(
        "ssgd", **options("ssgd", 30), suspect_after=SUSPECT_AFTER, faults="pause:1=2@update=5"
    ).cluster.faults_seen
    found_s = next(seen.detected_s for seen in stopped if seen.kind == "pause")
    assert found_s is not None
    print(f"a stopped process, --suspect-after {SUSPECT_AFTER}: found after {found_s:.2f} s (aim: 1.50 s)")
    connection.close()
