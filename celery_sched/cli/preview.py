"""What ``sched next`` shows: the occurrences of a schedule, and what lies between two of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_sched.cli.output import Line, instant, plain
from celery_sched.rules.clocks import LAST, Change, changes, peculiarity
from celery_sched.rules.schedules import Schedule
from celery_sched.rules.schedules.bounded import Bounded
from celery_sched.rules.schedules.excluding import Excluding

MOST_CHANGES = 3
"""Clock changes shown between two occurrences; of more it is said how many."""
MOST_EXCLUDED = 5
"""Excluded occurrences shown between two that are not."""
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Excluded:
    """An instant of the schedule that a calendar excludes."""

    at: datetime
    by: str
    reason: str
    moved_to: datetime | None

    def __str__(self) -> str:
        # "weekly:sat" says itself why
        why = f" ({self.reason})" if self.reason not in self.by else ""
        return f"excluded by {self.by}{why}"


@dataclass(frozen=True)
class Between:
    """What lies between two occurrences. ``more``: excluded ones that are not listed; None: who knows."""

    changes: Sequence[Change]
    excluded: Sequence[Excluded]
    more: int | None = 0


@dataclass(frozen=True)
class Shown:
    """An occurrence with what lies before it."""

    at: datetime
    run_at: datetime
    """Later than ``at`` by the job's jitter."""
    before: Between
    note: str | None
    """Why its local time may surprise."""


def upcoming(schedule: Schedule, start: datetime, count: int) -> list[datetime]:
    """The first ``count`` instants strictly after ``start``; fewer where the schedule ends."""
    found: list[datetime] = []
    last = start
    while len(found) < count:
        following = schedule.next_after(last)
        if following is None:
            break
        found.append(following)
        last = following
    return found


def shown(
    schedule: Schedule,
    zone: ZoneInfo,
    start: datetime,
    occurrences: Sequence[datetime],
    due: Callable[[datetime], datetime],
) -> list[Shown]:
    """The occurrences after ``start`` with all that is worth a word. ``due`` says when one's run is due."""
    last, found = start, []
    for at in occurrences:
        known = [] if zone.key == "UTC" else list(changes(zone, last, at))
        before = Between(known, *excluded(schedule, last, at))
        found.append(Shown(at, due(at), before, note(schedule, zone, at)))
        last = at
    return found


def note(schedule: Schedule, zone: ZoneInfo, at: datetime) -> str | None:
    """Why an occurrence is where it is, if that may surprise."""
    calendars, base = _calendars(schedule)
    if calendars is not None and base.next_after(at - _INSTANT) != at:
        return "moved from an excluded day"
    return peculiarity(schedule, zone, at)


def excluded(
    schedule: Schedule, after: datetime, until: datetime | None
) -> tuple[list[Excluded], int | None]:
    """What calendars exclude in after < t < until, the first ones, and how many more there are.

    ``until`` None: all that is to come; then it is not known how many more.
    """
    calendars, base = _calendars(schedule)
    found: list[Excluded] = []
    if calendars is None:
        return found, 0
    at = base.next_after(after)
    while at is not None and (until is None or at < until) and len(found) < MOST_EXCLUDED:
        why = calendars.excluded(at)
        if why is not None:
            to = calendars.moved(at)
            if to is not None and schedule.next_after(to - _INSTANT) != to:
                to = None  # the job has ended by then
            found.append(Excluded(at, why[0].text, why[1].reason, to))
        at = base.next_after(at)
    if until is None:
        return found, None if at is not None else 0
    return found, base.count_in(after, until - _INSTANT) - len(found)


def _calendars(schedule: Schedule) -> tuple[Excluding | None, Schedule]:
    """The part of a job's schedule that excludes, and the schedule without it."""
    if isinstance(schedule, Bounded):
        calendars, base = _calendars(schedule.base)
        return calendars, Bounded(base, schedule.start, schedule.end)
    return (schedule, schedule.base) if isinstance(schedule, Excluding) else (None, schedule)


# For programs


