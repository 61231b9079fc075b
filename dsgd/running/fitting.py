"""--batch-size auto: the largest mini-batch that a worker has memory for, found in another process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.option_rules import options
from dsgd.core.problem import ProblemError
from dsgd.core.tasks import Gradient
from dsgd.data import make_workload
from dsgd.process.environment import of_python
from dsgd.strategies import configured

_FIRST = 8
_OF_GPU, _OF_MACHINE = 0.9, 0.5  # the rest is for what a run needs besides


def largest_batch_size(cfg: TrainConfig, most_bytes: float | None = None) -> int:
    """Return the most samples, within 1/16, of which a gradient can be computed: at most a worker's share.

    most_bytes: what the gradient may take. None: a worker's part of a GPU, nine tenths of it; else half of
    what this machine has free, by the hosts that compute at once. Raises ValueError, in one line, where not
    one sample fits, and for a GPU that is not here.
    """
    if cfg.data.workload in ("quadratic", "none"):
        raise ValueError(f"--batch-size auto: --workload {cfg.data.workload} has no samples; leave it out")
    if cfg.group.ranks_per_worker > 1:
        raise ValueError("--batch-size auto: is found for one process, and --ranks-per-worker are several")
    trial = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps([options(cfg), most_bytes], default=str),
        capture_output=True, text=True,
        env=of_python(MALLOC_MMAP_THRESHOLD_="65536"),  # what is freed is free, and not kept for later
    )  # fmt: skip
    if fits := trial.stdout.split():
        return int(fits[-1])  # one that was killed did not fit
    why = (trial.stderr.strip().splitlines() or ["not one sample fits into memory"])[-1]
    raise ValueError(f"--batch-size auto: {why}; give a number")


def _try(cfg: TrainConfig, most_bytes: float | None) -> None:
    """Print each size that fits, the largest last."""
    import torch

    import dsgd.engines.ray.connection.connect  # noqa: F401 - with it Ray's psutil can be imported

    # isort: split
    from dsgd.engines.ray.connection.capacity import free_here, num_hosts
    from dsgd.engines.task_values import compute_alone

    workload = make_workload(cfg)
    objective, shards = workload.objective, workload.shards[:1]
    w = objective.initial_weights(cfg.seed)
    found_here = cfg.ray.device == "auto" and cfg.engine == "ray" and torch.cuda.is_available()
    device = "cuda" if found_here else cfg.ray.device.replace("auto", "cpu")
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(_OF_GPU * min(1.0, cfg.ray.gpus_per_worker))
    else:
        at_once = num_hosts(cfg) if cfg.engine == "ray" else 1
        free = most_bytes or _OF_MACHINE * free_here() / at_once
        with suppress(OSError):  # elsewhere than on Linux there is no such limit, nor such a file
            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[5])
            resource.setrlimit(resource.RLIMIT_DATA, (int(pages * resource.getpagesize() + free),) * 2)
    shard: Any = shards[0].on_device(shards, device)[0]
    fits, fails = 0, 0
    while fits < len(shard) and (not fails or fails - fits > max(1, fits // 16)):
        shard.batch_size = (fits + fails) // 2 if fails else min(2 * fits or _FIRST, len(shard))
        try:
            objective.try_out(shard)
            compute_alone(Gradient(), objective, shard, 0, w, None, device)
        except (MemoryError, RuntimeError, ProblemError) as error:
            if not any(word in str(error) for word in ("memory", "bad_alloc")):
                raise
            fails = shard.batch_size
        else:
            fits = shard.batch_size
            print(fits, flush=True)


if __name__ == "__main__":
    given, limit = json.load(sys.stdin)
    try:
        _try(configured(given), limit)
    except ValueError as failed:
        sys.exit(str(failed))
