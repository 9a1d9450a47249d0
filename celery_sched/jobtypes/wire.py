"""A connection whose every wait is bounded: connecting, silence, and the request as a whole.

The time-outs of HTTP libraries are between two bytes: a server that sends one byte a second keeps such a call
for ever. Here each wait for the socket lasts until the earliest of its limits, in slices, so that the caller
is asked now and then whether to go on.
"""

from __future__ import annotations

import io
import math
import queue
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SLICE = 1.0
"""Seconds of waiting after which the caller is asked whether to go on."""

Resolve = Callable[[str, int], list[str]]
"""Host and port to the addresses that may be asked; raises for one that may not."""


class Unreachable(Exception):
    """No whole answer: no connection, or it broke, or a limit was reached. The text says which."""


@dataclass(frozen=True)
class Limits:
    """Seconds. ``deadline`` is an instant of :func:`time.monotonic` that nothing may pass."""

    deadline: float
    connect: float
    idle: float
    """Longest silence."""
    size: int = 16 << 20
    """Longest answer, in bytes."""


def addresses(host: str, port: int) -> list[str]:
    """All addresses of a host, in the order in which they are to be tried."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


class Wire(io.RawIOBase):
    """A socket to one server, as http.client wants it, with our limits on each wait."""

    def __init__(self, limits: Limits, alive: Callable[[], None]) -> None:
        """``alive`` is called at least once in :data:`SLICE` seconds; what it raises ends the request."""
        self.limits, self._alive = limits, alive
        self._sock: socket.socket | None = None

    def connect(
        self, scheme: str, host: str, port: int, resolve: Resolve, tls: ssl.SSLContext | None
    ) -> None:
        """Connect to the first address that answers.

        :raises Unreachable: none did, in time.
        """
        until = time.monotonic() + self.limits.connect
        problem = "the name has no address"
        for address in self._resolved(host, port, resolve, until):
            left = min(until, self.limits.deadline) - time.monotonic()
            if left <= 0:
                problem = f"no connection within {self._shown(self.limits.connect)}"
                break
            try:
                self._sock = socket.create_connection((address, port), left)
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if scheme == "https":
                    context = tls or ssl.create_default_context()
                    self._sock.settimeout(max(0.01, min(until, self.limits.deadline) - time.monotonic()))
                    self._sock = context.wrap_socket(self._sock, server_hostname=host)
                self._sock.setblocking(False)
                return
            except TimeoutError:
                problem = f"no connection within {self._shown(self.limits.connect)}"
            except OSError as error:
                problem = f"no connection: {error}"
            self.close()
        raise Unreachable(problem)

    # what http.client uses

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        quiet_since = time.monotonic()
        while view:
            try:
                sent = self._socket.send(view)
                view, quiet_since = view[sent:], time.monotonic()
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(quiet_since, write=True)
            except ssl.SSLWantReadError:
                self._wait(quiet_since)

    def makefile(self, mode: str, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        quiet_since = time.monotonic()
        while True:
            self._past(quiet_since)  # bytes that trickle in are no reason to pass the deadline
            try:
                return self._socket.recv_into(buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(quiet_since)
            except ssl.SSLWantWriteError:
                self._wait(quiet_since, write=True)

    def close(self) -> None:
        """End the connection itself; http.client's reader, which is this object too, closes nothing else."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    @property
    def _socket(self) -> socket.socket:
        if self._sock is None:
            raise OSError("it was closed")
        return self._sock

    def _wait(self, quiet_since: float, *, write: bool = False) -> None:
        """Until the socket is ready, or the slice is over."""
        left = min(SLICE, *self._left(quiet_since))
        ready = select.poll()  # select() takes no descriptor above 1023
        ready.register(self._socket, select.POLLOUT if write else select.POLLIN)
        ready.poll(math.ceil(max(0.0, left) * 1000))
        self._alive()
        self._past(quiet_since)

    def _past(self, quiet_since: float) -> None:
        silence, rest = self._left(quiet_since)
        if rest <= 0:
            raise Unreachable("its time was over before the answer was whole")
        if silence <= 0:
            raise Unreachable(f"no byte came for {self._shown(self.limits.idle)}")

    def _left(self, quiet_since: float) -> tuple[float, float]:
        now = time.monotonic()
        return quiet_since + self.limits.idle - now, self.limits.deadline - now

    def _resolved(self, host: str, port: int, resolve: Resolve, until: float) -> list[str]:
        """In a thread that is left behind when the name server is silent: the call itself has no time-out."""
        found: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                found.put(resolve(host, port))
            except Exception as error:
                found.put(error)

        threading.Thread(target=ask, name="sched-resolve", daemon=True).start()
        while True:
            left = min(until, self.limits.deadline) - time.monotonic()
            if left <= 0:
                raise Unreachable(
                    f"the name {host!r} was not found within {self._shown(self.limits.connect)}"
                )
            try:
                answer = found.get(timeout=min(left, SLICE))
            except queue.Empty:
                self._alive()
                continue
            if isinstance(answer, OSError):
                raise Unreachable(f"the name {host!r} was not found: {answer}") from answer
            if isinstance(answer, Exception):
                raise answer
            return answer

    @staticmethod
    def _shown(seconds: float) -> str:
        return f"{seconds:g} s"
