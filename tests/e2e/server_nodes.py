"""The tests' private servers as the containers of pytest-celery's broker and backend nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pytest_celery import CeleryTestContainer

from tests.e2e.nodes import signal_number
from tests.private_server import Server


class ServerContainer(CeleryTestContainer):  # type: ignore[misc]
    """A private server as the container of a broker or backend node. ``url`` is this node's part of it."""

    def __init__(self, server: Server, url: str) -> None:
        self._server, self._url = server, url

    @property
    def id(self) -> str:
        return f"{self._server.port:x}".rjust(12, "0")

    @property
    def name(self) -> str:
        return f"{type(self._server).__name__}-{self._server.port}"

    @property
    def status(self) -> str:
        return "running" if self._server.ready() else "exited"

    @property
    def celeryconfig(self) -> dict[str, Any]:
        parts = urlsplit(self._url)
        return {
            "url": self._url,
            "host_url": self._url,
            "hostname": parts.hostname,
            "port": parts.port,
            "vhost": parts.path.lstrip("/"),
        }

    def reload(self) -> None:
        """Nothing is kept that could be outdated."""

    def logs(self) -> str:
        return self._server.log.read_text(errors="replace")

    def ready(self) -> bool:
        self._server.heal()
        return self._server.ready()

    def kill(self, signal: str | int | None = None) -> None:
        if signal_number(signal) == signal_number("SIGKILL"):
            self._server.kill()
        else:
            self._server.stop()

    def restart(self, timeout: float = 30) -> None:
        self._server.heal()
        self._server.restart()

    def pause(self) -> None:
        self._server.pause()

    def unpause(self) -> None:
        self._server.resume()

    def teardown(self) -> None:
        """The server is the session's; the next test finds it running."""
        self._server.heal()
