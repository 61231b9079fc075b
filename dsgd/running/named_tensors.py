"""The tensors of a module by name, as one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors.torch import save


def named_tensors(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of `module.state_dict()`, a tied one once, and its other names.

    A safetensors file has each tensor once. So, as with `safetensors.torch.save_model`, the metadata has the
    other names of a tied one, each with the name that it is kept under.
    """
    kept, same = dict[str, torch.Tensor](), dict[str, str]()
    names: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        first = names.setdefault(id(tensor), name)
        if first == name:
            kept[name] = tensor.detach().contiguous()
        else:
            same[name] = first
    return kept, same


def to_safetensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a safetensors file."""
    return save(dict(tensors), dict(metadata))
