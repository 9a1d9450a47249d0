"""Databases that are not the scheduler's own: what jobs of the types ``sql`` and ``task`` ask of them.

A connection of its own for each run, closed after it: nothing is shared with a child process, and a run that
is killed leaves a session that its server notices.
"""

from __future__ import annotations

import base64
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as TimeOfDay
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, DateTime, bindparam, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.exc import SQLAlchemyError as SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_sched.config import unsecret
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.store import dialects
from celery_sched.store.engine import Watchdog, shown

T = TypeVar("T")
SHOWN = 300
"""Characters of a statement that an error shows."""
LONGEST_CELL = 1000
COUNTED = 10_000
"""Rows of a query that are counted, where the driver does not say how many there are."""
UNKNOWN = 2**62
"""As a number of rows: what drivers say whose number is not negative, and means -1."""
_QUERY = re.compile(r"\s*(select|values|table)\b", re.IGNORECASE)
LATE = 5.0
"""Seconds after its time at which a connection whose server does not end a statement is cut."""
STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock: some milliseconds."""


class StatementFailed(SchedulerError):
    """A database refused a statement; nothing of the run's transaction was kept."""


@dataclass(frozen=True)
class Done:
    """What one statement did."""

    rows: int | None
    """Rows that it matched or gave; None where the driver does not say."""
    columns: tuple[str, ...] | None
    """Of a statement that gives rows."""
    kept: tuple[tuple[Any, ...], ...] = ()


def parameters_of(statement: str) -> frozenset[str]:
    """The names of a statement's parameters: ``:name``."""
    return frozenset(text(statement).compile().params)


def password_of(url: str) -> str | None:
    """The password in a URL, if it can be read and has one."""
    try:
        password = make_url(url).password
    except ArgumentError:
        return None
    return None if password is None else str(password)


@dataclass(frozen=True)
class Statements:
    """What is to be done in one database."""

    url: str
    statements: Sequence[str]
    parameters: Mapping[str, Any]
    """Bound by the driver, never written into the statement."""
    keep: int
    timeout: timedelta
    transaction: bool = True
    """All in one; else each statement is committed by itself."""
    longest: int | None = LONGEST_CELL
    """Characters kept of one value."""

    def run(self) -> list[Done]:
        """Do them in turn.

        :raises StatementFailed: naming the statement; nothing was kept (with ``transaction``).
        :raises TimeoutError: they took too long; nothing was kept either.
        :raises InvalidValue: a URL, or a parameter that is not given.
        """
        seconds = self.timeout.total_seconds()
        until = time.monotonic() + seconds
        done: list[Done] = []
        with _connected(self.url, seconds, self._begin()) as connection:
            for at, statement in enumerate(self.statements, 1):
                try:
                    _limit(connection, until - time.monotonic())
                    done.append(self._one(connection, statement))
                except SQLAlchemyError as error:
                    said = getattr(error, "orig", None) or error
                    which = f"statement {at} of {len(self.statements)}" if len(self.statements) > 1 else "it"
                    if time.monotonic() >= until:
                        raise TimeoutError(f"{which} did not end within {seconds:g} s: {said}") from error
                    raise StatementFailed(f"{which} was refused: {said}\n{_short(statement)}") from error
        return done

    def _begin(self) -> str | None:
        """How SQLite begins: one that will write waits for its turn at once, not in the middle."""
        if not self.transaction:
            return None
        reads = all(
            statement.lstrip().lower().startswith(("select", "values")) for statement in self.statements
        )
        return "BEGIN" if reads else "BEGIN IMMEDIATE"

    def _one(self, connection: Connection, statement: str) -> Done:
        wanted = parameters_of(statement)
        missing = sorted(wanted - self.parameters.keys())
        if missing:
            raise InvalidValue("a parameter of the statement", missing[0], "it is given in parameters")
        bound = text(statement).bindparams(*map(self._bound, sorted(wanted)))
        # row by row, not all of it into this process; drivers make a cursor for that, which only queries have
        result = connection.execute(bound.execution_options(stream_results=bool(_QUERY.match(statement))))
        told = result.rowcount if 0 <= result.rowcount < UNKNOWN else None
        if not result.returns_rows:
            return Done(told, None)
        columns = tuple(result.keys())
        kept = [] if not self.keep else result.fetchmany(self.keep)
        rows = told if told is not None else _counted(result, len(kept))
        result.close()
        return Done(rows, columns, tuple(tuple(plain(cell, self.longest) for cell in row) for row in kept))

    def _bound(self, name: str) -> Any:
        value = self.parameters[name]
        return bindparam(name, value, DateTime(timezone=True) if isinstance(value, datetime) else None)


