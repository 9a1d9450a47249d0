"""Statements on the queue: which runs may be claimed now, and who has the slots."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, or_, select, update

from celery_sched.model import JobId, Misfire, Overlap, RunId
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.runs import CHUNK
from celery_sched.store.tables import job, run


def ready(app: str, now: datetime) -> Any:
    """Subquery: queued runs that may be claimed now, slots apart.

    A job without ``concurrent`` shows its first waiting run only, and none while its lock is held or a
    run of it is dispatched or running: what cannot be claimed never fills a batch.
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
    numbered = (
        select(
            run.c.id,
            run.c.job_id,
            run.c.pool,
            run.c.priority,
            func.coalesce(run.c.start_by, run.c.ready_at).label("start_by"),
            run.c.scheduled_for,
            run.c.at_capacity_at,
            job.c.overlap,
            func.row_number().over(partition_by=run.c.job_id, order_by=of_job).label("place"),
        )
        .join(job, job.c.id == run.c.job_id)
        .where(run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at <= now, free)
        .where(or_(run.c.expires_at.is_(None), run.c.expires_at > now))
        .subquery()
    )
    return (
        select(numbered)
        .where(or_(numbered.c.overlap == "concurrent", numbered.c.place == 1))
        .subquery("ready")
    )


def _best_first(columns: Any) -> tuple[Any, ...]:
    """By priority, then what should start first, then the oldest occurrence, then the oldest job."""
    return (columns.priority.desc(), columns.start_by, columns.scheduled_for, columns.job_id, columns.id)


def ready_in(tx: Tx, app: str, now: datetime, pool: str, limit: int) -> list[tuple[RunId, JobId]]:
    """The runs of one pool to claim next: by priority, then what should start first."""
    candidates = ready(app, now)
    rows = tx.execute(
        select(candidates.c.id, candidates.c.job_id)
        .where(candidates.c.pool == pool)
        .order_by(*_best_first(candidates.c))
        .limit(limit)
    )
    return [(RunId(run_id), JobId(job_id)) for run_id, job_id in rows]


def ready_by_pool(tx: Tx, app: str, now: datetime) -> dict[str, tuple[int, int]]:
    """Pool -> (runs that could be claimed if there were slots, how many of them never waited for one)."""
    candidates = ready(app, now)
    rows = tx.execute(
        select(
            candidates.c.pool,
            func.count(),
            func.sum(case((candidates.c.at_capacity_at.is_(None), 1), else_=0)),
        ).group_by(candidates.c.pool)
    )
    return {pool: (int(count), int(fresh)) for pool, count, fresh in rows}


def any_ready(tx: Tx, app: str, now: datetime) -> bool:
    """Whether a run waits whose time has come, be it for a slot or for its job's lock."""
    waits = (run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at <= now)
    return tx.execute(select(1).select_from(run).where(*waits).limit(1)).first() is not None


def mark_at_capacity(tx: Tx, app: str, now: datetime, pools: Collection[str]) -> int:
    """Note the runs that found no slot, each once; return how many are new."""
    candidates = ready(app, now)
    ids = list(
        tx.execute(
            select(candidates.c.id).where(candidates.c.pool.in_(pools), candidates.c.at_capacity_at.is_(None))
        ).scalars()
    )
    marked = 0
    for start in range(0, len(ids), CHUNK):
        marked += tx.execute(
            update(run)
            .where(
                run.c.id.in_(ids[start : start + CHUNK]),
                run.c.status == RunStatus.QUEUED.value,
                run.c.at_capacity_at.is_(None),
            )
            .values(at_capacity_at=now)
        ).rowcount
    return marked


def held_in_pools(tx: Tx, app: str) -> list[tuple[str, RunId, datetime]]:
    """Pool, id and lease end of every dispatched or running run: the truth about slots."""
    rows = tx.execute(
        select(run.c.pool, run.c.id, run.c.lease_expires_at).where(
            run.c.app == app, run.c.status.in_([status.value for status in HELD])
        )
    )
    return [(pool, RunId(run_id), lease) for pool, run_id, lease in rows]


def held_counts(tx: Tx, app: str, pools: Collection[str]) -> dict[str, int]:
    """Slots taken in each pool."""
    rows = tx.execute(
        select(run.c.pool, func.count())
        .where(run.c.app == app, run.c.pool.in_(pools), run.c.status.in_([status.value for status in HELD]))
        .group_by(run.c.pool)
    )
    return {pool: int(count) for pool, count in rows}


def full_jobs(tx: Tx, app: str) -> list[tuple[str, int, int]]:
    """Jobs whose next occurrence is skipped, as many wait as may: name, active runs, ``max_queued``."""
    count = func.count(run.c.id)
    waits = or_(job.c.overlap == Overlap.QUEUE.value, job.c.misfire == Misfire.ALL.value)
    rows = tx.execute(
        select(job.c.name, count, job.c.max_queued)
        .join(run, run.c.job_id == job.c.id)
        .where(
            job.c.app == app,
            job.c.overlap != Overlap.CONCURRENT.value,
            waits,
            run.c.app == app,
            run.c.status.in_([status.value for status in ACTIVE]),
            run.c.backfill_id.is_(None),
        )
        .group_by(job.c.id, job.c.name, job.c.max_queued)
        .having(count > job.c.max_queued)
        .order_by(job.c.name)
    )
    return [(name, int(active), limit) for name, active, limit in rows]


def count_in_pool(tx: Tx, app: str, pool: str) -> tuple[int, int]:
    """How many runs of a pool are queued, and how many hold a slot."""
    held = case((run.c.status.in_([status.value for status in HELD]), 1), else_=0)
    count, slots = tx.execute(
        select(func.count(), func.coalesce(func.sum(held), 0)).where(
            run.c.app == app, run.c.pool == pool, run.c.status.in_([status.value for status in ACTIVE])
        )
    ).one()
    return int(count) - int(slots), int(slots)


def held_jobs(tx: Tx, jobs: Collection[JobId]) -> set[JobId]:
    """The jobs that have a dispatched or running run."""
    if not jobs:
        return set()
    rows = tx.execute(
        select(run.c.job_id)
        .where(run.c.job_id.in_(jobs), run.c.status.in_([status.value for status in HELD]))
        .distinct()
    )
    return {JobId(job_id) for job_id in rows.scalars()}


def unreceived(tx: Tx, app: str, before: datetime) -> list[tuple[str, RunId]]:
    """Published runs (job, id) that no worker has received since ``before``."""
    rows = tx.execute(
        select(run.c.job, run.c.id)
        .where(
            run.c.app == app,
            run.c.status == RunStatus.DISPATCHED.value,
            run.c.published_at < before,
            run.c.received_at.is_(None),
            or_(run.c.eta.is_(None), run.c.eta < before),
        )
        .limit(100)
    )
    return [(job_name, RunId(run_id)) for job_name, run_id in rows]


def next_ready_at(tx: Tx, app: str, now: datetime) -> datetime | None:
    """When the next waiting run becomes ready, if that is in the future."""
    return tx.execute(
        select(func.min(run.c.ready_at)).where(
            run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at > now
        )
    ).scalar()
