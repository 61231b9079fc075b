"""How a mixture of experts is used: what an evaluation says of its routers, and what workers show of
theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dsgd.core.weights import Vector

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_WORKERS = 8
"""Most workers that an evaluation looks at."""

_MOST_SERIES = 1024

Loads = tuple[tuple[float, ...], ...]
"""By layer, then by expert: the share of the layer's choices that are this expert; a layer's sum is 1."""


class RoutedLayer(NamedTuple):
    """What one layer did in a forward pass of T tokens."""

    load: Tensor
    """(E,) choices by expert."""
    entropy: Tensor
    """() of the router, in log E."""
    chosen: Tensor
    """(T, K) the experts of each token."""


class Routing(Protocol):
    """Of a `Problem` whose module has mixtures of experts: where to find what they did."""

    def layers(self, module: nn.Module) -> Sequence[RoutedLayer]:
        """Return what the last forward pass did, layer by layer."""

    def balances(self, module: nn.Module) -> Sequence[nn.Parameter]:
        """Return, layer by layer, the parameter (E,) whose gradient is load / (T K) - 1/E."""

    def capacity(self, module: nn.Module) -> float | None:
        """Return the most choices of an expert that are kept, in multiples of the mean; None: all are."""


class ExpertUse(NamedTuple):
    """How experts are used by weights that were evaluated, and by the workers whose results made them."""

    load: Loads
    """On the test data."""
    entropy: tuple[float, ...]
    """By layer: of the router, the mean over tokens of the entropy of its scores, as a share of log E."""
    capacity: float | None = None
    workers: Mapping[int, Loads] = {}
    """Of at most 8 workers: the loads of their last mini-batch, where they return gradients, or of their own
    weights, where they return these, on the first part of the test data."""
    agreement: float | None = None
    """Between two workers' own weights, the mean over all pairs of them: the share of a token's experts that
    both choose. None where fewer than two return weights."""
    agreement_with_server: float | None = None
    """The same between a worker's own weights and those that are evaluated, the mean over workers."""

    @property
    def max_violation(self) -> float:
        """Of the most loaded expert: by how many times the mean load it is above that."""
        return max_violation(self.load)

    @property
    def load_by_expert(self) -> Mapping[tuple[str, str], float]:
        """The loads by layer and expert; none of more than 1,024, which are too many series for a metric."""
        found = {(str(i), str(e)): share for i, row in enumerate(self.load) for e, share in enumerate(row)}
        return found if len(found) <= _MOST_SERIES else {}

    @property
    def worker_violations(self) -> Mapping[int, float]:
        """By worker, what `max_violation` is of it."""
        return {worker: max_violation(load) for worker, load in self.workers.items()}

    @property
    def router_entropy(self) -> float:
        """The mean over the layers, as a share of log E."""
        return fmean(self.entropy)

    @property
    def idle_experts(self) -> int:
        """How many, in all layers, have no token at all."""
        return sum(share == 0 for layer in self.load for share in layer)

    @property
    def dropped(self) -> float | None:
        """Share of the choices that are beyond the experts' capacity, as a large training pass would drop
        them; None without a capacity.
        """
        return None if self.capacity is None else dropped(self.load, self.capacity)

    @property
    def worker_max_violation(self) -> float | None:
        """The mean over the workers of what `max_violation` is of each."""
        return fmean(self.worker_violations.values()) if self.workers else None

    @property
    def worker_dropped(self) -> float | None:
        """The mean over the workers of what `dropped` is of each."""
        capacity = self.capacity
        if capacity is None or not self.workers:
            return None
        return fmean(dropped(load, capacity) for load in self.workers.values())


def max_violation(load: Loads) -> float:
    """Return by how much the largest load of a layer is above the layer's mean, in means: MaxVio of Wang et
    al. 2024 (arXiv 2408.15664, section 2.3), of the layer where it is largest. 0 is even, E/K - 1 the worst.

    >>> max_violation(((0.25, 0.25, 0.25, 0.25), (0.5, 0.25, 0.25, 0.0)))
    1.0
    """
    return max(max(layer) * len(layer) for layer in load) - 1


