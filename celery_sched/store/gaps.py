"""Statements on gaps: ranges of occurrences that were not run, with the reason and how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select

from celery_sched.model import JobId
from celery_sched.store.engine import Tx
from celery_sched.store.tables import gap


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
