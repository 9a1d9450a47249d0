"""A web server of a test's own, on a private port; it remembers what it was asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Site:
    """Answers by path: a status, headers and a body, or whatever a function does with the request."""

    address: str = "127.0.0.1"
    certificate: Path | None = None
    answers: dict[str, tuple[int, dict[str, str], bytes] | Callable[[Any], None]] = field(
        default_factory=dict
    )
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> Site:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size).decode()
                site.asked.append(Asked(self.command, self.path, dict(self.headers.items()), body))
                found = site.answers.get(self.path.partition("?")[0], (404, {}, b"nothing here"))
                if callable(found):
                    found(self)
                    self.close_connection = True
                    return
                status, headers, content = found
                self.send_response(status)
                for name, text in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, text)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that hangs up is what some tests are about."""

        self.server = Server((self.address, 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join(10)
        self.server.server_close()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def url(self, path: str = "/", host: str | None = None) -> str:
        """Where it answers."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{host or self.address}:{self.port}{path}"
