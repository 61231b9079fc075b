"""What a module carries besides its trained parameters: modes and running statistics.

The modes of submodules are those that `make` returned, also after an evaluation. Running statistics are
estimated anew before an evaluation, where a layer that is in training mode would have changed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def in_eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Have a module in eval mode, and then each of its parts in the mode in which it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def estimating(module: torch.nn.Module) -> list[_NormBase]:
    """Return the layers in training mode that have running statistics."""
    layers = (part for part in module.modules() if isinstance(part, _NormBase))
    return [layer for layer in layers if layer.training and layer.running_mean is not None]


@contextmanager
def new_statistics(layers: list[_NormBase]) -> Iterator[None]:
    """Have layers set their running statistics to the means over the passes that follow.

    Those of a layer that no pass runs through in training mode stay.
    """
    passes = Counter[_NormBase]()

    def begin(layer: Any, _: Any) -> None:
        if layer.training:
            if layer not in passes:
                layer.reset_running_stats()
            passes[layer] += 1
            layer.momentum = 1 / passes[layer]

    momenta = [layer.momentum for layer in layers]
    hooks = [layer.register_forward_pre_hook(begin) for layer in layers]
    try:
        yield
    finally:
        for layer, hook, momentum in zip(layers, hooks, momenta, strict=True):
            hook.remove()
            layer.momentum = momentum
