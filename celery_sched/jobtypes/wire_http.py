"""One HTTP request over a bounded connection (``wire``), and its answer as it comes."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TypeVar
from urllib.parse import urlsplit

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.wire import Limits, Resolve, Unreachable, Wire, addresses

R = TypeVar("R")
LONGEST_LINE = 1 << 20
CHUNK = 64 * 1024
ACCEPTED = ("http", "https")


@dataclass(frozen=True)
class Answer:
    """The head of an answer, and its body as it comes. To be closed."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    response: HTTPResponse
    wire: Wire

    def lines(self) -> Iterator[str]:
        """The lines of the body as they arrive; ends where the body ends, whole or not.

        :raises Unreachable: a limit was reached, or the connection broke.
        """
        size = 0
        while True:
            raw = _caught(lambda: self.response.readline(LONGEST_LINE))
            if not raw:
                return
            size += len(raw)
            self._bound(size)
            if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                raise Unreachable(f"a line of the answer is longer than {LONGEST_LINE} bytes")
            yield raw.decode("utf-8", "replace").rstrip("\r\n")

    def chunks(self) -> Iterator[bytes]:
        """The bytes of the body as they arrive.

        :raises Unreachable: as :meth:`body`.
        """
        size = 0
        while chunk := _caught(lambda: self.response.read1(CHUNK)):
            size += len(chunk)
            self._bound(size)
            yield chunk
        self._whole()

    def body(self) -> bytes:
        """The whole body.

        :raises Unreachable: as :meth:`lines`; also for a body shorter than announced.
        """
        raw = _caught(lambda: self.response.read(self.wire.limits.size + 1))
        self._bound(len(raw))
        self._whole()
        return raw

    def close(self) -> None:
        self.response.close()
        self.wire.close()

    def _whole(self) -> None:
        missing = self.response.length  # what was announced and never came
        if missing:
            raise Unreachable(f"the connection ended {missing} bytes before the answer did")

    def _bound(self, size: int) -> None:
        if size > self.wire.limits.size:
            raise Unreachable(f"the answer is longer than {self.wire.limits.size} bytes")


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    limits: Limits,
    alive: Callable[[], None],
    *,
    resolve: Resolve = addresses,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request and return the head of what is answered. Redirects are answers like any other.

    :raises Unreachable: no head came within the limits.
    """
    parts = urlsplit(url)
    if parts.scheme not in ACCEPTED or not parts.hostname or not math.isfinite(limits.deadline):
        raise InvalidValue("url", url, "http:// or https:// and a host")
    wire = Wire(limits, alive)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = HTTPConnection(parts.netloc.rpartition("@")[2])
    connection.sock = wire  # all that it does with it is sendall
    response = HTTPResponse(wire, method=method)  # type: ignore[arg-type]  # it only asks for makefile

    def exchange() -> None:
        connection.request(method, target, body, {**headers, "Connection": "close"})
        response.begin()

    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        wire.connect(parts.scheme, parts.hostname, port, resolve, tls)
        _caught(exchange)
    except BaseException:
        wire.close()
        raise
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response, wire)


def _caught(work: Callable[[], R]) -> R:
    """What ``work`` returns; errors of connection and protocol as ours."""
    try:
        return work()
    except HTTPException as error:
        raise Unreachable(f"the answer broke off or is no HTTP: {error!r}") from error
    except OSError as error:
        raise Unreachable(f"the connection broke: {error}") from error
