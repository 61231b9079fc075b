"""How a module is called, learned from its loss: names, types and shapes of what goes in and comes out."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from dsgd.core.problem import Problem, ProblemError, length, take
from dsgd.models.networks.sampling import Sampler

_KEYS = "key", "idx", "name"  # of mappings, sequences and named tuples, as torch calls them
_SAMPLES = 2, 3  # of which the loss is computed: a size that differs then may be any


class Spec(NamedTuple):
    """What the values of a name are: tensors, or lists of text."""

    dtype: torch.dtype | None
    """None: text."""
    shape: tuple[int, ...]
    """-1: any size."""


class CallForm(NamedTuple):
    """How a module is called, with values by name."""

    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    """Those that have a row a sample; `decoded` is what the problem's decode makes of them."""
    optional: frozenset[str]
    """Inputs that may be left out, like the labels of a model that computes its loss itself."""
    rows: bool
    """Whether all values have the samples as first size, so that callers may share a call."""


class _Called(BaseException):
    """The module is called; what the loss does with its output is of no interest."""


class ModuleCall:
    """Calls a module as its problem's loss does, with values by name.

    Raises ProblemError for a loss that does not call the module with tensors or texts.
    """

    def __init__(self, module: nn.Module, problem: Problem) -> None:
        self.module, self._decode = module, problem.decode
        self._signature = inspect.signature(module.forward)
        few, more = (self._observed(problem, samples) for samples in _SAMPLES)
        inputs = _specs(few, more)
        defaults = {name for name, p in self._signature.parameters.items() if p.default is not p.empty}
        may = frozenset(name for i, name in self._names.items() if self._parameters[i] in defaults)
        # The user's code may need what its signature does not, and may take derivatives itself.
        for optional, self._inference in product((may, frozenset[str]()), (True, False)):
            try:
                needed = [{name: x[name] for name in x.keys() - optional} for x in (few, more)]
                outputs = _specs(*map(self._called, needed))
                break
            except Exception as error:  # of the user's module: the last try's is raised
                failure = error
        else:
            raise failure
        outputs = {name: spec for name, spec in outputs.items() if -1 in spec.shape}
        if not inputs or not outputs:
            raise ProblemError("its loss does not call the module with values that have a row a sample")
        if isinstance(problem.sample, Sampler):  # it was trained on windows of one length, and takes any
            inputs, outputs = (
                {name: spec._replace(shape=(-1, -1, *spec.shape[2:])) for name, spec in specs.items()}
                for specs in (inputs, outputs)
            )
        shared = [*outputs.values(), *(inputs[name] for name in inputs.keys() - optional)]
        self.form = CallForm(inputs, outputs, optional, all(spec.shape[0] == -1 for spec in shared))

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name, of values for all inputs that are not optional."""
        found = self._called(values)
        return {name: found[name] for name in self.form.outputs}

    def _called(self, values: Mapping[str, Any]) -> dict[str, Any]:
        leaves = [values.get(self._names[i]) if i in self._names else x for i, x in enumerate(self._leaves)]
        arguments = tree_unflatten(leaves, self._tree)
        for i, name in self._names.items():
            if name not in values:
                arguments.pop(self._parameters[i], None)
        call = inspect.BoundArguments(self._signature, arguments)
        with torch.inference_mode(self._inference):
            output = self.module(*call.args, **call.kwargs)
        named = output if isinstance(output, dict) else {"output": output}
        leaves, _, names, _ = _flat(
            {**named, "decoded": list(self._decode(output))} if self._decode else named
        )
        return {n: x.detach() if isinstance(x := leaves[i], Tensor) else x for i, n in names.items()}

    def _observed(self, problem: Problem, samples: int) -> dict[str, Any]:
        """Return the values with which the loss calls the module on some test samples, by name."""
        seen: list[tuple[Any, Any]] = []

        def see(_: nn.Module, args: Any, kwargs: Any) -> None:
            seen.append((args, kwargs))
            raise _Called

        hook, count = self.module.register_forward_pre_hook(see, with_kwargs=True), length(problem.test)
        try:
            problem.loss(self.module, *take(problem.test, [i % count for i in range(samples)]))
        except _Called:
            pass
        finally:
            hook.remove()
        if not seen:
            raise ProblemError("its loss does not call the module, so that nobody else can")
        arguments = dict(self._signature.bind(*seen[0][0], **seen[0][1]).arguments)
        self._leaves, self._tree, self._names, self._parameters = _flat(arguments)
        return {name: self._leaves[i] for i, name in self._names.items()}


def _flat(values: Mapping[str, Any]) -> tuple[list[Any], Any, dict[int, str], list[str]]:
    """Return the leaves of nested values and their tree; the names of those that are tensors or texts, by
    number; and the outermost key of each.

    A name is the innermost key that is a word, or all keys where two have the same.
    """
    found, tree = tree_flatten_with_path(dict(values), is_leaf=_is_text)
    leaves, paths = [leaf for _, leaf in found], [path for path, _ in found]
    keys = [[getattr(key, kind) for key in path for kind in _KEYS if hasattr(key, kind)] for path in paths]
    kept = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) or _is_text(leaf)]
    words = {i: [key for key in keys[i] if isinstance(key, str)][-1] for i in kept}
    often = Counter(words.values())
    names = {i: word if often[word] == 1 else ".".join(map(str, keys[i])) for i, word in words.items()}
    return leaves, tree, names, [key[0] for key in keys]


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _specs(few: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Spec]:
    """Return what values are that were seen twice, where both times they had as many sizes."""

    def sizes(value: Any) -> Sequence[int]:
        return value.shape if isinstance(value, Tensor) else (len(value),)

    return {
        name: Spec(
            getattr(value, "dtype", None),
            tuple(a if a == b else -1 for a, b in zip(sizes(value), sizes(more[name]), strict=True)),
        )
        for name, value in few.items()
        if name in more and len(sizes(value)) == len(sizes(more[name])) > 0
    }
