"""A run between two updates as a value, and that value as the bytes of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec
import numpy as np

from dsgd.core.cluster_state import ClusterState, InFlight
from dsgd.core.weights import Vector, Weights
from dsgd.records.stores.store import Part
from dsgd.running.checkpoints.codec import Decoder, Encoder, Unreadable, Vocabulary

_AS_THEY_ARE = ("now_s", "slowest", "fastest", "latest", "given", "lost", "came_in")
_OF_THE_RUN = (
    "collected", "evaluate_at", "evaluated_version", "lengths", "due_s", "faults_noted", "rollbacks",
    "store_faults", "digest",
)  # fmt: skip
_WHOLE = ("workers", "waiting", "steps", "cancelled", "leaving", "restarts")


class DueEvaluation(NamedTuple):
    """An evaluation that was asked for and is not done: made again, it gives the same numbers."""

    weights: Weights
    t_s: float
    gradients: int
    bytes: int
    carried: Vector | None = None
    """The bits (rows, D) of what the first worker's module carried."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """All from which a run goes on as if nothing had been between."""

    weights: Weights
    cluster: ClusterState
    tally: Mapping[str, Any] = field(default_factory=dict)
    """Of Tally.state."""
    evaluations: Sequence[DueEvaluation] = ()
    collected: int = 0
    """Evaluations that were done."""
    evaluate_at: float = 0
    """Applied mini-batches at which the next evaluation is due."""
    evaluated_version: int = -1
    """The newest version that was evaluated, or is being evaluated."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the record's growing files, by name."""
    due_s: Mapping[str, float] = field(default_factory=dict)
    """When (engine s) the next checkpoint of each tier is due."""
    faults_noted: int = 0
    """Lines of faults.jsonl."""
    rollbacks: int = 0
    """How often the run went back after it had diverged, and so halved its step size."""
    store_faults: Mapping[str, Any] = field(default_factory=dict)
    """Of FaultyStore.position, where faults of the disk were asked for."""
    digest: str = ""
    """Of the options that a run that goes on must have too."""
    carried: Mapping[str, Any] = field(default_factory=dict)
    """What the first worker's module carries besides the weights, by name, as bytes (n,)."""


def to_parts(state: RunState, known: Vocabulary) -> list[Part]:
    """Return a state as a file, in parts; raises NotKept for what a strategy must not keep."""
    encoder, cluster = Encoder(known), state.cluster
    weights = encoder.weights(state.weights)
    flights = cluster.flights
    document = {
        "weights": weights,
        "cluster": {
            **{name: getattr(cluster, name) for name in _AS_THEY_ARE},
            **{name: encoder.column(getattr(cluster, name)) for name in _WHOLE},
            "members": encoder.column(cluster.clocks),
            "clocks": encoder.column(cluster.clocks.values()),
            "came_in_s": encoder.array(np.array(cluster.came_in_s, np.float64).reshape(-1, 2)),
            "cancelled_s": encoder.column(cluster.cancelled_s, np.float64),
            "flying": encoder.column(f.worker for f in flights),
            "flying_tasks": encoder.column(encoder.task(f.task) for f in flights),
            "flying_origins": encoder.column(encoder.weights(f.origin) for f in flights),
            "flying_since_s": encoder.column((f.started_s for f in flights), np.float64),
            "stateful": encoder.column(cluster.states),
            "states": encoder.rows(list(cluster.states.values())),
            "held": None if cluster.held is None else encoder.weights(cluster.held),
            "heard": list(cluster.heard.items()),
            "hosts": cluster.hosts,
            "faults": cluster.faults,
            "engine": cluster.engine,
            "traffic": {name: encoder.column(counts) for name, counts in cluster.traffic.items()},
        },
        "tally": encoder.tree(dict(state.tally)),
        "evaluations": [
            [encoder.weights(w), *(encoder.tree(part) for part in rest if part is not None)]
            for w, *rest in state.evaluations
        ],
        **({"carried": encoder.tree(dict(state.carried))} if state.carried else {}),
        **{name: getattr(state, name) for name in _OF_THE_RUN},
    }
    return encoder.parts(document)


def weights_in(content: bytes) -> tuple[Weights, Mapping[str, Any]]:
    """Return the weights alone that a file holds, whatever strategy made them, and what the first worker's
    module carries; raises Unreadable.
    """
    decoder = Decoder(content, {})
    with decoder.explained():
        document = decoder.document
        carried = decoder.tree(document.get("carried", {"keys": [], "values": []}))
        bits = {name: array.view(np.uint8) for name, array in carried.items()}
        return decoder.weights(document["weights"]), bits


def from_bytes(content: Any, known: Vocabulary) -> RunState:
    """Return the state that a file holds; its arrays are views of `content`.

    Raises Unreadable for what is no such file, or of another version.
    """
    decoder = Decoder(content, known)
    with decoder.explained():
        document: Any = decoder.document
        cluster = document["cluster"]
        columns = {
            name: decoder.column(cluster[f"flying{name}"]) for name in ("", "_tasks", "_origins", "_since_s")
        }
        plain = _declared(ClusterState, cluster, (*_AS_THEY_ARE, "hosts", "faults", "engine"))
        whole: dict[str, Any] = {name: decoder.column(cluster[name]) for name in _WHOLE}
        clocks = dict(zip(decoder.column(cluster["members"]), decoder.column(cluster["clocks"]), strict=True))
        if unknown := {*whole["workers"], *whole["waiting"], plain["latest"]} - {*clocks, None}:
            raise Unreadable(f"has no clock of worker {unknown.pop()}")
        return RunState(
            weights=decoder.weights(document["weights"]),
            cluster=ClusterState(
                **plain,
                **whole,
                clocks=clocks,
                came_in_s=[(first, last) for first, last in decoder.column(cluster["came_in_s"], axes=2)],
                cancelled_s=decoder.column(cluster["cancelled_s"]),
                flights=[
                    InFlight(worker, decoder.task(task), decoder.weights(origin), since_s)
                    for worker, task, origin, since_s in zip(*columns.values(), strict=True)
                ],
                states=dict(
                    zip(
                        decoder.column(cluster["stateful"]),
                        decoder.rows(cluster["states"]),
                        strict=True,
                    )
                ),
                held=None if cluster["held"] is None else decoder.weights(cluster["held"]),
                heard=dict(cluster["heard"]),
                traffic={name: decoder.column(place) for name, place in cluster.get("traffic", {}).items()},
            ),
            tally=decoder.tree(document["tally"]),
            evaluations=[
                DueEvaluation(decoder.weights(index), *map(decoder.tree, rest))
                for index, *rest in document["evaluations"]
            ],
            **_declared(RunState, document, _OF_THE_RUN),
        )


def _declared(kind: type, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of these fields, as they are; raises ValueError for one of another type."""
    for name in names:
        try:
            msgspec.convert(values[name], _hints(kind)[name])
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {error}") from None
    return {name: values[name] for name in names}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
