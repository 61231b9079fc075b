"""The options of the network: who exchanges with whom, and the links between them (docs/network.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt

from dsgd.core import option_texts as texts
from dsgd.core.option_forms import Form, number, setting, whole
from dsgd.core.option_rules import HIDDEN, Checked, OnlyWith, Parsed, option_fields, require

_SIMULATED = OnlyWith(engine="sim")


class Topology(NamedTuple):
    """Where the workers' results are combined."""

    kind: str
    """server, direct, ring or halving; the last three are ways to all-reduce."""
    servers: int = 1
    replicas: int = 1
    """Processes that hold each server's weights."""

    @property
    def all_reduces(self) -> bool:
        """Whether the workers combine their results among themselves."""
        return self.kind != "server"

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Return what the text of --topology means.

        >>> Topology.parse("sharded:4,replicas=2")
        Topology(kind='server', servers=4, replicas=2)
        """
        text, replicas = setting(text, whole("replicas", 1, 2), 1, "sharded:4,replicas=2")
        topology = cls._of_name(text)
        if topology.all_reduces and replicas > 1:
            raise ValueError(f"replicas are for servers, and {text} has none; leave them out")
        return topology._replace(replicas=replicas)

    @classmethod
    def _of_name(cls, text: str) -> Topology:
        if text == "server":
            return cls("server")
        if text == "allreduce":
            return cls("direct")
        if found := re.fullmatch(r"allreduce:(ring|halving)", text):
            return cls(found[1])
        if found := re.fullmatch(r"sharded:([1-9]\d{0,5})", text):
            return cls("server", int(found[1]))
        if text.partition(":")[0] == "sharded":
            raise ValueError("S must be a whole number of servers of at least 1, like sharded:4")
        raise ValueError(
            "must be server, sharded:S with S servers, allreduce, allreduce:ring or allreduce:halving"
        )


class Racks(NamedTuple):
    """The racks over which the workers are spread, in equal blocks."""

    racks: int = 1
    bytes_per_s: float = math.inf
    """Of the link between a rack and all others, in each direction."""

    @classmethod
    def parse(cls, text: str) -> Racks:
        """Return what the text of --racks means.

        >>> Racks.parse("2,1e7")
        Racks(racks=2, bytes_per_s=10000000.0)
        """
        parts = whole("RACKS", 1), number("BYTES_PER_S", "above 0", lambda rate: rate > 0, optional=True)
        racks = Form(cls, parts, "2,1e7").read("racks", text.split(","))
        if racks.racks > 1 and racks.bytes_per_s == math.inf:
            raise ValueError(f"have an effect only by their links; give their rate too, like {text},1e7")
        if racks.racks == 1 and racks.bytes_per_s < math.inf:
            raise ValueError("the rate is that between racks; give 2 racks or more, like 2,1e7")
        return racks


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Checked):
    """Who exchanges with whom, and how fast the links are; --latency-s and --server-bytes-per-s belong to it
    too.
    """

    topology: str = "server"
    """Where results are combined: server | sharded:S (S servers, each with a slice of the weights) |
    allreduce (among the workers, each adds a slice) | allreduce:ring | allreduce:halving (sim only). It
    changes times and bytes, never a value; but a ring's sums differ by rounding on Ray. To all-reduce, every
    update of the mode must wait for all workers. server,replicas=2 and sharded:S,replicas=2: each server has
    a backup, which takes the same steps and takes over when the server is lost."""
    parsed_topology = Parsed("topology", Topology.parse)

    bytes_per_s: Annotated[float, Gt(0)] = math.inf
    """Bandwidth of each worker's link in each direction. On Ray, results are held back."""

    slow_link: str = ""
    """Factors by worker on the time that bytes take on its link, like 3=10 (a tenth of --bytes-per-s)."""
    slow_links = Parsed("slow_link", texts.slowdowns)

    racks: str = "1"
    """Racks over which the workers are spread in equal blocks, servers outside of them; and the bandwidth of
    the link between a rack and all others, in each direction, like 2,1e7."""
    parsed_racks = Parsed("racks", Racks.parse)

    regroup_s: Annotated[float, Ge(0), _SIMULATED, HIDDEN] = 0.0
    """Seconds until workers that all-reduce have formed a new group, because one was lost or its worker is on
    another host; on Ray it takes what it takes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limited = self.bytes_per_s < math.inf
        rule = "makes --bytes-per-s smaller; give that too"
        require(limited or not self.slow_links, "slow-link", self.slow_link, rule)
        rule = "with --racks is not known in the simulator; use allreduce or allreduce:ring"
        halving = self.parsed_topology.kind == "halving"
        require(self.parsed_racks.racks == 1 or not halving, "topology", self.topology, rule)

    def require_possible(
        self, num_workers: int, others: Mapping[str, bool], by_slices: Mapping[str, bool]
    ) -> None:
        """Raise ValueError for what cannot be in this run.

        others: by their text, options that an all-reduce cannot go with, and whether they are given.
        by_slices: the same of servers on Ray that hold slices.
        """
        known = all(worker < num_workers for worker in self.slow_links)
        rule = f"workers are numbered 0 to {num_workers - 1}; name only those"
        require(known, "slow-link", self.slow_link, rule)
        rule = f"must be at most --num-workers {num_workers}"
        require(self.parsed_racks.racks <= num_workers, "racks", self.racks, rule)
        if self.parsed_topology.all_reduces:
            for text, given in others.items():
                require(not given, "topology", self.topology, text)
        if self.has_servers_apart:
            for text, given in by_slices.items():
                require(not given, "topology", self.topology, text)

    @property
    def has_servers_apart(self) -> bool:
        """Whether servers are processes of their own on Ray, and not the driver: with slices, or a backup."""
        return not self.parsed_topology.all_reduces and self.parsed_topology.servers * self.replicas > 1

    @property
    def replicas(self) -> int:
        """Processes that hold each server's weights."""
        return self.parsed_topology.replicas

    @property
    def only_servers_link(self) -> bool:
        """Whether no link but the server's takes any time."""
        rates = self.bytes_per_s, self.parsed_racks.bytes_per_s
        return not self.parsed_topology.all_reduces and rates == (math.inf, math.inf)


LINKS = tuple(name for name in option_fields(NetworkConfig) if name != "topology")
"""The options that say how fast links are: a scenario, which runs share that are compared."""
