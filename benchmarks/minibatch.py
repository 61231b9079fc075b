"""How long a mini-batch takes here, on one core: what `--compute-time` of a simulation can be.

    OMP_NUM_THREADS=1 python benchmarks/minibatch.py --workload gpt --size 100k --batch-size 16

It prints seconds of this process, so other programs on the machine hardly count.
"""

from __future__ import annotations

import sys
import time

from dsgd.show.terminal.cli import parse

_FIRST, _MINI_BATCHES = 5, 40
EXAMPLE = "--workload gpt --size 100k --batch-size 16"


def main(arguments: list[str]) -> None:
    """Compute the gradients of a run with these options, a worker's, and print the time of one."""
    import torch

    from dsgd.running.execute import execute

    torch.set_num_threads(1)
    seconds = []
    for steps in (_FIRST, _FIRST + _MINI_BATCHES):
        given = ("--mode", "ssgd", "--engine", "sim", "--num-workers", "1", "--steps", str(steps))
        cfg = parse([*arguments, *given])
        began_s = time.process_time()
        ended = execute(cfg, evaluate=False)
        seconds.append(time.process_time() - began_s)
    each_s = (seconds[1] - seconds[0]) / _MINI_BATCHES
    print(f"{each_s * 1000:.1f} ms a mini-batch, {len(ended.weights.vector):,} weights")


if __name__ == "__main__":
    main(sys.argv[1:] or EXAMPLE.split())
