"""Copies of a module, one for each process and thread, that share nothing with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy, whose hooks and other functions refer to it, where they refer to the module or to
    what it has. Python's own copy shares functions: `lambda part, inputs, outputs: self.kept.append(outputs)`
    would write to the module that was copied.
    """
    memo: dict[int, Any] = {}
    made = copy.deepcopy(module, memo)
    for held, name, value in _attributes(made):
        if isinstance(value, FunctionType) and value.__closure__:
            cells = tuple(_in_copy(cell, memo) for cell in value.__closure__)
            code, there = value.__code__, value.__globals__
            held[name] = FunctionType(code, there, value.__name__, value.__defaults__, cells)
            held[name].__kwdefaults__ = value.__kwdefaults__
    return made


def has_functions(module: nn.Module) -> bool:
    """Return whether hooks or attributes of its parts are functions of a user: these may write to what is one
    for all copies, like a dictionary at the top of a file.
    """
    functions = (value for *_, value in _attributes(module) if isinstance(value, FunctionType))
    return any(not str(function.__module__).startswith(("torch.", "dsgd.")) for function in functions)


def forget_graphs(module: nn.Module) -> None:
    """Keep only the values of tensors that a pass in make() has left: with what they were computed from, as
    attention kept for a picture has it, or weights that a hook computes, a module cannot be copied or sent.
    """
    for held, name, value in _attributes(module):
        if isinstance(value, Tensor | tuple):
            held[name] = tree_map_only(Tensor, lambda of: of if of.grad_fn is None else of.detach(), value)
    for parameter in module.parameters():
        parameter.grad = None


def _attributes(module: nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the attributes of all parts, and what dictionaries and lists among them have: where it is held,
    under which name or number, and the value.
    """
    for part in module.modules():
        yield from _values(vars(part))


def _values(held: dict[Any, Any] | list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    for name, value in list(held.items() if isinstance(held, dict) else enumerate(held)):
        if isinstance(value, dict | list):
            yield from _values(value)
        else:
            yield held, name, value


def _in_copy(cell: CellType, memo: dict[int, Any]) -> CellType:
    try:
        contents = cell.cell_contents
    except ValueError:  # it is empty
        return cell
    return CellType(memo[id(contents)]) if id(contents) in memo else cell
