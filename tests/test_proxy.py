"""The TCP proxy fails in each of the ways that it promises (fault tests lean on it)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.private_server import wait_until
from tests.proxy import Proxy


class Echo:
    """A server that sends back what it gets, and remembers how its connections ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.received = b""
        self.ends: list[str] = []
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed: the test is over
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                while piece := client.recv(1024):
                    self.received += piece
                    client.sendall(piece)
                self.ends.append("fin")
            except ConnectionResetError:
                self.ends.append("rst")

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in [self._acceptor, *self._threads]:
            thread.join(timeout=10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def client(echo: Echo, proxy: Proxy) -> Iterator[socket.socket]:
    """A connection through the proxy that has been used once."""
    with socket.create_connection(("127.0.0.1", proxy.start(echo.port)), timeout=5) as connection:
        connection.sendall(b"hello")
        assert b"hello" == connection.recv(100)
        yield connection
    proxy.stop()


def silent(connection: socket.socket) -> bool:
    """Whether nothing comes within a moment (neither bytes nor an end)."""
    connection.settimeout(0.2)
    try:
        connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)
    return False


def test_delay_holds_each_piece_for_the_time_it_was_told(client: socket.socket, proxy: Proxy) -> None:
    """A round trip takes two delays, one each way."""
    proxy.delay(0.15)
    started = time.monotonic()
    client.sendall(b"x")
    assert b"x" == client.recv(100)
    assert time.monotonic() - started >= 0.3


def test_held_bytes_arrive_when_the_route_comes_back(client: socket.socket, proxy: Proxy) -> None:
    """hold() loses nothing."""
    proxy.hold()
    client.sendall(b"later")
    assert silent(client)
    proxy.passing()
    assert b"later" == client.recv(100)


def test_black_hole_swallows_and_the_connection_never_speaks_again(
    client: socket.socket, proxy: Proxy, echo: Echo
) -> None:
    """Bytes vanish without an error; a connection that lost some stays dead, a new one works."""
    proxy.blackhole()
    client.sendall(b"lost")
    wait_until(lambda: proxy.swallowed == 4, 5, "four bytes to be swallowed")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as swallowed:
        swallowed.sendall(b"hi")
        assert silent(swallowed)
        proxy.passing()
        assert silent(client)
        assert silent(swallowed)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as fresh:
        fresh.sendall(b"back")
        assert b"back" == fresh.recv(100)
    assert b"helloback" == echo.received


def test_lost_answers_reach_the_server_but_not_the_client(
    client: socket.socket, proxy: Proxy, echo: Echo
) -> None:
    """drop("down") is the case of a commit that happened and was never confirmed."""
    proxy.drop("down")
    client.sendall(b"commit")
    wait_until(lambda: echo.received == b"hellocommit", 5, "the server to get it")
    assert silent(client)


def test_lost_requests_do_not_reach_the_server(client: socket.socket, proxy: Proxy, echo: Echo) -> None:
    """drop("up") loses what the client sends."""
    proxy.drop("up")
    client.sendall(b"gone")
    assert silent(client)
    assert b"hello" == echo.received


def test_cut_resets_both_sides(client: socket.socket, proxy: Proxy, echo: Echo) -> None:
    """cut() is a RST for client and server; new connections work."""
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    wait_until(lambda: echo.ends == ["rst"], 5, "the server to see the reset")
    wait_until(lambda: proxy.connections == 0, 5, "the proxy to forget the connection")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as fresh:
        fresh.sendall(b"back")
        assert b"back" == fresh.recv(100)


def test_close_ends_both_sides_politely(client: socket.socket, proxy: Proxy, echo: Echo) -> None:
    """close() is a FIN for client and server."""
    proxy.close()
    assert b"" == client.recv(100)
    wait_until(lambda: echo.ends == ["fin"], 5, "the server to see the end")


def test_refuse_cuts_and_refuses_until_passing(client: socket.socket, proxy: Proxy) -> None:
    """refuse() looks like a dead server; afterwards the same port works again."""
    port = proxy.port
    proxy.refuse()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    proxy.passing()
    assert port == proxy.port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as fresh:
        fresh.sendall(b"back")
        assert b"back" == fresh.recv(100)


def test_the_end_of_a_side_is_passed_on(client: socket.socket, proxy: Proxy, echo: Echo) -> None:
    """Half a close goes through like bytes do."""
    client.shutdown(socket.SHUT_WR)
    assert b"" == client.recv(100)
    assert ["fin"] == echo.ends
