"""Which queued runs may be claimed now, slots apart, and in which order."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, null, or_, select

from celery_sched.rules.transitions import HELD, RunStatus
from celery_sched.rules.turn import PATIENCE
from celery_sched.store.engine import Tx
from celery_sched.store.tables import job, run


def ready(tx: Tx, app: str, now: datetime) -> Any:
    """Subquery: queued runs that may be claimed now, slots apart.

    A job without ``concurrent`` shows its first waiting run only, and none while its lock is held or a
    run of it is dispatched or running. Of the runs of one concurrency key those are shown for which there is
    room, and none where ``key_limit`` are in flight: what cannot be claimed never fills a batch.
    """
    queued = and_(run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at <= now)
    # few apps use keys: where no run that waits has one, half of the work is saved
    has_key = select(1).select_from(run).where(queued, run.c.concurrency_key.is_not(None)).limit(1)
    keyed = tx.execute(has_key).first() is not None
    other = run.alias("other")
    of_job = (run.c.priority.desc(), run.c.ready_at, run.c.scheduled_for, run.c.id)
    free = or_(
        job.c.overlap == "concurrent",
        and_(
            job.c.lock_token.is_(None),
            ~select(1)
            .where(
                other.c.job_id == run.c.job_id,
                # says nothing new, but lets an index lead to the few that are held: MariaDB read all history
                other.c.app == app,
                other.c.status.in_([status.value for status in HELD]),
            )
            .exists(),
        ),
    )
    numbered = (
        select(
            run.c.id,
            run.c.job_id,
            run.c.pool,
            run.c.priority,
            func.coalesce(run.c.start_by, run.c.ready_at).label("start_by"),
            _overdue(now).label("overdue"),
            run.c.scheduled_for,
            run.c.at_capacity_at,
            job.c.overlap,
            job.c.weight,
            func.row_number().over(partition_by=run.c.job_id, order_by=of_job).label("place"),
        )
        .join(job, job.c.id == run.c.job_id)
        .where(queued, free, or_(run.c.expires_at.is_(None), run.c.expires_at > now))
    )
    if keyed:
        numbered = _with_room(numbered, app)
    every = numbered.subquery()
    first = select(every).where(or_(every.c.overlap == "concurrent", every.c.place == 1)).subquery("ready")
    return _in_turn(first) if keyed else first


def _with_room(numbered: Any, app: str) -> Any:
    """With the runs' keys, and without those whose key is full.

    Before they are numbered: such a run does not keep those of its job waiting that have another key.
    """
    holding = _held_by_key(app)
    return (
        numbered.add_columns(
            # of a job that has no template any more nothing is limited, whatever its runs were queued with
            case((job.c.concurrency_key.is_(None), null()), else_=run.c.concurrency_key).label("key"),
            (job.c.key_limit - func.coalesce(holding.c.held, 0)).label("room"),
        )
        .outerjoin(holding, holding.c.key == run.c.concurrency_key)
        .where(
            or_(job.c.concurrency_key.is_(None), holding.c.held.is_(None), holding.c.held < job.c.key_limit)
        )
    )


def _in_turn(first: Any) -> Any:
    """Of each key as many as there is room for.

    By pool and weight: one that waits for slots does not keep those of its key waiting that would have some.
    """
    alike = (first.c.key, first.c.pool, first.c.weight)
    turn = func.row_number().over(partition_by=alike, order_by=best_first(first.c)).label("turn")
    every = select(first, turn).subquery()
    return select(every).where(or_(every.c.key.is_(None), every.c.turn <= every.c.room)).subquery("in_turn")


def _held_by_key(app: str) -> Any:
    """Subquery: concurrency key -> how many runs of it are in flight."""
    holder = run.alias("holder")
    return (
        select(holder.c.concurrency_key.label("key"), func.count().label("held"))
        .where(
            holder.c.app == app,
            holder.c.status.in_([status.value for status in HELD]),
            holder.c.concurrency_key.is_not(None),
        )
        .group_by(holder.c.concurrency_key)
        .subquery("holding")
    )


def _overdue(now: datetime) -> Any:
    """What :func:`celery_sched.rules.turn.overdue` says, as 0 or 1."""
    return case(
        (run.c.start_by > run.c.ready_at, case((run.c.start_by <= now, 1), else_=0)),
        else_=case((run.c.ready_at <= now - PATIENCE, 1), else_=0),
    )


def best_first(columns: Any) -> tuple[Any, ...]:
    """By priority, then what should start first, then the oldest occurrence, then the oldest job."""
    return (columns.priority.desc(), columns.start_by, columns.scheduled_for, columns.job_id, columns.id)
