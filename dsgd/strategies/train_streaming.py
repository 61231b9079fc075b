"""Streaming DiLoCo: as DiLoCo, but the weights are exchanged in fragments, one after the other.

Source: Douillard et al. 2025, "Streaming DiLoCo with overlapping communication" (arXiv 2501.18512), sections
2.1 and 2.2; section 2.3, outer gradients of four bits, is `--compress fp4` here. The rule is
that of pytorch/torchft too (local_sgd.py).

A worker keeps its own weights x and takes inner steps without end. Each of N fragments f is exchanged every H
steps, H/N steps after the one before. A worker sends x_f, takes D = `overlap` more steps, and mixes what has
become of w_f into its own weights:

    d = mean( w_f - x_f ),  m_f <- b m_f + d,  w_f <- w_f - outer_lr (d + b m_f);   x_f <- a x_f + (1 - a) w_f

Limits: N = 1, D = 0 and a = 0 is DiLoCo. With a = 1 each worker trains alone.

Members that leave and join: at the barrier, as in DiLoCo. A worker that comes back has its own weights, and
gets one fragment a round; a new one starts from the server's.

How this differs from the paper: fragments are parts of the flat vector, not layers. The D steps hide the time
of an exchange with `--topology allreduce`, as there; with a server they only change the weights, because a
result is sent when its task is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Objective
    from dsgd.core.shards import Shard

EXAMPLE = "--fragments 4 --overlap 1 --local-steps 16 --num-workers 8 --workload digits"
TUNE = {"outer_lr": (0.3, 0.7, 1.0), "outer_momentum": (0.0, 0.5, 0.9)}


@dataclass(frozen=True)
class Fragments:
    """N parts of the weights: neighbours or, strided, every N-th."""

    count: int
    strided: bool

    def part(self, number: int, num_weights: int) -> slice:
        """Return which weights the exchange with this number is of."""
        f, n = number % self.count, self.count
        if self.strided:
            return slice(f, num_weights, n)
        return slice(f * num_weights // n, (f + 1) * num_weights // n)

    def size(self, number: int, num_weights: int) -> int:
        """Return how many these are."""
        return len(range(num_weights)[self.part(number, num_weights)])


@dataclass(frozen=True, kw_only=True)
class InnerSteps:
    """Inner steps on the worker's own weights, up to the exchange with this number. Its value: the fragment's
    weights `overlap` steps before the end; zero elsewhere.

    First the worker mixes in the fragment of the exchange before, of whose weights it keeps `kept_share`. A
    worker's first weights are those read.
    """

    inner: LocalAdamW | LocalSGD
    fragments: Fragments
    number: int
    overlap: int
    kept_share: float
    relative: ClassVar[bool] = True
    asks_for_own: ClassVar[bool] = True

    @property
    def batches(self) -> int:
        return self.inner.batches

    @property
    def state_rows(self) -> int:
        return 1 + self.inner.state_rows

    @property
    def late(self) -> int:
        """Mini-batches after the value is made."""
        return min(self.overlap, self.batches)

    def part(self, num_weights: int) -> slice:
        """Return which weights the value is of."""
        return self.fragments.part(self.number, num_weights)

    def value_bytes(self, num_weights: int) -> int:
        """Return the bytes of the fragment."""
        return 4 * self.fragments.size(self.number, num_weights)

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        x, kept = state[:, 0].clone(), state[:, 1:]  # (P, D): the worker's weights; (P, rows, D)
        if self.number:
            came = objective.own(partial(self.fragments.part, self.number - 1))
            x[:, came] = self.kept_share * x[:, came] + (1 - self.kept_share) * w[:, came]
        first = torch.tensor([step == 0 for step in steps], device=w.device)
        x = torch.where(first[:, None], w, x)
        late, early = self.late, self.batches - self.late
        total_loss, value = w.new_zeros(len(steps)), torch.zeros_like(w)
        if early:
            total_loss, x, kept = replace(self.inner, batches=early)(objective, shards, steps, x, kept)
        mine = objective.own(self.part)
        value[:, mine] = x[:, mine]
        if late:
            now = [step + early for step in steps]
            loss, x, kept = replace(self.inner, batches=late)(objective, shards, now, x, kept)
            total_loss = (early * total_loss + late * loss) / self.batches
        return total_loss, value, torch.cat([x[:, None], kept], dim=1)


@dataclass(frozen=True, kw_only=True)
class Config(LocalConfig):
    mode: str = "streaming"

    traits = Traits(waits_for_all=True)

    lr: Annotated[float, FINITE, Gt(0)] = 0.01
    """Step size of the workers' own steps."""

    momentum: Annotated[float, Ge(0), Lt(1), OnlyWith(inner="sgd")] = 0.0
    """Heavy-ball momentum of the workers' own steps, 0 to below 1."""

    inner: Literal["adamw", "sgd"] = "adamw"
    """The workers' optimizer; --momentum is that of sgd. adamw: betas .9 and .999, weight decay .01."""

    outer_lr: Annotated[float, FINITE, Gt(0)] = 0.7
    """Step size of the server."""

    outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """b, of the server's Nesterov momentum."""

    fragments: Annotated[int, Ge(1)] = 2
    """N, the parts of the weights that are exchanged one after the other, each every --local-steps."""

    pattern: Annotated[Literal["strided", "sequential"], HIDDEN] = "strided"
    """Which weights make a fragment. strided: every N-th. sequential: neighbours."""

    overlap: Annotated[int, Ge(0)] = 0
    """D, the steps that a worker takes between sending a fragment and mixing in its mean; fewer than H/N."""

    local_share: Annotated[float | None, Ge(0), Le(1)] = None
    """a, the share of its own weights that a worker keeps when a fragment comes. None: 0.5 with --overlap, as
    in the paper, and 0 without, as in DiLoCo."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must be at most --local-steps {self.local_steps}: each fragment needs a step"
        require(self.fragments <= self.local_steps, "fragments", self.fragments, rule)
        most = self.local_steps // self.fragments
        rule = f"must be below local_steps/fragments = {most}; a fragment is back before the next is sent"
        require(self.overlap < most, "overlap", self.overlap, rule)
        network = self.network
        whole = network.parsed_topology.all_reduces or network.has_servers_apart
        rule = "on Ray whole vectors are exchanged, and --mode streaming has fragments; use --engine sim"
        require(self.engine == "sim" or not whole, "topology", network.topology, rule)
        rule = "has no effect with --mode streaming, which sends fragments; leave it out"
        down = self.compression
        require(down.weights is None, "compress-down", down.compress_down, rule)

    @property
    def parts(self) -> Fragments:
        return Fragments(self.fragments, self.pattern == "strided")

    def length(self, number: int) -> int:
        """Return the steps up to an exchange, from the one before; those of N exchanges in a row are H."""
        n, h = self.fragments, self.local_steps
        return (number + 1) * h // n - number * h // n

    def task(self, h: int, number: int) -> InnerSteps:
        share = (0.5 if self.overlap else 0.0) if self.local_share is None else self.local_share
        n = self.fragments
        return InnerSteps(
            inner=inner_steps(self, self.inner, h),
            fragments=self.parts,
            number=number if number < n else n + number % n,  # few different tasks: processes keep each
            overlap=self.overlap,
            kept_share=share,
        )


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Moved(), Momentum(cfg.outer_momentum, nesterov=True), Descend(cfg.outer_lr))
    while h := next_round(cluster, cfg.budget, cfg.length(w.version)):
        dones = run_all(cluster, cfg.task(h, w.version), sent(w, cfg.parts))
        w = exchanged(cluster, rule, w, dones, cfg.parts.part(w.version, len(w.vector)))
        yield Update(w, dones, measured={"drift": cluster.spread(dones)})


def sent(w: Weights, parts: Fragments) -> Weights:
    """Return the weights as they are sent: after the first exchange, only the fragment of the last one."""
    if not w.version:
        return w
    return w._replace(wire_bytes=4 * parts.size(w.version - 1, len(w.vector)))


def exchanged(cluster: Cluster, rule: Rule, w: Weights, dones: Sequence[Done], part: slice) -> Weights:
    """Return the version after `w`: the rule's step is made on a part of the weights, and of its slots."""

    def of(whole: Weights) -> Weights:
        slots = {name: np.ascontiguousarray(slot[part]) for name, slot in whole.slots.items()}
        return Weights(np.ascontiguousarray(whole.vector[part]), whole.version, slots)

    cut = [
        done._replace(value=np.ascontiguousarray(done.value[part]), origin=of(done.origin)) for done in dones
    ]
    new = cluster.combine(rule, of(w), cut)
    slots = {name: w.slots.get(name, np.zeros_like(w.vector)).copy() for name in new.slots}
    for name, slot in new.slots.items():
        slots[name][part] = slot
    vector = w.vector.copy()
    vector[part] = new.vector
    vector.setflags(write=False)
    return new._replace(vector=vector, slots=slots, kept=w.kept)


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_mean=lambda: 0.0)


PLAIN = {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "momentum": 0.0}
ADAMW = {"local_steps": 5, "momentum": 0.0}
SGD = {"local_steps": 5, "inner": "sgd", "momentum": 0.5}
LAWS = Laws(
    plain_sgd={**PLAIN, "fragments": 1},
    deterministic={},
    limits=[
        Limit({**ADAMW, "fragments": 1}, "diloco", ADAMW),
        Limit({**SGD, "fragments": 1, "pattern": "sequential"}, "diloco", SGD),
    ],
    variants=[
        {"local_steps": 5},
        {"local_steps": 6, "fragments": 3, "overlap": 1, "pattern": "sequential"},
        {"local_steps": 7, "fragments": 2, "overlap": 2, "inner": "sgd", "momentum": 0.5},
    ],
)
