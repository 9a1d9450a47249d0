"""Rows of a query on a database that is not the scheduler's own, from a place on, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, DateTime, bindparam, column, desc, literal_column, select, text

from celery_sched.errors import InvalidValue
from celery_sched.store import elsewhere

_TYPES: Mapping[str, tuple[type[Any], Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}


@dataclass(frozen=True)
class Query:
    """A query, and the column by which its rows are in order."""

    url: str
    statement: str
    cursor: str
    parameters: Mapping[str, Any]
    timeout: timedelta

    def since(self, floor: Any, limit: int) -> list[dict[str, Any]]:
        """The first rows whose cursor is not below ``floor`` (None: all that have one), in its order.

        :raises InvalidValue: a parameter that is not given.
        :raises StatementFailed: the database refused it.
        :raises TimeoutError: it took too long.
        """
        inner, at = self._inner()
        every: Any = literal_column("*")
        wanted = select(every).select_from(inner).order_by(at).limit(limit)
        return self._rows(wanted.where(at.is_not(None) if floor is None else at >= floor))

    def last(self) -> Any:
        """The highest value of the cursor; None: there is no row. Raises as :meth:`since`."""
        inner, at = self._inner()
        rows = self._rows(select(at).select_from(inner).where(at.is_not(None)).order_by(desc(at)).limit(1))
        return next(iter(rows[0].values())) if rows else None

    def _inner(self) -> tuple[Any, Any]:
        wanted = elsewhere.parameters_of(self.statement)
        missing = sorted(wanted - self.parameters.keys())
        if missing:
            raise InvalidValue("a parameter of the query", missing[0], "it is given in parameters")
        # a comment at its end would swallow the parenthesis
        asked = text(f"{self.statement}\n").bindparams(*map(self._bound, sorted(wanted)))
        inner = asked.columns(column(self.cursor)).subquery("q")
        return inner, inner.c[self.cursor]

    def _bound(self, name: str) -> Any:
        value = self.parameters[name]
        return bindparam(name, value, DateTime(timezone=True) if isinstance(value, datetime) else None)

    def _rows(self, statement: Any) -> list[dict[str, Any]]:
        def work(connection: Connection) -> list[dict[str, Any]]:
            found = connection.execute(statement)
            names = list(found.keys())
            return [dict(zip(names, row, strict=True)) for row in found]

        return elsewhere.asked(self.url, self.statement, self.timeout, work)


def stored(value: Any, what: str) -> Any:
    """A cursor's value as JSON that :func:`loaded` reads back as the same.

    :raises InvalidValue: a value of a kind that no cursor is made of.
    """
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    for name, (kind, write, _) in _TYPES.items():
        if isinstance(value, kind):
            return {name: write(value)}
    raise InvalidValue(what, value, "a number, a text, a date or a time")


def loaded(value: Any) -> Any:
    """The value that was stored."""
    if not isinstance(value, Mapping):
        return value
    ((name, text_of),) = value.items()
    return _TYPES[name][2](text_of)
