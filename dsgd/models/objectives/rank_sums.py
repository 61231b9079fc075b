"""Sums over the ranks of a group, in rank order: one process that adds in that order gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed(number: Tensor, group: Any = None) -> Tensor:
    """Return the sum of the ranks' numbers (), on each rank; group: of all ranks if there is none."""
    found = number.new_empty(dist.get_world_size(group))
    dist.all_gather_single(found, number.reshape(1), group=group)
    return in_order(found.unbind())


def in_order(numbers: Sequence[Tensor]) -> Tensor:
    """Return the sum, added one after another: `torch.sum` may add in another order."""
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


class SumInRankOrder:
    """What FSDP2 calls to add up gradients on a CPU: each rank gets all ranks' parts of its slice, and adds.

    gloo's own adds in an order that differs from slice to slice.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        assert op == dist.ReduceOp.SUM
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        first, *others = parts.chunk(dist.get_world_size(group))
        output_tensor.copy_(first)
        for part in others:
            output_tensor += part
