"""Whose turn it is: which of the waiting runs of one priority should start first."""

from __future__ import annotations

from datetime import datetime, timedelta

from celery_sched.rules.misfire import Due

PATIENCE = timedelta(minutes=10)
"""Longest that a run lets others, which are in more of a hurry, go first."""


def start_by(due: Due, following: datetime | None, now: datetime, *, behind: bool) -> datetime:
    """By when a job's new runs should start: before its next occurrence, which they would otherwise disturb.

    So a thousand runs of jobs that are due again tomorrow do not hold up a job that is due again in five
    seconds. The bound keeps them from waiting for ever: what has waited for ``PATIENCE`` is ahead of
    everything new. Runs that are made good late disturb nothing more: they have the whole of it.

    :param following: when the job is next due; None: not again, or nobody knows.
    :param behind: older runs of the job are waiting already.
    """
    late = len(due.run) > 1 or behind or following is None or following <= now
    return now + PATIENCE if late or following is None else min(following, now + PATIENCE)


def overdue(ready_at: datetime, start_by: datetime | None, now: datetime) -> bool:
    """Whether a waiting run has let others go first for long enough: what is free is then kept for it.

    :param start_by: None, or before ``ready_at`` (it is tried again): it has ``PATIENCE`` from then on.
    """
    fresh = start_by is None or start_by <= ready_at
    return (ready_at + PATIENCE if fresh or start_by is None else start_by) <= now
