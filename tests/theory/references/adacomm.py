"""AdaComm: periodic averaging whose period is chosen anew in every interval of T_0 seconds.

Wang and Joshi 2018, "Adaptive communication strategies to achieve the best error-runtime trade-off in
local-update SGD" (arXiv 1810.08313), section 4: tau_l = ceil(sqrt(F_l/F_0) tau_0), and gamma tau where that
is not smaller. As on the page, F is the mean mini-batch loss of the round that ends the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

import torch

from references.problem import Problem, Version
from references.published import Group, Published, Run, Series

OPTIONS = {"lr": 0.3, "local_steps": 10, "interval_s": 60.0}
VARIANTS = [{"interval_s": 15.0}]
OTHER = {"local_steps": 5}


def train(
    problem: Problem, lr: float, local_steps: int, interval_s: float, decay: float = 0.5
) -> Iterator[Version]:
    """Train until each worker has had its mini-batches."""
    w = problem.initial
    tau, done, now, choose = local_steps, 0, 0.0, interval_s
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
            wanted = math.ceil(math.sqrt(fmean(losses) / first_loss) * local_steps)
            tau = wanted if wanted < tau else math.ceil(decay * tau)


def published(run: Run) -> Published:
    """Wang and Joshi 2018, section 3: speed-up over synchronous SGD by averaging every tau steps, constant
    times.

    alpha: seconds to communicate over seconds to compute. Nothing is random.
    """

    def seconds(tau: int, alpha: float) -> float:
        result = run(
            local_steps=tau, interval_s=math.inf, steps=64, num_workers=4, workload="none",
            compute_time="constant:1", latency_s=alpha / 2,
        )  # fmt: skip
        return float(result.updates["t_s"][-1])

    def speed_up(tau: int, alpha: float) -> Group:
        return Group(tau, (1 + alpha) / (1 + alpha / tau), [seconds(1, alpha) / seconds(tau, alpha)])

    return Published(
        title="Speed-up by averaging every tau steps",
        series=[
            Series(f"alpha = {alpha:g}", [speed_up(tau, alpha) for tau in (1, 2, 4, 8, 16, 32, 64)])
            for alpha in (0.1, 0.5, 0.9)
        ],
    )
