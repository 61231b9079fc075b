"""Gradients a second of EXO Gym and of the simulator: synchronous SGD of the same module on the same data.

    python benchmarks/exo_gym.py FOLDER --nodes 4 16

FOLDER: a copy of github.com/exo-explore/gym, with einops beside it or installed. Its path for CPUs names the
network interface of macOS: on Linux, change "lo0" to "lo" in exogym/utils.py of that copy. Each side trains
twice, for few and for more steps; the difference leaves out the start, which is printed for EXO Gym.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # of each of its processes

import torch
from torch import nn

from dsgd.core.problem import take
from dsgd.models.workloads import make_problem
from dsgd.running.quick_run import config, run

CASES = (("cnn", 32, 24), ("gpt-100k", 8, 8))  # case, samples a mini-batch, steps
FIRST = 3  # steps of the short training
MODULES = str(Path(__file__).with_name("modules.py"))


class LossModule(nn.Module):
    """A module whose output is its loss: what EXO Gym trains."""

    def __init__(self, case: str) -> None:
        super().__init__()
        problem = problem_of(case)
        self.module, self.compute = problem.module, problem.loss

    def forward(self, batch: Any) -> Any:
        return self.compute(self.module, *batch)


def problem_of(case: str) -> Any:
    """Return the problem of a case of modules.py."""
    return make_problem(config("ssgd", workload=MODULES, case=case).data, 0)


def theirs(case: str, batch_size: int, nodes: int, steps: int) -> float:
    """Return the seconds of a training by EXO Gym, its start included."""
    from exogym.strategy.optim import OptimSpec  # type: ignore[import-not-found]
    from exogym.strategy.strategy import SimpleReduceStrategy  # type: ignore[import-not-found]
    from exogym.trainer import Trainer  # type: ignore[import-not-found]
    from torch.utils.data import TensorDataset

    data = TensorDataset(*take(problem_of(case).train, list(range(2048))))
    began_s = time.perf_counter()
    Trainer(LossModule(case), data, data, start_port=29_950 + steps).fit(
        num_epochs=10**6,
        max_steps=steps,
        strategy=SimpleReduceStrategy(OptimSpec(torch.optim.SGD, lr=0.05)),
        num_nodes=nodes,
        device="cpu",
        batch_size=batch_size,
        minibatch_size=batch_size,
        val_size=0,
        val_interval=10**9,
        disable_logging=True,
    )
    return time.perf_counter() - began_s


def ours(case: str, batch_size: int, nodes: int, steps: int) -> float:
    """Return the seconds of a training in the simulator."""
    began_s = time.perf_counter()
    run("ssgd", workload=MODULES, case=case, batch_size=batch_size, num_workers=nodes, steps=steps, lr=0.05)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16])
    given = parser.parse_args()
    sys.path[:0] = [given.folder, str(Path(given.folder).parent)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the processes that it starts
    torch.set_num_threads(1)
    for nodes in given.nodes:
        for case, batch_size, steps in CASES:
            start_s = theirs(case, batch_size, nodes, FIRST)
            exo_s = (theirs(case, batch_size, nodes, FIRST + steps) - start_s) / steps / nodes
            short_s = ours(case, batch_size, nodes, FIRST)
            sim_s = (ours(case, batch_size, nodes, FIRST + steps) - short_s) / steps / nodes
            print(
                f"{case:9} {nodes:3} nodes: EXO Gym {1 / exo_s:7.1f} gradients/s (start {start_s:.0f} s), "
                f"the simulator {1 / sim_s:7.1f}: {exo_s / sim_s:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
