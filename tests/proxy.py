"""A TCP proxy between a client and a server, for the ways in which a network fails.

Runs in a thread of its own; every method may be called from any thread and returns when it has taken
effect. States hold until the next one is chosen:

    passing()      bytes go through (the state at start)
    delay(0.2)     each piece waits that long, each way
    hold()         bytes are kept and delivered later, as over a route that comes back
    blackhole()    bytes are swallowed both ways, new connections are accepted and swallowed too
    drop("up")     swallowed one way: "up" = to the server (lost requests), "down" = lost answers
    refuse()       open connections are cut, new ones get "connection refused"

A connection that lost a byte stays silent for ever, also after passing(): its two sides no longer agree
on where they are in the stream. Things done once, to the connections that are open: `cut()` (RST),
`close()` (FIN).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Literal

Way = Literal["up", "down"]


class _Connection:
    """One client's connection and ours to the server (None when it was swallowed from the start)."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter | None) -> None:
        self.client, self.server = client, server
        self.lost: set[Way] = set()
        """The ways on which this connection lost bytes."""

    def abort(self) -> None:
        """RST to both sides: SO_LINGER 0 makes the close a reset."""
        for writer in (self.client, self.server):
            if writer is not None:
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):  # closed already
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    def close(self) -> None:
        """FIN to both sides."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.close()


class Proxy:
    """See the module. `with Proxy() as proxy: proxy.start(server_port); connect to proxy.port`."""

    def __init__(self) -> None:
        self.port = 0
        self.accepted = 0
        """Connections accepted so far."""
        self.swallowed = 0
        """Bytes swallowed so far, both ways."""
        self._target = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._listener: asyncio.Server | None = None
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        self._swallow: frozenset[Way] = frozenset()
        self._flowing = asyncio.Event()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, target_port: int) -> int:
        """Listen on a free loopback port for the server at `target_port`; returns the port."""
        self._target = target_port
        self._call(self._listen())
        self.passing()
        return self.port

    def stop(self) -> None:
        """Cut everything and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def passing(self) -> None:
        """Bytes go through."""
        self._call(self._set(frozenset(), 0.0, True))

    def delay(self, seconds: float) -> None:
        """Each piece waits so long, each way."""
        self._call(self._set(frozenset(), seconds, True))

    def hold(self) -> None:
        """Nothing goes through now; it does after the next `passing()`."""
        self._call(self._set(frozenset(), 0.0, False))

    def blackhole(self) -> None:
        """Bytes are swallowed both ways."""
        self._call(self._set(frozenset({"up", "down"}), 0.0, True))

    def drop(self, way: Way) -> None:
        """Bytes are swallowed one way."""
        self._call(self._set(frozenset({way}), 0.0, True))

    def refuse(self) -> None:
        """Open connections are cut, new ones refused, until another state is chosen."""
        self._call(self._refuse())

    def cut(self) -> None:
        """RST to all open connections, both sides."""
        self._call(self._each(_Connection.abort))

    def close(self) -> None:
        """FIN to all open connections, both sides."""
        self._call(self._each(_Connection.close))

    # From here on: in the proxy's thread.

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _listen(self) -> None:
        if self._listener is None:
            # The same port again after refuse(): clients keep their URL.
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _set(self, swallow: frozenset[Way], delay: float, flowing: bool) -> None:
        self._swallow, self._delay = swallow, delay
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()
        await self._listen()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._each(_Connection.abort)

    async def _each(self, act: Any) -> None:
        for connection in list(self._open):
            act(connection)

    async def _shut(self) -> None:
        await self._refuse()
        # what was accepted just now has its task within a few turns; one that never began closes nothing
        for _ in range(10):
            await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        connection = _Connection(client, None)
        self._open.add(connection)
        try:
            if "up" in self._swallow:
                # The server never hears of it, and the client is none the wiser.
                connection.lost.update(("up", "down"))
                await self._pump(connection, "up", reader)
                return
            try:
                answers, connection.server = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                connection.abort()  # the server is down: its own clients would see a refusal
                return
            await asyncio.gather(
                self._pump(connection, "up", reader), self._pump(connection, "down", answers)
            )
        except asyncio.CancelledError:
            connection.abort()
        finally:
            self._open.discard(connection)
            self._tasks.discard(task)
            connection.close()

    async def _pump(self, connection: _Connection, way: Way, source: asyncio.StreamReader) -> None:
        """Carry bytes one way until that side says that there are no more, and pass that on too."""
        target = connection.server if way == "up" else connection.client
        try:
            while piece := await source.read(65536):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                if way in self._swallow:
                    connection.lost.add(way)
                if way in connection.lost or target is None:
                    self.swallowed += len(piece)
                    continue
                target.write(piece)
                await target.drain()
            await self._flowing.wait()
            # The end of a stream is swallowed like its bytes.
            if target is not None and way not in connection.lost | self._swallow and target.can_write_eof():
                target.write_eof()
        except OSError:
            connection.abort()  # one side was reset: so is the other
