"""A mixture of experts: a layer of perceptrons of which each token is given to the K that its router chooses.

The router scores each expert by a sigmoid, in float32, and a token goes to the K of highest score (token
choice); none is dropped unless a capacity is set. Balancing needs nothing that travels beside the weights:
the bias on the scores is a parameter like all others, `balance`, whose gradient is the error of the loads. So
strategies average, delay, compress and checkpoint it like the rest.

Shapes: T tokens, d width, E experts, K of them a token, h hidden units of an expert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dsgd.core.routing import RoutedLayer
from dsgd.models.moe.mixture_options import MixtureOptions
from dsgd.models.moe.mixture_products import Compute, by_grouped_product


class Pass(NamedTuple):
    """What a mixture keeps of its last forward pass."""

    load: Tensor
    """(E,) tokens by expert, those that were dropped among them; its sum is T K."""
    dropped: Tensor
    """How many of the T K choices were beyond an expert's capacity."""
    entropy: Tensor
    """Of the router: the mean over tokens of that of their scores, divided by their sum; a share of log E."""
    chosen: Tensor
    """(T, K) the experts of each token, highest score first."""
    penalty: Tensor
    """What is added to the loss; 0 where the module is evaluated."""


class Mixture(nn.Module):
    """E experts, each a perceptron with squared rectified linear units, as in
    dsgd/models/networks/transformer.py.

    A token's output is the sum of its experts' outputs, weighted by their scores, which are divided by their
    sum (DeepSeek-V3, Liu et al. 2024, arXiv 2412.19437, equations 13-16). With K = 1 that would leave nothing
    of the score, and no gradient for the router: the score then stays as it is (as in Switch, Fedus et al.
    2021, arXiv 2101.03961, section 2.1), unless there is but one expert, and nothing to choose.

    Balancing, `options.balance`:
    bias: `balance_rate` times the parameter `balance` (E,) is added to the scores that choose, and not to
    those that weigh (Wang et al. 2024, arXiv 2408.15664). In the penalty the parameter has the value 0 and
    the gradient load / (T K) - 1/E. So a step of SGD moves the bias by -lr rate (share - mean share), and one
    of AdamW, which divides by the gradient's size, by lr rate or less: whatever the optimizer, `balance_rate`
    is the bias' step size in multiples of the learning rate. How this differs from the paper: the error
    itself, not its sign. It is linear in the loads, so the mean of the gradients of P workers is that of
    their P mini-batches together; and it is shorter than 1 whatever the loads, so it matters little where
    gradients are clipped.
    loss: E sum_i f_i p_i, with f_i the share of expert i in the choices and p_i its mean share in the scores
    (Switch, equations 4-6), which is 1 where all is even. It is a product of two means: that of P workers is
    not that of their mini-batches together.
    With either, and with none, the parameter is there and has that gradient, which shows a worker's loads to
    whoever sees it; without the bias it has no effect on anything else.

    Capacity: an expert takes ceil(capacity T K / E) tokens of a training pass at most. First choices come
    before second ones, and within them a token before those after it (GShard, Lepikhin et al. 2020, arXiv
    2006.16668, algorithm 1); the rest is dropped, and the residual stream is all that remains of it. How this
    differs from the paper: the whole pass is one group of tokens. In an evaluation nothing is dropped.

    The router's z-loss is the mean of logsumexp(logits)^2, which keeps them small (ST-MoE, Zoph et al. 2022,
    arXiv 2202.08906, equation 5).

    `last` is what the last forward pass did: a pass that is repeated, as in activation checkpointing, counts
    once.
    """

    def __init__(self, width: int, hidden: int, options: MixtureOptions) -> None:
        super().__init__()
        assert 1 <= options.top_k <= options.experts
        self.options = options
        self.router = nn.Parameter(torch.empty(options.experts, width))
        self.balance = nn.Parameter(torch.zeros(options.experts))
        self.up = nn.Parameter(torch.empty(options.experts, width, hidden))
        self.down = nn.Parameter(torch.empty(options.experts, hidden, width))
        nn.init.normal_(self.router, std=width**-0.5)
        nn.init.normal_(self.up, std=width**-0.5)
        nn.init.normal_(self.down, std=hidden**-0.5)
        self.compute: Compute = by_grouped_product
        self.exchange: Callable[[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]], Tensor] | None = None
        """For expert parallelism: exchange(rows (N, d), load (E,), apply) returns the outputs (N, d) for this
        process's rows, sorted by expert. It sends them to the processes that hold their experts, has them
        computed there by `apply(rows, load)`, with the loads of the experts held, and sends them back.
        `up` and `down` then have the experts held; all else is as in one process."""
        self.last: Pass | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"last": None}  # it belongs to a graph, which cannot be copied

    @property
    def load(self) -> Tensor:
        """(E,) tokens by expert in the last forward pass."""
        assert self.last is not None
        return self.last.load

    def expert_parameters(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Return the parameters whose rows, the first dimension, are experts."""
        return self.up, self.down

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (..., d) for x (..., d)."""
        tokens = x.flatten(0, -2)  # (T, d)
        options, count = self.options, len(self.balance)
        with torch.autocast(x.device.type, enabled=False):
            logits = linear(tokens.float(), self.router.float())  # (T, E)
            scores = logits.sigmoid()
            chosen, weight = self._choice(scores)  # (T, K) each
        by_choice = chosen.T.flatten()  # (K T), all first choices first
        order = by_choice.argsort(stable=True)
        load = by_choice.new_zeros(count).scatter_add_(0, by_choice, torch.ones_like(by_choice))
        taken = load
        if options.capacity is not None and self.training:
            most = math.ceil(options.capacity * len(order) / count)
            place = torch.arange(len(order), device=order.device)
            place = place - (load.cumsum(0) - load)[by_choice[order]]  # in the queue of the expert
            order, taken = order[place < most], load.clamp(max=most)
        rows = tokens.index_select(0, order % len(tokens))
        if torch.is_autocast_enabled(x.device.type):
            rows = rows.to(torch.get_autocast_dtype(x.device.type))
        computed = self._outputs(rows, taken)
        parts = computed.new_zeros(len(by_choice), x.shape[-1]).index_copy(0, order, computed)
        parts = parts.view(options.top_k, *tokens.shape) * weight.T[..., None].to(parts.dtype)
        self.last = self._pass(logits, scores, chosen, load, taken)
        return parts.sum(0).view(x.shape)

    def _choice(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each token and their weights, (T, K) each, from its scores (T, E)."""
        options = self.options
        choosing = scores.detach()
        if options.balance == "bias":
            choosing = choosing + options.balance_rate * self.balance.detach()
        chosen = choosing.topk(options.top_k, dim=-1).indices
        weight = scores.gather(1, chosen)
        if options.top_k > 1 or options.experts == 1:
            weight = weight / weight.sum(1, keepdim=True)
        return chosen, weight

    def _outputs(self, rows: Tensor, load: Tensor) -> Tensor:
        """Return what the experts make of rows (N, d), sorted by expert."""
        return (
            self._apply_own(rows, load)
            if self.exchange is None
            else self.exchange(rows, load, self._apply_own)
        )

    def _apply_own(self, rows: Tensor, load: Tensor) -> Tensor:
        """Apply the experts that this process holds."""
        return self.compute(rows, load, self.up.to(rows.dtype), self.down.to(rows.dtype))

    def _pass(self, logits: Tensor, scores: Tensor, chosen: Tensor, load: Tensor, taken: Tensor) -> Pass:
        """Return what is kept of a pass; its penalty where it is one of training."""
        options, count = self.options, len(load)
        share = load / load.sum()
        probability = scores / scores.sum(1, keepdim=True)  # (T, E)
        penalty = logits.new_zeros(())
        if self.training:
            penalty = (share - 1 / count) @ (self.balance - self.balance.detach())
            if options.balance == "loss":
                penalty = penalty + options.balance_weight * count * (share @ probability.mean(0))
            if options.router_z:
                penalty = penalty + options.router_z * logits.logsumexp(1).square().mean()
        entropy = torch.special.entr(probability.detach()).sum(1).mean() / math.log(max(2, count))
        return Pass(load, (load - taken).sum(), entropy if count > 1 else entropy + 1, chosen, penalty)


def mixtures(module: nn.Module) -> Iterator[Mixture]:
    """Yield the mixtures in a module, in its own order."""
    return (layer for layer in module.modules() if isinstance(layer, Mixture))


class MixtureRouting:
    """Where to find what the mixtures of a module did: a `Problem`'s `routing` (dsgd/core/routing.py)."""

    def layers(self, module: nn.Module) -> list[RoutedLayer]:
        """Return what the last forward pass did, layer by layer."""
        passes = [layer.last for layer in mixtures(module) if layer.last]
        return [RoutedLayer(of.load, of.entropy, of.chosen) for of in passes]

    def balances(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that show the loads, layer by layer."""
        return [layer.balance for layer in mixtures(module)]

    def capacity(self, module: nn.Module) -> float | None:
        """Return the experts' capacity, of the first layer."""
        return next(mixtures(module)).options.capacity


def active_weights(module: nn.Module) -> int:
    """Return how many weights multiply for each token: of a mixture those of K of its E experts."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    for layer in mixtures(module):
        experts = sum(parameter.numel() for parameter in layer.expert_parameters())
        idle = layer.options.experts - layer.options.top_k
        weights -= layer.balance.numel() + experts * idle // layer.options.experts
    return weights


def penalty(module: nn.Module) -> Tensor | float:
    """Return what the mixtures in a module add to the loss of its last forward pass; 0 in an evaluation.

    >>> penalty(nn.Linear(1, 1))
    0
    """
    return sum(cast(Pass, layer.last).penalty for layer in mixtures(module))
