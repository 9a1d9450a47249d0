"""Statements on deliveries: one event's way to one job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, case, func, select, update

from celery_sched.model import Delivery, DeliveryStatus, EventId, JobId, RunId, Trigger
from celery_sched.rules.gathering import Pending
from celery_sched.rules.transitions import FAILURES, RunStatus
from celery_sched.store import dialects, events
from celery_sched.store.engine import Tx
from celery_sched.store.runs import CHUNK
from celery_sched.store.tables import delivery, event, job

S = DeliveryStatus
FINISHED = (S.DELIVERED, S.DEAD, S.DROPPED)


def add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert deliveries, those apart that are there already."""
    for start in range(0, len(rows), CHUNK):
        dialects.insert_missing(tx, delivery, rows[start : start + CHUNK])


def pending(tx: Tx, subscription_id: str, limit: int) -> list[Pending]:
    """What waits for a subscription, the oldest event first."""
    rows = tx.execute(
        _pending(subscription_id).order_by(delivery.c.event_id).limit(limit),
    )
    return [_as_pending(row) for row in rows]


def _pending(subscription_id: str) -> Any:
    return (
        select(delivery.c.id, delivery.c.event_id, delivery.c.topic, event.c.key, delivery.c.created_at)
        .outerjoin(event, event.c.id == delivery.c.event_id)
        .where(delivery.c.subscription_id == subscription_id, delivery.c.status == S.PENDING.value)
    )


def _as_pending(row: Any) -> Pending:
    return Pending(row.id, row.event_id, row.topic, row.key, row.created_at)


def together(
    tx: Tx, subscription_id: str, lanes: Sequence[Collection[str]], keys: int, limit: int, *, latest: bool
) -> list[Pending]:
    """What waits of the first keys of which something waits in every lane (the names of its topics).

    :param limit: most of one lane and key.
    """
    lane = case(*((delivery.c.topic.in_(names), at) for at, names in enumerate(lanes)))
    found = list(
        tx.execute(
            select(event.c.key)
            .select_from(delivery)
            .join(event, event.c.id == delivery.c.event_id)
            .where(delivery.c.subscription_id == subscription_id, delivery.c.status == S.PENDING.value)
            .group_by(event.c.key)
            .having(func.count(lane.distinct()) == len(lanes))
            .order_by(func.min(delivery.c.event_id))
            .limit(keys)
        ).scalars()
    )
    order = delivery.c.event_id.desc() if latest else delivery.c.event_id
    rows: list[Pending] = []
    for key in found:
        same = event.c.key.is_(None) if key is None else event.c.key == key
        for names in lanes:
            wanted = _pending(subscription_id).where(delivery.c.topic.in_(names), same)
            rows += [_as_pending(row) for row in tx.execute(wanted.order_by(order).limit(limit))]
    return sorted(rows, key=lambda one: one.event_id)


def topics(tx: Tx, subscription_id: str) -> list[str]:
    """The topics of what waits for a subscription."""
    return list(
        tx.execute(
            select(delivery.c.topic)
            .where(delivery.c.subscription_id == subscription_id, delivery.c.status == S.PENDING.value)
            .distinct()
        ).scalars()
    )


def take(tx: Tx, run_id: RunId, ids: Sequence[str]) -> int:
    """A new run carries these; return how many of them were waiting."""
    return move(tx, ids, {S.PENDING}, status=S.TAKEN.value, run_id=run_id, reason=None, finished_at=None)


def drop(
    tx: Tx, now: datetime, ids: Sequence[str], reason: str, sources: Collection[S] = frozenset({S.PENDING})
) -> int:
    """These are given up; return how many matched."""
    return move(tx, ids, sources, status=S.DROPPED.value, reason=_short(reason), finished_at=now)


def wait_again(tx: Tx, ids: Sequence[str]) -> int:
    """These dead or dropped ones, which no run carries, wait again; return how many matched."""
    again = {"status": S.PENDING.value, "reason": None, "finished_at": None, "run_id": None}
    return move(tx, ids, {S.DEAD, S.DROPPED}, **again)


def move(tx: Tx, ids: Sequence[str], sources: Collection[S], **values: Any) -> int:
    """Write columns of those of these whose status is one of ``sources``; return how many."""
    matched = 0
    for start in range(0, len(ids), CHUNK):
        matched += tx.execute(
            update(delivery)
            .where(
                delivery.c.id.in_(ids[start : start + CHUNK]),
                delivery.c.status.in_([source.value for source in sources]),
            )
            .values(**values)
        ).rowcount
    return matched


def again(tx: Tx, ids: Collection[RunId]) -> None:
    """Runs that were over are carried out again: what they carry is on its way again."""
    tx.execute(
        update(delivery)
        .where(delivery.c.run_id.in_(ids), delivery.c.status.in_([status.value for status in FINISHED]))
        .values(status=S.TAKEN.value, reason=None, finished_at=None)
    )


