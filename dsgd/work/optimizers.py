"""The server's rule that the options of a run ask for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dsgd.work.rules import ByStaleness, Chain, Descend, EachPart, Momentum, Part, chain

if TYPE_CHECKING:
    from dsgd.config import TrainConfig


def server_rule(cfg: TrainConfig, gradients: int, *corrections: EachPart) -> Chain:
    """Return the rule by which a server applies `gradients` mini-batches an update.

    corrections: parts of the strategy's own, for each gradient.
    """
    each = [*corrections]
    bound = getattr(cfg, "full_weight_until", math.inf)
    if bound < math.inf:
        each.append(ByStaleness(bound))
    parts: list[Part] = [Momentum(cfg.momentum)] if cfg.momentum else []
    lr = cfg.lr * gradients / cfg.num_workers if getattr(cfg, "lr_scaling", "none") == "workers" else cfg.lr
    return chain(*each, *parts, Descend(lr))
