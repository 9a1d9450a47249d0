"""The version of the tables: where a database stands, what this release needs, how to get there."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Executable,
    MetaData,
    String,
    Table,
    delete,
    false,
    func,
    insert,
    inspect,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from celery_sched.errors import DatabaseUnavailable, SchedulerError, SchemaMismatch
from celery_sched.store.engine import Database, Tx
from celery_sched.store.tables import metadata

HEAD = "0004"
"""The revision this release works with."""
VERSION_TABLE = "sched_version"
"""Not Alembic's own name: the database may be the application's, with migrations of its own."""
_one_at_a_time = threading.Lock()  # within a process: Alembic keeps what it works on in globals
_VERSION = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
PATIENCE = timedelta(minutes=5)
"""Longest one statement of a migration, or the wait for another ``migrate``, may last."""


def upgrade(url: str) -> None:
    """Make or upgrade the tables; several at once are safe: one works, the others wait and find it done.

    On SQLite the file, and the folder it lies in, are created.

    :raises SchedulerError: the database is newer than this release, or cannot be reached.
    """
    database = Database(url)
    if not database.dialect.row_locks:
        Path(database.url.database or "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = AlembicConfig()
    # ConfigParser reads % as the start of a reference
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["database_url"] = url
    try:
        with _one_at_a_time:
            command.upgrade(config, "head")
    except CommandError as error:
        raise SchedulerError(f"the database {database.shown} was not upgraded: {error}") from error


def exclusively(url: str, work: Callable[[Connection], None]) -> None:
    """Call ``work`` in one transaction that no other migration runs beside.

    ``work`` may be called again after a deadlock, and MariaDB commits each of its statements by itself:
    it must be able to start over.
    """
    database = Database(url, session_timeout=PATIENCE, pool_size=1)

    def locked(tx: Tx, _now: datetime) -> None:
        if database.dialect.migration_lock is not None:
            if tx.execute(database.dialect.migration_lock).scalar() != 1:
                raise DatabaseUnavailable(
                    f"another migration of {database.shown} did not end within {PATIENCE}: nothing was done"
                )
        work(tx)

    try:
        database.run(locked)
    finally:
        database.dispose()  # a session that ends frees the lock


def scripts() -> Path:
    """The folder of the migrations: installed as ``celery_sched.migrations``, or beside the package."""
    try:
        found = importlib.util.find_spec("celery_sched.migrations")
    except ValueError:  # a namespace that is half loaded
        found = None
    if found is not None and found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    return Path(__file__).resolve().parents[2] / "migrations"


def current(tx: Tx) -> str | None:
    """The revision this database is at; ``None``: it has no tables of ours."""
    if not inspect(tx).has_table(VERSION_TABLE):
        return None
    return tx.execute(select(func.max(_VERSION.c.version_num))).scalar()


def check(tx: Tx, app: str = "celery_sched") -> None:
    """Raise SchemaMismatch unless the tables are those of this release; ``app`` is named in the message."""
    found = current(tx)
    if found != HEAD:
        raise SchemaMismatch(found, HEAD, app)


def missing_rights(database: Database) -> list[tuple[str, str, str]]:
    """What the database user may not do: (right, table, what the database said).

    Each right is tried with a statement that touches no row, within a savepoint, so that it is the
    database that answers, and that nothing is changed.
    """
    return database.run(lambda tx, _now: _missing_rights(tx, database))


def _missing_rights(tx: Tx, database: Database) -> list[tuple[str, str, str]]:
    missing = []
    for table in [*metadata.sorted_tables, _VERSION]:
        key = next(iter(table.primary_key))
        blank = literal("" if isinstance(key.type, String) else 0)
        statements: dict[str, Executable] = {"SELECT": select(key).where(false())}
        if table is not _VERSION:
            statements |= {
                # every column: MariaDB misses what has no default, though there is no row
                "INSERT": insert(table).from_select(
                    list(table.columns), select(*(null() for _ in table.columns)).where(false())
                ),
                "UPDATE": update(table).values({key: blank}).where(false()),
                "DELETE": delete(table).where(false()),
            }
        for right, statement in statements.items():
            try:
                with tx.begin_nested():
                    tx.execute(statement)
            except DBAPIError as error:
                missing.append((right, table.name, str(error.orig).strip()))
        if database.dialect.sequence_right is not None and table.autoincrement_column is not None:
            place = {"table": table.name, "column": key.name}
            if tx.execute(database.dialect.sequence_right, place).scalar() is False:
                missing.append(("USAGE", f"{table.name}_{key.name}_seq", "no ids can be drawn: INSERT fails"))
    return missing


def compare_type(
    _context: Any, _inspected: Any, _column: Any, inspected_type: Any, metadata_type: Any
) -> bool | None:
    """For Alembic: whether a column's type differs. MariaDB keeps JSON as LONGTEXT; else Alembic decides."""
    if isinstance(metadata_type, JSON) and isinstance(inspected_type, mysql.LONGTEXT):
        return False
    return None


def include_object(_thing: Any, name: str | None, kind: str, reflected: bool, _compared: Any) -> bool:
    """For Alembic: only our own tables; the database may hold the application's too."""
    return not (kind == "table" and reflected and name not in metadata.tables)
