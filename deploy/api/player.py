"""Plays what a bare API server lacks: KubeRay's operator, scheduler, kubelets, garbage collector."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.api.api_client import ApiAway, ApiClient, ApiRefused
from deploy.api.install_cluster import install
from deploy.api.local_api import LocalApi, local_api
from deploy.api.played_controllers import collect, count_quotas, run_jobs
from deploy.api.played_kubelet import played_kubelet
from deploy.api.played_nodes import PlayedNodes
from deploy.api.played_objects import look_at
from deploy.api.played_operator import PlayedOperator
from deploy.api.scenarios import Scenario

_POLL_S = 0.25


class Player:
    """Plays a scenario, which may be changed while it plays."""

    def __init__(self, client: ApiClient, nodes: PlayedNodes) -> None:
        self.scenario = Scenario()
        self._client, self.nodes = client, nodes
        self._operator = PlayedOperator(client, nodes.exit_code)
        self._over = threading.Event()
        self.last_trouble = ""
        """What the API server refused last; most of it is a user who was faster."""
        self.failure: BaseException | None = None
        """What ended the playing, if it was not `stop`."""

    def step(self) -> None:
        """Take everything one state further."""
        seen = look_at(self._client)
        self._operator.step(seen, self.scenario)
        run_jobs(self._client, seen)
        self.nodes.step(seen, self.scenario)
        collect(self._client, seen)
        count_quotas(self._client, seen)

    def play(self) -> None:
        """Go on until `stop`, also while the API server is away: controllers look again."""
        while not self._over.wait(_POLL_S):
            try:
                self.step()
            except (ApiAway, ApiRefused) as error:
                self.last_trouble = str(error)
            except BaseException as error:
                self.failure = error
                raise

    def stop(self) -> None:
        self._over.set()


@contextmanager
def played_cluster(
    built: Path, folder: Path, crds: Sequence[dict[str, Any]], overlay: str
) -> Iterator[tuple[LocalApi, Player]]:
    """Run a played cluster with an overlay of ours while the block runs.

    built: what build.sh has made. folder: an empty one, for keys, data and logs. Raises NotStarted.
    """
    with local_api(built, folder) as api:
        nodes = PlayedNodes(api.client, folder / "pods")
        with played_kubelet(nodes, api.certificate, api.key) as port:
            install(api, port, crds, overlay)
            player = Player(api.client, nodes)
            thread = threading.Thread(target=player.play, daemon=True)
            thread.start()
            try:
                yield api, player
            finally:
                player.stop()
                thread.join()
                nodes.end()
