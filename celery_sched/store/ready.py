"""Which queued runs may be claimed now, slots apart, and in which order."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, null, or_, select

from celery_sched.rules.transitions import HELD, RunStatus
from celery_sched.rules.turn import PATIENCE
from celery_sched.store.tables import job, run


def ready(app: str, now: datetime) -> Any:
    """Subquery: queued runs that may be claimed now, slots apart.

    A job without ``concurrent`` shows its first waiting run only, and none while its lock is held or a
    run of it is dispatched or running. Of the runs of one concurrency key those are shown for which there is
    room, and none where ``key_limit`` are in flight: what cannot be claimed never fills a batch.
    """
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
    holding = _held_by_key(app)
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
            job.c.key_limit,
            # of a job that has no template any more nothing is limited, whatever its runs were queued with
            case((job.c.concurrency_key.is_(None), null()), else_=run.c.concurrency_key).label("key"),
            func.coalesce(holding.c.held, 0).label("key_held"),
            func.row_number().over(partition_by=run.c.job_id, order_by=of_job).label("place"),
        )
        .join(job, job.c.id == run.c.job_id)
        .outerjoin(holding, holding.c.key == run.c.concurrency_key)
        .where(run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at <= now, free)
        .where(or_(run.c.expires_at.is_(None), run.c.expires_at > now))
        # before they are numbered: a run whose key is full does not keep its job's others waiting
        .where(
            or_(
                job.c.concurrency_key.is_(None),
                holding.c.held.is_(None),
                holding.c.held < job.c.key_limit,
            )
        )
        .subquery()
    )
    first = (
        select(numbered)
        .where(or_(numbered.c.overlap == "concurrent", numbered.c.place == 1))
        .subquery("first")
    )
    # by pool and weight: one that waits for slots does not keep those of its key waiting that would have some
    alike = (first.c.key, first.c.pool, first.c.weight)
    turn = func.row_number().over(partition_by=alike, order_by=best_first(first.c)).label("turn")
    keyed = select(first, turn).subquery("keyed")
    return (
        select(keyed)
        .where(or_(keyed.c.key.is_(None), keyed.c.turn <= keyed.c.key_limit - keyed.c.key_held))
        .subquery("ready")
    )


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
