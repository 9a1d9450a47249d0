"""Statements on backfills: ranges of past occurrences that are being run, and how far each is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, func, insert, or_, select, update

from celery_sched.model import Backfill, BackfillId, BackfillStatus, JobId, Reprocess
from celery_sched.rules.transitions import ACTIVE, FAILURES, HELD, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.tables import backfill, job, run

RUNNING = BackfillStatus.RUNNING.value
_EARLIER = run.c.retries + run.c.retried + run.c.requeued
"""A retry leaves nothing of the attempt before in the run's row but these counts."""


def add(tx: Tx, row: Mapping[str, Any]) -> None:
    """Insert a backfill."""
    tx.execute(insert(backfill).values(**row))


def get(tx: Tx, app: str, backfill_id: BackfillId) -> Row[Any] | None:
    """One backfill's row; ``has_job``: whether its job is still there."""
    return tx.execute(
        select(backfill, job.c.id.is_not(None).label("has_job"))
        .outerjoin(job, job.c.id == backfill.c.job_id)
        .where(backfill.c.app == app, backfill.c.id == backfill_id)
    ).first()


def lock(tx: Tx, backfill_id: BackfillId, *, skip_locked: bool = False) -> Row[Any] | None:
    """Its row, locked until the transaction ends; the caller has locked its job before."""
    return tx.execute(
        select(backfill).where(backfill.c.id == backfill_id).with_for_update(skip_locked=skip_locked)
    ).first()


def lock_running(tx: Tx, jobs: Collection[JobId]) -> Sequence[Row[Any]]:
    """The running backfills of these jobs (locked by the caller), locked."""
    return tx.execute(
        select(backfill)
        .where(backfill.c.job_id.in_(jobs), backfill.c.status == RUNNING)
        .order_by(backfill.c.id)
        .with_for_update()
    ).all()


def to_do(tx: Tx, app: str) -> list[BackfillId]:
    """The backfills that may make more runs now, or that are over."""
    unfinished = (
        select(func.count())
        .where(run.c.backfill_id == backfill.c.id, run.c.status.in_([status.value for status in ACTIVE]))
        .scalar_subquery()
    )
    rows = tx.execute(
        select(backfill.c.id)
        .where(
            backfill.c.app == app,
            backfill.c.status == RUNNING,
            or_(
                and_(backfill.c.at < backfill.c.to_at, unfinished < backfill.c.max_concurrent),
                unfinished == 0,
            ),
        )
        .order_by(backfill.c.created_at, backfill.c.id)
    )
    return [BackfillId(found) for found in rows.scalars()]


def unfinished(tx: Tx, backfill_id: BackfillId) -> int:
    """How many of its runs are not finished."""
    return tx.execute(
        select(func.count()).where(
            run.c.backfill_id == backfill_id, run.c.status.in_([status.value for status in ACTIVE])
        )
    ).scalar_one()


