"""What is minimised: a loss on one flat vector of weights, for many workers at once.

The losses are written on the operations that numpy and torch share. The workers differentiate them
with torch; the driver evaluates them with numpy, so that it never imports torch (two seconds, and a
CUDA context it has no use for).

Shapes: P workers, B samples a mini-batch, F features, C classes, D weights. The leading P may be
missing: the same code then takes one worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dsgd.core.problem import TrialGradient
from dsgd.core.rng import Purpose, generator
from dsgd.core.routing import ExpertUse, Loads
from dsgd.core.weights import LEFT_OUT, Vector

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard


_REGISTERS = 32  # numbers that torch computes at once, at most: two registers of 16
_SMALL = 1 << 13  # multiplications that take no longer than the call that computes them


class Evaluation(NamedTuple):
    """The loss on held-out data (or the exact loss, where it is known) and the accuracy, if any."""

    loss: float
    accuracy: float | None
    bits_per_byte: float | None = None
    """Of a language model: its loss per byte of text instead of per token, to base 2."""
    experts: ExpertUse | None = None
    """Of a mixture of experts."""

    @property
    def perplexity(self) -> float | None:
        """Of a language model: e to its loss, as many tokens as it hesitates between."""
        with np.errstate(over="ignore"):
            return None if self.bits_per_byte is None else float(np.exp(self.loss))


class Objective(ABC):
    """A loss over the data of all workers."""

    row_by_row: ClassVar[bool] = False
    """Whether each worker's row is computed by itself, however many are computed at once."""
    one_thread = False
    """Whether only one thread of a process may compute: there is one generator for all of them."""
    trial = TrialGradient()
    """What `try_out` has seen, here or in a worker's process."""

    parameter_sizes: tuple[int, ...] = ()
    """How many weights each parameter of a module has, in the order of the vector."""

    in_own_process: ClassVar[bool] = False
    """Whether evaluations on Ray have a process for themselves: they would keep the driver's interpreter
    busy."""

    @property
    @abstractmethod
    def num_weights(self) -> int:
        """D, the length of the weight vector."""

    def try_out(self, shard: Shard) -> None:  # noqa: B027 - most cannot fail
        """Raise ValueError, in one line, if gradients cannot be computed; called before a run begins."""

    def try_evaluation(self) -> TrialGradient:
        """Return what trials have seen; raises ValueError, in one line, if evaluations cannot be computed."""
        return self.trial

    def for_gradients(self) -> Objective:
        """Return what a worker needs, which has its shard."""
        return self

    def for_evaluation(self, device: str) -> Objective:
        """Return what an evaluation needs, on this torch device if torch computes it."""
        return self

    @abstractmethod
    def initial_weights(self, seed: int) -> Vector:
        """Return the weights that every run with this seed starts from, shape (D,)."""

    @abstractmethod
    def loss(self, w: Any, *batch: Any) -> Any:
        """Return each worker's mean mini-batch loss, shape (P,).

        w: shape (P, D), all numpy or all torch, like `batch`, which is what the shards' `batches` gives.
        """

    @abstractmethod
    def evaluate(self, w: Vector, *test: Vector) -> Evaluation | None:
        """Evaluate the weights w (D,) on the workload's test arrays; None where there is nothing to.

        Behind the weights may be the bits (rows · D,) of what the module of a worker carries.
        """

    @property
    def has_experts(self) -> bool:
        """Whether evaluations have `experts`."""
        return False

    def compared(self, found: Evaluation, w: Vector, models: Mapping[int, Vector]) -> Evaluation:
        """Return an evaluation of the weights w (D,) with what workers' own weights (D,) choose for a
        token.
        """
        return found

    def loads_in(self, gradient: Vector) -> Loads | None:
        """Return the loads of a worker's experts, as its gradient (D,) shows them; None without experts."""
        return None

    def own(self, part: Callable[[int], slice]) -> Any:
        """Return the index, among the weights (D,) that tasks see, of those in a part of the vector.

        part: maps the number of weights of the whole vector to the part's slice, also where a task sees only
        a slice of the vector.
        """
        return part(self.num_weights)

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the mini-batch losses (P,) and their gradients (P, D) at w (P, D).

        out: (P, D), where the gradients are written; they are then what is returned.

        The workers' losses depend on disjoint rows of w, so the gradient of their sum is the stack of
        their gradients: one backward pass serves all workers.
        """
        import torch

        w = w.detach().requires_grad_()
        batch = shards[0].batches(shards, steps)
        loss = self.loss(w, *batch)
        (g,) = torch.autograd.grad(loss.sum(), w)
        return loss.detach(), g if out is None else out.copy_(g)

    def times_left_out(self, device: str) -> Tensor | None:
        """Return how many gradients of the worker that computes have left each weight (D,) out, as -0; None
        if none does.
        """
        return None

    def norm(self, g: Tensor) -> Tensor:
        """Return the norms (P, 1) of gradients (P, D), by which tasks shorten them.

        Of an objective that has a slice of the weights only: of the whole gradients.
        """
        norms: Tensor = g.norm(dim=1, keepdim=True)
        return norms


@dataclass(frozen=True)
class Classifier(Objective):
    """Logistic regression (no hidden layer) or a multi-layer perceptron with rectified linear units.

    sizes: units by layer, features first. Two classes share one output, the logit of class 1, under the
    binary cross-entropy; more have one output each under softmax cross-entropy.
    """

    sizes: tuple[int, ...]

    @property
    def num_weights(self) -> int:
        return sum((m + 1) * n for m, n in pairwise(self.sizes))

    def initial_weights(self, seed: int) -> Vector:
        """He et al. 2015 (arXiv 1502.01852) for the hidden layers, zeros for biases and the last layer.

        A last layer of zeros starts every run at the loss of a uniform guess.
        """
        rng = generator(seed, Purpose.INITIAL_WEIGHTS)
        parts = []
        for m, n in pairwise(self.sizes):
            parts += [rng.standard_normal(m * n) * np.sqrt(2 / m), np.zeros(n)]
        parts[-2] = np.zeros_like(parts[-2])
        return np.concatenate(parts).astype(np.float32)

    def logits(self, w: Any, x: Any) -> Any:
        """Return the outputs, shape (P, B, C), of the weights w (P, D) on x (P, B, F)."""
        layers = list(pairwise(self.sizes))
        parts = _split(w, [length for m, n in layers for length in (m * n, n)])
        for number, (m, n) in enumerate(layers):
            if number:
                x = _relu(x)
            matrix, bias = parts[2 * number : 2 * number + 2]
            x = _affine(x, matrix.reshape(*w.shape[:-1], m, n), bias[..., None, :])
        return x

    def loss(self, w: Any, *batch: Any) -> Any:
        x, y = batch
        z = self.logits(w, x)
        if self.sizes[-1] == 1:
            z = z[..., 0]
            return (_softplus(z) - y * z).mean(-1)
        xp = _namespace(w)
        z = z - xp.amax(z, -1)[..., None]
        chosen = z * (y[..., None] == xp.arange(self.sizes[-1]))
        return (xp.log(xp.exp(z).sum(-1)) - chosen.sum(-1)).mean(-1)

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Back-propagate by hand: twice as fast as autograd where mini-batches are small.

        `Objective.loss_and_gradient` gives the same, to rounding, by differentiating `loss`.
        """
        import torch

        with torch.no_grad():
            x, y = shards[0].batches(shards, steps)
            layers = list(pairwise(self.sizes))
            parts = torch.split(w, [length for m, n in layers for length in (m * n, n)], dim=-1)
            matrices = [part.view(-1, m, n) for part, (m, n) in zip(parts[::2], layers, strict=True)]
            inputs = [x]  # of each layer, (P, B, m); at last the logits
            for number, (matrix, bias) in enumerate(zip(matrices, parts[1::2], strict=True)):
                x = inputs[-1].relu_() if number else inputs[-1]
                inputs.append(_products(x, matrix, bias.unsqueeze(1)))
            loss, d = self._loss_and_slope(inputs.pop(), y)
            gradients: list[Tensor] = []
            for number in reversed(range(len(layers))):
                h = inputs[number]
                gradients[:0] = [_products(h.mT, d).flatten(1), d.sum(1)]
                if number:
                    d = _products(d, matrices[number].mT).mul_(h > 0)
            return loss, torch.cat(gradients, dim=1, out=out)

    def _loss_and_slope(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses (P,) of the logits z (P, B, C), and their derivative by z (P, B, C)."""
        batch_size = y.shape[1]
        if self.sizes[-1] == 1:
            filled, y = _filled(z), y.unsqueeze(2)
            each, d = _softplus(filled), filled.sigmoid()
            if filled is not z:
                each, d = each[:, :batch_size], d[:, :batch_size]
            return each.sub_(y * z).mean((1, 2)), d.sub_(y).div_(batch_size)
        label = y.long().unsqueeze(2)
        log_p = z.log_softmax(2)
        d = log_p.exp()
        d.scatter_add_(2, label, -d.new_ones(label.shape))
        return -log_p.gather(2, label).mean((1, 2)), d.div_(batch_size)

    def evaluate(self, w: Vector, *test: Vector) -> Evaluation | None:
        """Evaluate on held-out samples x (N, F) with labels y (N,)."""
        x, y = test
        z = self.logits(w, x)
        guess = z[:, 0] > 0 if self.sizes[-1] == 1 else z.argmax(-1)
        return Evaluation(float(self.loss(w, x, y)), float(np.mean(guess == y)))


@dataclass(frozen=True)
class Nothing(Objective):
    """No weights and nothing to compute: the run only schedules."""

    @property
    def num_weights(self) -> int:
        return 0

    def initial_weights(self, seed: int) -> Vector:
        return np.zeros(0, np.float32)

    def loss(self, w: Any, *batch: Any) -> Any:
        raise AssertionError("an engine never computes without weights")

    def evaluate(self, w: Vector, *test: Vector) -> Evaluation | None:
        return None


@dataclass(frozen=True)
class EmptyShard:
    """An empty shard: `--workload none` has no weights and only schedules."""

    worker: int

    @staticmethod
    def batches(shards: Sequence[EmptyShard], steps: Sequence[int]) -> tuple[()]:
        return ()

    def alone(self) -> EmptyShard:
        return self

    @staticmethod
    def on_device(shards: Sequence[EmptyShard], device: str) -> Sequence[EmptyShard]:
        return shards


class Workload(NamedTuple):
    """What is computed: the objective, one shard a worker, and what evaluation needs."""

    objective: Objective
    shards: Sequence[Shard]
    test: tuple[Vector, ...]
    samples_per_batch: int
    about: Mapping[str, Any] = MappingProxyType({})
    """Of a workload's file: what the record keeps of its model and data."""
    tokens_per_sample: int = 0
    """Of a language model."""

    @property
    def known(self) -> Mapping[str, Any]:
        """What the record keeps, also of a trial: parameters that were left out, if some may be."""
        trial = self.objective.trial
        return {**self.about, "left_out": trial.left_out} if LEFT_OUT in trial.carried else self.about

    def evaluate(self, w: Vector, models: Mapping[int, Vector] | None = None) -> Evaluation | None:
        """Evaluate the weights w (D,); a loss that overflows is infinite or NaN, without a warning.

        models: by worker, its own weights (D,), whose experts are compared with those of w.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.objective.evaluate(w, *self.test)
            return self.objective.compared(found, w, models) if found and models else found


def _namespace(array: Any) -> Any:
    """Return numpy or torch, whichever `array` belongs to."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def _split(w: Any, lengths: list[int]) -> Any:
    """Split the last dimension into parts of the given lengths."""
    if isinstance(w, np.ndarray):
        return np.split(w, np.cumsum(lengths)[:-1], axis=-1)
    return w.split(lengths, dim=-1)  # one node for its backward pass, where slices have one each


def _affine(x: Any, matrix: Any, bias: Any) -> Any:
    return x @ matrix + bias if isinstance(x, np.ndarray) else bias.baddbmm(x, matrix)


def _products(a: Tensor, b: Tensor, *bias: Tensor) -> Tensor:
    """Return a @ b of each worker, plus the bias (P, 1, k): (P, n, m) by (P, m, k) gives (P, n, k).

    Where one of them is a vector torch has another routine for a single product than for several, with other
    last bits. So that a worker's do not depend on how many others there are, a small product that is alone is
    computed twice, and large ones are computed one by one.
    """
    n, m, k = *a.shape[1:], b.shape[2]
    if n == 1 or m == 1 or k == 1:
        if n * m * k <= _SMALL:
            if len(a) == 1:
                return _together(*[factor.expand(2, -1, -1) for factor in (a, b, *bias)])[:1]
        elif len(a) > 1:
            import torch

            alone = zip(*[torch.split(factor, 1) for factor in (a, b, *bias)], strict=True)
            return torch.cat([_together(*factors) for factors in alone])
    return _together(a, b, *bias)


def _together(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return a.bmm(b) if bias is None else bias.baddbmm(a, b)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0) if isinstance(x, np.ndarray) else x.relu()


def _filled(z: Tensor) -> Tensor:
    """Return z (P, B, 1) with zeros added to the samples, so that each worker's fill whole registers.

    For a sigmoid of what is left over torch has another routine, with other last bits: those of a worker
    would depend on how many are computed with it.
    """
    import torch

    lacking = -z.shape[1] % _REGISTERS
    return torch.nn.functional.pad(z, (0, 0, 0, lacking)) if lacking else z


def _softplus(z: Any) -> Any:
    """log(1 + e^z)"""
    if isinstance(z, np.ndarray):
        return np.logaddexp(0, z)
    import torch

    return torch.nn.functional.softplus(z)
