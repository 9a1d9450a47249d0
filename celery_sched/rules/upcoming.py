"""A job's schedule, parsed once, and where it goes on after an edit, a pause or a start."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from celery_sched.rules.schedules import Schedule, parse


@lru_cache(maxsize=10_000)
def parsed(text: str, timezone: str, name: str, anchor: datetime) -> Schedule:
    """A schedule, parsed once per process: parsing costs more than asking."""
    return parse(text, tz=timezone, name=name, anchor=anchor)


def schedule_of(row: Any) -> Schedule:
    """The schedule of a job's row (or of anything with the same four attributes)."""
    return parsed(row.schedule, row.timezone, row.name, row.anchor)


def next_run_at(
    schedule: Schedule, *, now: datetime, mark: datetime | None, run_immediately: bool, never_ran: bool
) -> datetime | None:
    """The next instant of a job that is new, edited or resumed.

    It lies after ``now`` and after the high-water mark: an edit never fires a job at once, and time spent
    paused is not missed. Only ``run_immediately`` on a job that never ran starts as now.
    """
    if run_immediately and never_ran:
        return now
    return schedule.next_after(now if mark is None else max(now, mark))
