"""Connections, transactions and the clock.

``Database.run(work)`` gives ``work(tx, now)`` a READ COMMITTED transaction and the database server's
time (on SQLite the host's; in tests the test's). What a database is expected to refuse (deadlock,
serialization, lock wait) is tried again here and nowhere else.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy import Row as SqlRow
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import SQLAlchemyError as SQLAlchemyError  # for those who may not import SQLAlchemy
from sqlalchemy.exc import TimeoutError as PoolTimeout

from celery_sched.errors import DatabaseUnavailable, InvalidValue
from celery_sched.store import dialects

logger = logging.getLogger("celery_sched.store")
T = TypeVar("T")
Tx = Connection
Row = SqlRow[Any]
Conflict = IntegrityError
"""A constraint refused a row: somebody else wrote the same in the same moment."""
Clock = Callable[[], datetime]
ATTEMPTS = 5
_sqlite: weakref.WeakSet[Database] = weakref.WeakSet()


def shown(url: URL) -> str:
    """A URL for people: without its password, which drivers also take from the query."""
    secret = {name: "..." for name in url.query if "pass" in name.lower()}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


class Database:
    """One database as one process sees it. Safe to use from several threads and after a fork."""

    def __init__(
        self,
        url: str,
        *,
        session_timeout: timedelta = timedelta(seconds=10),
        clock: Clock | None = None,
        pool_size: int = 5,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open nothing yet.

        :param session_timeout: longest one statement, lock wait or silent transaction may last.
        :param clock: instead of the server's clock (tests).
        :param options: what every ``tx`` has among its execution options: settings that statements need.
        """
        self.url: URL = make_url(url)
        self.dialect = dialects.of(self.url)
        self._clock = clock
        self._options = dict(options or {})
        seconds = session_timeout.total_seconds()
        if self.dialect.name == "sqlite" and not self.url.database:
            raise InvalidValue("sched_database_url", url, "SQLite in a file (several processes share it)")
        self._limit = seconds * 1.5
        kwargs: dict[str, Any] = {"connect_args": dict(self.dialect.connect_args(self.url, seconds))}
        if self.dialect.row_locks:
            # no pool_pre_ping: it would wait for a connection that swallows bytes where nothing watches it
            kwargs.update(isolation_level="READ COMMITTED")
        else:
            kwargs.update(json_deserializer=_read_json)
        self.engine: Engine = create_engine(
            self.url, pool_size=pool_size, max_overflow=pool_size, pool_timeout=seconds, **kwargs
        )
        if self.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            _sqlite.add(self)
        self._watchdog = Watchdog()
        _forget_after_fork(self)

    def run(self, work: Callable[[Tx, datetime], T], *, limit: float | None = None) -> T:
        """Do ``work`` in one transaction; commit when it returns, roll back when it raises.

        ``work`` may be called again after a refusal that is expected, so it must only touch the database.

        :param limit: seconds after which the connection is cut whatever it is doing.
        :raises DatabaseUnavailable: the database is away, or did not answer within the time-outs.
        """
        return self._attempt(work, limit, write=True)

    def read(self, work: Callable[[Tx, datetime], T], *, limit: float | None = None) -> T:
        """Like :meth:`run` for reading only (on SQLite it takes no write lock)."""
        return self._attempt(work, limit, write=False)

    def clock_ahead(self) -> timedelta:
        """How far the database's clock is ahead of this host's; zero within the error of the measurement."""
        self.read(lambda tx, now: now)  # connecting is not part of what is measured
        before = datetime.now(UTC)
        there = self.read(lambda tx, now: now)
        after = datetime.now(UTC)
        return there - min(max(there, before), after)

    def dispose(self) -> None:
        """Close the pool's connections."""
        self.engine.dispose()

    @staticmethod
    def before_fork() -> None:
        """Close idle SQLite connections: SQLite keeps its file locks in memory that a child would inherit.

        A child that has them believes in locks that are its parent's, and is refused for ever ("locking
        protocol"). To be called while no thread is inside SQLite.
        """
        for database in list(_sqlite):
            database.engine.dispose()

    def _attempt(self, work: Callable[[Tx, datetime], T], limit: float | None, *, write: bool) -> T:
        limit = limit or self._limit
        until = time.monotonic() + limit
        stale = False
        for attempt in range(1, ATTEMPTS + 1):
            begun = False
            try:
                with self._transaction(limit, write=write) as (tx, now):
                    begun = True
                    return work(tx, now)
            except DBAPIError as error:
                # several lock waits in a row would outlast what one caller may take
                again = attempt < ATTEMPTS and time.monotonic() < until
                if again and error.connection_invalidated and not begun and not stale:
                    stale = True  # broke while it lay in the pool; nothing was done on it yet
                    continue
                if again and self.dialect.is_expected(error):
                    # full jitter: two that met once should not meet again
                    time.sleep(random.uniform(0, 0.02 * 2**attempt))
                    continue
                if self.dialect.is_outage(error):
                    raise DatabaseUnavailable(
                        f"the database {self.shown} cannot be used: {error.orig}"
                    ) from error
                raise
            except PoolTimeout as error:
                raise DatabaseUnavailable(f"no connection to {self.shown} became free in time") from error
        raise AssertionError("unreachable")

    @property
    def shown(self) -> str:
        """Its URL for people."""
        return shown(self.url)

    @contextmanager
    def _transaction(self, limit: float, *, write: bool) -> Iterator[tuple[Tx, datetime]]:
        with self.engine.connect() as connection:
            connection = connection.execution_options(sched_write=write, **self._options)
            with self._watchdog.watching(connection, limit), connection.begin():
                yield connection, self._now(connection)

    def _now(self, connection: Connection) -> datetime:
        return self._clock() if self._clock is not None else now_of(connection)

    def now_in(self, connection: Connection) -> datetime:
        """Now, asked over somebody else's connection."""
        return self._now(connection)


