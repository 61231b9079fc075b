"""The options of a worker that is a group of ranks, a process each (docs/workloads.md)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge

from dsgd.core.option_effects import OF_MODULE, SIMULATED
from dsgd.core.option_forms import Form, number
from dsgd.core.option_rules import Checked, Parsed, require
from dsgd.core.units import bytes_per_s, seconds


class Parallel(NamedTuple):
    """How the ranks of a group share a module."""

    kind: str
    """fsdp, hsdp or ddp."""
    copies: int = 1
    """R of hsdp: as many copies of the module are each sharded over ranks of their own."""
    experts: bool = False
    """Whether each rank computes its own experts of a mixture, for the samples of all ranks."""

    @classmethod
    def parse(cls, text: str) -> Parallel:
        """Return what the text of --parallel means.

        >>> Parallel.parse("hsdp:2"), Parallel.parse("fsdp,experts").experts
        (Parallel(kind='hsdp', copies=2, experts=False), True)
        """
        text, comma, word = text.partition(",")
        if comma:
            if word != "experts":
                raise ValueError("what follows the comma must be experts, like fsdp,experts")
            if text == "ddp":
                raise ValueError("shards nothing, so no experts either; use fsdp,experts")
            return cls.parse(text)._replace(experts=True)
        if text in ("fsdp", "ddp"):
            return cls(text)
        if found := re.fullmatch(r"hsdp:([1-9]\d{0,5})", text):
            return cls("hsdp", int(found[1]))
        if text.partition(":")[0] == "hsdp":
            raise ValueError("R must be a whole number of copies of at least 1, like hsdp:2")
        raise ValueError("must be fsdp, hsdp:R with R copies of the module, ddp, or one like fsdp,experts")

    def shards(self, ranks: int) -> int:
        """Return over how many ranks each copy of the module is sharded, of so many in a group.

        >>> Parallel("hsdp", 2).shards(8), Parallel("ddp").shards(8)
        (4, 1)
        """
        return 1 if self.kind == "ddp" else ranks // self.copies


class RankLink(NamedTuple):
    """The link of each rank of a worker to its others."""

    bytes_per_s: float = math.inf
    latency_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> RankLink:
        """Return what the text of --rank-link means.

        >>> RankLink.parse("5e10,1e-5")
        RankLink(bytes_per_s=50000000000.0, latency_s=1e-05)
        """
        if text == "none":
            return cls()
        rate = number("BYTES_PER_S", "above 0", lambda x: x > 0, of=bytes_per_s)
        latency = number("SECONDS", "of at least 0", lambda x: 0 <= x < math.inf, optional=True, of=seconds)
        return Form(cls, (rate, latency), "5e10,1e-5").read("rank-link", text.split(","))


@dataclass(frozen=True, kw_only=True)
class GroupConfig(Checked):
    """A worker that is a group of ranks, each with its part of the module and of every mini-batch
    (docs/workloads.md).
    """

    ranks_per_worker: Annotated[int, Ge(1)] = 1
    """G, the ranks of each worker: processes that share its module and its mini-batches. A rank on cuda takes
    --gpus-per-worker."""

    parallel: str = "fsdp"
    """How the ranks share the module: fsdp (each has a part of every parameter) | hsdp:R (R copies, each
    sharded over G/R ranks) | ddp (each has a copy). fsdp,experts: each rank computes its own experts
    of a mixture, for the samples of all ranks, instead of gathering all experts' weights; hsdp:R,experts
    too."""
    parsed_parallel = Parsed("parallel", Parallel.parse)

    recompute_activations: Annotated[bool, OF_MODULE] = False
    """Compute a block's activations once more in the backward pass instead of keeping them; for workers of
    one rank, too."""

    rank_link: Annotated[str, SIMULATED] = "none"
    """The link between the ranks of a worker (sim only): bytes per second of each in each direction, and
    seconds that a message travels, like 5e10,1e-5. none: it takes no time. --bytes-per-s is that between
    workers."""
    link = Parsed("rank_link", RankLink.parse)

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks, copies = self.ranks_per_worker, self.parsed_parallel.copies
        rule = "is for a worker of several ranks; give --ranks-per-worker 2 or more, or leave it out"
        for option, default in (
            ("parallel", "fsdp"),
            ("rank_link", "none"),
        ):
            require(ranks > 1 or getattr(self, option) == default, option, getattr(self, option), rule)
        rule = f"R must divide --ranks-per-worker {ranks}; give one that does, or fsdp or ddp"
        require(ranks % copies == 0, "parallel", self.parallel, rule)
        rule = f"shards nothing over --ranks-per-worker {ranks}, so no experts either; use fsdp,experts"
        shards = self.parsed_parallel.shards(ranks) > 1
        require(shards or not self.parsed_parallel.experts, "parallel", self.parallel, rule)

    @property
    def shards(self) -> int:
        """Into how many slices a group's vector is cut: one for each rank of a copy of the module."""
        return self.parsed_parallel.shards(self.ranks_per_worker)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        ranks, samples = self.ranks_per_worker, run.batch_size // run.compute.accumulate
        if ranks > 1:
            rule = f"each rank needs a sample of a mini-batch, and {samples} are computed at once; raise "
            rule += "--batch-size, or lower --accumulate"
            sampled = run.data.name not in ("none", "quadratic")
            require(not sampled or ranks <= samples, "ranks-per-worker", ranks, rule)
            rule = "each rank needs its own GPU; give --gpus-per-worker 1, or leave it out"
            require(run.ray.gpus_per_worker >= 1, "ranks-per-worker", ranks, rule)
            rule = "ranks share a module on Ray; give a --workload, or use --engine sim"
            require(run.engine == "sim" or run.data.module is not None, "ranks-per-worker", ranks, rule)
        rule = "experts are a workload's; give --workload, or leave them out"
        of_module = run.data.module is not None
        require(of_module or not self.parsed_parallel.experts, "parallel", self.parallel, rule)
