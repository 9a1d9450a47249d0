"""``sql_rows``: a sensor that publishes the new rows of a query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import connections, options
from celery_sched.jobtypes.base import JobContext
from celery_sched.jobtypes.options import option
from celery_sched.jobtypes.sensor import Memory, Sensor, SensorConfig, Start, key_of
from celery_sched.rules import newrows, sqltext
from celery_sched.rules.newrows import Found, Place, Published
from celery_sched.store import elsewhere, rows
from celery_sched.store.engine import Database
from celery_sched.store.sensors import News

MOST_RECENT = 20_000
"""Rows that are remembered one by one."""
LARGEST_ROW = 48 * 1024
"""Bytes of a row as JSON that an event brings along."""


class NotTellable(SchedulerError):
    """Two rows of the query cannot be told apart: one of them would be lost."""


def _query(value: Any, what: str) -> str:
    found = sqltext.statements(options.FILLED.read(value, what))
    if len(found) != 1 or not found[0].lstrip("( \n\t").lower().startswith(("select", "with", "values")):
        raise InvalidValue(what, value, "one SELECT", "It becomes a part of a larger one.")
    return found[0]


@dataclass(frozen=True, kw_only=True)
class SqlRowsConfig(SensorConfig):
    """Which rows."""

    connection: str = option(options.NAME, "name of one of the worker's `sched_connections`", secret=False)
    query: str = option(
        options.Form("a SELECT", _query), "the rows; no ORDER BY or LIMIT is needed", secret=False
    )
    cursor: str = option(
        options.NAME,
        "the column that grows from row to row: a number, a time, a text that sorts; rows without one are "
        "left out",
        secret=False,
    )
    identity: Sequence[str] = option(
        options.TEXTS,
        "the columns that tell rows apart; default: the cursor's. For a time, name the key too: "
        '`["id", "updated_at"]`',
        [],
        secret=False,
    )
    key: str | None = option(
        options.NAME, "the column whose value becomes the event's key", None, secret=False
    )
    parameters: Mapping[str, Any] = option(
        connections.PARAMETERS, f"values for `:name` in the query; every job has {connections.EVERY_JOB}", {}
    )
    look_back: timedelta = option(
        options.duration("1d"),
        "how much later than others a row may be committed and still be found: longer than any transaction "
        "that writes rows",
        "1m",
    )
    most: int = option(options.count(1, 10_000), "most events of one run; the rest comes with the next", 500)
    timeout: timedelta = option(options.duration("1h"), "for the query", "1m")


class SqlRows(Sensor[SqlRowsConfig]):
    """New rows."""

    name = "sql_rows"
    description = "publishes an event for each new row of a query"
    config = SqlRowsConfig

    def warnings(self, config: SqlRowsConfig, settings: Config) -> list[str]:
        """A connection that is not known here."""
        return connections.unknown(config.connection, settings)

    def sense(self, config: SqlRowsConfig, ctx: JobContext, database: Database) -> dict[str, Any]:
        """Ask for the rows from the place on where the last look ended."""
        url = connections.url_of(config.connection, ctx.settings, f"{self.name}: connection")
        parameters = connections.given(config.parameters, ctx)
        query = rows.Query(url, config.query, config.cursor, parameters, config.timeout)
        memory = Memory(database, ctx, config, [self.name, config.connection, config.cursor])
        began = memory.clock()
        if memory.value is None and config.start is Start.NOW:
            place = _first(query, config, began)
            memory.move(_written(place), [])
            return {"published": 0, "first": True}
        place = _read(memory.value)
        most = min(config.most, MOST_RECENT - len(place.recent))
        if most <= 0:
            ctx.log.warning("%d rows came within look_back: shorten it", len(place.recent))
        there = query.since(rows.loaded(place.floor), len(place.recent) + max(0, most) + 1)
        found = [_found(row, config) for row in there]
        _check_told_apart(found, config)
        after = newrows.advanced(place, found, began, memory.clock(), config.look_back, max(0, most))
        memory.move(_written(after.place), [_news(there[at], config) for at in after.new])
        return {"published": len(after.new), "left": after.left}


def _first(query: rows.Query, config: SqlRowsConfig, now: datetime) -> Place:
    """Everything that is there is known: the highest value, and the rows that have it."""
    last = query.last()
    if last is None:
        return Place(None)
    found = [_found(row, config) for row in query.since(last, MOST_RECENT + 1)]
    if len(found) > MOST_RECENT:
        raise InvalidValue("sql_rows: cursor", config.cursor, "a column with a value that few rows share")
    _check_told_apart(found, config)
    return Place(found[0].cursor, tuple(Published(one.identity, one.cursor, now) for one in found))


def _found(row: Mapping[str, Any], config: SqlRowsConfig) -> Found:
    names = list(config.identity) or [config.cursor]
    for name in (config.cursor, *names, *([config.key] if config.key else [])):
        if name not in row:
            raise InvalidValue("sql_rows: a column", name, f"one that the query has: {', '.join(row)}")
    identity = json.dumps([elsewhere.plain(row[name], None) for name in names])
    return Found(identity, rows.stored(row[config.cursor], f"sql_rows: cursor {config.cursor}"))


def _check_told_apart(found: Sequence[Found], config: SqlRowsConfig) -> None:
    twice = newrows.duplicate(found)
    if twice is not None:
        names = ", ".join(config.identity or [config.cursor])
        raise NotTellable(
            f"two rows of the query have the same {names} ({twice}): name in `identity` the columns that "
            "tell rows apart"
        )


def _news(row: Mapping[str, Any], config: SqlRowsConfig) -> News:
    payload = {name: elsewhere.plain(value, None) for name, value in row.items()}
    if len(json.dumps(payload)) > LARGEST_ROW:
        names = {config.cursor, *config.identity, *([config.key] if config.key else [])}
        payload = {name: elsewhere.plain(row[name]) for name in row if name in names} | {"cut": True}
    return News(payload, None if config.key is None else key_of(str(payload[config.key])))


def _written(place: Place) -> dict[str, Any]:
    recent = [[one.identity, one.cursor, one.seen_at.isoformat()] for one in place.recent]
    return {"floor": place.floor, "recent": recent}


def _read(value: Mapping[str, Any] | None) -> Place:
    if value is None:
        return Place(None)
    recent = (Published(identity, at, datetime.fromisoformat(seen)) for identity, at, seen in value["recent"])
    return Place(value["floor"], tuple(recent))
