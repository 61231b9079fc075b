"""Linear layers whose weights have 8 bits, and what that costs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from dsgd.core.problem import Problem, length, take
from dsgd.models.objectives.means import total_and_count

_MEASURED, _AT_ONCE = 1024, 64  # test samples


def in_int8(module: nn.Module, problem: Problem) -> tuple[nn.Module, str]:
    """Return a module whose linear layers have weights of 8 bits, and in words the loss before and after.

    The inputs of those layers are rounded as they come (dynamic quantization); the rest stays in float32.
    """
    quantize: Any = torch.ao.quantization.quantize_dynamic
    layers = sum(isinstance(layer, nn.Linear) for layer in module.modules())
    samples = min(_MEASURED, length(problem.test))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao is to take this over
        small: nn.Module = quantize(module, {nn.Linear}, dtype=torch.qint8)
        before, after = (_loss(some, problem, samples) for some in (module, small))
    cost = f"loss {after:.6g} on {samples:,} test samples, {before:.6g} before"
    return small, f"linear layers with weights of 8 bits: {layers}; {cost}"


def _loss(module: nn.Module, problem: Problem, samples: int) -> float:
    total = over = 0.0
    for i in range(0, samples, _AT_ONCE):
        rows = range(i, min(i + _AT_ONCE, samples))
        found, count = total_and_count(problem.loss(module, *take(problem.test, rows)), "loss")
        total += float(found) * (len(rows) if count is None else 1)
        over += len(rows) if count is None else float(count)
    return total / over
