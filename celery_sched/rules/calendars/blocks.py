"""What several calendars exclude together, as stretches of instants that do not touch each other.

Instants are whole seconds since the epoch. Worked out a year (of UTC) at a time and kept; a stretch is cut at
New Year.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from celery_sched.rules.calendars.base import ONE_DAY, Calendar, Span, midnight
from celery_sched.rules.schedules.zones import (
    DAY,
    Stretch,
    instant_of,
    instant_of_wall,
    offset_at,
    seconds_of,
    stretches,
)

FIRST_YEAR, LAST_YEAR = 1900, 2999
"""Outside these years nothing is excluded."""
Calendars = tuple[Calendar, ...]
Block = tuple[int, int]
"""Instants start <= t < end."""


def block_at(calendars: Calendars, zone: ZoneInfo, second: int) -> Block | None:
    """The block that holds an instant, or None if it is not excluded."""
    blocks = _of_year(calendars, zone, instant_of(second).year)
    place = bisect_right(blocks, second, key=lambda block: block[0]) - 1
    return blocks[place] if place >= 0 and second < blocks[place][1] else None


def blocks_in(calendars: Calendars, zone: ZoneInfo, start: int, end: int) -> Iterator[Block]:
    """The blocks that touch start <= t < end, oldest first."""
    if end <= start:
        return
    first, last = (min(max(instant_of(at).year, FIRST_YEAR), LAST_YEAR) for at in (start, end - 1))
    for year in range(first, last + 1):
        for block in _of_year(calendars, zone, year):
            if block[0] < end and block[1] > start:
                yield block


@lru_cache(maxsize=8192)
def day_of(zone: ZoneInfo, day: date) -> Block:
    """A day of the zone as instants; empty where the clocks left it out."""
    begin, end = (instant_of_wall(zone, wall) for wall in (midnight(day), midnight(day) + ONE_DAY))
    return seconds_of(begin), seconds_of(end)


@lru_cache(maxsize=1024)
def _of_year(calendars: Calendars, zone: ZoneInfo, year: int) -> tuple[Block, ...]:
    if not FIRST_YEAR <= year <= LAST_YEAR:
        return ()
    low, high = (seconds_of(datetime(at, 1, 1, tzinfo=UTC)) for at in (year, year + 1))
    # Local time is never two days away from UTC.
    parts = list(stretches(zone, low - 2 * DAY, high + 2 * DAY))
    spans = [
        span
        for calendar in calendars
        for span in calendar.spans(date(year - 1, 12, 30), date(year + 1, 1, 2))
    ]
    found = (part for span in spans for part in _instants(span, zone, parts))
    inside = ((max(start, low), min(end, high)) for start, end in found)
    return tuple(merged((start, end) for start, end in inside if start < end))


def merged(blocks: Iterable[Block]) -> list[Block]:
    """The same points as blocks that neither overlap nor touch, in order."""
    found: list[Block] = []
    for start, end in sorted(blocks):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _instants(span: Span, zone: ZoneInfo, parts: list[Stretch]) -> Iterator[Block]:
    """A span of wall times is several stretches of instants where the clocks go back into it."""
    if span.exact:
        yield seconds_of(span.instant(span.start, zone)), seconds_of(span.instant(span.end, zone))
        return
    start, end = (seconds_of(wall.replace(tzinfo=UTC)) for wall in (span.start, span.end))
    for part in parts:
        begin, stop = max(part.start, start - part.offset), min(part.end, end - part.offset)
        if begin < stop:
            yield begin, stop


def local_day(zone: ZoneInfo, second: int) -> date:
    """The day the zone's calendar shows at that instant."""
    return instant_of(second + offset_at(zone, second)).date()
