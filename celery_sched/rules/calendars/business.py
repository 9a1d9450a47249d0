"""Business days: where an excluded occurrence moves to, and how far back one may still be on its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from celery_sched.rules.calendars.base import ONE_DAY
from celery_sched.rules.calendars.blocks import (
    FIRST_YEAR,
    LAST_YEAR,
    Block,
    Calendars,
    block_at,
    blocks_in,
    day_of,
    local_day,
    merged,
)
from celery_sched.rules.schedules.zones import DAY, instant_of, instant_of_wall, seconds_of

MOVE_DAYS = 100
"""An occurrence that finds no business day within so many days is left out."""
_SATURDAY_AND_SUNDAY = frozenset({5, 6})


@dataclass(frozen=True, slots=True)
class BusinessDays:
    """Days of ``zone`` that are no weekend and not excluded as a whole.

    The weekend is that of the calendars' countries, else Saturday and Sunday.
    """

    calendars: Calendars
    zone: ZoneInfo

    def target(self, dropped: datetime, blocked: dict[time, date]) -> datetime | None:
        """The same wall time on the first later business day on which it is not excluded, or None.

        ``blocked``: for a wall time the last day known to be of no use, kept by a caller that goes through
        occurrences oldest first, so that no day is looked at twice.
        """
        wall = dropped.astimezone(self.zone).replace(tzinfo=None, fold=0)
        last = wall.date() + MOVE_DAYS * ONE_DAY
        day = max(wall.date(), blocked.get(wall.time(), wall.date())) + ONE_DAY
        while day <= last:
            if _clear(self, day):
                at = instant_of_wall(self.zone, datetime.combine(day, wall.time()))
                if at > dropped and block_at(self.calendars, self.zone, seconds_of(at)) is None:
                    return at
            blocked[wall.time()] = day
            day += ONE_DAY
        return None

    def settled_before(self, at: datetime) -> datetime:
        """An instant such that nothing excluded before it moves to later than ``at``.

        Looks back until the days between had room for every time of day for which the days to come have any.
        """
        if not FIRST_YEAR <= at.year <= LAST_YEAR:
            return at
        today = local_day(self.zone, seconds_of(at))
        room: list[Block] = []
        for back in range(1, MOVE_DAYS + 1):
            start, end = day_of(self.zone, today - back * ONE_DAY)
            # A day of 24 hours: on others a time of day may be jumped over.
            clear = _clear(self, today - back * ONE_DAY) if end - start == DAY else ()
            if clear:
                room = merged([*room, *clear])
                if room == [(0, DAY)] or _inside(_room_from(self, today), room):
                    break
        return instant_of(start) - timedelta(microseconds=1)

    def weekend(self) -> frozenset[int]:
        """The weekdays (0 = Monday) that are never business days."""
        opinions = [days for calendar in self.calendars if (days := calendar.weekend()) is not None]
        return frozenset().union(*opinions) if opinions else _SATURDAY_AND_SUNDAY


@lru_cache(maxsize=8192)
def _clear(days: BusinessDays, day: date) -> tuple[Block, ...]:
    """The times of a day (seconds from its start) that are not excluded; none if it is no business day.

    On a day that is not 24 hours long they are given too wide by the difference.
    """
    if day.weekday() in days.weekend():
        return ()
    start, end = day_of(days.zone, day)
    wide = abs(end - start - DAY)
    found: list[Block] = []
    free = start
    for begin, stop in (*blocks_in(days.calendars, days.zone, start, end), (end, end)):
        if free < begin:
            found.append((max(free - start - wide, 0), min(begin - start + wide, DAY)))
        free = stop
    return tuple(found)


@lru_cache(maxsize=1024)
def _room_from(days: BusinessDays, today: date) -> tuple[Block, ...]:
    """The times of day that are free on some day that an occurrence on its way may reach."""
    reached = (today + ahead * ONE_DAY for ahead in range(MOVE_DAYS + 1))
    return tuple(merged([block for day in reached for block in _clear(days, day)]))


def _inside(inner: tuple[Block, ...], outer: list[Block]) -> bool:
    return all(any(low <= start and end <= high for low, high in outer) for start, end in inner)
