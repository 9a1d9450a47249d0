"""A server that speaks the chat completion protocol, well or badly, as its script says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
Answer = Callable[["Talk"], None]


class Talk(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: Site
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = json.loads(raw)
        model = body.get("model")
        with self.server.lock:
            self.server.asked.append(
                {"path": self.path, "headers": dict(self.headers), "body": body, "at": time.monotonic()}
            )
            script = self.server.script.get(model, self.server.script.get("*", []))
            answer = script.pop(0) if len(script) > 1 else script[0]
        try:
            answer(self)
        except (BrokenPipeError, ConnectionResetError):
            self.server.hung_up.set()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the tests' output."""

    def head(self, status: int, kind: str, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()


class Site(ThreadingHTTPServer):
    """The server: ``script`` has, by model (or ``*``), the answers in turn; the last one stays."""

    daemon_threads = True
    request_queue_size = 20

    def __init__(self, script: dict[str, list[Answer]]) -> None:
        self.script, self.lock = script, threading.Lock()
        self.asked: list[dict[str, Any]] = []
        self.ended, self.hung_up = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Talk)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def models(self) -> list[str]:
        """Which models were asked, in order."""
        return [request["body"]["model"] for request in self.asked]


@contextmanager
def site(script: dict[str, list[Answer]] | list[Answer]) -> Iterator[Site]:
    """A running server; answers that stall end with it."""
    server = Site(script if isinstance(script, dict) else {"*": script})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def says(content: str, **more: Any) -> Answer:
    """A whole answer."""

    def answer(talk: Talk) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        value = {"model": "as-served", "choices": [choice], "usage": USAGE, **more}
        raw = json.dumps(value).encode()
        talk.head(200, "application/json", len(raw))
        talk.wfile.write(raw)

    return answer


def body(status: int, text: str, **headers: str) -> Answer:
    """An answer of that status and text."""

    def answer(talk: Talk) -> None:
        raw = text.encode()
        talk.head(status, "application/json", len(raw), **headers)
        talk.wfile.write(raw)

    return answer


def error(http: int, /, **fields: Any) -> Answer:
    """An error as these servers write it."""
    return body(http, json.dumps({"error": fields}))


def streams(*parts: str, end: bool = True, usage: bool = True) -> Answer:
    """A stream; without ``end`` it breaks off after the parts."""

    def answer(talk: Talk) -> None:
        talk.head(200, "text/event-stream")
        talk.event(json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}))
        for part in parts:
            talk.event(json.dumps({"choices": [{"index": 0, "delta": {"content": part}}]}))
        if end:
            talk.event(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
            if usage:
                talk.event(json.dumps({"choices": [], "usage": USAGE}))
            talk.event("[DONE]")

    return answer


def stalls(talk: Talk) -> None:
    """Takes the request and says nothing."""
    talk.server.ended.wait()


def stalls_within(*parts: str) -> Answer:
    """A stream that falls silent and stays open."""

    def answer(talk: Talk) -> None:
        streams(*parts, end=False)(talk)
        talk.server.ended.wait()

    return answer


def trickles(text: str, every: float) -> Answer:
    """One byte at a time, without an end: no time-out between two bytes notices it."""

    def answer(talk: Talk) -> None:
        talk.head(200, "text/event-stream")
        while not talk.server.ended.wait(every):
            talk.wfile.write(text.encode())
            talk.wfile.flush()

    return answer


def trickles_head(every: float) -> Answer:
    """A head that never ends, one byte at a time."""

    def answer(talk: Talk) -> None:
        talk.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not talk.server.ended.wait(every):
            talk.wfile.write(b"x")
            talk.wfile.flush()

    return answer


def hangs_up(talk: Talk) -> None:
    """Closes the connection without a word."""


def short(talk: Talk) -> None:
    """Announces more bytes than it sends."""
    talk.head(200, "application/json", 5000)
    talk.wfile.write(b'{"choices": [')
