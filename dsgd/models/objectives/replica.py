"""A copy of a module whose trained parameters, and their gradients, are views into one flat vector each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.parametrize import is_parametrized

from dsgd.core.problem import ProblemError
from dsgd.models.objectives.loss_scale import ScaledLosses
from dsgd.models.objectives.module_blocks import blocks, recompute_activations
from dsgd.models.objectives.module_copy import copied, gradient_hooks
from dsgd.models.objectives.module_state import Carried
from dsgd.models.objectives.module_trial import in_place
from dsgd.process.user_code import in_one_line


def trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that are trained, in the order of the flat vector; those that are tied once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _all_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def require_trainable(module: torch.nn.Module) -> None:
    """Raise ProblemError for parameters or buffers that a flat float32 vector cannot stand for, and for a
    weight that its layer changes.
    """
    for prefix, layer in module.named_modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag) and layer.max_norm is not None:
            raise ProblemError(in_place(f"{prefix}.weight".lstrip(".")))
    for name, tensor in _all_tensors(module):
        if torch.nn.parameter.is_lazy(tensor):
            raise ProblemError(
                f"its {name} has no shape yet (is lazy); run a mini-batch through it in make()"
            )
        if tensor.is_meta:
            raise ProblemError(f"its {name} is on the meta device and has no values; make it on the CPU")
        if tensor.is_complex() and tensor.requires_grad:
            raise ProblemError(f"its {name} is complex; keep its parts as real numbers (torch.view_as_real)")


def in_float32(module: torch.nn.Module) -> tuple[str, ...]:
    """Convert the trained parameters to float32, and with them other tensors of the types that these had: a
    layer wants one type. Return the names of those others. The rest stays, bit for bit.
    """
    others = {name: tensor for name, tensor in _all_tensors(module) if not tensor.requires_grad}
    types = {parameter.dtype for parameter in trained(module)} - {torch.float32}
    converted = tuple(name for name, tensor in others.items() if tensor.dtype in types)
    if types:
        convert: Any = module._apply
        convert(lambda tensor: tensor.float() if tensor.dtype in types else tensor)
    return converted


def require_not_scripted(module: torch.nn.Module) -> None:
    """Raise ProblemError for a module of TorchScript, which Ray cannot send."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise ProblemError(
            "its module is compiled by torch.jit, and cannot be sent to a process; give the module itself"
        )


def require_shardable(module: torch.nn.Module) -> None:
    """Raise ProblemError for a parameter that torch's FSDP2, and so a group of ranks, cannot shard."""
    for name, parameter in module.named_parameters():
        why = None
        if parameter.dim() == 0:
            why = "has no rows to divide; make it of shape (1,)"
        elif parameter.numel() == 0:
            why = "is empty; leave it out"
        elif parameter.dtype != torch.float32:
            why = f"is {parameter.dtype}; make it float32, or a buffer"
        if why:
            raise ProblemError(f"a group of ranks cannot shard its {name}, which {why}")
    for name, _ in gradient_hooks(module):
        raise ProblemError(
            f"a group of ranks cannot call the hook on the gradient of its {name}, of which each rank has a "
            "part; do what it does in the forward pass, or leave out --ranks-per-worker"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag) and layer.sparse:
            raise ProblemError(
                f"a group of ranks cannot shard its {name}.weight, whose gradients are sparse; "
                "make the embedding with sparse=False"
            )


def make_sendable(module: torch.nn.Module) -> None:
    """Have parts with parametrizations be pickled like others, their class with its code. torch refuses it,
    since a file of theirs would depend on the code.
    """
    for part in module.modules():
        if is_parametrized(part) and "__getstate__" in vars(type(part)):
            del type(part).__getstate__


_MOST_KEPT = 16  # vectors: those of a worker that writes to shared memory take turns


