"""What a run trained as a torch module, and the tensors of a module as a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dsgd.core.problem import Problem
from dsgd.models.objectives.module_state import OF_NUMPY

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Classifier
    from dsgd.core.weights import Vector


_IN_FILES = OF_NUMPY | {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def named_tensors(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of `module.state_dict()`, a tied one once, and its other names.

    A safetensors file has each tensor once. So, as with `safetensors.torch.save_model`, the metadata has the
    other names of a tied one, each with the name that it is kept under. Raises ValueError for what such a
    file cannot hold.
    """
    kept, same = dict[str, torch.Tensor](), dict[str, str]()
    names: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        kind = getattr(tensor, "dtype", f"a {type(tensor).__name__}")
        if kind not in _IN_FILES:
            raise ValueError(
                f"its {name} is {kind}, which a safetensors file cannot hold; take it from the module that "
                "dsgd.load(RUN).module() returns"
            )
        first = names.setdefault(id(tensor), name)
        if first == name:
            kept[name] = tensor.detach().contiguous()
        else:
            same[name] = first
    return kept, same


def to_safetensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a safetensors file."""
    return save(dict(tensors), dict(metadata))


def as_module(classifier: Classifier, w: Vector) -> nn.Sequential:
    """Return linear layers, with rectified linear units between them, that have the weights w (D,)."""
    layers: list[nn.Module] = []
    rest = torch.from_numpy(w.copy())
    for m, n in pairwise(classifier.sizes):
        matrix, bias, rest = torch.split(rest, [m * n, n, len(rest) - m * n - n])
        layer = nn.Linear(m, n)
        layer.weight.data, layer.bias.data = matrix.view(m, n).T.contiguous(), bias.clone()
        layers += [nn.ReLU(), layer] if layers else [layer]
    return nn.Sequential(*layers)


def as_problem(
    classifier: Classifier, w: Vector, train: tuple[Vector, ...], test: tuple[Vector, ...]
) -> Problem:
    """Return a classifier as a problem: its module has the weights w (D,), its data are x (N, F), y (N,)."""
    loss, score = (_loss_of_two, _accuracy_of_two) if classifier.sizes[-1] == 1 else (_loss, _accuracy)
    return Problem(as_module(classifier, w), loss, train, test, score)


def _loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y.long())


def _accuracy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    guess: Tensor = module(x).argmax(1)
    return (guess == y).float().mean()


def _loss_of_two(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(module(x)[:, 0], y)


def _accuracy_of_two(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    guess: Tensor = module(x)[:, 0] > 0
    return (guess == y).float().mean()
