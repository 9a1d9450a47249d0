"""Statements on the queue: which runs may be claimed now, and who has the slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, case, func, or_, select, update

from celery_sched.model import JobId, Misfire, Overlap, RunId
from celery_sched.rules.fitting import Candidate, Held
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.ready import best_first, ready
from celery_sched.store.runs import CHUNK
from celery_sched.store.tables import job, run


@dataclass(frozen=True)
class Waits:
    """The runs of a pool that could be claimed if there were slots."""

    count: int
    fresh: int
    """How many of them never waited for a slot before."""
    slots: int
    """How many slots they would take."""
    heaviest: int
    """How many the heaviest of them would take."""


def ready_in(
    tx: Tx, app: str, now: datetime, pool: str, limit: int, *, free: int | None = None, slots: int = 0
) -> list[Candidate]:
    """The runs of one pool to claim next: by priority, then what should start first.

    :param free: its free slots, of ``slots``: what does not fit into them is left out, however many there
        are, but for the first one that is overdue: the slots are kept for it. ``None``: all are listed.
    """
    candidates = ready(tx, app, now)
    mine = candidates.c.pool == pool
    if free is not None:
        heavy = select(candidates.c.id).where(
            mine, candidates.c.overdue == 1, candidates.c.weight > free, candidates.c.weight <= slots
        )
        first = tx.execute(heavy.order_by(*best_first(candidates.c)).limit(1)).scalar()
        mine = and_(mine, or_(candidates.c.weight <= free, candidates.c.id == (first or "")))
    rows = tx.execute(
        select(candidates.c.id, candidates.c.job_id, candidates.c.weight, candidates.c.overdue)
        .where(mine)
        .order_by(*best_first(candidates.c))
        .limit(limit)
    )
    return [Candidate(RunId(row.id), JobId(row.job_id), int(row.weight), bool(row.overdue)) for row in rows]


def ready_by_pool(tx: Tx, app: str, now: datetime) -> dict[str, Waits]:
    """Pool -> the runs that could be claimed if there were slots."""
    candidates = ready(tx, app, now)
    rows = tx.execute(
        select(
            candidates.c.pool,
            func.count(),
            func.sum(case((candidates.c.at_capacity_at.is_(None), 1), else_=0)),
            func.sum(candidates.c.weight),
            func.max(candidates.c.weight),
        ).group_by(candidates.c.pool)
    )
    return {pool: Waits(*(int(number) for number in numbers)) for pool, *numbers in rows}


def is_ready(tx: Tx, app: str, now: datetime, run_id: RunId) -> bool:
    """Whether a run could be claimed if there were slots."""
    candidates = ready(tx, app, now)
    return tx.execute(select(1).where(candidates.c.id == run_id)).first() is not None


def any_ready(tx: Tx, app: str, now: datetime) -> bool:
    """Whether a run waits whose time has come, be it for a slot or for its job's lock."""
    waits = (run.c.app == app, run.c.status == RunStatus.QUEUED.value, run.c.ready_at <= now)
    return tx.execute(select(1).select_from(run).where(*waits).limit(1)).first() is not None


def mark_at_capacity(tx: Tx, app: str, now: datetime, free: Mapping[str, int]) -> int:
    """Note the runs that found too few slots, each once; return how many are new.

    :param free: pool -> the slots that are left in it; of other pools nothing is noted.
    """
    candidates = ready(tx, app, now)
    short = [and_(candidates.c.pool == pool, candidates.c.weight > left) for pool, left in free.items()]
    ids = list(
        tx.execute(
            select(candidates.c.id).where(or_(*short), candidates.c.at_capacity_at.is_(None))
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


def held_in_pools(tx: Tx, app: str) -> list[Held]:
    """Every dispatched or running run, with its pool, weight and lease: the truth about slots."""
    rows = tx.execute(
        select(run.c.pool, run.c.id, run.c.lease_expires_at, run.c.weight).where(
            run.c.app == app, run.c.status.in_([status.value for status in HELD])
        )
    )
    return [Held(pool, RunId(run_id), lease, weight) for pool, run_id, lease, weight in rows]


def held_counts(tx: Tx, app: str, pools: Collection[str]) -> dict[str, int]:
    """Slots taken in each pool."""
    rows = tx.execute(
        select(run.c.pool, func.sum(run.c.weight))
        .where(run.c.app == app, run.c.pool.in_(pools), run.c.status.in_([status.value for status in HELD]))
        .group_by(run.c.pool)
    )
    return {pool: int(slots) for pool, slots in rows}


def held_keys(tx: Tx, app: str, keys: Collection[str]) -> dict[str, int]:
    """How many runs of each concurrency key are dispatched or running."""
    if not keys:
        return {}
    rows = tx.execute(
        select(run.c.concurrency_key, func.count())
        .where(
            run.c.app == app,
            run.c.status.in_([status.value for status in HELD]),
            run.c.concurrency_key.in_(keys),
        )
        .group_by(run.c.concurrency_key)
    )
    return {key: int(count) for key, count in rows}


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


@dataclass(frozen=True)
class Use:
    """How a pool is used: slots taken, by how many runs, and how many runs are queued, for whatever."""

    taken: int = 0
    running: int = 0
    waiting: int = 0


def use_of_pools(tx: Tx, app: str) -> dict[str, Use]:
    """Pool -> how it is used; one that is not used is left out."""
    held = run.c.status.in_([status.value for status in HELD])
    rows = tx.execute(
        select(
            run.c.pool,
            func.sum(case((held, run.c.weight), else_=0)),
            func.sum(case((held, 1), else_=0)),
            func.sum(case((held, 0), else_=1)),
        )
        .where(run.c.app == app, run.c.status.in_([status.value for status in ACTIVE]))
        .group_by(run.c.pool)
    )
    return {pool: Use(*(int(number) for number in numbers)) for pool, *numbers in rows}


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