class Replica:
    """One copy, on one device, for one thread.

    w (D,): the weights, which `write` sets before each computation. g (D,): where the gradient is written
    unless `gradient_in` names another vector. Parameters that the loss does not depend on have a gradient of
    0. In the vectors each is laid out row by row, whatever its strides were. recomputed: whether the module's
    blocks are computed once more in the backward pass, instead of kept. apart: whether each parameter has
    separate memory, as in a group of ranks: the last bits of a product may depend on where its factors lie.
    counting: whether it counts which parameters gradients do not reach. scaled: whether losses are, for
    gradients in float16.
    Raises ProblemError for a module that cannot be copied.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: str,
        *,
        recomputed: bool = False,
        apart: bool = False,
        counting: bool = True,
        scaled: bool = False,
    ) -> None:
        before = "its module cannot be copied, as each process and thread needs: "
        with in_one_line(Path(), before, ProblemError, (torch.OutOfMemoryError,)):
            self.module = copied(module).to(device)
        if recomputed:
            recompute_activations(blocks(self.module))
        self.compiled: Any = None
        """The problem's loss as torch.compile made it for this copy, if it is compiled."""
        self.at_once: int | None = None
        """How many samples are evaluated at once, once that is known."""
        parameters = trained(self.module)
        sizes = [parameter.numel() for parameter in parameters]
        self.w = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        self.g = torch.zeros_like(self.w)
        self._apart = apart
        for parameter, w in zip(parameters, torch.split(self.w, sizes), strict=True):
            parameter.data = torch.empty_like(w.view(parameter.shape)) if apart else w.view(parameter.shape)
        self._parameters, self._sizes = parameters, sizes
        self.scale = ScaledLosses(device) if scaled else None
        self.carried = Carried(self.module, sum(sizes), module, scale=self.scale)
        hooks = gradient_hooks(self.module)
        self._may_replace = any(kind == "_post_accumulate_grad_hooks" for _, kind in hooks)
        self.has_hooks = bool(hooks)
        """Whether there are hooks on the gradients of parameters."""
        self.carried.reached.counting = counting
        self.carried.reached.watch(self.module)
        self._gradients: dict[int, list[torch.Tensor]] = {}
        self._spare: list[torch.Tensor] = []
        self.gradient_in(self.g)

    def begin(self) -> None:
        """Begin a gradient: forget which parameters were reached, and take up the losses' scale."""
        self.carried.reached.begin()
        if self.scale is not None:
            self.scale.begin()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss, scaled if losses are, to that which has begun."""
        torch.autograd.backward(loss if self.scale is None else self.scale.scaled(loss))

    def complete(self, g: torch.Tensor) -> None:
        """Take into g (D,) what a hook has put in a gradient's place; leave out what nothing has reached, and
        all if it overflowed.
        """
        if self._may_replace:
            parts: Any = zip(self._parameters, torch.split(g, self._sizes), strict=True)
            for number, (parameter, part) in enumerate(parts):
                if parameter.grad is None:
                    self.carried.reached.forget(number)
                    part.zero_()
                else:
                    part.copy_(parameter.grad.flatten())
        if self.scale is not None:
            self.scale.finish(g)
        self.carried.leave_out(g, self._sizes)

    def write(self, w: torch.Tensor) -> None:
        """Make w (D,) the weights."""
        self.w.copy_(w)
        if self._apart:
            parts: Any = zip(self._parameters, torch.split(self.w, self._sizes), strict=True)
            for parameter, part in parts:
                parameter.data.copy_(part.view(parameter.shape))

    def gradient_in(self, g: torch.Tensor) -> None:
        """Have `backward` add to g (D,), which is 0 from now on. Views into it are kept, and it with them."""
        views = self._gradients.get(g.data_ptr())
        if views is None:
            if len(self._gradients) == _MOST_KEPT:
                self._gradients.clear()
            parts: Any = zip(self._parameters, torch.split(g, self._sizes), strict=True)
            views = self._gradients[g.data_ptr()] = [part.view(parameter.shape) for parameter, part in parts]
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.grad = view
        g.zero_()

    def gradients_in(self, g: torch.Tensor, ranks: int, slices: int) -> Iterator[int]:
        """Yield each rank in turn: the gradient that `backward` then makes is its, and is added to g (D,).

        First the ranks of a replica, which are `slices`, are added up in their order, then the replicas.
        """
        needed = 2 if 1 < slices < ranks else min(1, ranks - 1)
        self._spare += [torch.empty_like(self.w) for _ in range(needed - len(self._spare))]
        for rank in range(ranks):
            begins = rank % slices == 0
            there = g if rank == 0 else self._spare[0 if begins else -1]
            self.gradient_in(there)
            yield rank
            if not begins:
                (g if rank < slices else self._spare[0]).add_(there)
            if rank >= slices and (rank + 1) % slices == 0:
                g.add_(self._spare[0])
