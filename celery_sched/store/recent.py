"""What a page shows of runs: few columns of the newest ones, cheap enough to be asked every few seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, union_all

from celery_sched.model import RunId
from celery_sched.rules.overlap import REPLACED
from celery_sched.rules.transitions import ACTIVE, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

REPLACED_RUNS = 5
"""So many replaced runs in a row are a problem."""
SHOWN_ERROR = 4000
"""Characters of an error that are read; the whole one is `sched runs --json`'s."""


@dataclass(frozen=True)
class RunLine:
    """A run without what may be large."""

    id: RunId
    job: str
    trigger: str
    scheduled_for: datetime
    status: str
    reason: str | None
    attempt: int
    worker: str | None
    """The worker's Celery node name."""
    queued_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    """The first :data:`SHOWN_ERROR` characters."""


@dataclass(frozen=True)
class Active:
    """A job's runs of one status that are not finished."""

    status: str
    count: int
    started_at: datetime | None
    """When the first of them started."""
    lease_expires_at: datetime | None
    """When the first of their leases ends, unless it is renewed."""


def newest_by_job(tx: Tx, app: str, names: Sequence[str], limit: int) -> dict[str, list[RunLine]]:
    """The newest runs of each of these jobs, newest first, in one statement (at most 500 jobs: SQLite)."""
    if not names:
        return {}
    columns = (
        run.c.id,
        run.c.job,
        run.c.trigger_kind.label("trigger"),
        run.c.scheduled_for,
        run.c.status,
        run.c.reason,
        run.c.attempt,
        run.c.worker_name.label("worker"),
        run.c.queued_at,
        run.c.dispatched_at,
        run.c.started_at,
        run.c.finished_at,
        func.substr(run.c.error, 1, SHOWN_ERROR).label("error"),
    )
    parts = [
        select(
            select(*columns)
            .where(run.c.app == app, run.c.job == name)
            .order_by(run.c.queued_at.desc())
            .limit(limit)
            .subquery()
        )
        for name in names
    ]
    found: dict[str, list[RunLine]] = {}
    for row in tx.execute(union_all(*parts) if len(parts) > 1 else parts[0]):
        found.setdefault(row.job, []).append(RunLine(**row._mapping))
    for lines in found.values():
        lines.sort(key=lambda line: (line.queued_at, line.scheduled_for, line.id), reverse=True)
    return found


def always_replaced(tx: Tx, app: str, names: Iterable[str]) -> list[str]:
    """Those of these jobs whose last :data:`REPLACED_RUNS` runs were all stopped for a later one.

    One short statement a job, from the index that the newest runs are read by.
    """
    over = run.c.finished_at.is_not(None) & (run.c.status != RunStatus.SKIPPED.value)
    found = []
    for name in names:
        rows = tx.execute(
            select(run.c.status, run.c.stop_reason)
            .where(run.c.app == app, run.c.job == name, run.c.backfill_id.is_(None), over)
            .order_by(run.c.queued_at.desc())
            .limit(REPLACED_RUNS)
        ).all()
        replaced = [
            status == RunStatus.CANCELLED and (reason or "").startswith(REPLACED) for status, reason in rows
        ]
        if len(replaced) == REPLACED_RUNS and all(replaced):
            found.append(name)
    return found


def active_by_job(tx: Tx, app: str) -> dict[str, list[Active]]:
    """The runs that are not finished, counted by job and status."""
    rows: Any = tx.execute(
        select(
            run.c.job,
            run.c.status,
            func.count(),
            func.min(run.c.started_at),
            func.min(run.c.lease_expires_at),
        )
        .where(run.c.app == app, run.c.status.in_([status.value for status in ACTIVE]))
        .group_by(run.c.job, run.c.status)
        .order_by(run.c.job, run.c.status.desc())
    )
    found: dict[str, list[Active]] = {}
    for job, status, count, started_at, lease_expires_at in rows:
        found.setdefault(job, []).append(Active(status, count, started_at, lease_expires_at))
    return found
