"""Statements on deadlines (``must_succeed_by``): who has missed one, and who has made up for it since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, or_, select, update

from celery_sched.model import JobId, JobStatus, NoticeKind
from celery_sched.rules import deadlines
from celery_sched.rules.deadlines import Deadline
from celery_sched.rules.schedules import check_zone
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.upcoming import jitter_of
from celery_sched.store import audit, jobs, notices
from celery_sched.store.engine import Tx
from celery_sched.store.history import BEFORE
from celery_sched.store.tables import attempt, job, run

ACTOR = "must_succeed_by"
WATCHED = (JobStatus.ACTIVE.value, JobStatus.ERROR.value)
"""A job that is paused, disabled or over need not succeed; one in error should."""


@dataclass(frozen=True)
class Looked:
    """What one look found."""

    suspects: Mapping[JobId, str] = field(default_factory=dict)
    """Names of the jobs that seem to have missed a deadline: :func:`judge` says."""
    met: Mapping[JobId, datetime] = field(default_factory=dict)
    """Occurrences of which, or after which, a run has succeeded."""
    overdue: Mapping[JobId, str] = field(default_factory=dict)
    """Names of the jobs that are overdue already."""


def look(tx: Tx, now: datetime, app: str, keep: timedelta, met: Mapping[JobId, datetime]) -> Looked:
    """Read which jobs may have missed a deadline; nothing is locked or written.

    :param keep: how long runs are kept.
    :param met: what an earlier look found: it is not looked up again.
    """
    rows = tx.execute(
        select(job)
        .where(job.c.app == app, job.c.must_succeed_by.is_not(None), job.c.status.in_(WATCHED))
        .order_by(job.c.id)
    ).all()
    suspects: dict[JobId, str] = {}
    found: dict[JobId, datetime] = {}
    for row in rows:
        if row.overdue_since is not None:
            continue
        job_id, deadline = JobId(row.id), _passed(row, now)
        if deadline is None:
            continue
        if deadline.occurrence is None or not (
            met.get(job_id) == deadline.occurrence or _met(tx, now, row, deadline.occurrence, keep)
        ):
            suspects[job_id] = row.name
        else:
            found[job_id] = deadline.occurrence
    overdue = {JobId(row.id): row.name for row in rows if row.overdue_since is not None}
    return Looked(suspects, found, overdue)


def judge(tx: Tx, now: datetime, job_id: JobId, keep: timedelta) -> str | None:
    """Whether a job has missed its deadline: then it is overdue from now on, and what is told comes back.

    Under the job's lock, so that no run of it succeeds meanwhile, and whoever comes second finds it overdue.
    """
    row: Any = jobs.lock(tx, [job_id]).get(job_id)
    if row is None or row.must_succeed_by is None or row.status not in WATCHED:
        return None
    deadline = _passed(row, now)
    if deadline is None:
        return None
    if deadline.occurrence is not None and _met(tx, now, row, deadline.occurrence, keep):
        return None
    written = tx.execute(
        update(job)
        .where(job.c.id == job_id, job.c.version == row.version, job.c.overdue_since.is_(None))
        .values(overdue_since=deadline.at)
    )
    if written.rowcount != 1:
        return None
    return f"job {row.name!r} has not succeeded in time: {missed(tx, now, row, deadline)}"


def missed(tx: Tx, now: datetime, row: Row[Any], deadline: Deadline) -> str:
    """A job (its row, locked) has just missed a deadline, once: everybody who is to know is told here."""
    text = deadlines.told(row.must_succeed_by, check_zone(row.timezone), deadline)
    occurrence = None if deadline.occurrence is None else deadline.occurrence.isoformat()
    detail = {"by": row.must_succeed_by, "deadline": deadline.at.isoformat(), "occurrence": occurrence}
    audit.add(tx, now, row.app, ACTOR, "overdue", row.name, detail)
    notices.note_job(tx, now, row, NoticeKind.DEADLINE, text)
    return text


def ended(tx: Tx, now: datetime, rows: Sequence[Row[Any]]) -> None:
    """Runs are over: jobs that were overdue, and of which one was waited for that has succeeded, are not.

    ``rows``: see :func:`celery_sched.store.ends.after`.
    """
    for row in (row for row in rows if row.status == RunStatus.SUCCEEDED):
        if row.job_overdue_since is None:
            continue
        job_row: Any = tx.execute(select(job).where(job.c.id == row.job_id)).first()
        if job_row is None or job_row.overdue_since is None:
            continue
        if job_row.must_succeed_by is not None:
            deadline = _passed(job_row, now)
            # one of an older occurrence is not what is waited for
            if deadline is not None and deadline.occurrence is not None:
                if row.scheduled_for < deadline.occurrence:
                    continue
        tx.execute(update(job).where(job.c.id == row.job_id).values(overdue_since=None))
        detail = {"run": row.id, "overdue_since": job_row.overdue_since.isoformat()}
        audit.add(tx, now, row.app, ACTOR, "recovered", row.job, detail)


def _passed(row: Any, now: datetime) -> Deadline | None:
    try:
        times, zone = jitter_of(row), check_zone(row.timezone)
        return deadlines.passed(
            row.must_succeed_by, times, zone, now, since=_since(row), last_success=row.last_success_at
        )
    except Exception:  # times that cannot be read: the job is in error, or will be, and `status` says so
        return None


def _since(row: Any) -> datetime:
    """From when on a job is watched: an age counts from here, and earlier occurrences do not matter."""
    watched: datetime = row.watched_since or row.created_at
    edited: datetime | None = row.timing_since
    if edited is None or not deadlines.is_time_of_day(row.must_succeed_by):
        return watched
    return max(watched, edited)


def _met(tx: Tx, now: datetime, row: Any, occurrence: datetime, keep: timedelta) -> bool:
    """Whether a run of an occurrence of the job, or of a later one, has succeeded."""
    if row.last_success_at is None or row.last_success_at < occurrence:
        return False
    succeeded = RunStatus.SUCCEEDED.value
    before = select(1).where(attempt.c.run_id == run.c.id, attempt.c.status == succeeded).exists()
    found = tx.execute(
        select(1)
        .select_from(run)
        .where(
            # what an index finds them by
            *(run.c.app == row.app, run.c.job == row.name, run.c.queued_at >= occurrence - BEFORE),
            run.c.job_id == row.id,
            run.c.scheduled_for >= occurrence,
            # it counts too where somebody has it carried out once more
            or_(run.c.status == succeeded, before),
        )
        .limit(1)
    ).first()
    # of a success that is older than what is kept nobody knows whose it was
    return found is not None or row.last_success_at < now - keep
