"""Which trained parameters a gradient reaches: where torch has None, a step leaves a parameter alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Reached:
    """The trained parameters of a module that its gradients reach, and `counts`: how many did not reach each.

    watch: sees, from now on, what reaches the parameters that a part of the module has; of one that is
    sharded, to be called before each of its passes, when they are gathered. counting: whether any is counted.
    """

    def __init__(self, module: nn.Module) -> None:
        trained = {one: name for name, one in module.named_parameters() if one.requires_grad}
        self.names, numbers = tuple(trained.values()), {one: n for n, one in enumerate(trained)}
        self._numbers = {
            (layer, key): numbers[one]
            for layer in module.modules()
            for key, one in layer._parameters.items()
            if one in numbers
        }
        self.counts, self.counting = nn.Module(), True
        device = next(module.parameters()).device
        self.counts.register_buffer("n", torch.zeros(len(self.names), dtype=torch.int32, device=device))
        self._now, self._watched = set[int](), set[nn.Parameter]()

    def watch(self, part: nn.Module, *_: Any) -> None:
        for layer in part.modules() if self.counting else ():
            for key, parameter in layer._parameters.items():
                number = self._numbers.get((layer, key))
                if number is not None and parameter is not None and parameter not in self._watched:
                    self._watched.add(parameter)
                    hooked: Any = parameter
                    hooked.register_post_accumulate_grad_hook(partial(self._reach, number))

    def _reach(self, number: int, parameter: Tensor) -> None:
        self._now.add(number)

    def begin(self) -> None:
        """Forget what was reached before: another gradient begins."""
        self._now.clear()

    def forget(self, number: int) -> None:
        """Treat a parameter as not reached: a hook has dropped its gradient."""
        self._now.discard(number)

    def count(self, *, by_any_rank: bool = False) -> list[int]:
        """Return the numbers of the parameters that the gradient has not reached, of this rank or of any in
        the group, and count them.
        """
        now: Collection[int] = self._now
        if by_any_rank:
            hit = torch.zeros_like(self._n)
            hit[list(now)] = 1
            dist.all_reduce(hit, op=dist.ReduceOp.MAX)
            now = hit.nonzero().flatten().tolist()
        left = [number for number in range(len(self.names)) if self.counting and number not in now]
        if left:
            self._n[left] += 1
        return left

    def left_out(self) -> tuple[str, ...]:
        """Return the names of all that any gradient has not reached."""
        return tuple(name for name, n in zip(self.names, self._n.tolist(), strict=True) if n)

    def by_weight(self, sizes: Sequence[int]) -> Tensor:
        """Return the counts by weight (d,), of parameters of these sizes."""
        return self._n.repeat_interleave(torch.tensor(sizes, device=self._n.device))

    @property
    def _n(self) -> Tensor:
        return cast(Tensor, self.counts.n)