def details(one: Shown, zone: ZoneInfo) -> dict[str, Any]:
    """An occurrence for programs."""
    local = one.at.astimezone(zone) if one.at < LAST else None
    offset = local.utcoffset() if local else None
    more = one.before.more or 0
    return {
        "utc": instant(one.at),
        "local": local.isoformat() if local else None,
        "abbreviation": local.tzname() if local else None,
        "offset_seconds": int(offset.total_seconds()) if offset is not None else None,
        "run_at": instant(one.run_at),
        "dst_change": change_json(one.before.changes),
        "excluded": [excluded_json(other, zone) for other in one.before.excluded],
        "excluded_count": len(one.before.excluded) + more,
        "note": one.note,
    }


def change_json(known: Sequence[Change]) -> dict[str, Any] | None:
    """The latest of the clock changes before an occurrence, and how many there are; None: there is none."""
    if not known:
        return None
    change = known[-1]
    return {
        "at": instant(change.at),
        "before": int(change.before.total_seconds()),
        "after": int(change.after.total_seconds()),
        "abbreviation_before": change.name_before,
        "abbreviation_after": change.name_after,
        "local_before": change.wall_before.isoformat(),
        "local_after": change.wall_after.isoformat(),
        "text": str(change),
        "changes": len(known),
    }


def excluded_json(one: Excluded, zone: ZoneInfo) -> dict[str, Any]:
    """What was excluded before an occurrence."""
    return {
        "utc": instant(one.at),
        "local": one.at.astimezone(zone).isoformat() if one.at < LAST else None,
        "by": one.by,
        "reason": one.reason,
        "moved_to": plain(one.moved_to),
    }


# For people


def lines(zone: ZoneInfo, found: Sequence[Shown], rest: Between) -> Iterator[Line]:
    """Local and UTC time of each occurrence, what lies between them, and ``rest`` at the end."""
    instants = [one.at for one in found]
    instants += [other.at for one in (*(one.before for one in found), rest) for other in one.excluded]
    width = max(len(zone.key), *(len(local_text(at, zone)) for at in instants))
    utc = max(len(instant(at)) for at in instants)

    def row(at: datetime, words: str) -> str:
        return f"{local_text(at, zone):<{width}}  {instant(at):<{utc}}  {words}".rstrip()

    yield f"{zone.key:<{width}}  UTC", "bold"
    for one in found:
        yield from between_lines(one.before, zone, row)
        yield row(one.at, remark(one, zone)), ""
    yield from between_lines(rest, zone, row)


def between_lines(between: Between, zone: ZoneInfo, row: Callable[[datetime, str], str]) -> list[Line]:
    """What lies between two occurrences, oldest first."""
    found: list[tuple[datetime, Line]] = []
    for change in between.changes[:MOST_CHANGES]:
        found.append((change.at, (f"  ~ {change}", "yellow")))
    if len(between.changes) > MOST_CHANGES:
        more = len(between.changes) - MOST_CHANGES
        found.append((found[-1][0], (f"  ~ and {more} more changes of the clocks", "yellow")))
    for one in between.excluded:
        to = "" if one.moved_to is None else f", moved to {local_text(one.moved_to, zone)}"
        found.append((one.at, (row(one.at, f"{one}{to}"), "dim")))
    if between.more != 0:
        more_words = "more" if between.more is None else f"{between.more} more"
        found.append((found[-1][0], (f"  and {more_words} that are excluded", "dim")))
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


def local_text(at: datetime, zone: ZoneInfo) -> str:
    """``Sun 2026-03-29 03:00:00 +0200``."""
    if at >= LAST:
        return "at the end of all years"
    local = at.astimezone(zone)
    fraction = f"{local:.%f}" if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%z}"


def remark(one: Shown, zone: ZoneInfo) -> str:
    """What is said beside an occurrence."""
    words = [one.note] if one.note else []
    if one.run_at != one.at:
        run = one.run_at.astimezone(zone)
        day = "" if run.date() == one.at.astimezone(zone).date() else f"{run:%Y-%m-%d} "
        words.append(f"runs at {day}{run:%H:%M:%S}")
    return ", ".join(words)