def asked(url: str, statement: str, timeout: timedelta, work: Callable[[Connection], T]) -> T:
    """What ``work`` reads, in a transaction that writes nothing; ``statement``: what an error shows.

    :raises StatementFailed: the database refused it, or cannot be reached.
    :raises TimeoutError: it took too long.
    """
    seconds = timeout.total_seconds()
    until = time.monotonic() + seconds
    with _connected(url, seconds, "BEGIN") as connection:
        try:
            _limit(connection, until - time.monotonic())
            return work(connection)
        except SQLAlchemyError as error:
            said = getattr(error, "orig", None) or error
            if time.monotonic() >= until:
                raise TimeoutError(f"the query did not end within {seconds:g} s: {said}") from error
            raise StatementFailed(f"the query was refused: {said}\n{_short(statement)}") from error


def _counted(result: Any, rows: int) -> int | None:
    """How many rows there are, unless there are very many: they would all have to be sent."""
    while rows < COUNTED:
        more = len(result.fetchmany(500))
        if not more:
            return rows
        rows += more
    return None


@contextmanager
def _connected(url: str, seconds: float, begin: str | None) -> Iterator[Connection]:
    """A connection of its own, in a transaction unless ``begin`` is None."""
    engine = _engine(url, seconds, begin)
    try:
        connection = engine.connect()
    except SQLAlchemyError as error:
        said = getattr(error, "orig", None) or error
        raise StatementFailed(f"no connection to {shown(engine.url)}: {said}") from error
    try:
        if begin is None and engine.dialect.name != "sqlite":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        # the server's own limit as a rule; this is for a connection that swallows bytes
        with Watchdog().watching(connection, seconds + LATE), connection.begin():
            yield connection
    finally:
        connection.close()
        engine.dispose()


def _engine(text_url: str, seconds: float, begin: str | None) -> Any:
    what = "the URL of a connection"
    try:
        url = make_url(text_url)
        if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
            raise InvalidValue(what, shown(url), "a file that is there")
        engine = create_engine(url, poolclass=NullPool, connect_args=dialects.guest_args(url, seconds))
    except (NoSuchModuleError, ImportError) as error:
        raise InvalidValue(what, shown(url), "its driver is installed on the worker", f"{error}.") from error
    except ArgumentError as error:
        allowed = "an SQLAlchemy URL such as postgresql+psycopg://user@host/name"
        raise InvalidValue(what, unsecret(text_url), allowed) from error
    if engine.dialect.name == "sqlite" and begin is not None:
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _limit(connection: Connection, left: float) -> None:
    """Have the database end what takes longer than ``left`` seconds."""
    left = max(left, 0.001)
    dialect: Any = connection.dialect
    statement = dialects.statement_limit(dialect.name, getattr(dialect, "is_mariadb", False), left)
    if statement is not None:
        connection.exec_driver_sql(statement)
    elif dialect.name == "sqlite":
        until = time.monotonic() + left
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > until, STEPS)


def _short(statement: str) -> str:
    line = " ".join(statement.split())
    return line if len(line) <= SHOWN else line[:SHOWN] + "..."


def plain(value: Any, longest: int | None = LONGEST_CELL) -> Any:
    """A value of a row as JSON has it; what is long is cut."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime | date | TimeOfDay):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)[:longest]).decode()
    if isinstance(value, list | tuple):
        return [plain(part, longest) for part in value]
    if isinstance(value, Mapping):
        return {str(key): plain(part, longest) for key, part in value.items()}
    return str(value)[:longest]
