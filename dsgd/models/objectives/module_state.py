"""What a module carries besides its trained parameters.

- Modes of submodules are those that `make` returned, also after an evaluation.
- Running statistics of normalization are estimated anew before an evaluation, where a layer is in training
  mode.
- Other buffers, and frozen parameters, that change while a gradient is computed are part of a worker's state,
  like the moments of an optimizer: its next task begins with what this one ends with.
- How often each trained parameter was left out of a gradient is, too, where a trial has left out some.
- What else changes cannot be kept: a trial names it before a run begins (module_trial.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dsgd.core.weights import LEFT_OUT, LOSS_SCALE
from dsgd.models.objectives.loss_scale import ScaledLosses
from dsgd.models.objectives.module_copy import copied
from dsgd.models.objectives.reached import Reached


@contextmanager
def in_eval_mode(module: nn.Module, *kinds: type[nn.Module]) -> Iterator[None]:
    """Put a module in eval mode, or only its parts of these kinds, and then each part back in its own."""
    modes = [(part, part.training) for part in module.modules()]
    for part in (part for part, _ in modes if isinstance(part, kinds)) if kinds else [module]:
        part.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def estimating(module: nn.Module) -> list[_NormBase]:
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


OF_NUMPY = {
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64,
}  # fmt: skip
"""Types of which numpy and a safetensors file have numbers."""


class _Place(NamedTuple):
    """Where a tensor of a module is, and what it was at first."""

    part: nn.Module
    key: str
    made: Tensor

    @property
    def now(self) -> Tensor:
        found = getattr(self.part, self.key)
        return self.made.new_empty(0) if found is None else cast(Tensor, found)


class Carried:
    """The tensors of a module that its tasks may carry: all but trained parameters and running statistics.

    names: of those that they do carry. As bits these are rows (rows, D) of float32: in the order of `names`,
    each as it differs from what `make` returned (exclusive or), so zeros are that.
    made: the module as it was made, of which `module` is a copy; without it, what `module` has now is copied.
    frozen: whether frozen parameters are among them. scale: of the losses; carried like them.
    """

    def __init__(
        self,
        module: nn.Module,
        num_weights: int,
        made: nn.Module | None = None,
        *,
        frozen: bool = True,
        scale: ScaledLosses | None = None,
    ) -> None:
        self.names: Sequence[str] = ()
        self._num_weights, self._places = num_weights, dict[str, _Place]()
        first = None if made is None else _tensors(made)
        for name, (part, key) in _tensors(module).items():
            if frozen or key in part._buffers:
                there = getattr(part, key).clone() if first is None else getattr(*first[name])
                self._places[name] = _Place(part, key, there.detach())
        self.reached = Reached(module)
        counts = self.reached.counts
        self._places[LEFT_OUT] = _Place(counts, "n", cast(Tensor, counts.n).clone())
        if scale is not None:
            self._places[LOSS_SCALE] = _Place(scale, "state", cast(Tensor, scale.state).clone())

    @property
    def leaves_out(self) -> bool:
        """Whether the counts of `reached` are carried, and so parameters may be left out."""
        return LEFT_OUT in self.names

    def leave_out(self, g: Tensor, sizes: Sequence[int], *, by_any_rank: bool = False) -> None:
        """Count what the gradient g (d,) has not reached; where counts are carried, write -0 there.

        sizes: of the parameters in g. by_any_rank: whether it is a slice of what a group has computed.
        """
        left = self.reached.count(by_any_rank=by_any_rank)
        if left and self.leaves_out:
            parts = torch.split(g, list(sizes))
            for number in left:
                parts[number].fill_(-0.0)

    def times_left_out(self, sizes: Sequence[int]) -> Tensor | None:
        """Return the counts by weight (d,), of parameters of these sizes; None if nothing is left out."""
        return self.reached.by_weight(sizes) if self.leaves_out else None

    @property
    def rows(self) -> int:
        """How many vectors (D,) the bits take."""
        return -(-sum(self._places[name].made.nbytes for name in self.names) // (4 * self._num_weights))

    def written(self) -> dict[str, tuple[int, int]]:
        """Return, by name, which tensors there are, and how often each was written to."""
        return {name: (id(place.now), place.now._version) for name, place in self._places.items()}

    def changed(self, written: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
        """Return the names of all that were written to, if only what they were, or are not as they were made:
        `x.data` may be written to without a count.
        """
        now, places = self.written(), self._places.items()
        return tuple(name for name, p in places if written[name] != now[name] or not _same(p.made, p.now))

    def reshaped(self) -> tuple[str, ...]:
        """Return the names of all that no longer have the form in which they were made."""
        return tuple(name for name, place in self._places.items() if not _is_like(place.made, place.now))

    def read(self) -> Tensor:
        """Return the bits (rows, D) as they are."""
        bits, rows = [], self.rows
        for name in self.names:
            made, now = self._places[name].made, self._places[name].now
            as_made = _bytes(made.to(now.device))
            bits.append(_bytes(now) ^ as_made if _is_like(made, now) else 0 * as_made)
        padding = 4 * self._num_weights * rows - sum(map(len, bits))
        whole = torch.cat([*bits, bits[0].new_zeros(padding)])
        return whole.view(torch.float32).view(rows, self._num_weights)

    def write(self, bits: Tensor | None = None) -> None:
        """Have the tensors be what the bits (rows, D) say; without any, as they were made."""
        for place, value in self._values(bits):
            now = place.now
            if _is_like(place.made, now) and now.grad_fn is None:
                now.detach().copy_(value)
            else:  # the forward pass has put another tensor into its place
                setattr(place.part, place.key, value.to(now.device, copy=True))

    def arrays(self, bits: Tensor) -> dict[str, Any]:
        """Return the tensors that the bits (rows, D) say, by name: arrays, or bytes of what numpy lacks."""
        found = zip(self.names, self._values(bits), strict=True)
        values = {name: value.cpu() for name, (_, value) in found if name not in (LEFT_OUT, LOSS_SCALE)}
        return {
            name: (value if value.dtype in OF_NUMPY else _bytes(value)).numpy()
            for name, value in values.items()
        }

    def gradients_left_out(self, bits: Tensor) -> int:
        """Return how many gradients had overflowed when these bits (rows, D) were read."""
        places = zip(self.names, self._values(bits), strict=True)
        return next((int(value[2]) for name, (_, value) in places if name == LOSS_SCALE), 0)

    def _values(self, bits: Tensor | None) -> Iterator[tuple[_Place, Tensor]]:
        flat, begin = None if bits is None else _bytes(bits), 0
        for place in map(self._places.__getitem__, self.names):
            made = value = place.made
            if flat is not None:
                mine = flat[begin : begin + made.nbytes] ^ _bytes(made.to(flat.device))
                value, begin = mine.view(made.dtype).view(made.shape), begin + made.nbytes
            yield place, value

    def by_rank(self, ranks: Iterable[int]) -> Iterator[int]:
        """Yield the ranks of a group: each begins with what the first did, and what that one leaves stays."""
        if not self.names:
            yield from ranks
            return
        begins = ends = self.read()
        for rank in ranks:
            if rank:
                self.write(begins)
            yield rank
            if rank == 0:
                ends = self.read()
        self.write(ends)


def with_tensors(module: nn.Module, tensors: Mapping[str, Any]) -> nn.Module:
    """Return a copy of a module that has these tensors, arrays or their bytes by name.

    Raises ValueError for one that the module does not have, or of another size.
    """
    made = copied(module)
    places = _tensors(made)
    for name, array in tensors.items():
        if name not in places:  # of a record that has it as a wrapper named it
            name = name.replace("_orig_mod.", "").removeprefix("module.")
        there: Tensor | None = getattr(*places[name]) if name in places else None
        if there is None or there.nbytes != array.nbytes:
            raise ValueError(f"its module has no {name} of {array.nbytes} bytes; put its file back as it was")
        value = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8))
        there.detach().copy_(value.view(there.dtype).view(there.shape))
    return made


def _tensors(module: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return, by name, where the buffers and frozen parameters of a module are; tied ones once."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    besides = {id(tensor) for part in norms for tensor in part.buffers(recurse=False)}
    besides |= {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    found = dict[str, tuple[nn.Module, str]]()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if id(tensor) not in besides and tensor.layout is torch.strided:
            prefix, _, key = name.rpartition(".")
            found[name] = module.get_submodule(prefix), key
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _is_like(made: Tensor, now: Tensor) -> bool:
    return (now.shape, now.dtype) == (made.shape, made.dtype)


def _same(made: Tensor, now: Tensor) -> bool:
    return _is_like(made, now) and torch.equal(_bytes(made), _bytes(now).to(made.device))
