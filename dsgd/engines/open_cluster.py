"""Starts the engine that a run asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.aggregators import Aggregation, Bucketing
from dsgd.core.model import Workload
from dsgd.core.protocol import Engine
from dsgd.core.weights import LEFT_OUT
from dsgd.process.interruptions import Interruptions
from dsgd.transforms.carrying import CarriedBetweenTasks
from dsgd.transforms.compression import CompressedResults, CompressedWeights
from dsgd.transforms.filters import Filter, Kardam
from dsgd.transforms.lying_workers import Lying
from dsgd.transforms.mislabelled import num_classes
from dsgd.transforms.wrapped_engine import Aggregating


def require_room(cfg: TrainConfig, num_weights: int = 0) -> None:
    """Raise ValueError if this machine has not the memory for the workers' processes.

    num_weights: of a module; 0 before they are known.
    Where workers run on other machines, the memory of those counts: `open_cluster` waits for it.
    """
    if cfg.engine == "ray":
        from dsgd.engines.ray.connection.connect import is_private

        # isort: split
        from dsgd.engines.ray.connection.capacity import free_here, shortage

        if is_private() and (lacking := shortage(cfg, free_here(), "this machine has", num_weights)):
            raise ValueError(lacking)


def aggregation_of(cfg: TrainConfig, workload: Workload) -> Aggregation | None:
    """Return how the results of a run are aggregated; None: by their mean."""
    asked = cfg.aggregation
    mix = asked.mixing
    if isinstance(mix, Bucketing):
        mix = replace(mix, seed=cfg.seed)
    shards: Sequence[Any] = workload.shards
    samples = tuple(map(len, shards)) if asked.by_samples else None
    found = Aggregation(asked.aggregator, mix, samples)
    return None if found == Aggregation() else found


def filter_of(cfg: TrainConfig) -> Filter | None:
    """Return what looks at each result before it is applied, if anything does."""
    asked = cfg.aggregation.filtered
    return replace(asked, workers=cfg.num_workers) if isinstance(asked, Kardam) else asked


def wrapped_as_asked(cfg: TrainConfig, workload: Workload, engine: Engine) -> Engine:
    """Return an engine, or a replay, with everything around it that the options ask for."""
    trial = workload.objective.trial
    if results := cfg.compression.of_results(cfg.num_workers):
        sizes = workload.objective.parameter_sizes if LEFT_OUT in trial.carried else ()
        engine = CompressedResults(engine, results, cfg.seed, sizes)
    if codec := cfg.compression.weights:
        engine = CompressedWeights(engine, codec, cfg.seed)
    if lies := cfg.fault.lies:
        engine = Lying(engine, lies, seed=cfg.seed, classes=num_classes(workload.objective))
    aggregation, filtering, asked = aggregation_of(cfg, workload), filter_of(cfg), cfg.aggregation
    if aggregation or filtering or asked.by_speed:
        text = f"filter {asked.filter}" if filtering else f"aggregate {asked.aggregate}"
        engine = Aggregating(engine, aggregation, filtering, text, by_speed=asked.by_speed)
    return CarriedBetweenTasks(engine, trial) if trial.rows else engine


@contextmanager
def open_cluster(
    cfg: TrainConfig,
    workload: Workload,
    interruptions: Interruptions | None = None,
    unknown_to_workers: Sequence[Any] = (),
) -> Iterator[Engine]:
    """Start the engine that the configuration names; only Ray's imports ray.

    unknown_to_workers: modules that they cannot import: what is of them is sent with its code.
    Raises ValueError for a device that is not there, ClusterError if the workers cannot be started.
    """
    with _engine(cfg, workload, interruptions, unknown_to_workers) as engine:
        yield wrapped_as_asked(cfg, workload, engine)


def _engine(
    cfg: TrainConfig,
    workload: Workload,
    interruptions: Interruptions | None,
    unknown_to_workers: Sequence[Any],
) -> AbstractContextManager[Engine]:
    if cfg.engine == "ray":
        from dsgd.engines.ray.connection.connect import connect
        from dsgd.engines.ray.driver.cluster import RayCluster
        from dsgd.engines.ray.exchange.allreduce import RayAllReduce
        from dsgd.engines.ray.exchange.sharded import RaySharded

        if unknown_to_workers:
            from ray.cloudpickle import register_pickle_by_value

            for module in unknown_to_workers:
                register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        # Interrupted while it starts, Ray would leave processes behind.
        connection = None
        try:
            with (interruptions or Interruptions()).held():
                connection = connect(cfg.ray.start_timeout_s, cfg.fault.nodes)
        except KeyboardInterrupt:
            if connection:
                connection.close()
            raise
        if cfg.network.parsed_topology.all_reduces:
            return RayAllReduce(cfg, workload, connection)
        return (RaySharded if cfg.network.has_servers_apart else RayCluster)(cfg, workload, connection)
    from dsgd.engines.configured_network import compute_times, network_of
    from dsgd.engines.sim.sim import SimCluster

    network = network_of(cfg)
    times = compute_times(cfg, workload.objective.num_weights)
    device = "cuda" if cfg.ray.device == "cuda" else "cpu"
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: this machine has no GPU that torch can use; use --device cpu")
    deadline_s = cfg.stop.max_seconds
    if cfg.network.parsed_topology.all_reduces:
        from dsgd.engines.sim.sim_allreduce import AllReduceCluster, HostedAllReduce
        from dsgd.scenario.allreduce import AllReduce

        topology = AllReduce(cfg.network.parsed_topology.kind, network.links, network.latency_s)
        options: dict[str, Any] = {"padding_bytes": network.padding_bytes, "deadline_s": deadline_s}
        if not cfg.fault.hosts_matter(cfg.num_workers):
            return nullcontext(AllReduceCluster(workload, times, topology, device=device, **options))
        options |= {"fault": cfg.fault, "ranks": cfg.group.ranks_per_worker}
        options |= {"seed": cfg.seed, "regroup_s": cfg.network.regroup_s}
        return nullcontext(HostedAllReduce(workload, times, topology, device=device, **options))
    if cfg.fault.hosts_matter(cfg.num_workers):
        from dsgd.engines.sim.sim_with_faults import HostedCluster

        return nullcontext(
            HostedCluster(
                workload,
                times,
                network,
                fault=cfg.fault,
                ranks=cfg.group.ranks_per_worker,
                seed=cfg.seed,
                deadline_s=deadline_s,
                device=device,
            )
        )
    return nullcontext(SimCluster(workload, times, network, deadline_s=deadline_s, device=device))
