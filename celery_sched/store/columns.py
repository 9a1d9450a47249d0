"""Types of columns: the same values from each database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator


class Instant(TypeDecorator[datetime]):
    """An instant, in UTC and to the microsecond, whatever the session's time zone.

    PostgreSQL keeps ``timestamptz``; MariaDB and SQLite keep UTC digits. A naive value from the driver
    is UTC, never local; a naive value given to us is a bug and is refused.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a naive datetime cannot be stored: {value!r}")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# 64 KiB results and tracebacks pass MariaDB's TEXT (65,535 bytes) once escaped
LongText = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
# SQLite makes only INTEGER PRIMARY KEY a rowid
BigId = BigInteger().with_variant(Integer(), "sqlite")
