"""The network and the times that a run's options ask for: the simulator's, and what is emulated on Ray."""

from __future__ import annotations

from dsgd.config import TrainConfig
from dsgd.core.rng import Purpose
from dsgd.core.timing import ComputeTimes
from dsgd.core.traffic import MessageSizes
from dsgd.scenario.island import Island
from dsgd.scenario.links import Links
from dsgd.scenario.star import Network


def network_of(cfg: TrainConfig) -> Network:
    """Return the network of a run."""
    timing, options, service = cfg.timing, cfg.network, cfg.timing.server_law
    return Network(
        latency_s=timing.latency_s,
        bytes_per_s=timing.server_bytes_per_s,
        service=ComputeTimes(service, cfg.seed, {}, Purpose.SERVER_TIME) if service else None,
        padding_bytes=timing.padding_bytes,
        servers=options.parsed_topology.servers,
        replicas=options.replicas,
        links=Links(
            *(cfg.num_workers, options.bytes_per_s, options.slow_links, *options.parsed_racks),
            drop_rate=options.drop_rate,
            seed=cfg.seed,
        ),
        peers=not cfg.traits.has_server,
    )


def island_of(cfg: TrainConfig) -> Island:
    """Return the ranks of each worker, and the network among them."""
    group = cfg.group
    in_bf16 = cfg.compute.precision == "bf16" and group.shards > 1  # `ddp` gathers nothing
    return Island(
        ranks=group.ranks_per_worker,
        copies=group.ranks_per_worker // group.shards,
        bytes_per_s=group.link.bytes_per_s,
        latency_s=group.link.latency_s,
        gathered=0.5 if in_bf16 else 1.0,
        parts=cfg.compute.accumulate,
    )


def compute_times(cfg: TrainConfig, num_weights: int) -> ComputeTimes:
    """Return the times of all workers' mini-batches; num_weights: D."""
    timing, law = cfg.timing, cfg.timing.compute_law
    if cfg.engine == "sim" or timing.compute_time != "none":  # else they are the real ones
        law = island_of(cfg).law(law, MessageSizes(num_weights, timing.padding_bytes).vector)
    return ComputeTimes(law, cfg.seed, timing.slowdowns)
