"""The blocks of a module: the parts that are computed one after another, like the layers of a transformer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

_LISTS = (nn.ModuleList, nn.Sequential)


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the elements of a module's outermost lists (ModuleList, Sequential) that have parameters.

    One that shares a parameter, or a layer with one, with another or with what is outside is left out: it is
    no part by itself. Each is to be called as a whole, block(x): what is taken from within it is computed
    without what blocks are for.
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
    inside = {layer for block in found.values() for layer in block.modules()}
    outside = (layer._parameters.values() for layer in module.modules() if layer not in inside)
    owners = Counter(parameter for block in found.values() for parameter in block.parameters())
    owners.update(parameter for own in outside for parameter in own if parameter is not None)
    return [block for block in found.values() if all(owners[of] == 1 for of in block.parameters())]


class _NotHere(Tensor):
    """A parameter that no rank has whole; what it is like, such as its shape, can be asked."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(found)):
            raise RuntimeError("is used outside of its block's call")
        return found


@contextmanager
def computed_by_block(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Have computing with the parameters of a module's blocks fail, except while the block is called: a group
    of ranks gathers them then. What changes its buffers is undone. Yields the blocks that have been called.
    """
    called: list[nn.Module] = []
    layers, hooks = list(module.modules()), list[Any]()
    buffers = {layer: layer._buffers for layer in layers}
    here = {layer: layer._parameters for part in blocks(module) for layer in part.modules()}
    away = {
        layer: {
            name: found if found is None else found.as_subclass(_NotHere)
            for name, found in parameters.items()
        }
        for layer, parameters in here.items()
    }

    def call(part: nn.Module, _: Any) -> None:
        called.append(part)

    def put(parameters: dict[nn.Module, Any], part: nn.Module, *_: Any) -> None:
        for layer in part.modules():
            layer.__dict__["_parameters"] = parameters[layer]

    try:
        for layer in layers:
            copies = {
                name: None if found is None else found.clone() for name, found in layer._buffers.items()
            }
            layer.__dict__["_buffers"] = copies
        for part in blocks(module):
            hooks.append(part.register_forward_pre_hook(call))
            hooks.append(part.register_forward_pre_hook(partial(put, here)))
            hooks.append(part.register_forward_hook(partial(put, away)))
            put(away, part)
        yield called
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            layer.__dict__["_buffers"] = buffers[layer]
            layer.__dict__["_parameters"] = here.get(layer, layer._parameters)


def recompute_activations(parts: list[nn.Module]) -> None:
    """Have each part keep only its inputs for the backward pass, which computes the rest of it once more.

    Chen et al. 2016 (arXiv 1604.06174): memory for time. The gradient is the same, bit for bit; dropout
    repeats.
    """
    for part in parts:
        part.forward = partial(_recomputed, part.forward)


def _recomputed(forward: Any, *inputs: Any, **named: Any) -> Any:
    return checkpoint(forward, *inputs, use_reentrant=False, **named)
