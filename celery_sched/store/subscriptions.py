"""Statements on subscriptions: one row a job that has ``on``, made and removed with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from celery_sched.model import DeliveryStatus, JobId, JobStatus, Overlap, Trigger
from celery_sched.rules.subscriptions import read
from celery_sched.rules.transitions import ACTIVE
from celery_sched.store import events
from celery_sched.store.engine import Tx
from celery_sched.store.tables import delivery, event, job, pool, run, subscription

HANDED_OUT = (JobStatus.ACTIVE, JobStatus.PAUSED, JobStatus.ERROR)
"""Jobs that get deliveries; those that are not active have them wait."""


def follow(tx: Tx, now: datetime, app: str, job_id: JobId, on: Mapping[str, Any] | None) -> None:
    """A job (new, or locked by the caller) has this ``on``: make, keep or remove its subscription.

    What waits for a job that subscribes to nothing any more is dropped.
    """
    if on is None:
        remove(tx, now, job_id, "its job does not subscribe to events any more")
        return
    known = tx.execute(select(subscription.c.id).where(subscription.c.job_id == job_id)).first()
    if known is None:
        values = {"app": app, "job_id": job_id, "created_at": now}
        replay_after = 0 if read(on).replay else None
        tx.execute(insert(subscription).values(id=str(uuid.uuid4()), replay_after=replay_after, **values))


def remove(tx: Tx, now: datetime, job_id: JobId, reason: str) -> None:
    """A job (locked by the caller) subscribes no longer, or is deleted: what waits is dropped."""
    if tx.execute(delete(subscription).where(subscription.c.job_id == job_id)).rowcount:
        _drop(tx, now, delivery.c.job_id == job_id, reason)


def drop_orphans(tx: Tx, now: datetime, app: str) -> int:
    """Drop what waits for subscriptions that are gone: handed out in the moment of their removal."""
    there = select(1).where(subscription.c.id == delivery.c.subscription_id).exists()
    return _drop(tx, now, (delivery.c.app == app) & ~there, "its job does not subscribe to events any more")


def _drop(tx: Tx, now: datetime, match: Any, reason: str) -> int:
    return tx.execute(
        update(delivery)
        .where(match, delivery.c.status == DeliveryStatus.PENDING.value)
        .values(status=DeliveryStatus.DROPPED.value, reason=reason, finished_at=now)
    ).rowcount


def every(tx: Tx, app: str) -> Sequence[Any]:
    """The subscriptions of jobs that get deliveries, with their jobs' names and ``on``."""
    return tx.execute(
        select(subscription, job.c.name, job.c.on)
        .join(job, job.c.id == subscription.c.job_id)
        .where(
            subscription.c.app == app,
            job.c.status.in_([status.value for status in HANDED_OUT]),
            job.c.on.is_not(None),
        )
        .order_by(subscription.c.job_id)
    ).all()


@dataclass(frozen=True)
class ToDo:
    """Whether events are to be handed out, a job wants older ones, deliveries wait for active jobs."""

    waiting: bool
    replaying: bool
    pending: bool


def to_do(tx: Tx, app: str) -> ToDo:
    """What an idle poll asks: one statement."""
    older = (subscription.c.app == app, subscription.c.replay_after.is_not(None))
    for_active = (
        select(1)
        .select_from(subscription)
        .join(job, job.c.id == subscription.c.job_id)
        .where(subscription.c.app == app, job.c.status == JobStatus.ACTIVE.value, _WAITS)
    )
    row = tx.execute(
        select(
            select(1).select_from(event).where(*events.not_handed_out(app)).exists(),
            select(1).select_from(subscription).where(*older).exists(),
            for_active.exists(),
        )
    ).one()
    return ToDo(*map(bool, row))


_WAITS = (
    select(1)
    .where(
        delivery.c.subscription_id == subscription.c.id,
        delivery.c.status == DeliveryStatus.PENDING.value,
    )
    .correlate(subscription)
    .exists()
)
"""Something waits for a subscription."""


def lock(tx: Tx, subscription_id: str) -> Any:
    """Its row, locked until the transaction ends; None: gone, or locked by another."""
    return tx.execute(
        select(subscription).where(subscription.c.id == subscription_id).with_for_update(skip_locked=True)
    ).first()


def of_job(tx: Tx, job_id: JobId) -> Any:
    """The subscription of a job, or None."""
    return tx.execute(select(subscription).where(subscription.c.job_id == job_id)).first()


def replayed(tx: Tx, subscription_id: str, after: int | None) -> None:
    """Events up to ``after`` have been looked at; None: all."""
    tx.execute(update(subscription).where(subscription.c.id == subscription_id).values(replay_after=after))


@dataclass(frozen=True)
class Room:
    """A job for which deliveries wait, and how many of its runs for events are not finished."""

    job_id: JobId
    unfinished: int
    most: int
    """So many may be."""

    @property
    def left(self) -> int:
        """How many more runs may be made now."""
        return max(0, self.most - self.unfinished)


FEW = 3
"""Runs for events that a job without ``concurrent`` may have at a time: the next ones are ready when one
ends, and what waits behind them is a short row in a table, not a queue in which others stand too."""
MOST = 500


def rooms(tx: Tx, app: str, job_id: JobId | None = None) -> list[Room]:
    """The active jobs for which deliveries wait, and how much room there is for runs of theirs."""
    unfinished = (
        select(func.count())
        .where(
            run.c.job_id == subscription.c.job_id,
            run.c.status.in_([status.value for status in ACTIVE]),
            run.c.trigger_kind == Trigger.EVENT.value,
        )
        .scalar_subquery()
    )
    statement = (
        select(subscription.c.job_id, job.c.overlap, pool.c.slots, unfinished.label("unfinished"))
        .join(job, job.c.id == subscription.c.job_id)
        .outerjoin(pool, (pool.c.app == job.c.app) & (pool.c.name == job.c.pool))
        .where(subscription.c.app == app, job.c.status == JobStatus.ACTIVE.value, _WAITS)
        .order_by(subscription.c.job_id)
    )
    if job_id is not None:
        statement = statement.where(subscription.c.job_id == job_id)
    return [
        Room(JobId(row.job_id), int(row.unfinished), _most(row.overlap, row.slots or 0))
        for row in tx.execute(statement)
    ]


def _most(overlap: str, slots: int) -> int:
    """As many as can be under way, and as many again that are ready when those end."""
    return FEW if overlap != Overlap.CONCURRENT else min(max(2 * slots, FEW), MOST)
