"""A job's whole schedule, composed once, and where it goes on after an edit, a pause or a start."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition, OnExcluded
from celery_sched.rules.calendars import read_calendar
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import Schedule, check_zone, parse
from celery_sched.rules.schedules.bounded import Bounded
from celery_sched.rules.schedules.excluding import Excluding
from celery_sched.rules.schedules.none import NONE

TIMES = (
    *("schedule", "timezone", "dst", "day_mode", "start_at", "end_at", "max_runs", "jitter"),
    *("exclude", "on_excluded"),
)
"""The fields of a definition that say when a job is due."""
OVER = "the schedule has no further occurrence"
"""Why a job is ``expired``, where nothing else is."""


@contextmanager
def named(name: str) -> Iterator[None]:
    """What a job's times are refused for names the job, and what to do: a zone that vanished, say.

    :raises InvalidValue: instead of the one that came.
    """
    try:
        yield
    except InvalidValue as error:
        hint = f"{error.hint} To repair it: {remedy(name, error)}".strip()
        raise InvalidValue(f"job {name!r}: {error.what}", error.value, error.allowed, hint) from error


def remedy(name: str, error: Exception) -> str:
    """The command that repairs a job whose times cannot be read."""
    what = error.what if isinstance(error, InvalidValue) else ""
    option = {"time zone": "--tz ZONE", "schedule": "--schedule SCHEDULE"}.get(what, "--exclude CALENDAR")
    return f"sched jobs edit {shlex.quote(name)} {option}"


def schedule_of(row: Any) -> Schedule:
    """The schedule of a job's row: its text between ``start_at`` and ``end_at``, without what is excluded."""
    return _schedule(row, row.anchor)


def schedule_for(definition: JobDefinition, anchor: datetime | None = None) -> Schedule:
    """The same of a definition that is in no row (yet)."""
    return _schedule(definition, anchor)


def jitter_of(row: Any) -> Jitter:
    """When the occurrences of a job's row are due. Its ``jitter`` is in seconds."""
    amount = None if row.jitter is None else timedelta(seconds=row.jitter)
    return Jitter(schedule_of(row), row.name, amount)


def jitter_for(definition: JobDefinition, anchor: datetime | None = None) -> Jitter:
    """The same of a definition."""
    return Jitter(schedule_for(definition, anchor), definition.name, definition.jitter)


def _schedule(times: Any, anchor: datetime | None) -> Schedule:
    return _composed(
        *(times.schedule, times.timezone, times.name, anchor, times.dst, times.day_mode),
        *(times.start_at, times.end_at, _key(times.exclude), times.on_excluded),
    )


def _key(terms: Sequence[Any]) -> str:
    """Calendars as a text: a cache wants what has a hash."""
    return json.dumps(list(terms), sort_keys=True) if terms else ""


@lru_cache(maxsize=10_000)
def _composed(
    text: str,
    timezone: str,
    name: str,
    anchor: datetime | None,
    dst: str,
    day_mode: str,
    start_at: datetime | None,
    end_at: datetime | None,
    exclude: str,
    on_excluded: str,
) -> Schedule:
    """Once per process: reading a schedule costs more than asking it."""
    # a fixed rate with a first instant counts from it: "every 1h" from 09:30 on is due at 09:30, 10:30, ...
    schedule = parse(text, tz=timezone, name=name, anchor=start_at or anchor, dst=dst, day_mode=day_mode)
    if exclude:
        zone = check_zone(timezone)
        calendars = tuple(read_calendar(term, zone) for term in json.loads(exclude))
        schedule = Excluding(schedule, zone, calendars, on_excluded == OnExcluded.NEXT_BUSINESS_DAY)
    if start_at is not None or end_at is not None:
        schedule = Bounded(schedule, start_at, end_at)
    return schedule


def next_occurrence(
    schedule: Schedule, *, now: datetime, mark: datetime | None, run_immediately: bool, never_ran: bool
) -> datetime | None:
    """The next occurrence of a job that is new, edited or resumed.

    It lies after ``now`` and after the high-water mark: an edit never fires a job at once, and time spent
    paused is not missed. Only ``run_immediately`` on a job that never ran starts as now.
    """
    if run_immediately and never_ran:
        return now
    return schedule.next_after(now if mark is None else max(now, mark))


def over(definition: JobDefinition, planned: int, ended: bool) -> str | None:
    """Why a job is over (``expired``), or None.

    :param planned: occurrences that became runs.
    :param ended: its schedule has no further occurrence.
    """
    if definition.max_runs is not None and planned >= definition.max_runs:
        return f"max_runs ({definition.max_runs}) is reached"
    if not ended or definition.schedule == NONE:
        return None
    if definition.end_at is not None:
        return f"no further occurrence up to end_at ({definition.end_at:%Y-%m-%d %H:%M:%S} UTC)"
    return OVER
