"""Statements on events: what was published, and what is not handed out yet. There is no cursor."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from celery_sched.errors import InvalidValue
from celery_sched.model import Event, EventId, RunId
from celery_sched.rules.topics import matches
from celery_sched.store import dialects
from celery_sched.store.engine import Tx
from celery_sched.store.tables import delivery, event

OPEN = ("pending", "taken")
"""Deliveries that are on their way."""


def connection_of(session: Any) -> Connection:
    """The connection of a session of SQLAlchemy (scoped or not), or the connection itself.

    :raises InvalidValue: something else, or of another kind of database.
    """
    if isinstance(session, Connection):
        found = session
    else:
        from sqlalchemy.orm import Session, scoped_session  # slow to import; whoever has one, has it

        if not isinstance(session, Session | scoped_session):
            asynchronous = type(session).__module__.startswith("sqlalchemy.ext.asyncio")
            hint = "Write: await session.run_sync(lambda s: publish(..., session=s))." if asynchronous else ""
            raise InvalidValue("session", session, "a Session or a Connection of SQLAlchemy", hint)
        found = session.connection()
    if not dialects.is_known(found.engine.url):
        allowed = "a session of PostgreSQL, MariaDB or SQLite: of the scheduler's own database"
        raise InvalidValue("session", found.dialect.name, allowed)
    return found


def add(
    tx: Connection,
    now: datetime,
    app: str,
    topic: str,
    payload: Any,
    *,
    key: str | None = None,
    dedupe_key: str | None = None,
    hops: int = 0,
    run_id: RunId | None = None,
) -> EventId | None:
    """Insert a checked event; ``None``: one with this ``dedupe_key`` is there already."""
    row = {
        "app": app,
        "topic": topic,
        "payload": payload,
        "key": key,
        "dedupe_key": dedupe_key,
        "hops": hops,
        "run_id": run_id,
        "published_at": now,
    }
    if dedupe_key is not None:
        made = dialects.insert_new(tx, event, row)
        return None if made is None else EventId(made)
    inserted: Any = tx.execute(insert(event).values(**row)).inserted_primary_key
    return EventId(inserted[0])


def lock_waiting(tx: Tx, app: str, limit: int) -> Sequence[Row[Any]]:
    """Events that are not handed out yet, locked, oldest first; what others have locked is left out."""
    return tx.execute(
        select(event)
        .where(*not_handed_out(app))
        .order_by(event.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()


def not_handed_out(app: str) -> tuple[ColumnElement[bool], ...]:
    """The events that are not handed out yet."""
    return (event.c.app == app, event.c.fanned_out_at.is_(None))


def mark_fanned_out(tx: Tx, now: datetime, ids: Collection[EventId]) -> int:
    """These events (locked by the caller) are handed out; return how many matched."""
    return tx.execute(
        update(event)
        .where(event.c.id.in_(ids), event.c.fanned_out_at.is_(None))
        .values(fanned_out_at=now, published_at=func.coalesce(event.c.published_at, now))
    ).rowcount


def after(tx: Tx, app: str, event_id: int, limit: int) -> Sequence[Row[Any]]:
    """Events with higher ids, in their order."""
    return tx.execute(
        select(event).where(event.c.app == app, event.c.id > event_id).order_by(event.c.id).limit(limit)
    ).all()


def find(tx: Tx, ids: Collection[int]) -> dict[EventId, Row[Any]]:
    """Rows by id, not locked."""
    rows = tx.execute(select(event).where(event.c.id.in_(ids))) if ids else ()
    return {EventId(row.id): row for row in rows}


def standing(tx: Tx, app: str) -> tuple[int, datetime | None]:
    """How many events are not handed out yet, and when the oldest was published, as far as is known."""
    wanted = select(func.count(), func.min(event.c.published_at)).where(*not_handed_out(app))
    count, oldest = tx.execute(wanted).one()
    return int(count), oldest


def newest(
    tx: Tx, app: str, *, topic: str | None = None, waiting: bool = False, limit: int = 100
) -> list[Event]:
    """Events, newest first; ``topic`` may be a pattern."""
    statement = select(event).where(event.c.app == app)
    if waiting:
        statement = statement.where(event.c.fanned_out_at.is_(None))
    if topic is not None and "*" not in topic:
        statement = statement.where(event.c.topic == topic)
    elif topic is not None:
        known = tx.execute(select(event.c.topic).where(event.c.app == app).distinct()).scalars()
        statement = statement.where(event.c.topic.in_([name for name in known if matches(topic, name)]))
    rows = tx.execute(statement.order_by(event.c.id.desc()).limit(limit)).all()
    counts = _deliveries(tx, [row.id for row in rows])
    return [from_row(row, counts.get(row.id, {})) for row in rows]


def _deliveries(tx: Tx, ids: Collection[int]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    if ids:
        rows = tx.execute(
            select(delivery.c.event_id, delivery.c.status, func.count())
            .where(delivery.c.event_id.in_(ids))
            .group_by(delivery.c.event_id, delivery.c.status)
        )
        for event_id, status, count in rows:
            found.setdefault(event_id, {})[status] = int(count)
    return found


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some events that were handed out before ``before``, with their deliveries, none of them open."""
    ids = list(
        tx.execute(
            select(event.c.id)
            .where(event.c.app == app, event.c.fanned_out_at < before)
            .where(~select(1).where(delivery.c.event_id == event.c.id, delivery.c.status.in_(OPEN)).exists())
            .order_by(event.c.fanned_out_at)
            .limit(limit)
        ).scalars()
    )
    if not ids:
        return 0
    # the predicate again: somebody may have asked for a delivery once more since
    tx.execute(delete(delivery).where(delivery.c.event_id.in_(ids), delivery.c.status.not_in(OPEN)))
    left = select(delivery.c.event_id).where(delivery.c.event_id.in_(ids))
    kept = set(tx.execute(left).scalars())
    tx.execute(delete(event).where(event.c.id.in_([one for one in ids if one not in kept])))
    return len(ids)


def told(row: Any, now: datetime) -> dict[str, Any]:
    """What a job's task is told of an event; one from plain SQL may not say when it was published."""
    return {
        "id": row.id,
        "topic": row.topic,
        "payload": row.payload,
        "key": row.key,
        "published_at": (row.published_at or now).isoformat(),
    }


def of_run(row: Any) -> dict[str, Any]:
    """The payload of what a run that succeeded publishes."""
    try:
        result = None if row.result is None else json.loads(row.result)
    except ValueError:
        result = row.result  # cut at its limit
    return {
        "job": row.job,
        "run_id": row.id,
        "scheduled_for": row.scheduled_for.isoformat(),
        "result": result,
    }


def from_row(row: Any, deliveries: Mapping[str, int]) -> Event:
    """An event as people see it; ``deliveries``: how many it has, by status."""
    return Event(
        id=EventId(row.id),
        app=row.app,
        topic=row.topic,
        payload=row.payload,
        key=row.key,
        dedupe_key=row.dedupe_key,
        hops=row.hops,
        run_id=None if row.run_id is None else RunId(row.run_id),
        published_at=row.published_at,
        fanned_out_at=row.fanned_out_at,
        deliveries=deliveries,
    )
