"""Expert parallelism in a group of ranks: experts stay where they are, and tokens travel to them.

Each rank computes with its own experts, for the tokens of all ranks, so the weights of experts are never
gathered. An all-to-all takes the tokens there, and another one brings the outputs back (GShard, Lepikhin et
al. 2020, arXiv 2006.16668, section 3.1). What an expert makes of a token is the same, bit for bit.

Shapes: N rows, d width, E experts, R ranks that share them, E/R held by each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from dsgd.core.problem import ProblemError

Apply = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class ExpertLayer(Protocol):
    """A layer with experts, like dsgd.models.moe.mixture.Mixture."""

    exchange: Callable[[Tensor, Tensor, Apply], Tensor] | None
    """exchange(rows (N, d), load (E,), apply): see `TokenExchange`, which is put here."""

    def expert_parameters(self) -> Sequence[nn.Parameter]:
        """Return the parameters whose rows, the first dimension, are experts."""


class TokenExchange:
    """Applies experts to rows that are sorted by expert, where those experts are."""

    def __init__(self, group: Any) -> None:
        self._group, self._ranks = group, dist.get_world_size(group)

    def __call__(self, rows: Tensor, load: Tensor, apply: Apply) -> Tensor:
        """Return the outputs (N, d) for rows (N, d), of which the first load[0] are of expert 0, and so on.

        apply(rows, load): the same for the experts that this rank holds, with load (E/R,).
        """
        loads = torch.empty_like(load)
        dist.all_to_all_single(loads, load.contiguous(), group=self._group)
        loads = loads.view(self._ranks, -1)  # (R, E/R): what each rank sends to the experts here
        sent = load.view(self._ranks, -1).sum(1).tolist()
        received = loads.sum(1).tolist()
        there = all_to_all_single_autograd(rows.contiguous(), received, sent, self._group)
        expert = torch.arange(loads.shape[1], device=load.device).repeat(self._ranks)
        order = expert.repeat_interleave(loads.flatten()).argsort(stable=True)
        computed = apply(there.index_select(0, order), loads.sum(0))
        back = torch.empty_like(computed).index_copy(0, order, computed)
        return all_to_all_single_autograd(back, sent, received, self._group)


def hold_own_experts(module: nn.Module, rank: int, group: Any) -> set[nn.Parameter]:
    """Have each layer with experts keep its E/R experts number `rank` only; return their parameters.

    group: the R ranks that share the experts. Raises ProblemError where they do not divide them.
    """
    ranks, found = dist.get_world_size(group), set()
    for name, layer in module.named_modules():
        if not isinstance(layer, ExpertLayer):
            continue
        own = {id(parameter) for parameter in layer.expert_parameters()}
        for label, parameter in cast(nn.Module, layer).named_parameters():
            if id(parameter) not in own:
                continue
            if len(parameter) % ranks:
                raise ProblemError(
                    f"--parallel fsdp,experts: its {'.'.join(filter(None, (name, label)))} has "
                    f"{len(parameter)} experts, which {ranks} ranks do not divide; choose another "
                    "number of experts or ranks"
                )
            with torch.no_grad():
                held = nn.Parameter(parameter.chunk(ranks)[rank].clone(), parameter.requires_grad)
            path, _, last = label.rpartition(".")
            cast(nn.Module, layer).get_submodule(path).register_parameter(last, held)
            found.add(held)
        layer.exchange = TokenExchange(group)
    if not found:
        raise ProblemError(
            "--parallel fsdp,experts: its module has no layer with experts, like "
            "dsgd.models.moe.mixture.Mixture; leave experts out"
        )
    return found
