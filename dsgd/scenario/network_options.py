"""The options of the network: who exchanges with whom, and the links between them (docs/network.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le

from dsgd.core import option_texts as texts
from dsgd.core.option_rules import Checked, OnlyWith, Parsed, option_fields, require

_SIMULATED = OnlyWith(engine="sim")


class Topology(NamedTuple):
    """Where the workers' results are combined."""

    kind: str
    """server, direct, ring or halving; the last three are ways to all-reduce."""
    servers: int = 1

    @property
    def all_reduces(self) -> bool:
        """Whether the workers combine their results among themselves."""
        return self.kind != "server"

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Return what the text of --topology means.

        >>> Topology.parse("sharded:4").servers, Topology.parse("allreduce").kind
        (4, 'direct')
        """
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


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Checked):
    """Who exchanges with whom, and how fast the links are; --latency-s and --server-bytes-per-s belong to it
    too.
    """

    topology: str = "server"
    """Where results are combined: server | sharded:S (S servers, each with a slice of the weights) |
    allreduce (among the workers, each adds a slice) | allreduce:ring | allreduce:halving (sim only). It
    changes times and bytes, never a value; but a ring's sums differ by rounding on Ray. To all-reduce, every
    update of the mode must wait for all workers."""
    parsed_topology = Parsed("topology", Topology.parse)

    replicas: Annotated[int, Ge(1), Le(2)] = 1
    """Processes that hold each server's weights. 2: a server has a backup, which takes the same steps and
    takes over when the server is lost."""

    bytes_per_s: Annotated[float, Gt(0)] = math.inf
    """Bandwidth of each worker's link in each direction. On Ray, results are held back."""

    slow_link: str = ""
    """Factors by worker on the time that bytes take on its link, like 3=10 (a tenth of --bytes-per-s)."""
    slow_links = Parsed("slow_link", texts.slowdowns)

    racks: Annotated[int, Ge(1)] = 1
    """Racks over which the workers are spread in equal blocks; servers are outside of them."""

    rack_bytes_per_s: Annotated[float, Gt(0)] = math.inf
    """Bandwidth of the link between a rack and all others, in each direction."""

    regroup_s: Annotated[float, Ge(0), _SIMULATED] = 0.0
    """Seconds until workers that all-reduce have formed a new group, because one was lost or its worker is on
    another host; on Ray it takes what it takes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limited = self.bytes_per_s < math.inf
        rule = "makes --bytes-per-s smaller; give that too"
        require(limited or not self.slow_links, "slow-link", self.slow_link, rule)
        linked = self.rack_bytes_per_s < math.inf
        rule = "have an effect only by their links; give --rack-bytes-per-s too"
        require(linked or self.racks == 1, "racks", self.racks, rule)
        rule = "is the bandwidth between racks; give --racks 2 or more"
        require(self.racks > 1 or not linked, "rack-bytes-per-s", self.rack_bytes_per_s, rule)
        rule = "with --racks is not known in the simulator; use allreduce or allreduce:ring"
        halving = self.parsed_topology.kind == "halving"
        require(self.racks == 1 or not halving, "topology", self.topology, rule)
        rule = f"is for servers, and --topology {self.topology} has none; leave it out"
        require(self.replicas == 1 or not self.parsed_topology.all_reduces, "replicas", self.replicas, rule)

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
        require(self.racks <= num_workers, "racks", self.racks, rule)
        if self.parsed_topology.all_reduces:
            for text, given in others.items():
                require(not given, "topology", self.topology, text)
        if self.has_servers_apart:
            option, value = self.servers_option
            for text, given in by_slices.items():
                require(not given, option, value, text)

    @property
    def has_servers_apart(self) -> bool:
        """Whether servers are processes of their own on Ray, and not the driver: with slices, or a backup."""
        return not self.parsed_topology.all_reduces and self.parsed_topology.servers * self.replicas > 1

    @property
    def servers_option(self) -> tuple[str, object]:
        """The option that asks for such servers, and its value."""
        if self.parsed_topology.servers > 1:
            return "topology", self.topology
        return "replicas", self.replicas

    @property
    def only_servers_link(self) -> bool:
        """Whether no link but the server's takes any time."""
        return not self.parsed_topology.all_reduces and math.inf == self.bytes_per_s == self.rack_bytes_per_s


LINKS = tuple(name for name in option_fields(NetworkConfig) if name not in ("topology", "replicas"))
"""The options that say how fast links are: a scenario, which runs share that are compared."""
