"""The rules and local steps that the options of a run ask for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsgd.core.rules import (
    Adam,
    ByStaleness,
    Chain,
    Clip,
    Decay,
    Descend,
    EachPart,
    Momentum,
    Part,
    Schedule,
    chain,
)
from dsgd.core.tasks import LocalAdamW, LocalSGD

if TYPE_CHECKING:
    from dsgd.config import GradientConfig, TrainConfig

ADAMW_DECAY = 0.01
"""Weight decay of AdamW where no other is asked for, as in torch."""


def server_rule(cfg: GradientConfig, gradients: float, *own: EachPart | Part) -> Chain:
    """Return the rule by which a server applies `gradients` mini-batches an update.

    own: the strategy's parts, in their order: for each gradient, then for the mean, before the optimizer.
    """
    each: list[Any] = [part for part in own if hasattr(part, "each")]
    of_mean: list[Any] = [part for part in own if not hasattr(part, "each")]
    lr = cfg.lr
    bound = getattr(cfg, "full_weight_until", math.inf)
    if bound < math.inf:
        each.append(ByStaleness(bound))
    if getattr(cfg, "lr_scaling", "none") == "workers":
        lr = lr * gradients / cfg.num_workers
    clip = [Clip(cfg.clip_norm)] if cfg.clip_norm else []
    descend = Descend(lr, schedule(cfg, gradients / cfg.num_workers))
    return chain(*each, *clip, *of_mean, *_optimizer(cfg), descend)


def _optimizer(cfg: GradientConfig) -> list[Part]:
    if cfg.optimizer == "adamw":
        return [Adam(), Decay(ADAMW_DECAY if cfg.weight_decay is None else cfg.weight_decay)]
    decay: list[Part] = [Decay(cfg.weight_decay)] if cfg.weight_decay else []
    return [*decay, Momentum(cfg.momentum)] if cfg.momentum else decay


def schedule(cfg: TrainConfig, share: float = 1.0) -> Schedule | None:
    """Return how the step size changes, None if it does not; `share` is the number of steps per count."""
    asked = cfg.parsed_schedule
    if not asked.changes:
        return None
    return Schedule(**asked._asdict(), steps=cfg.steps, share=share)


def local_sgd(cfg: TrainConfig, batches: int, *, keeps_velocity: bool = False) -> LocalSGD:
    """Return the task of a worker that takes `batches` steps of SGD by itself."""
    return LocalSGD(
        batches=batches,
        lr=cfg.lr,
        schedule=schedule(cfg),
        clip_norm=cfg.clip_norm,
        weight_decay=cfg.weight_decay or 0.0,
        momentum=cfg.momentum,
        keeps_velocity=keeps_velocity,
    )


def local_adamw(cfg: TrainConfig, batches: int) -> LocalAdamW:
    """Return the task of a worker that takes `batches` steps of AdamW by itself."""
    return LocalAdamW(
        batches=batches,
        lr=cfg.lr,
        schedule=schedule(cfg),
        clip_norm=cfg.clip_norm,
        weight_decay=ADAMW_DECAY if cfg.weight_decay is None else cfg.weight_decay,
    )


def inner_steps(cfg: TrainConfig, inner: str, batches: int) -> LocalAdamW | LocalSGD:
    """Return the task of a worker that takes `batches` steps of --inner, whose moments stay with it."""
    return local_sgd(cfg, batches, keeps_velocity=True) if inner == "sgd" else local_adamw(cfg, batches)
