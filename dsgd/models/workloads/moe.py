"""A small mixture of experts that learns eight domains at once, each with its own rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from dsgd.models.workloads._mixture import MixtureConfig

if TYPE_CHECKING:
    from dsgd.core.problem import Problem

FEATURES, CLASSES = 16, 4
_TRAIN, _TEST = 8192, 2048
_SEED = 2408  # the same samples for all seeds: runs are compared on them


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig):
    """Domains, and a mixture of experts that learns them."""

    experts: Annotated[int, Ge(1)] = 8
    """E, experts of each layer; 1, with --top-k 1: a perceptron."""

    layers: Annotated[int, Ge(1)] = 2
    """Mixtures, one after another."""

    width: Annotated[int, Ge(1)] = 32
    """Features of a token, and units of an expert."""

    domains: Annotated[int, Ge(1)] = 8
    """Parts of the data, each with its own rule from features to classes; what --partition splits by."""


def make(cfg: Config) -> Problem:
    """Return the problem: samples of 16 features in four classes, from the domains alike."""
    from dsgd.core.problem import Problem
    from dsgd.models.moe.domains import DomainClassifier, domain_accuracy, domain_loss, domain_samples
    from dsgd.models.moe.mixture import active_weights

    assert cfg.mixture
    module = DomainClassifier(FEATURES, CLASSES, layers=cfg.layers, width=cfg.width, mixture=cfg.mixture)
    samples = domain_samples(
        _TRAIN + _TEST, domains=cfg.domains, features=FEATURES, classes=CLASSES, seed=_SEED
    )
    active = active_weights(module)
    return Problem(
        module,
        domain_loss,
        tuple(array[:_TRAIN] for array in samples),
        tuple(array[_TRAIN:] for array in samples),
        score=domain_accuracy,
        about={"active_weights": active, "flops_per_sample": 6 * active},
    )
