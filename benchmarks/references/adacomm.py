"""AdaComm: periodic averaging whose period is chosen anew in every interval of T_0 seconds.

Wang and Joshi 2018, "Adaptive communication strategies to achieve the best error-runtime trade-off in local-update
SGD" (arXiv 1810.08313), section 4: tau_l = ceil(sqrt(F_l/F_0) tau_0), and gamma tau where that is not smaller. As on
the page, F is the mean mini-batch loss of the round that ends the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

import torch

from benchmarks.references.problem import Problem, Version

OPTIONS = {"lr": 0.3, "first_local_steps": 10, "interval_s": 60.0}


def train(
    problem: Problem, lr: float, first_local_steps: int, interval_s: float, decay: float = 0.5
) -> Iterator[Version]:
    """Train until each worker has had its mini-batches."""
    w = problem.initial
    tau, done, now, choose = first_local_steps, 0, 0.0, interval_s
    first_loss = None
    while done < problem.steps:
        h = min(tau, problem.steps - done)
        losses, local = [], []
        for i in range(problem.num_workers):
            x = w
            for step in range(done, done + h):
                loss, g = problem.loss_and_gradient(i, step, x)
                x = x - lr * g
                losses.append(loss)
            local.append(x)
        w = torch.stack(local).mean(0)
        now += max(problem.seconds(i, done, h) for i in range(problem.num_workers))
        done += h
        yield Version(now, done * problem.num_workers, w)
        first_loss = first_loss or fmean(losses)
        if now >= choose:
            choose = now + interval_s
            wanted = math.ceil(math.sqrt(fmean(losses) / first_loss) * first_local_steps)
            tau = wanted if wanted < tau else math.ceil(decay * tau)