def ended(tx: Tx, now: datetime, rows: Sequence[Row[Any]]) -> None:
    """Runs are over (``rows`` of :func:`celery_sched.store.ends.after`): so are the deliveries they carry.

    One that succeeded, of a job that ``publishes``, publishes its result.
    """
    for row in rows:
        if row.trigger_kind == Trigger.EVENT:
            status, reason = _came_to(row)
            tx.execute(
                update(delivery)
                .where(delivery.c.run_id == row.id, delivery.c.status == S.TAKEN.value)
                .values(status=status.value, reason=_short(reason), finished_at=now)
            )
        if row.job_publishes is not None and row.status == RunStatus.SUCCEEDED:
            events.add(
                tx,
                now,
                row.app,
                row.job_publishes,
                events.of_run(row),
                dedupe_key=f"{row.id}:{row.attempt}",
                hops=row.hops + 1,
                run_id=RunId(row.id),
            )


def _came_to(row: Any) -> tuple[S, str | None]:
    """What the end of a run is for the deliveries it carries."""
    if row.status == RunStatus.SUCCEEDED:
        return S.DELIVERED, None
    last = (row.error or "").strip().rpartition("\n")[2]
    why = "; ".join(text for text in (row.reason, last) if text)
    text = f"run {row.id} is {row.status}" + (f": {why}" if why else "")
    return (S.DEAD if row.status in FAILURES else S.DROPPED), text


def _short(reason: str | None) -> str | None:
    return None if reason is None else reason[:1000]


def counts(tx: Tx, app: str, job_id: JobId | None = None) -> dict[str, int]:
    """How many wait, are taken, and are dead: of all jobs, or of one."""
    wanted = [S.PENDING.value, S.TAKEN.value, S.DEAD.value]
    statement = select(delivery.c.status, func.count()).where(
        delivery.c.app == app, delivery.c.status.in_(wanted)
    )
    if job_id is not None:
        statement = statement.where(delivery.c.job_id == job_id)
    rows = tx.execute(statement.group_by(delivery.c.status))
    return {status: int(count) for status, count in rows}


def lock(tx: Tx, ids: Sequence[str]) -> list[Row[Any]]:
    """These rows, locked; the caller has locked their jobs before."""
    found: list[Row[Any]] = []
    ordered = sorted(ids)
    for start in range(0, len(ordered), CHUNK):
        part = delivery.c.id.in_(ordered[start : start + CHUNK])
        found += tx.execute(select(delivery).where(part).order_by(delivery.c.id).with_for_update())
    return found


def job_ids(tx: Tx, ids: Sequence[str]) -> dict[str, JobId]:
    """The jobs that these are for."""
    found: dict[str, JobId] = {}
    for start in range(0, len(ids), CHUNK):
        part = delivery.c.id.in_(ids[start : start + CHUNK])
        for row in tx.execute(select(delivery.c.id, delivery.c.job_id).where(part)):
            found[row.id] = JobId(row.job_id)
    return found


def of_ids(tx: Tx, app: str, ids: Sequence[str]) -> list[Delivery]:
    """These deliveries, as far as they are there."""
    found: list[Delivery] = []
    for start in range(0, len(ids), CHUNK):
        found += newest(tx, app, match=delivery.c.id.in_(ids[start : start + CHUNK]), limit=CHUNK)
    return found


def newest(
    tx: Tx,
    app: str,
    *,
    job_id: JobId | None = None,
    status: str | None = None,
    event_id: int | None = None,
    match: Any = None,
    limit: int = 100,
) -> list[Delivery]:
    """Deliveries, newest first."""
    statement = (
        select(delivery, job.c.name.label("job"))
        .outerjoin(job, job.c.id == delivery.c.job_id)
        .where(delivery.c.app == app)
    )
    if job_id is not None:
        statement = statement.where(delivery.c.job_id == job_id)
    if status is not None:
        statement = statement.where(delivery.c.status == status)
    if event_id is not None:
        statement = statement.where(delivery.c.event_id == event_id)
    if match is not None:
        statement = statement.where(match)
    order = (delivery.c.created_at.desc(), delivery.c.event_id.desc(), delivery.c.id)
    return [from_row(row) for row in tx.execute(statement.order_by(*order).limit(limit))]


def beginning(tx: Tx, app: str, text: str, limit: int) -> list[Delivery]:
    """Deliveries whose id begins so, some of them."""
    # ids are UUIDs: no letter of theirs comes after "f"
    match = (delivery.c.id >= text) & (delivery.c.id < f"{text}g")
    return newest(tx, app, match=match & delivery.c.id.startswith(text, autoescape=True), limit=limit)


def from_row(row: Any) -> Delivery:
    """A delivery as people see it."""
    return Delivery(
        id=row.id,
        app=row.app,
        job=row.job,
        event_id=EventId(row.event_id),
        topic=row.topic,
        status=DeliveryStatus(row.status),
        reason=row.reason,
        run_id=None if row.run_id is None else RunId(row.run_id),
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
