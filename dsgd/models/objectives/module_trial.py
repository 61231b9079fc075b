"""A gradient that is tried before a run begins, and what it changes in the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dsgd.core.problem import ProblemError, TrialGradient
from dsgd.models.objectives.module_state import Carried

_NUMBERS = (bool, int, float, str)
_REPEATS = 1e-6
"""By how much of its norm a gradient that is computed again may differ."""


def watched(
    module: nn.Module, carried: Carried, compute: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, TrialGradient]:
    """Return the loss of a trial gradient, and what it changes in the module.

    compute: returns the loss and the gradient, from the same weights, mini-batch and seeds at each call. On a
    CPU it is called twice: what only changes a copy of what was computed, like attention kept for a picture,
    does not matter. Afterwards the module's tensors are as they were made.
    """
    before, loose = _attributes(module, *_NUMBERS), _attributes(module, Tensor)
    written = carried.written()
    loss, g = compute()
    changed, reshaped, left = carried.changed(written), carried.reshaped(), carried.reached.left_out()
    found = [name for name, value in _attributes(module, *_NUMBERS).items() if before.get(name) != value]
    later, repeats = _attributes(module, Tensor), True
    carried.names = changed
    carried.write()
    if not g.is_cuda and torch.isfinite(loss):
        g = g.clone()
        _, again = compute()
        carried.write()
        repeats = bool((again - g).norm() <= _REPEATS * g.norm())
    if not repeats:
        found += [name for name, value in later.items() if loose.get(name) != value]
    carried.names = names = tuple(name for name in changed if name not in reshaped)
    notes = tuple(_notes(module, found, reshaped, left, repeats))
    trial = TrialGradient(names, carried.rows, notes, left)
    carried.names = ()
    return loss, trial


def _notes(
    module: nn.Module, found: Sequence[str], reshaped: Sequence[str], left: Sequence[str], repeats: bool
) -> Iterator[str]:
    if not module.training:
        yield (
            "its module is in eval mode, as make() returned it: dropout does nothing, and running statistics "
            "stay; call module.train() in make() if you do not mean that"
        )
    if left:
        yield (
            f"no gradient reaches its {listed(left)} in the mini-batch that was tried; as in torch, each "
            "update leaves alone what none of its gradients reaches"
        )
    lost = "which no task keeps for the next, so the same command may give other weights"
    if found:
        yield f"a gradient changes its {listed(found)}, {lost}; make that a buffer (register_buffer)"
    if reshaped:
        yield f"a gradient changes the shape or type of its {listed(reshaped)}, {lost}; make() gives it both"
    if not repeats and not found and not reshaped:
        yield (
            "its gradient is another one when it is computed again from the same weights, samples and seed: "
            f"it depends on something {lost}; keep it in buffers, and draw from the generators that "
            "torch, numpy and Python have once for a process"
        )


def listed(names: Sequence[str]) -> str:
    """Return names in words; of many, the first."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _attributes(module: nn.Module, *kinds: type) -> dict[str, Any]:
    """Return the attributes of these kinds, by name: numbers as text, of which NaN equals itself, and for a
    tensor which one it is and how often it was written to.
    """
    found = dict[str, Any]()
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, kinds) and key != "training":
                known = (id(value), value._version) if isinstance(value, Tensor) else repr(value)
                found[f"{prefix}.{key}".lstrip(".")] = known
    return found


def require_unchanged(module: nn.Module, w: Tensor) -> None:
    """Raise ProblemError if trained parameters are no longer the weights w (D,)."""
    begin = 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            end = begin + parameter.numel()
            if not torch.equal(parameter.detach().flatten(), w[begin:end]):
                raise ProblemError(in_place(name))
            begin = end


def in_place(name: str) -> str:
    """Return in one line that a module changes a weight in place."""
    return (
        f"its forward pass changes its {name} in place, which the gradients that workers send would not "
        "show; compute what it needs from the weight instead, as in torch.nn.utils.parametrize"
    )


def frozen_in_place(name: str) -> str:
    """Return in one line that a module changes a frozen parameter, which a group of ranks does not keep."""
    return (
        f"its forward pass changes its {name}, a frozen parameter, of which each rank of a group has a part; "
        "make it a buffer (register_buffer)"
    )