def standing(tx: Tx, keys: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Occurrence key -> the status of its run, and whether its body ever started."""
    if not keys:
        return {}
    rows = tx.execute(
        select(run.c.occurrence_key, run.c.status, run.c.started_at, _EARLIER.label("earlier")).where(
            run.c.occurrence_key.in_(keys)
        )
    )
    return {row.occurrence_key: (row.status, row.started_at is not None or row.earlier > 0) for row in rows}


def standing_in(tx: Tx, job_id: JobId, first: datetime, last: datetime) -> list[tuple[str, bool, int]]:
    """The runs of a job's occurrences in [first, last]: status, whether the body ever started, how many."""
    started = case((run.c.started_at.is_not(None) | (_EARLIER > 0), 1), else_=0).label("started")
    rows = tx.execute(
        select(run.c.status, started, func.count())
        .where(*_of_range(job_id, first, last))
        .group_by(run.c.status, started)
    )
    return [(status, bool(ever), int(count)) for status, ever, count in rows]


def each_in(
    tx: Tx, job_id: JobId, first: datetime, last: datetime, limit: int
) -> list[tuple[datetime, str, bool]]:
    """The same, one by one, at most ``limit``: of what instant, status, whether the body ever started."""
    rows = tx.execute(
        select(run.c.scheduled_for, run.c.status, run.c.started_at, _EARLIER.label("earlier"))
        .where(*_of_range(job_id, first, last))
        .limit(limit)
    )
    return [(row.scheduled_for, row.status, row.started_at is not None or row.earlier > 0) for row in rows]


def _of_range(job_id: JobId, first: datetime, last: datetime) -> list[ColumnElement[bool]]:
    return [
        run.c.job_id == job_id,
        run.c.scheduled_for >= first,
        run.c.scheduled_for <= last,
        run.c.occurrence_key.is_not(None),
    ]


def overlapping(tx: Tx, job_id: JobId, first: datetime, last: datetime) -> Row[Any] | None:
    """A running backfill of a job whose range meets [first, last]."""
    return tx.execute(
        select(backfill)
        .where(
            backfill.c.job_id == job_id,
            backfill.c.status == RUNNING,
            backfill.c.from_at <= last,
            backfill.c.to_at >= first,
        )
        .limit(1)
    ).first()


def advance(tx: Tx, backfill_id: BackfillId, at: datetime, *, created: int, again: int, left: int) -> int:
    """Everything up to ``at`` is dealt with; return the rows matched: 0, it is not running any more."""
    return tx.execute(
        update(backfill)
        .where(backfill.c.id == backfill_id, backfill.c.status == RUNNING)
        .values(
            at=at,
            created_count=backfill.c.created_count + created,
            again_count=backfill.c.again_count + again,
            left_count=backfill.c.left_count + left,
        )
    ).rowcount


def end(
    tx: Tx, now: datetime, backfill_id: BackfillId, status: BackfillStatus, reason: str | None = None
) -> int:
    """A running backfill is done or cancelled; return the rows matched: 0, it was over before.

    Of one that is done the total is what it came to: its job may have got another schedule meanwhile.
    """
    came_to = backfill.c.created_count + backfill.c.again_count + backfill.c.left_count
    return tx.execute(
        update(backfill)
        .where(backfill.c.id == backfill_id, backfill.c.status == RUNNING)
        .values(
            total=came_to if status is BackfillStatus.DONE else backfill.c.total,
            status=status.value,
            reason=reason,
            finished_at=now,
        )
    ).rowcount


def newest(
    tx: Tx, app: str, status: str | None, limit: int, *, job_id: JobId | None = None
) -> list[Backfill]:
    """Backfills, of one job where that is given, newest first."""
    statement = select(backfill).where(backfill.c.app == app)
    if job_id is not None:
        statement = statement.where(backfill.c.job_id == job_id)
    if status is not None:
        statement = statement.where(backfill.c.status == status)
    rows = tx.execute(statement.order_by(backfill.c.created_at.desc(), backfill.c.id).limit(limit)).all()
    counts = count_runs(tx, [row.id for row in rows])
    return [from_row(row, counts.get(row.id, {})) for row in rows]


def count_runs(tx: Tx, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Backfill -> status -> how many of its runs have it."""
    found: dict[str, dict[str, int]] = {}
    if ids:
        rows = tx.execute(
            select(run.c.backfill_id, run.c.status, func.count())
            .where(run.c.backfill_id.in_(ids))
            .group_by(run.c.backfill_id, run.c.status)
        )
        for backfill_id, status, count in rows:
            found.setdefault(backfill_id, {})[status] = int(count)
    return found


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some backfills that were over before ``before``; return how many."""
    old = select(backfill.c.id).where(backfill.c.app == app, backfill.c.finished_at < before).limit(limit)
    ids = list(tx.execute(old).scalars())
    return tx.execute(delete(backfill).where(backfill.c.id.in_(ids))).rowcount if ids else 0


def from_row(row: Any, counts: Mapping[str, int]) -> Backfill:
    """A backfill as people see it; ``counts``: its runs by status."""
    return Backfill(
        id=BackfillId(row.id),
        app=row.app,
        job=row.job,
        from_at=row.from_at,
        to_at=row.to_at,
        at=row.at,
        max_concurrent=row.max_concurrent,
        reprocess=Reprocess(row.reprocess),
        status=BackfillStatus(row.status),
        reason=row.reason,
        total=row.total,
        created=row.created_count,
        again=row.again_count,
        left=row.left_count,
        queued=counts.get(RunStatus.QUEUED, 0),
        in_flight=sum(counts.get(status, 0) for status in HELD),
        succeeded=counts.get(RunStatus.SUCCEEDED, 0),
        failed=sum(counts.get(status, 0) for status in FAILURES),
        cancelled=counts.get(RunStatus.CANCELLED, 0),
        created_at=row.created_at,
        created_by=row.created_by,
        finished_at=row.finished_at,
    )
