"""Statements on gaps: ranges of occurrences that were not run, with the reason and how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, delete, insert, select

from celery_sched.model import JobId, JobStatus
from celery_sched.rules import misfire
from celery_sched.rules.jitter import Jitter
from celery_sched.store.apps import Downtime
from celery_sched.store.engine import Tx
from celery_sched.store.tables import gap

INSTANT = timedelta(microseconds=1)


def row_of(
    job: Any, now: datetime, first: datetime, last: datetime, count: int, reason: str
) -> dict[str, Any]:
    """A gap of a job (its row): from the first to the last occurrence that was not run, ``count`` of them."""
    return {
        "app": job.app,
        "job_id": job.id,
        "job": job.name,
        "from_at": first,
        "to_at": last,
        "reason": reason[:1000],
        "count": count,
        "created_at": now,
    }


def of_missed(row: Any, gap: misfire.Gap, now: datetime, downtime: Downtime | None) -> Mapping[str, Any]:
    """What the misfire rule gave up without a row each."""
    reason = gap.reason
    if downtime is not None and downtime.covers(gap.last):
        reason = f"{reason}: {downtime}" if reason == misfire.MISSED else f"{reason}; {downtime}"
    return row_of(row, now, gap.first, gap.last, gap.count, reason)


def in_error(row: Any, now: datetime, reason: str) -> Mapping[str, Any]:
    """What was due when the job could not be planned: how many occurrences that are nobody can say."""
    first = row.next_run_at - timedelta(seconds=row.jitter or 0)
    if row.last_scheduled_for is not None:
        first = max(first, row.last_scheduled_for + INSTANT)
    return row_of(row, now, first, now, 0, f"{JobStatus.ERROR}: {reason}")


def beyond(
    row: Any, times: Jitter, due: misfire.Due, now: datetime, reason: str | None
) -> list[Mapping[str, Any]]:
    """What was due too when ``max_runs`` was reached."""
    schedule = times.schedule
    if schedule.kind == "after" or due.mark is None:
        return []
    first, last = schedule.next_after(due.mark), schedule.latest_in(due.mark, now)
    if first is None or last is None:
        return []
    count = schedule.count_in(due.mark, now)
    return [row_of(row, now, first, last, count, f"{JobStatus.EXPIRED}: {reason}")]


def covering(tx: Tx, job_id: JobId, at: datetime) -> Row[Any] | None:
    """The newest gap of a job that an instant lies in."""
    return tx.execute(
        select(gap)
        .where(gap.c.job_id == job_id, gap.c.from_at <= at, gap.c.to_at >= at)
        .order_by(gap.c.id.desc())
        .limit(1)
    ).first()


def add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert gaps."""
    if rows:
        tx.execute(insert(gap), list(rows))


def of_job(tx: Tx, job_id: JobId, limit: int = 100) -> Sequence[Row[Any]]:
    """A job's gaps, newest first."""
    return tx.execute(
        select(gap).where(gap.c.job_id == job_id).order_by(gap.c.from_at.desc()).limit(limit)
    ).all()


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some gaps that were recorded before ``before``; return how many."""
    old = select(gap.c.id).where(gap.c.app == app, gap.c.created_at < before).limit(limit)
    ids = list(tx.execute(old).scalars())
    return tx.execute(delete(gap).where(gap.c.id.in_(ids))).rowcount if ids else 0
