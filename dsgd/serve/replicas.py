"""The same application on a Ray cluster: an ingress without weights, and replicas that have them.

Ray Serve places, scales, watches and restarts both. What was with a replica that dies goes to another. So
does a text that was half written: its seed gives the same tokens again, and those that were sent are not sent
twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from dsgd.engines.ray.connection import connect as connection  # before ray
from dsgd.engines.ray.connection.processes import Calls

# isort: split
import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.config import DeploymentActorConfig
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.util.metrics import Gauge, Histogram
from starlette.types import ASGIApp

from dsgd.models.networks.writing import Piece, TextRequest
from dsgd.models.objectives.module_call import CallForm
from dsgd.process.outcomes import one_line
from dsgd.serve.application import application
from dsgd.serve.loading import catalog_of, load
from dsgd.serve.options import ServeOptions, range_of
from dsgd.serve.versions import ROWS, Meters
from dsgd.show.terminal.command_options import options_of_command

NAME = "dsgd"
"""The name of the application; a cluster has one at a time."""
_GONE = RayActorError, DeploymentUnavailableError, ReplicaUnavailableError
_ENDING_S = 10.0  # for the end of replicas that have answered what they had
_PAUSE_S = 0.1  # before a request goes to another replica; Ray Serve notices meanwhile that one is gone
_OF = "model", "version"


class KeptShares:
    """The shares of the versions, which outlive the ingress."""

    def __init__(self) -> None:
        self._shares = dict[str, dict[str, float]]()

    def kept(self, shares: dict[str, dict[str, float]] | None = None) -> dict[str, dict[str, float]]:
        """Return them, or keep others."""
        self._shares = shares or self._shares
        return self._shares


class ModelReplica:
    """The versions, loaded once. What they wait and compute is shown at the metrics port of Ray's node."""

    async def __init__(self, options: ServeOptions) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        waiting = Gauge("dsgd_serve_queue_length", "Requests that wait for the model", _OF)
        rows = Histogram("dsgd_serve_batch_rows", "Rows computed together", [*ROWS], _OF)
        shown: Any = SimpleNamespace(queue=_Labelled(waiting.set), rows=_Labelled(rows.observe))
        self._versions = await asyncio.to_thread(load, options, shown)
        self._catalog = catalog_of(options, self._versions)
        self._catalog.start()

    def versions(self) -> list[tuple[Any, ...]]:
        """Return what the ingress must know of each version."""
        return [(version.model, version.name, version.form, version.writes) for version in self._versions]

    async def answer(self, model: str, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return await self._catalog.choose(model, name).answer(inputs)

    async def pieces(self, model: str, name: str, request: TextRequest) -> AsyncGenerator[Piece, None]:
        async for piece in self._catalog.choose(model, name).pieces(request):
            yield piece


class _Labelled:
    """A metric of Ray's, called as one of Prometheus' is."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def labels(self, *values: str) -> Any:
        record = partial(self._record, tags=dict(zip(_OF, values, strict=True)))
        return SimpleNamespace(set=record, observe=record)


class RemoteVersion:
    """A version in the replicas, as the application sees it."""

    def __init__(self, handle: Any, model: str, name: str, form: CallForm, writes: bool) -> None:
        self.model, self.name, self.form, self.writes = model, name, form, writes
        self._handle = handle

    async def run(self) -> None:
        """Do nothing: the replicas compute."""

    async def answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        while True:
            with _sent_again():
                return dict(await self._handle.answer.remote(self.model, self.name, inputs))
            await asyncio.sleep(_PAUSE_S)

    async def pieces(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        sent, write = 0, self._handle.options(stream=True).pieces
        while True:
            with _sent_again():
                count = 0
                async for piece in write.remote(self.model, self.name, request):
                    count += 1
                    if count > sent:
                        sent = count
                        yield piece
                return
            await asyncio.sleep(_PAUSE_S)


@contextmanager
def _sent_again() -> Iterator[None]:
    """Pass over the end of a replica; raise what it has raised, without what Ray says of it."""
    try:
        yield
    except _GONE:
        pass
    except RayTaskError as error:
        raise error.cause from None


class Ingress:
    """Answers HTTP with what the replicas compute."""

    async def __init__(self, options: ServeOptions, replicas: Any) -> None:  # type: ignore[misc]  # as above
        self._options = options
        versions = [RemoteVersion(replicas, *about) for about in await replicas.versions.remote()]
        self._catalog = catalog_of(options, versions)
        self._catalog.shares |= await serve.get_deployment_actor("kept").kept.remote()
        self._catalog.keep = lambda shares: serve.get_deployment_actor("kept").kept.remote(shares)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return application(self._catalog, self._options, Meters())


def from_manifest(given: dict[str, Any]) -> Any:
    """Return the application that a RayService's manifest describes by options of `serve`.

    Ray Serve has them checked here, on the cluster, by the rules of the command line. Raises UsageError in
    one line, as for an address that others reach without a token.
    """
    options = {"host": "0.0.0.0", **given}  # noqa: S104 - in a pod; ServeOptions asks for a token
    runs = options.pop("runs", ())
    words = [runs] if isinstance(runs, str) else [*runs]
    for name, value in options.items():
        if value is not False:
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    return _application(options_of_command(ServeOptions, "serve", words))


def _application(options: ServeOptions) -> Any:
    """Return the application, bound to its options: the ingress before the replicas."""
    least, most = range_of(options.replicas)
    scaled: dict[str, Any] = {"num_replicas": least}
    if most > least:
        wanted = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": options.max_batch}
        scaled = {"num_replicas": "auto", "autoscaling_config": wanted}
    how: dict[str, Any] = {"graceful_shutdown_timeout_s": options.timeout_s, "max_constructor_retry_count": 3}
    places, without_cpu = options.max_batch + options.max_queue, {"num_cpus": 0}
    replica: Any = serve.deployment(ModelReplica, max_ongoing_requests=places, **how, **scaled)
    ingress: Any = serve.deployment(
        serve.ingress()(Ingress),
        max_ongoing_requests=places * most,
        ray_actor_options=without_cpu,
        deployment_actors=[
            DeploymentActorConfig(name="kept", actor_class=ray.remote(KeptShares), actor_options=without_cpu)
        ],
        **how,
    )
    return ingress.bind(options, replica.bind(options))


@contextmanager
def served(options: ServeOptions) -> Iterator[None]:
    """Serve on the cluster that the environment names, or on a private one, until the block ends.

    Raises ValueError or ClusterError, in one line.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    connected = connection.connect()
    least, _ = range_of(options.replicas)
    try:
        have = int(connection.resources().get("CPU", 0))
        if least > have:
            raise ValueError(f"--replicas {least}: the cluster has {have} CPUs, and a replica needs one")
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        http = {"host": options.host, "port": options.port}
        serve.start(http_options=http, logging_config=quiet)
        try:
            serve.run(_application(options), name=NAME, logging_config=quiet)
            yield
        except RuntimeError as error:  # Ray Serve's own says that something failed, and not what
            raise ValueError(_reason() or one_line(error)) from None
        finally:
            with suppress(TimeoutError):  # of a cluster that is gone
                Calls().within(options.timeout_s + _ENDING_S, lambda: serve.delete(NAME))
    finally:
        connected.close()


def _reason() -> str:
    """Return what the replicas have raised last, in one line."""
    there = serve.status().applications[NAME].deployments.values()
    raised = [re.findall(r"^[\w.]+Error: (.+)$", deployment.message, re.MULTILINE) for deployment in there]
    return next((lines[-1] for lines in raised if lines), "")
