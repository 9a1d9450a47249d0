"""A job leaves the status it is in: what nobody will plan is recorded, so that no occurrence vanishes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_sched.model import JobId, JobStatus
from celery_sched.rules.upcoming import jitter_of
from celery_sched.store import gaps, jobs
from celery_sched.store.engine import Tx


def pause(tx: Tx, now: datetime, row: Any, reason: str | None) -> bool:
    """Stop planning a job (``row``, locked by the caller); false when its version moved on.

    One that is in error stays known to be: whoever looks at it, or resumes it, sees what is wrong.
    """
    if row.status == JobStatus.ERROR:
        reason = f"{reason or 'paused'} (before that it was in error: {row.status_reason})"
    columns = {
        "status": JobStatus.PAUSED.value,
        "status_reason": reason,
        "next_run_at": None,
        **leave(tx, now, row, JobStatus.PAUSED, "paused"),
    }
    return jobs.define(tx, now, JobId(row.id), row.version, columns)


def leave(
    tx: Tx, now: datetime, row: Any, status: JobStatus, what: str, timing: bool = False
) -> dict[str, Any]:
    """Record the occurrences that nobody will plan once the job has moved on to ``status``.

    Of an active job those that have come and are not planned; of one that was not active those since it left,
    with what it was instead. None vanishes.

    :param timing: its times change too.
    """
    written: dict[str, Any] = {"timing_since": now} if timing else {}
    written |= _watched(now, row, status)
    if row.status == JobStatus.ACTIVE:
        written |= _give_up(tx, now, row, what)
    elif row.inactive_since is not None and (timing or status != row.status):
        _record_inactive(tx, now, row)
    else:
        return written
    return {**written, "inactive_since": None if status is JobStatus.ACTIVE else now}


def _watched(now: datetime, row: Any, status: JobStatus) -> dict[str, Any]:
    """A job that nobody plans need not succeed; once it is planned again, its deadlines count from then."""
    if status not in (JobStatus.ACTIVE, JobStatus.ERROR):
        return {"overdue_since": None}
    if row.status not in (JobStatus.ACTIVE, JobStatus.ERROR):
        return {"overdue_since": None, "watched_since": now}
    return {}


def _give_up(tx: Tx, now: datetime, row: Any, what: str) -> dict[str, Any]:
    """Record what came and is not planned yet."""
    due = row.next_run_at
    if due is None:
        return {}
    first, last, count = due, due, 1
    try:
        times = jitter_of(row)
        first = times.occurrence_of(due)
        if first > now:
            return {}
        if times.schedule.kind != "after":  # that one has a single occurrence at a time
            # `first` counts even where it is no occurrence (run_immediately), as in the misfire rule
            last = times.schedule.latest_in(first, now) or first
            count = 1 + times.schedule.count_in(first, now)
    except Exception:  # its zone vanished, say: what cannot be read can still be paused and repaired
        if due > now:
            return {}
        last, count = now, 0  # nobody knows how many
    reason = f"missed: late when the job was {what}"
    gaps.add(tx, [gaps.row_of(row, now, first, last, count, reason)])
    mark = last if count else due
    return {"last_scheduled_for": mark, "skipped_count": row.skipped_count + count}


def _record_inactive(tx: Tx, now: datetime, row: Any) -> None:
    """Record the span in which a job was not active, where it has occurrences; they are not missed."""
    since = row.inactive_since
    try:
        schedule = jitter_of(row).schedule
        first, last = schedule.next_after(since), schedule.latest_in(since, now)
        if schedule.kind == "after" or first is None or last is None:
            return
        count = schedule.count_in(since, now)
    except Exception:  # whatever a zone or a calendar raises
        first, last, count = since, now, 0  # it cannot be read: the whole span, and nobody knows how many
    gaps.add(tx, [gaps.row_of(row, now, first, last, count, f"{row.status}: {row.status_reason or ''}")])
