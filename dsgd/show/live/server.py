"""One small HTTP server for both the metrics and the live page: GET on fixed paths, and nothing else.

It is written on asyncio's streams. A thread a connection (`http.server`) would give 200 slow clients 200
threads or, with fewer threads than clients, lock out the scrape. A framework (aiohttp) would bring request
bodies, files, keep-alive and a slower import, to be switched off again. Of a GET only the first line matters:
reading it within limits is all there is to write.

Limits: a request and each piece of an answer have the seconds of ClientLimits, a request _REQUEST_BYTES, a
connection serves one request, and of more than _MOST_CONNECTIONS the one that has been asking for longest is
dropped. A path is looked up in a table: no request can reach the file system. A listener that only
this machine reaches answers to this machine's names only: a page from elsewhere, whose own name was made to
resolve to it (DNS rebinding), reads nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

_REQUEST_BYTES = 8192
_HANG_UP_S = 1.0
_PIECE_BYTES = 1 << 16  # of an answer, which waits until the client has taken the one before
_MOST_CONNECTIONS = 128
_CLOSING_TURNS = 3  # of the event loop, in which transports that are aborted, or just accepted, close
_THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)

Stream: TypeAlias = AsyncGenerator[bytes, None]


class Response(NamedTuple):
    """An answer: complete, or a stream that lasts until it ends or the client leaves."""

    content_type: str
    body: bytes | Stream
    headers: tuple[str, ...] = ()
    status: HTTPStatus = HTTPStatus.OK


Routes: TypeAlias = Mapping[str, Callable[[], Response]]


class ClientLimits(NamedTuple):
    """What a client may take."""

    request_s: float = 5.0
    """For its whole request."""
    send_s: float = 10.0
    """For each piece of an answer."""
    streams: int = 32
    """Open at a time, by all clients together."""


LIMITS = ClientLimits()


def listen(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens at `port`; 0 takes any that is free.

    Raises ValueError, naming the option, if that is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_MOST_CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        unknown = isinstance(error, socket.gaierror)
        remedy = "give an address of this machine" if unknown else "choose another port (0 takes any)"
        reason = error.strerror or str(error)
        raise ValueError(f"{option} {port}: cannot listen at {host} ({reason}); {remedy}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket, as a browser of this machine understands it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(listener: socket.socket, routes: Routes, limits: ClientLimits = LIMITS) -> None:
    """Answer requests until cancelled."""
    here_only = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    connections = _Connections(routes, limits, here_only)
    server = await asyncio.start_server(
        connections.accept, sock=listener, limit=_REQUEST_BYTES, backlog=_MOST_CONNECTIONS
    )
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        await connections.close()


@contextmanager
def serving(listener: socket.socket, routes: Routes, limits: ClientLimits = LIMITS) -> Iterator[None]:
    """Answer requests in a thread until the block ends."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(serve(listener, routes, limits))

    def work() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=work, name="dsgd-http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        listener.close()  # open still if the task was cancelled before it began


_Task: TypeAlias = "asyncio.Task[None]"


def _end(task: _Task, writer: asyncio.StreamWriter) -> None:
    """Abort a connection, even if its task has not begun and will never see the cancellation."""
    task.cancel()
    writer.transport.abort()


class _Connections:
    """The connections of a server, within its limits."""

    def __init__(self, routes: Routes, limits: ClientLimits, here_only: bool) -> None:
        self._routes, self._limits, self._here_only = routes, limits, here_only
        self._asking: dict[_Task, asyncio.StreamWriter] = {}  # without a whole request yet; longest first
        self._answering: dict[_Task, asyncio.StreamWriter] = {}
        self._streams = 0
        self._making = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        ending = self._asking | self._answering
        for task, writer in ending.items():
            _end(task, writer)
        await asyncio.gather(*ending, return_exceptions=True)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = len(self._asking) + len(self._answering) >= _MOST_CONNECTIONS
        if self._closed or (full and not self._asking):
            writer.transport.abort()
            return
        if full:
            oldest = next(iter(self._asking))
            _end(oldest, self._asking.pop(oldest))
        task = asyncio.get_running_loop().create_task(self._handle(reader, writer))
        self._asking[task] = writer

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        try:
            async with asyncio.timeout(self._limits.request_s):
                head = await reader.readuntil(b"\r\n\r\n")
            self._asking.pop(task, None)
            self._answering[task] = writer
            await self._answer(head, writer)
            await _hang_up(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # too slow, too long or gone: there is nobody to answer
        finally:
            self._asking.pop(task, None)
            self._answering.pop(task, None)
            writer.transport.abort()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # drain() then waits until the client's side has all
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1."):
            return await self._error(writer, HTTPStatus.BAD_REQUEST)
        if self._here_only and not _asks_this_machine(head):
            return await self._error(writer, HTTPStatus.MISDIRECTED_REQUEST)
        if method != "GET":
            return await self._error(writer, HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET")
        route = self._routes.get(target.partition("?")[0])
        if route is None:
            return await self._error(writer, HTTPStatus.NOT_FOUND)
        async with self._making:  # a page may take 0.2 s: between two of them others have their turn
            await asyncio.sleep(0)
            response = route()
        if isinstance(response.body, bytes):
            await self._head(writer, response.status, response, f"Content-Length: {len(response.body)}")
            return await self._send(writer, response.body)
        if self._streams >= self._limits.streams:
            return await self._error(writer, HTTPStatus.SERVICE_UNAVAILABLE, "Retry-After: 10")
        self._streams += 1
        try:
            await self._head(writer, HTTPStatus.OK, response)
            async with aclosing(response.body) as pieces:
                async for piece in pieces:
                    await self._send(writer, piece)
        finally:
            self._streams -= 1

    async def _error(self, writer: asyncio.StreamWriter, status: HTTPStatus, *headers: str) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        await self._head(
            writer, status, Response("text/plain", body, headers), f"Content-Length: {len(body)}"
        )
        await self._send(writer, body)

    async def _head(
        self, writer: asyncio.StreamWriter, status: HTTPStatus, response: Response, *more: str
    ) -> None:
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {response.content_type}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Connection: close",
            *response.headers,
            *more,
        ]
        await self._send(writer, "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1"))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        for i in range(0, len(data), _PIECE_BYTES):
            async with asyncio.timeout(self._limits.send_s):
                writer.write(data[i : i + _PIECE_BYTES])
                await writer.drain()


def _asks_this_machine(head: bytes) -> bool:
    """Whether the Host of a request is a name that no outsider can give this machine."""
    fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    hosts = [value.strip() for name, _, value in fields if name.lower() == "host"]
    return len(hosts) == 1 and _THIS_MACHINE.fullmatch(hosts[0]) is not None


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client close first: closing while it still sends would destroy the answer."""
    writer.write_eof()
    async with asyncio.timeout(_HANG_UP_S):
        while await reader.read(_PIECE_BYTES):
            pass
