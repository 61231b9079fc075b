"""The blocks of a module: the parts that are computed one after another, like the layers of a transformer."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

_LISTS = (nn.ModuleList, nn.Sequential)


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the elements of a module's outermost lists (ModuleList, Sequential) that have parameters.

    One that shares a parameter with what is outside of it is left out: it is no part by itself. Each is to be
    called as a whole, block(x): what is taken from within it is computed without what blocks are for.
    """
    found: dict[int, nn.Module] = {}

    def look(within: nn.Module) -> None:
        for child in within.children():
            plain_list = type(child) is nn.ModuleList  # its class defines no forward
            if isinstance(within, _LISTS) and not plain_list:
                if any(True for _ in child.parameters()):
                    found[id(child)] = child
            else:
                look(child)

    look(module)
    places = Counter(
        id(parameter)
        for part in module.modules()
        for parameter in part._parameters.values()
        if parameter is not None
    )

    def is_apart(block: nn.Module) -> bool:
        within = Counter(
            id(parameter)
            for part in block.modules()
            for parameter in part._parameters.values()
            if parameter is not None
        )
        return all(places[parameter] == count for parameter, count in within.items())

    return [block for block in found.values() if is_apart(block)]


def recompute_activations(parts: list[nn.Module]) -> None:
    """Have each part keep only its inputs for the backward pass, which computes the rest of it once more.

    Chen et al. 2016 (arXiv 1604.06174): memory for time. The gradient is the same, bit for bit; dropout
    repeats.
    """
    for part in parts:
        part.forward = partial(_recomputed, part.forward)


def _recomputed(forward: Any, *inputs: Any, **named: Any) -> Any:
    return checkpoint(forward, *inputs, use_reentrant=False, **named)
