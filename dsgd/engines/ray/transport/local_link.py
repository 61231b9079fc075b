"""Messages between a driver and the processes on its machine: packets of a Unix socket, beside Ray's calls.

A message is one packet (SOCK_SEQPACKET keeps them apart and in order). Large vectors do not travel: they lie
in the driver's arena, whose descriptor goes along with the welcome. The driver unpickles nothing that comes
from a socket. The end of a link is the end of a process: nothing else closes one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dsgd.engines.ray.transport.arena import Arena, ArenaView

PACKET_BYTES = 128_000
"""More than the largest message: a socket takes packets of 208 kB as Linux is set."""

Part: TypeAlias = bytes | memoryview

_HELLO = struct.Struct("16sq")  # token, number of the link
_WELCOME = struct.Struct("q")  # length of the arena
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SPARE_DESCRIPTORS = 256


class Door:
    """The driver's end of all links.

    links: how many there may be. Any thread may call `wake`, the driver's alone everything else.
    """

    def __init__(self, arena: Arena, links: int) -> None:
        _allow_descriptors(links)
        self._arena, self.token = arena, secrets.token_bytes(16)
        self.address = b"\0dsgd-" + secrets.token_hex(16).encode()  # no file: the name goes with the socket
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listening.bind(self.address)
        self._listening.listen(min(links, 4096))
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._bell_lock = threading.Lock()
        self._epoll = select.epoll()
        self._epoll.register(self._listening, select.EPOLLIN)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._strangers: dict[int, socket.socket] = {}  # by descriptor: they have not said who they are
        self._sockets: dict[int, socket.socket] = {}  # by number of the link
        self._numbers: dict[int, int] = {}  # the same links, by descriptor
        self._outboxes: dict[int, deque[Sequence[Part]]] = {}  # by number: what a full socket did not take
        self._ready: deque[tuple[int, int]] = deque()
        self._packet = bytearray(PACKET_BYTES)
        self._shown = memoryview(self._packet)

    def wake(self) -> None:
        """Have `receive` return; nothing once the door is closed."""
        with self._bell_lock:  # a closed descriptor's number may be another file's
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def send(self, number: int, *parts: Part) -> None:
        """Send a message, now or, where the other side does not read, when it does; never wait."""
        outbox = self._outboxes.get(number)
        if outbox is None:
            try:
                self._sockets[number].sendmsg(parts)
            except BlockingIOError:
                self._outboxes[number] = deque([parts])
                self._epoll.modify(self._sockets[number], select.EPOLLIN | select.EPOLLOUT)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has ended, as `receive` will say
        else:
            outbox.append(parts)

    def receive(self, timeout_s: float) -> tuple[int, memoryview | None] | None:
        """Wait for a message; return the link's number and the message, which the next call overwrites.

        An empty message: the link has ended, and so has the process. None instead of one: the link is new.
        None alone: after `timeout_s` seconds, or a call of `wake`.
        """
        while True:
            if not self._ready:
                self._ready.extend(self._epoll.poll(timeout_s))
                if not self._ready:
                    return None
            descriptor, event = self._ready.popleft()
            number = self._numbers.get(descriptor)
            if number is not None:
                if event & ~select.EPOLLOUT:
                    return number, self._read(number)
                self._flush(number)
            elif descriptor == self._bell:
                os.eventfd_read(self._bell)
                return None
            elif descriptor in self._strangers:
                if (number := self._admitted(descriptor)) is not None:
                    return number, None
            elif descriptor == self._listening.fileno():
                self._accept()

    def has_answered(self, number: int) -> bool:
        """Whether a message of this link is waiting to be received."""
        with contextlib.suppress(OSError):
            return number in self._sockets and bool(self._sockets[number].recv(1, socket.MSG_PEEK))
        return False

    def close(self) -> None:
        """Close all links."""
        self._epoll.close()
        for link in (self._listening, *self._strangers.values(), *self._sockets.values()):
            link.close()
        with self._bell_lock:
            os.close(self._bell)
            self._bell = -1

    def _read(self, number: int) -> memoryview:
        try:
            size = self._sockets[number].recv_into(self._packet)
        except ConnectionResetError:
            size = 0
        if not size:
            link = self._sockets.pop(number)
            self._epoll.unregister(link)
            del self._numbers[link.fileno()]
            self._outboxes.pop(number, None)
            link.close()
        return self._shown[:size]

    def _flush(self, number: int) -> None:
        """Send what had to wait."""
        outbox, link = self._outboxes[number], self._sockets[number]
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while outbox:
                link.sendmsg(outbox[0])
                outbox.popleft()
            del self._outboxes[number]
            self._epoll.modify(link, select.EPOLLIN)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            link, _ = self._listening.accept()
            link.setblocking(False)
            if _is_same_user(link):
                self._strangers[link.fileno()] = link
                self._epoll.register(link, select.EPOLLIN)
            else:
                link.close()

    def _admitted(self, descriptor: int) -> int | None:
        """Return the number of a link that has shown the token; close any other."""
        link = self._strangers.pop(descriptor)
        try:
            hello = link.recv(_HELLO.size + 1)
        except OSError:
            hello = b""
        token, number = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1)
        if not secrets.compare_digest(token, self.token) or number in self._sockets:
            self._epoll.unregister(link)
            link.close()
            return None
        try:
            socket.send_fds(link, [_WELCOME.pack(self._arena.size)], [self._arena.descriptor])
        except (BrokenPipeError, ConnectionResetError):  # the process has ended meanwhile
            self._epoll.unregister(link)
            link.close()
            return None
        self._sockets[number], self._numbers[descriptor] = link, number
        return int(number)


class HostLink:
    """A process's end of its link.

    is_stop: says of a message whether it only stops tasks: then `stopped` has been given it, and no one else
    gets it. Raises OSError if no driver of the same user answers there.
    """

    def __init__(
        self, address: bytes, token: bytes, number: int, stopped: Callable[[memoryview], bool]
    ) -> None:
        self._stopped = stopped
        self._waiting: deque[bytes] = deque()
        self._packet = bytearray(PACKET_BYTES)
        self._shown = memoryview(self._packet)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(address)
            if not _is_same_user(self._socket):
                raise PermissionError("the driver is another user's process")
            self._socket.send(_HELLO.pack(token, number))
            welcome, descriptors, _, _ = socket.recv_fds(self._socket, _WELCOME.size, 1)
            if not descriptors:
                raise ConnectionError("the driver has refused this process")
            self.arena = ArenaView(descriptors[0], *_WELCOME.unpack(welcome))
        except BaseException:
            self._socket.close()
            raise

    def next(self) -> bytes:
        """Wait for a message and return it; empty if the driver has ended.

        Whatever has come is looked at first: it may stop the very task that is next.
        """
        while not self._waiting:
            self._read()
        with contextlib.suppress(BlockingIOError):
            while self._waiting[-1]:
                self._read(socket.MSG_DONTWAIT)
        return self._waiting.popleft()

    def wait(self, seconds: float, ended: Callable[[], bool]) -> None:
        """Wait for so long, or until a message makes `ended` true."""
        until_s = time.perf_counter() + seconds
        while not ended() and (left_s := until_s - time.perf_counter()) > 0:
            # Of the ways to wait, only this one counts in less than milliseconds.
            if select.select([self._socket], [], [], left_s)[0]:
                self._read()
                if self._waiting and not self._waiting[-1]:
                    return

    def send(self, *parts: Part) -> None:
        """Send a message."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `next` will say so
            self._socket.sendmsg(parts)

    def _read(self, flags: int = 0) -> None:
        try:
            size = self._socket.recv_into(self._packet, 0, flags)
        except ConnectionResetError:
            size = 0
        if not size or not self._stopped(self._shown[:size]):
            self._waiting.append(bytes(self._shown[:size]))


def _is_same_user(link: socket.socket) -> bool:
    """Whether the process at the other end is one of the same user, as the kernel says."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _allow_descriptors(links: int) -> None:
    """Raise this process's limit of open files, where it is allowed to, if so many links may need more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + links + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