def dropped(load: Loads, capacity: float) -> float:
    """Return the share of choices beyond `capacity` times the mean load, the mean over the layers.

    >>> dropped(((0.5, 0.25, 0.25, 0.0),), 1.0)
    0.25
    """
    return fmean(sum(max(0.0, share - capacity / len(layer)) for share in layer) for layer in load)


def joined(parts: Sequence[RoutedLayer]) -> RoutedLayer:
    """Return what a layer did in several passes as that in one, of all their tokens."""
    import torch

    load = torch.stack([part.load for part in parts])
    entropy = torch.stack([part.entropy for part in parts])
    of_each = load.sum(1)  # T K each
    chosen = torch.cat([part.chosen for part in parts])
    return RoutedLayer(load.sum(0), (entropy * of_each).sum() / of_each.sum(), chosen)


def shares(loads: Sequence[Tensor]) -> Loads:
    """Return loads (E,), one a layer, as shares, to six digits."""
    return tuple(tuple(round(x, 6) for x in (load / load.sum()).tolist()) for load in loads)


def shown_by(gradient: Vector, spans: Sequence[slice]) -> Loads:
    """Return a worker's loads from its gradient (D,), of which the spans, one a layer, are the balances'."""
    return tuple(
        tuple(round(float(error) + 1 / len(part), 6) for error in part)
        for part in (gradient[span] for span in spans)
    )


def agreement(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the share of experts (T, K), a tensor for each layer, that two choices for the same tokens
    share.

    The order of a token's experts does not count. By chance it is K/E.
    """
    pairs = zip(first, second, strict=True)
    return fmean(float((a[:, :, None] == b[:, None, :]).any(2).float().mean()) for a, b in pairs)


def spans_of(parameters: Sequence[Any], among: Sequence[Any]) -> list[slice]:
    """Return where some parameters are in the flat vector of all trained ones."""
    ends = np.cumsum([parameter.numel() for parameter in among]).tolist()
    place = {id(p): slice(end - p.numel(), end) for p, end in zip(among, ends, strict=True)}
    return [place[id(parameter)] for parameter in parameters]


ROUTING: Mapping[str, tuple[str, str]] = {
    "max_violation": ("means", "of the most loaded expert: by how many mean loads it is above the mean"),
    "router_entropy": ("log E", "mean entropy of the routers' scores of a token"),
    "idle_experts": ("", "experts, in all layers, that no test token chooses"),
    "dropped": ("0 to 1", "share of the choices on the test data beyond `--capacity`, if there is one"),
    "agreement": ("0 to 1", "share of a token's experts that two workers' own weights both choose"),
    "agreement_with_server": (
        "0 to 1",
        "share of a token's experts that a worker's own weights and those evaluated both choose",
    ),
    "worker_max_violation": ("means", "`max_violation` of a worker's loads, the mean over the workers"),
    "worker_dropped": ("0 to 1", "`dropped` of a worker's loads, the mean over the workers"),
}
"""What an evaluation of a mixture of experts says in one number each (dsgd/core/routing.py): the unit, and
its meaning."""


def routing_numbers(use: ExpertUse | None) -> dict[str, float | None] | None:
    """Return the numbers that an evaluation has, by their names in `ROUTING`; None without experts."""
    return None if use is None else {name: getattr(use, name) for name in ROUTING}


def of_evaluation(name: str) -> Callable[[Any], float | None]:
    """Return a function that takes a number in `ROUTING` from an evaluation."""
    return lambda found: None if found.experts is None else getattr(found.experts, name)


def of_summary(name: str) -> Callable[[Any], float | None]:
    """Return a function that takes a number in `ROUTING` from the last evaluation of a summary."""
    return lambda summary: of_evaluation(name)(summary.eval)
