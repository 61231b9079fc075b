"""Checkpoints in the memory of another node: the quickest to go on from, where the node lives on.

A *keeper*, an actor on a node other than the driver's, holds them. It outlives the driver, so the next one
finds them by the run's name; it is ended when the run ends well, and ends by itself when nobody has called it
for a time, so none is left behind. If it dies with its node, the next checkpoint starts another.

Idea: Wang et al., "Gemini: fast failure recovery in distributed training with in-memory checkpoints", SOSP
2023. On a private cluster, which ends with its driver, on however many nodes, there can be no keeper.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dsgd.engines.ray.connection.connect import (
    is_private,  # first: it sets what Ray reads when it is imported
)
from dsgd.records.stores.store import Part, in_order

# isort: split
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_NAMESPACE = "dsgd-checkpoints"
_PATIENCE_S = 3600.0  # a resumed run waits for nodes, and for the one before it in a queue
_ANSWER_S = 60.0


class Keeper:
    """The actor: it holds the bytes, and looks at none."""

    def __init__(self, patience_s: float) -> None:
        self._kept: dict[str, bytes] = {}
        self._patience_s, self._called_s = patience_s, time.monotonic()
        threading.Thread(target=self._end_when_forgotten, daemon=True).start()

    def names(self) -> list[str]:
        """Return the names of what it holds."""
        self._called_s = time.monotonic()
        return list(self._kept)

    def keep(self, name: str, content: bytes) -> None:
        """Hold a checkpoint, whole when this has returned."""
        self._called_s = time.monotonic()
        self._kept[name] = content

    def content(self, name: str) -> bytes:
        """Return a checkpoint; raises KeyError."""
        self._called_s = time.monotonic()
        return self._kept[name]

    def drop(self, name: str) -> None:
        """Hold a checkpoint no longer."""
        self._called_s = time.monotonic()
        self._kept.pop(name, None)

    def _end_when_forgotten(self) -> None:
        while time.monotonic() < self._called_s + self._patience_s:
            time.sleep(min(5.0, self._patience_s / 4))
        os._exit(0)


class PeerStore:
    """The checkpoints of the run `name` in another node's memory. The process is connected to a cluster.

    patience_s: how long a keeper that nobody calls lives. Raises ValueError where there is no other node, or
    the cluster ends with this process.
    """

    def __init__(self, name: str, patience_s: float = _PATIENCE_S) -> None:
        if is_private():
            raise ValueError(
                "--checkpoint-every peer: the cluster on this machine ends with the run, so would the copy; "
                "use the tier disk or s3, or set RAY_ADDRESS"
            )
        if not _others():
            raise ValueError(
                "--checkpoint-every peer: the cluster has one node, which would take the copy with it; "
                "use the tier disk or s3, or add a node"
            )
        self._name, self._patience_s = f"keeper:{name}", patience_s

    def __str__(self) -> str:
        return f"peer {self._name}"

    def names(self) -> list[str]:
        keeper = self._found()
        return in_order(self._answer(keeper.names.remote())) if keeper else []

    def write(self, name: str, parts: Sequence[Part]) -> None:
        content = b"".join(parts)
        keeper = self._found() or self._started()
        self._answer(keeper.keep.remote(name, content))

    def read(self, name: str) -> bytes:
        keeper = self._found()
        if not keeper:
            raise OSError(f"{self}: its node is lost")
        content: bytes = self._answer(keeper.content.remote(name))
        return content

    def remove(self, name: str) -> None:
        if keeper := self._found():
            self._answer(keeper.drop.remote(name))

    def close(self) -> None:
        """End the keeper: the run has ended well, and nobody will go on from its checkpoints."""
        if keeper := self._found():
            ray.kill(keeper)

    def _found(self) -> Any:
        """Return the keeper; None if there is none, or its node is lost."""
        with suppress(ValueError):  # there is none of that name
            keeper = ray.get_actor(self._name, _NAMESPACE)
            with suppress(RayError):  # it has died, or its node is silent
                ray.get(keeper.names.remote(), timeout=_ANSWER_S)
                return keeper
            ray.kill(keeper)  # else its name stays taken
        return None

    def _started(self) -> Any:
        """Start a keeper on another node, the one with the most memory."""
        nodes = _others()
        if not nodes:
            raise OSError(f"{self}: no other node is left")
        node = max(nodes, key=lambda node: (node["Resources"].get("memory", 0.0), node["NodeID"]))
        actor: Any = ray.remote(Keeper)
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = {"lifetime": "detached", "num_cpus": 0, "scheduling_strategy": there}
        try:
            return actor.options(name=self._name, namespace=_NAMESPACE, **options).remote(self._patience_s)
        except ValueError as error:  # the name of the one before it is not free yet
            raise OSError(f"{self}: {error}") from error

    def _answer(self, reference: Any) -> Any:
        try:
            return ray.get(reference, timeout=_ANSWER_S)
        except (RayError, KeyError) as error:
            lines = str(error).strip().splitlines()
            raise OSError(f"{self}: {lines[-1] if lines else type(error).__name__}") from error


def _others() -> list[Any]:
    """Return the nodes that live, except for this process's."""
    here = ray.get_runtime_context().get_node_id()
    nodes: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"] and node["NodeID"] != here]
