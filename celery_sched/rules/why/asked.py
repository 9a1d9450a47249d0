"""Which instant people mean by the time they type, and which occurrence of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery_sched.errors import InvalidValue
from celery_sched.rules.clocks import changes, clock
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import Schedule, between
from celery_sched.rules.schedules.bounded import Bounded
from celery_sched.rules.schedules.excluding import Excluding
from celery_sched.rules.schedules.zones import instant_of_wall

FIRST, END = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ALLOWED = (
    'a time from 1970 to 2999 such as "2026-01-31T09:00", "09:00" (today) or "now", in the zone of the job,'
    ' or with a zone of its own: "2026-01-31T08:00:00Z"'
)
NOW = "now"
_INSTANT = timedelta(microseconds=1)
_DENSEST = 60
"""Occurrences in a minute: schedules count in seconds."""
_OF_THE_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?")


@dataclass(frozen=True)
class Asked:
    """A time as typed. ``wall`` are its digits, naive; ``zoned``: it said its zone itself."""

    at: datetime
    wall: datetime
    zoned: bool
    second: datetime | None = None
    """The later one of two instants at which the clocks show this time."""
    note: str | None = None
    """What is special about it: the clocks jump over it, or show it twice."""
    is_now: bool = False
    """``now`` was typed: how the job stands is asked for, not what is near."""


def read_asked(given: str | datetime, zone: ZoneInfo, now: datetime) -> Asked:
    """Read a TIME. Without a zone of its own it is a time of ``zone``.

    :raises InvalidValue: it cannot be read, or is not within 1970 to 2999.
    """
    if isinstance(given, str) and given.strip().lower() == NOW:
        return Asked(now, now.replace(tzinfo=None), True, is_now=True)
    try:
        wall = given if isinstance(given, datetime) else _parsed(given.strip(), zone, now)
        at = instant_of_wall(zone, wall) if wall.tzinfo is None else wall.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidValue("TIME", str(given), ALLOWED) from error
    if not FIRST <= at < END:
        raise InvalidValue("TIME", str(given), ALLOWED)
    if wall.tzinfo is not None:
        return Asked(at, wall.replace(tzinfo=None), True)
    return _special(at, wall, zone)


def _parsed(text: str, zone: ZoneInfo, now: datetime) -> datetime:
    if _OF_THE_DAY.fullmatch(text):
        return datetime.combine(now.astimezone(zone).date(), time.fromisoformat(text.zfill(5)))
    return datetime.fromisoformat(text)


def _special(at: datetime, wall: datetime, zone: ZoneInfo) -> Asked:
    """A local time: the clocks may jump over it, or show it twice."""
    local = at.astimezone(zone)
    day = f"on {wall:%Y-%m-%d} in {zone.key}"
    if local.replace(tzinfo=None) != wall:
        jump = [str(change) for change in changes(zone, at - MINUTE, at)]
        because = f" ({jump[-1]})" if jump else ""
        note = f"{clock(wall)} does not exist {day}{because}: {clock(local)} is meant."
        return Asked(at, wall, False, note=note)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if second == at:
        return Asked(at, wall, False)
    note = f"{clock(wall)} comes twice {day}: at {at:%H:%M}Z and at {second:%H:%M}Z."
    return Asked(at, wall, False, second, note)


@dataclass(frozen=True)
class Parts:
    """A job's schedule and what it is made of."""

    whole: Schedule
    base: Schedule
    """Its text alone: without calendars, start and end."""
    excluding: Excluding | None
    bounds: Bounded | None


def parts_of(schedule: Schedule) -> Parts:
    """Take a schedule apart."""
    bounds = schedule if isinstance(schedule, Bounded) else None
    inner = schedule if bounds is None else bounds.base
    excluding = inner if isinstance(inner, Excluding) else None
    return Parts(schedule, inner if excluding is None else excluding.base, excluding, bounds)


def has(schedule: Schedule, at: datetime) -> bool:
    """Whether an instant is an occurrence. ``after`` has none of its own: they come with the ends of runs."""
    return schedule.kind != "after" and schedule.next_after(at - _INSTANT) == at


def exact(times: Jitter, asked: Asked) -> datetime | None:
    """The occurrence at that very time, excluded or not; of two equal times the first that is one."""
    parts = parts_of(times.schedule)
    for at in (asked.at, asked.second):
        if at is not None and (has(parts.whole, at) or has(parts.base, at)):
            return at
    return None


def within_minute(times: Jitter, asked: Asked) -> datetime | None:
    """The occurrence that is due in the minute that was typed, the nearest one; None: there is none.

    People type 02:30 for 02:30:17, and when it ran for what it ran.
    """
    parts = parts_of(times.schedule)
    if times.schedule.kind == "after":
        return None
    for at in (asked.at, asked.second):
        if at is None:
            continue
        start = at.replace(second=0, microsecond=0)
        end = start + MINUTE - _INSTANT
        found = between(parts.whole, start - _INSTANT, end, _DENSEST)
        # an occurrence is due before the next one comes: only the one before can be due in here too
        waiting = times.amount and parts.whole.latest_in(start - times.amount - _INSTANT, start - _INSTANT)
        known = {
            occurrence: times.due(occurrence) for occurrence in [*found, *([waiting] if waiting else [])]
        }
        known = {one: due for one, due in known.items() if one >= start or start <= due <= end}
        if not known:
            known = {one: one for one in between(parts.base, start - _INSTANT, end, _DENSEST)}
        if known:
            return min(known, key=lambda one: min(abs(one - at), abs(known[one] - at)))
    return None
