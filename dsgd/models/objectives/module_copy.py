"""Copies of a module, one for each process and thread, that share nothing with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy, whose hooks and other functions refer to it, where they refer to the module or to
    what it has. Python's own copy shares functions: `lambda part, inputs, outputs: self.kept.append(outputs)`
    would write to the module that was copied.
    """
    memo: dict[int, Any] = {}
    made = copy.deepcopy(module, memo)
    for held, name, value in _attributes(made):
        if isinstance(value, FunctionType):
            held[name] = _in_copy(value, memo)
    hooks = gradient_hooks(module)
    return with_gradient_hooks(made, {at: [_in_copy(hook, memo) for hook in hooks[at]] for at in hooks})


def unwrapped(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a module without what computes it in another way and renames its parameters, torch.compile and
    DataParallel, and how those are called; they are taken off its parts in place.
    """
    found = dict[str, None]()

    def inner(part: nn.Module) -> nn.Module:
        if part._compiled_call_impl is not None:  # no copy has it
            found["torch.compile"] = None
        while "_orig_mod" in part._modules or isinstance(part, nn.DataParallel | DistributedDataParallel):
            found["torch.compile" if "_orig_mod" in part._modules else type(part).__name__] = None
            part = part.get_submodule("_orig_mod" if "_orig_mod" in part._modules else "module")
        return part

    module = inner(module)
    for part in [*module.modules()]:
        for name, child in [*part._modules.items()]:
            if child is not None and (plain := inner(child)) is not child:
                setattr(part, name, plain)
    return module, tuple(found)


_KINDS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def gradient_hooks(module: nn.Module) -> dict[tuple[str, str], list[Any]]:
    """Return the hooks on gradients of parameters, by name and kind: neither a copy nor a pickle has them."""
    found = {
        (name, kind): [*(getattr(parameter, kind) or {}).values()]
        for name, parameter in module.named_parameters()
        for kind in _KINDS
    }
    return {at: hooks for at, hooks in found.items() if hooks}


def with_gradient_hooks(module: nn.Module, hooks: Mapping[tuple[str, str], Sequence[Any]]) -> nn.Module:
    """Return the module with hooks that `gradient_hooks` has returned, where it has none."""
    for name, kind in hooks.keys() - gradient_hooks(module).keys():
        for hook in hooks[name, kind]:
            getattr(module.get_parameter(name), _KINDS[kind])(hook)
    return module


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


def _in_copy(function: Any, memo: dict[int, Any]) -> Any:
    """Return a function or a method as it refers to the copy; anything else as it is."""
    if isinstance(function, MethodType):
        return MethodType(function.__func__, memo.get(id(function.__self__), function.__self__))
    if not (isinstance(function, FunctionType) and function.__closure__):
        return function
    cells = tuple(_cell_in_copy(cell, memo) for cell in function.__closure__)
    code, there = function.__code__, function.__globals__
    made = FunctionType(code, there, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _cell_in_copy(cell: CellType, memo: dict[int, Any]) -> CellType:
    try:
        contents = cell.cell_contents
    except ValueError:  # it is empty
        return cell
    return CellType(memo[id(contents)]) if id(contents) in memo else cell
