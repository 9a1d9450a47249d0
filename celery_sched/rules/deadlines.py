"""Deadlines: by when a job must have succeeded, and which success counts. Values in, values out.

A time of day is one of the job's zone. An occurrence must have succeeded by the first such time after it was
due; of several occurrences before the same one, the last. A later run's success is as good. A day without an
occurrence has no deadline.

An age counts from the last success, or from when the job began to be watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery_sched.durations import parse_duration
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.readers import TIME_OF_DAY
from celery_sched.rules.schedules.zones import instant_of_wall

_INSTANT = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_NEAR = 3
"""Days around an instant among which the deadline next to it lies, whatever the zone's clocks do."""
UNKNOWN_TIMES = ("after", "none")
"""Kinds of schedule whose occurrences are not known beforehand: only an age is a deadline for them."""


@dataclass(frozen=True)
class Deadline:
    """A deadline that has passed, and what must have succeeded by then."""

    at: datetime
    occurrence: datetime | None
    """A run of this occurrence, or a later one; None: any run within the age before ``at``."""


def is_time_of_day(must_succeed_by: str) -> bool:
    """``06:00``; else it is an age."""
    return TIME_OF_DAY.fullmatch(must_succeed_by) is not None


def passed(
    must_succeed_by: str,
    times: Jitter,
    zone: ZoneInfo,
    now: datetime,
    *,
    since: datetime,
    last_success: datetime | None,
) -> Deadline | None:
    """The last deadline before ``now`` that a job has to answer for, or None.

    Of an age, only one that is missed: there was no success. Of a time of day, whether a run of
    ``occurrence`` or a later one has succeeded is for the caller to say.

    :param since: when the job began to be watched; earlier occurrences are nobody's business.
    """
    if not is_time_of_day(must_succeed_by):
        begin = since if last_success is None else max(since, last_success)
        at = begin + parse_duration(must_succeed_by, "must_succeed_by")
        return Deadline(at, None) if at < now else None
    if times.schedule.kind in UNKNOWN_TIMES:
        return None
    clock = time.fromisoformat(must_succeed_by)
    last = max(at for at in _near(zone, clock, now) if at < now)
    occurrence = times.schedule.latest_in(since, last - _INSTANT)
    if occurrence is not None and times.due(occurrence) >= last:
        # by its jitter; the one before it was due before it came
        occurrence = times.schedule.latest_in(since, occurrence - _INSTANT)
    if occurrence is None:
        return None
    due = times.due(occurrence)
    return Deadline(min(at for at in _near(zone, clock, due) if at > due), occurrence)


def _near(zone: ZoneInfo, clock: time, at: datetime) -> list[datetime]:
    """The instants of a time of day on the days around an instant.

    Where the clocks show it twice, the first; where they jump over it, the first instant after the jump.
    """
    day = datetime.combine(at.astimezone(zone).date(), clock)
    return [instant_of_wall(zone, day + _DAY * number) for number in range(-_NEAR, _NEAR + 1)]


def told(must_succeed_by: str, zone: ZoneInfo, deadline: Deadline) -> str:
    """What is told of a deadline that a job has missed."""

    def local(at: datetime) -> str:
        return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"

    at, by = local(deadline.at), f"must_succeed_by is {must_succeed_by}"
    if deadline.occurrence is None:
        return f"{by}: no run had succeeded for so long at {at}"
    return f"{by}: no run for {local(deadline.occurrence)}, or a later one, had succeeded by {at}"
