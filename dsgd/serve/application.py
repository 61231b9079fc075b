"""The ASGI application: both interfaces, /metrics and /docs, within limits."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsgd.process.batching import BusyError
from dsgd.process.outcomes import one_line
from dsgd.serve import completions, inference_protocol
from dsgd.serve.options import ServeOptions
from dsgd.serve.versions import Catalog, Meters, RefusedError

WITHOUT_TOKEN = "/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"
"""How paths begin that probes and Prometheus ask, and the page on which the token is entered."""
_HERE = ["127.0.0.1", "localhost", "[::1]"]


def application(catalog: Catalog, options: ServeOptions, meters: Meters) -> FastAPI:
    """Return the application that answers with what is in a catalog."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        catalog.start()
        yield
        catalog.stop()

    about: Any = {"title": "dsgd-lab", "summary": "What runs have trained", "redoc_url": None}
    app = FastAPIOffline(static_url="/docs/static", lifespan=lifespan, **about)
    app.include_router(inference_protocol.routes(catalog))
    app.include_router(completions.routes(catalog, meters))

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(meters.registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/admin/models/{model}/promote", tags=["Versions"])
    async def promote(model: str, shares: dict[str, float]) -> dict[str, dict[str, float]]:
        """Give the versions of a model shares of the requests that name none: {"RUN@VERSION": 100}."""
        return await changed(model, shares)

    @app.post("/admin/models/{model}/rollback", tags=["Versions"])
    async def roll_back(model: str) -> dict[str, dict[str, float]]:
        """Give them the shares that they had before."""
        return await changed(model, None)

    async def changed(model: str, shares: Mapping[str, float] | None) -> dict[str, dict[str, float]]:
        if not options.token:
            raise RefusedError(
                "versions are promoted with the token alone; start the server with --token", 403
            )
        was = await catalog.promote(model, shares)
        return {"shares": catalog.shares[model], "before": was}

    for kind in (RefusedError, BusyError, ValueError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    described = app.openapi()
    described["components"]["schemas"] |= inference_protocol.SCHEMAS
    if options.token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    app.add_middleware(_Guard, options=options, meters=meters)
    if options.is_here:  # not to a name from elsewhere that resolves to this machine (DNS rebinding)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HERE)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    match error:
        case RefusedError():
            return _error(request.url.path, error.status, str(error))
        case BusyError():
            return _error(request.url.path, 503, "too many requests wait", {"Retry-After": "1"})
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][1:])) if first["type"] != "json_invalid" else "the body"
            return _error(request.url.path, 422, f"{field}: {first['msg']}")
        case HTTPException():
            return _error(request.url.path, error.status_code, error.detail, error.headers)
    return _error(request.url.path, 500, one_line(error))  # of predictions that are not finite, say


def _error(path: str, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in the form of the interface that the path belongs to."""
    of_openai = {"message": message, "type": "invalid_request_error", "param": None, "code": status}
    return JSONResponse({"error": of_openai if path.startswith("/v1") else message}, status, headers)


class Server(uvicorn.Server):
    """Serves an application from the main thread of a program."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(uvicorn.Config(app, log_config=None, access_log=False))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take ctrl-C and SIGTERM as the end of what was asked for, not as a failure."""
        loop = asyncio.get_running_loop()
        for which in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(which, self.handle_exit, which, None)
        yield


class _Guard:
    """Holds requests to the limits and the token, and counts them."""

    def __init__(self, app: ASGIApp, options: ServeOptions, meters: Meters) -> None:
        self._app, self._options, self._meters = app, options, meters
        self._expected = f"Bearer {options.token}".encode() if options.token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began_s, status, left = time.monotonic(), 0, int(self._options.max_body_mb * 2**20)

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        async def receiving() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"the body: must have at most {self._options.max_body_mb:g} MB")
            return message

        given = dict(scope["headers"]).get(b"authorization", b"")
        may = not self._expected or secrets.compare_digest(self._expected, given)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                if may or scope["path"].startswith(WITHOUT_TOKEN):
                    await self._app(scope, receiving, sending)
                else:
                    needed = _error(scope["path"], 401, "Authorization: must be Bearer and the token")
                    await needed(scope, receive, sending)
        except TimeoutError:
            if not status:
                late = f"there was no answer within {self._options.timeout_s:g} s"
                await _error(scope["path"], 504, late)(scope, receive, sending)
        finally:
            if version := scope.get("state", {}).get("version"):
                self._meters.requests.labels(version.model, version.name, str(status)).inc()
                self._meters.seconds.labels(version.model, version.name).observe(time.monotonic() - began_s)
