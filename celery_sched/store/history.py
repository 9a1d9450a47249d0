"""Statements on what was: a job's runs, gaps and acts around one instant, for `why`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, case, func, select

from celery_sched.model import JobId
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.tables import audit, gap, run

BEFORE = timedelta(days=1)
"""No run is queued earlier than this before its occurrence: what lets an index bound the search."""
MOST_ACTS = 10_000


def with_key(tx: Tx, key: str) -> Row[Any] | None:
    """The run of an occurrence."""
    return tx.execute(select(run).where(run.c.occurrence_key == key)).first()


def at_instant(tx: Tx, app: str, name: str, at: datetime) -> Row[Any] | None:
    """The run for an instant of a job of that name, deleted or not; the schedule's before one by hand."""
    return tx.execute(
        _of_name(app, name, at)
        .where(run.c.scheduled_for == at)
        .order_by(case((run.c.occurrence_key.is_(None), 1), else_=0), run.c.queued_at.desc())
        .limit(1)
    ).first()


def first_from(tx: Tx, app: str, name: str, start: datetime, end: datetime) -> Row[Any] | None:
    """The run for the first instant in start <= t < end of a job of that name."""
    return tx.execute(
        _of_name(app, name, start)
        .where(run.c.scheduled_for >= start, run.c.scheduled_for < end)
        .order_by(run.c.scheduled_for)
        .limit(1)
    ).first()


def last_before(tx: Tx, app: str, name: str, start: datetime, end: datetime) -> Row[Any] | None:
    """The same for the last one."""
    return tx.execute(
        _of_name(app, name, start)
        .where(run.c.scheduled_for >= start, run.c.scheduled_for < end)
        .order_by(run.c.scheduled_for.desc())
        .limit(1)
    ).first()


def _of_name(app: str, name: str, at: datetime) -> Any:
    return select(run).where(run.c.app == app, run.c.job == name, run.c.queued_at >= at - BEFORE)


def exists(tx: Tx, app: str, name: str) -> bool:
    """Whether a job of that name, deleted or not, has left a run or a word in the audit."""
    found = tx.execute(select(1).select_from(run).where(run.c.app == app, run.c.job == name).limit(1)).first()
    return found is not None or bool(acts(tx, app, name))


def holder(tx: Tx, job_id: JobId) -> Row[Any] | None:
    """A run of the job that is dispatched or running."""
    held = run.c.status.in_([status.value for status in HELD])
    return tx.execute(select(run).where(run.c.job_id == job_id, held).order_by(run.c.id).limit(1)).first()


def unfinished(tx: Tx, job_id: JobId, limit: int) -> tuple[list[Row[Any]], int]:
    """The first runs of a job that are not finished, those under way before those that wait; and how many."""
    wanted = (run.c.job_id == job_id) & run.c.status.in_([status.value for status in ACTIVE])
    held = case(
        (run.c.status == RunStatus.RUNNING.value, 0), (run.c.status == RunStatus.QUEUED.value, 2), else_=1
    )
    order = (held, run.c.priority.desc(), run.c.ready_at, run.c.scheduled_for, run.c.id)
    rows = list(tx.execute(select(run).where(wanted).order_by(*order).limit(limit)))
    if len(rows) < limit:
        return rows, len(rows)
    return rows, tx.execute(select(func.count()).select_from(run).where(wanted)).scalar_one()


def last_end(tx: Tx, app: str, name: str) -> datetime | None:
    """When the newest finished run of a job of that name ended."""
    return tx.execute(
        select(run.c.finished_at)
        .where(run.c.app == app, run.c.job == name, run.c.finished_at.is_not(None))
        .order_by(run.c.queued_at.desc(), run.c.scheduled_for.desc())
        .limit(1)
    ).scalar()


def gap_of_name(tx: Tx, app: str, name: str, at: datetime) -> Row[Any] | None:
    """The newest gap at an instant of any job of that name: of one that was deleted, too."""
    return tx.execute(
        select(gap)
        .where(gap.c.app == app, gap.c.job == name, gap.c.from_at <= at, gap.c.to_at >= at)
        .order_by(gap.c.id.desc())
        .limit(1)
    ).first()


def acts(tx: Tx, app: str, name: str) -> Sequence[Row[Any]]:
    """What people did to a job of that name, oldest first."""
    actions = ("add", "edit", "pause", "delete")
    rows = tx.execute(
        select(audit)
        .where(audit.c.app == app, audit.c.subject == name, audit.c.action.in_(actions))
        .order_by(audit.c.id.desc())
        .limit(MOST_ACTS)
    ).all()
    return list(reversed(rows))
