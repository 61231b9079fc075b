"""The options of the network: who exchanges with whom, and the links between them (docs/network.md)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Lt

from dsgd.core import option_texts as texts
from dsgd.core.option_effects import SIMULATED
from dsgd.core.option_forms import Form, number, setting, whole
from dsgd.core.option_rules import HIDDEN, Checked, Parsed, option_fields, require
from dsgd.core.units import bytes_per_s

_NO_PADDING = "sends no padding on Ray; leave out --padding-mb"


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
        rate = number("BYTES_PER_S", "above 0", lambda rate: rate > 0, optional=True, of=bytes_per_s)
        racks = Form(cls, (whole("RACKS", 1), rate), "2,1e7").read("racks", text.split(","))
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

    drop_rate: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of a message's packets that are lost on their way, like .01; they are sent again after a round
    trip, and delay it."""

    regroup_s: Annotated[float, Ge(0), SIMULATED, HIDDEN] = 0.0
    """Seconds until workers that all-reduce have formed a new group, because one was lost or its worker is on
    another host; on Ray a group really forms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limited = self.bytes_per_s < math.inf
        rule = "makes --bytes-per-s smaller; give that too"
        require(limited or not self.slow_links, "slow-link", self.slow_link, rule)
        rule = "with --racks is not simulated; use allreduce or allreduce:ring"
        halving = self.parsed_topology.kind == "halving"
        require(self.parsed_racks.racks == 1 or not halving, "topology", self.topology, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError for what cannot be in this run."""
        chosen, timing, simulated = self.parsed_topology, run.timing, run.engine == "sim"
        rule = "is only simulated; use --engine sim"
        require(chosen.kind != "halving" or simulated, "topology", self.topology, rule)
        rule = "is the time to form a group anew after a loss; give --topology allreduce and --faults too"
        regroups = chosen.all_reduces and run.fault.hosts_matter(run.num_workers)
        require(regroups or not self.regroup_s, "regroup-s", self.regroup_s, rule)
        if not run.traits.has_server:
            rule = f"has no effect in --mode {run.mode}, which has no server"
            require(self.topology == "server", "topology", self.topology, f"{rule}; leave it out")
            rate = timing.server_bytes_per_s
            require(rate == math.inf, "server-bytes-per-s", rate, f"{rule}; use --bytes-per-s")
            rule = f"is emulated by holding back results, and --mode {run.mode} has none; use --engine sim"
            require(simulated or not timing.latency_s, "latency-s", timing.latency_s, rule)
            require(simulated or self.bytes_per_s == math.inf, "bytes-per-s", self.bytes_per_s, rule)
            require(simulated or self.racks == "1", "racks", self.racks, rule)
        takes_s = timing.latency_s or not self._is_instant(timing.server_bytes_per_s)
        rule = "has an effect where messages take time; give --latency-s or --bytes-per-s too"
        require(not self.drop_rate or takes_s, "drop-rate", self.drop_rate, rule)
        known = all(worker < run.num_workers for worker in self.slow_links)
        rule = f"workers are numbered 0 to {run.num_workers - 1}; name only those"
        require(known, "slow-link", self.slow_link, rule)
        rule = f"must be at most --num-workers {run.num_workers}"
        require(self.parsed_racks.racks <= run.num_workers, "racks", self.racks, rule)
        refused = self._of_all_reduce(run) if chosen.all_reduces else {}
        if self.has_servers_apart and not simulated:
            refused = self._of_slices(run)
        for text, given in refused.items():
            require(not given, "topology", self.topology, text)

    def _of_all_reduce(self, run: Any) -> dict[str, bool]:
        """Return, by their text, what an all-reduce cannot go with, and whether the run has it."""
        waits = (
            f"needs a mode in which every update waits for all workers, and {run.mode} does not as asked for"
        )
        lies = (lie for lie in run.fault.lies if lie.says is None or lie.says.name != "labelflip")
        return {
            f"{waits}; use --topology server": not run.traits.waits_for_all,
            "has no server; leave out --server-bytes-per-s": run.timing.server_bytes_per_s < math.inf,
            "has no server; leave out --server-time": run.timing.server_law is not None,
            _NO_PADDING: run.timing.padding_bytes > 0 and run.engine != "sim",
            "has no messages that could be lost one by one; leave out --drop-rate": self.drop_rate > 0,
            "adds results; use --aggregate mean": run.aggregation.aggregator is not None,
            "adds results as they are; use --aggregate mean alone": run.aggregation.parsed_aggregate[2] != "",
            "keeps results among the workers; no lie but labelflip can replace them": any(lies),
            "adds whole vectors; leave out --compress": run.compression.results is not None,
            "sends no weights; leave out --compress-down": run.compression.weights is not None,
        }

    def _of_slices(self, run: Any) -> dict[str, bool]:
        """Return the same of servers on Ray that hold slices."""
        whole = "on Ray servers see slices, and --filter needs whole vectors; leave it out"
        return {
            "on Ray its vectors are Ray's objects; leave out --transport local": run.ray.transport == "local",
            _NO_PADDING: run.timing.padding_bytes > 0,
            whole: run.aggregation.filtered is not None,
        }

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
        return not (self.parsed_topology.all_reduces or self.drop_rate) and self._is_instant()

    def _is_instant(self, server_bytes_per_s: float = math.inf) -> bool:
        """Whether bytes take no time on any link."""
        rates = self.bytes_per_s, self.parsed_racks.bytes_per_s, server_bytes_per_s
        return rates == (math.inf,) * 3


LINKS = tuple(name for name in option_fields(NetworkConfig) if name != "topology")
"""The options that say how fast links are: a scenario, which runs share that are compared."""
