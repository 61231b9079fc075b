"""What the rest of the laboratory must know of a strategy: said once, as `traits` of its Config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Sends: TypeAlias = Literal["gradients", "steps", "weights", "neither"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How a strategy's workers, and its server if it has one, work together."""

    sends: Sends = "neither"
    """What the values of its tasks are. gradients: at the weights read. steps: the weights read after plain
    SGD steps. weights: the worker's own, however it made them."""

    waits_for_all: bool = False
    """Whether each update is made of one result of every worker, all at the same weights, as an all-reduce
    needs it."""

    has_server: bool = True
    """Whether weights are on a server, from which tasks get them; else each worker has its own."""

    directed: bool = False
    """Without a server: whether the edges of a file of --graph are arcs, from left to right."""

    def __post_init__(self) -> None:
        if self.sends not in get_args(Sends):
            raise ValueError(f"sends={self.sends!r}: must be {', '.join(get_args(Sends))}")

    @property
    def returns_weights(self) -> bool:
        return self.sends in ("steps", "weights")