def now_of(connection: Connection) -> datetime:
    """The clock of the database at the other end; of SQLite the host's."""
    statement = dialects.of(connection.engine.url).now
    if statement is None:
        return datetime.now(UTC)
    value: datetime = connection.execute(statement).scalar_one()
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Watchdog:
    """Cuts connections that are still busy past their limit.

    Client time-outs do not fire on a connection that swallows bytes (tried with psycopg), so a thread of
    its own shuts the socket down; the blocked call then fails at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._watched: dict[object, tuple[float, int]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, connection: Connection, limit: float) -> Iterator[None]:
        """Cut ``connection`` unless the block ends within ``limit`` seconds."""
        fd = _file_descriptor(connection)
        if fd is None:
            yield
            return
        key = object()
        with self._lock:
            self._watched[key] = (time.monotonic() + limit, fd)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="sched-watchdog", daemon=True)
                self._thread.start()
            self._lock.notify()
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(key, None)

    def _watch(self) -> None:
        with self._lock:
            while True:
                now = time.monotonic()
                for key, (deadline, fd) in list(self._watched.items()):
                    if deadline <= now:
                        del self._watched[key]
                        _shut_down(fd)
                soonest = min((deadline for deadline, _ in self._watched.values()), default=now + 60)
                self._lock.wait(max(0.01, min(soonest - now, 60)))


def _file_descriptor(connection: Connection) -> int | None:
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    sock = getattr(driver, "_sock", None)
    return None if sock is None else int(sock.fileno())


def _shut_down(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        logger.warning("cut a database connection that did not answer in time")
    except OSError:
        logger.debug("a silent database connection was gone already")


def _read_json(text: str) -> Any:
    """JSON from SQLite, which stores any text: what is none stays text: one row is wrong, not its query."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("sched_write", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _forget_after_fork(database: Database) -> None:
    """A child must not talk over its parent's sockets, nor wait for a lock that a parent's thread held."""
    reference = weakref.ref(database)

    def forget() -> None:
        alive = reference()
        if alive is not None:
            alive._watchdog = Watchdog()
            alive.engine.dispose(close=False)

    os.register_at_fork(after_in_child=forget)
