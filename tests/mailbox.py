"""A mail server and a webhook of a test's own, on private ports; the mail server can be told to stall."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from tests.private_server import free_port

USER, PASSWORD = "robot", "hush-hush-mail"
PATH = "hush-hush-hook"


class Mailbox:
    """Takes mail of one user. While it stalls, it accepts a mail and never says so."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, str]] = []
        """Subject and text of what was delivered."""
        self.begun = 0
        """Mails that were sent to it, stalled ones too."""
        self._open = threading.Event()
        self._open.set()

    def stall(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        """aiosmtpd's hook."""
        self.begun += 1
        while not self._open.is_set():
            await asyncio.sleep(0.05)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        body: Any = mail.get_body(("plain", "html"))
        self.mails.append((str(mail["subject"]), body.get_content()))
        return "250 OK"

    def url(self, port: int) -> str:
        """Apprise's URL of it."""
        return f"mailto://{USER}:{PASSWORD}@127.0.0.1:{port}?from=a@example.org&to=ops@example.org&mode=insecure&cto=60"


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, str]]:
    """The mailbox and its URL for Apprise."""
    box = Mailbox()

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        good = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=good, handled=good)

    port = free_port()
    controller = Controller(
        box, hostname="127.0.0.1", port=port, authenticator=authenticate, auth_require_tls=False
    )
    controller.start()
    try:
        yield box, box.url(port)
    finally:
        box.go_on()
        controller.stop()


@contextmanager
def webhook() -> Iterator[tuple[list[dict[str, Any]], str]]:
    """What was posted, and the URL for Apprise."""
    posted: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            good = self.path == f"/{PATH}"
            self.send_response(200 if good else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing: a test looks at what was posted."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield posted, f"json://127.0.0.1:{server.server_port}/{PATH}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
