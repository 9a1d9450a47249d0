"""Which addresses a job of the type `http` may call, and the connection to just that address.

A name is looked up once, what it stands for is checked, and the connection is made to what was checked: a
name that stands for something else a moment later (DNS rebinding) leads nowhere.
"""

from __future__ import annotations

import fnmatch
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import SchedulerError

Address = IPv4Address | IPv6Address
NAT64 = ip_network("64:ff9b::/96")


class AddressRefused(SchedulerError):
    """A host that jobs of this worker may not call."""


@dataclass(frozen=True)
class Policy:
    """Who may be called."""

    hosts: tuple[str, ...] | None
    """Patterns of names, and networks; ``None``: every public address."""
    allow_private: bool

    @classmethod
    def of(cls, settings: Config) -> Policy:
        """What a worker's settings say."""
        return cls(settings.http_allowed_hosts, settings.http_allow_private)

    def check_name(self, host: str) -> None:
        """Refuse a host by its name, before it is looked up.

        :raises AddressRefused: it is not on the list, and no network on the list could hold it.
        """
        if self.hosts is None or self._named(host) or any(_network(one) for one in self.hosts):
            return
        allowed = ", ".join(self.hosts) or "none"
        raise AddressRefused(
            f"jobs of this worker may not call {host}: sched_http_allowed_hosts has {allowed}"
        )

    def allows(self, host: str, address: Address) -> bool:
        """Whether a host may be called at this address."""
        inner = _inner(address)
        if self.hosts is None:
            return self.allow_private or is_public(inner)
        if any(inner in network for one in self.hosts if (network := _network(one))):
            return True
        pattern = self._named(host)
        # `*` is every host, so it says nothing about one of ours in particular
        return pattern is not None and (self.allow_private or pattern != "*" or is_public(inner))

    def _named(self, host: str) -> str | None:
        """The pattern that names a host: one that says more than ``*`` first."""
        patterns = sorted(self.hosts or (), key=lambda one: one == "*")
        return next((one for one in patterns if fnmatch.fnmatchcase(host, one)), None)


def is_public(address: Address) -> bool:
    """Whether an address is anybody's: not private, loopback, link-local (cloud metadata), multicast, ...

    An IPv4 address within an IPv6 one is looked at as what it is.
    """
    inner = _inner(address)
    return inner.is_global and not inner.is_multicast and not getattr(inner, "is_site_local", False)


def _inner(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo is not None else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _network(text: str) -> Any:
    """``10.0.0.0/8``; an address alone is a host's name like any other."""
    return ip_network(text) if "/" in text else None


class Deadline:
    """The end of the time that a whole call has, however many connections and reads it takes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left.

        :raises TimeoutError: none are.
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {self.seconds:g} s")
        return left


def look_up(host: str, port: int, policy: Policy, deadline: Deadline) -> list[Address]:
    """The addresses of a host that may be called, in the resolver's order.

    :raises AddressRefused: none may be.
    :raises ConnectionError: it has none.
    """
    policy.check_name(host)
    found = _resolve(host, port, deadline)
    allowed = [address for address in found if policy.allows(host, address)]
    if not allowed:
        said = ", ".join(map(str, found))
        hint = f"Name {host} in sched_http_allowed_hosts to allow it, or set sched_http_allow_private."
        what = (
            "which is no public address" if policy.hosts is None or policy.hosts == ("*",) else "not allowed"
        )
        raise AddressRefused(f"jobs of this worker may not call {host} at {said}, {what}. {hint}")
    return allowed


def _resolve(host: str, port: int, deadline: Deadline) -> list[Address]:
    """In a thread, because the system's resolver knows no time-out."""
    found: list[Address] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(ip_address(str(answer[4][0])) for answer in answers)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=ask, name="sched-http-lookup", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if thread.is_alive():
        raise TimeoutError(f"{host} was not looked up within {deadline.seconds:g} s")
    if failed:
        # a gaierror is none of Python's ConnectionErrors, for which jobs are told to look
        raise ConnectionError(f"{host}: {failed[0].strerror or failed[0]}") from failed[0]
    return list(dict.fromkeys(found))


class _Timed:
    """A socket whose calls last until the deadline at most: a server that drips cannot stretch it."""

    deadline: Deadline

    def recv_into(self: Any, *args: Any, **kwargs: Any) -> int:
        self.settimeout(self.deadline.left())
        return int(super().recv_into(*args, **kwargs))  # type: ignore[misc]

    def sendall(self: Any, *args: Any, **kwargs: Any) -> None:
        self.settimeout(self.deadline.left())
        super().sendall(*args, **kwargs)  # type: ignore[misc]


class _TimedSocket(_Timed, socket.socket):
    pass


class _TimedTls(_Timed, ssl.SSLSocket):
    def send(self, *args: Any, **kwargs: Any) -> int:  # what its sendall is made of
        self.settimeout(self.deadline.left())
        return super().send(*args, **kwargs)


class Connection(http.client.HTTPConnection):
    """A connection to one of the addresses that were checked; the certificate is the host's."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[Address],
        deadline: Deadline,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(host, port)
        self.default_port = 80 if tls is None else 443
        self._addresses, self._deadline, self._tls = addresses, deadline, tls

    def connect(self) -> None:
        """Try the addresses in turn.

        :raises OSError: none of them answers.
        """
        problem: OSError | None = None
        for address in self._addresses:
            try:
                self.sock = self._connected(address)
                return
            except TimeoutError:
                raise
            except OSError as error:
                problem = problem or error
        assert problem is not None
        raise problem

    def _connected(self, address: Address) -> Any:
        family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
        sock: Any = _TimedSocket(family, socket.SOCK_STREAM)
        try:
            sock.deadline = self._deadline
            sock.settimeout(self._deadline.left())
            sock.connect((str(address), self.port))
            if self._tls is not None:
                self._tls.sslsocket_class = _TimedTls
                sock.settimeout(self._deadline.left())
                sock = self._tls.wrap_socket(sock, server_hostname=self.host)
                sock.deadline = self._deadline
        except BaseException:
            sock.close()
            raise
        return sock
