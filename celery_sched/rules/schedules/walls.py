"""The wall times a cron expression allows, as a sorted line that is never written out.

Wall times are whole seconds since 1970-01-01 00:00 on a local clock. The Gregorian calendar has only
14 kinds of year (the weekday of 1 January, leap or not), so the days of a kind are listed once and a
search over decades is a look at one short tuple a year.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache

from celery_sched.rules.schedules.bits import bits_of, moved
from celery_sched.rules.schedules.cronfields import CronFields
from celery_sched.rules.schedules.cronterms import FIRST_YEAR, LAST_YEAR
from celery_sched.rules.schedules.zones import DAY

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class TimesOfDay:
    """The seconds of a day at which hours x minutes x seconds allow a time, by rank and by value."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    def total(self) -> int:
        return len(self.hours) * len(self.minutes) * len(self.seconds)

    def rank(self, second_of_day: int) -> int:
        """How many allowed times lie before that second of the day."""
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        rank = place = bisect_left(self.hours, hour)
        exact = place < len(self.hours) and self.hours[place] == hour
        for wanted, allowed in ((minute, self.minutes), (second, self.seconds)):
            place = bisect_left(allowed, wanted) if exact else 0
            exact = exact and place < len(allowed) and allowed[place] == wanted
            rank = rank * len(allowed) + place
        return rank

    def bits(self) -> int:
        """The allowed times as the bits of a number."""
        return _day_bits(self)

    def select(self, rank: int) -> int:
        """The allowed time that has ``rank`` others before it."""
        rest, second = divmod(rank, len(self.seconds))
        hour, minute = divmod(rest, len(self.minutes))
        return self.hours[hour] * 3600 + self.minutes[minute] * 60 + self.seconds[second]


@dataclass(frozen=True, slots=True)
class WallTimes:
    """first_from, last_before and count over the wall times that ``fields`` allow."""

    fields: CronFields
    times: TimesOfDay
    # Days of the year (0 = 1 January) by kind of year, filled on first use.
    _days: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def never(self) -> bool:
        """True if no day of any allowed year matches: 30 February, or 29 February of 2027."""
        years = self.fields.years or range(2000, 2400)  # the calendar repeats after 400 years
        return not any(self._days_of(year) for year in years)

    def first_from(self, wall: int) -> int | None:
        """The first allowed wall time >= wall."""
        year, day, second = _split(wall)
        days = self._days_of(year)
        place = bisect_left(days, day)
        if place < len(days) and days[place] == day:
            rank = self.times.rank(second)
            if rank < self.times.total():
                return wall - second + self.times.select(rank)
            place += 1
        while place >= len(days):
            later = self._year_after(year)
            if later is None:
                return None
            year, days, place = later, self._days_of(later), 0
        return _year_start(year) + days[place] * DAY + self.times.select(0)

    def last_before(self, wall: int) -> int | None:
        """The last allowed wall time < wall."""
        year, day, second = _split(wall)
        days = self._days_of(year)
        place = bisect_left(days, day)
        if place < len(days) and days[place] == day and (rank := self.times.rank(second)):
            return wall - second + self.times.select(rank - 1)
        while place == 0:
            earlier = self._year_before(year)
            if earlier is None:
                return None
            year, days = earlier, self._days_of(earlier)
            place = len(days)
        return _year_start(year) + days[place - 1] * DAY + self.times.select(self.times.total() - 1)

    def count(self, start: int, end: int) -> int:
        """How many allowed wall times lie in start <= wall < end."""
        if end <= start:
            return 0
        first, last = _split(start)[0], _split(end)[0]
        whole_years = sum(len(self._days_of(year)) for year in range(first, last))
        return whole_years * self.times.total() + self._rank_in_year(end) - self._rank_in_year(start)

    def bits(self, start: int, end: int) -> int:
        """Which of the wall times start <= wall < end are allowed: bit k is start + k."""
        bits = 0
        for day in range(start // DAY, (end - 1) // DAY + 1):
            year, place, _ = _split(day * DAY)
            days = self._days_of(year)
            found = bisect_left(days, place)
            if days[found : found + 1] == (place,):
                bits |= moved(self.times.bits(), day * DAY - start)
        return bits & ((1 << (end - start)) - 1)

    def _rank_in_year(self, wall: int) -> int:
        year, day, second = _split(wall)
        days = self._days_of(year)
        place = bisect_left(days, day)
        today = place < len(days) and days[place] == day
        return place * self.times.total() + (self.times.rank(second) if today else 0)

    def _year_after(self, year: int) -> int | None:
        years = self.fields.years
        if years is None:
            return year + 1 if year < LAST_YEAR else None
        place = bisect_left(years, year + 1)
        return years[place] if place < len(years) else None

    def _year_before(self, year: int) -> int | None:
        years = self.fields.years
        if years is None:
            return year - 1 if year > FIRST_YEAR else None
        place = bisect_left(years, year)
        return years[place - 1] if place else None

    def _days_of(self, year: int) -> tuple[int, ...]:
        years = self.fields.years
        if not FIRST_YEAR <= year <= LAST_YEAR:
            return ()
        if years is not None:
            place = bisect_left(years, year)
            if years[place : place + 1] != (year,):
                return ()
        weekday, leap = date(year, 1, 1).isoweekday() % 7, isleap(year)
        kind = weekday * 2 + leap
        if kind not in self._days:
            self._days[kind] = _days_of_kind(self.fields, weekday, leap)
        return self._days[kind]


@lru_cache(maxsize=256)
def _day_bits(times: TimesOfDay) -> int:
    return bits_of(
        hour * 3600 + minute * 60 + second
        for hour in times.hours
        for minute in times.minutes
        for second in times.seconds
    )


def _split(wall: int) -> tuple[int, int, int]:
    """Year, day of the year (0 = 1 January) and second of the day."""
    days, second = divmod(wall, DAY)
    ordinal = days + _EPOCH_ORDINAL
    year = date.fromordinal(ordinal).year
    return year, ordinal - date(year, 1, 1).toordinal(), second


def _year_start(year: int) -> int:
    return (date(year, 1, 1).toordinal() - _EPOCH_ORDINAL) * DAY


def _days_of_kind(fields: CronFields, weekday: int, leap: bool) -> tuple[int, ...]:
    found: list[int] = []
    start = 0
    for month, common_length in enumerate(_LENGTHS, 1):
        length = common_length + (month == 2 and leap)
        if month in fields.months:
            matching = _days_of_month(fields, (weekday + start) % 7, length)
            found.extend(start + day - 1 for day in sorted(matching))
        start += length
    return tuple(found)


def _days_of_month(fields: CronFields, first: int, length: int) -> set[int]:
    """The matching days 1.. of a month of that length whose first day is weekday ``first`` (0 = Sunday)."""

    def weekday(day: int) -> int:
        return (first + day - 1) % 7

    def nearest_workday(day: int) -> int:
        # X1: inside the month, so a Saturday the 1st moves forward and a Sunday the last moves back.
        if weekday(day) == 6:
            return day - 1 if day > 1 else day + 2
        if weekday(day) == 0:
            return day + 1 if day < length else day - 2
        return day

    by_date = {day for day in fields.days if day <= length}
    by_date |= {nearest_workday(min(day, length)) for day in fields.nearest_workdays}
    by_date |= {length - back for back in fields.from_last if back < length}
    by_date |= {nearest_workday(length - back) for back in fields.workdays_from_last if back < length}
    by_weekday = {
        day
        for day in range(1, length + 1)
        if weekday(day) in fields.weekdays
        or (weekday(day), (day - 1) // 7 + 1) in fields.nth_weekdays
        or (day > length - 7 and weekday(day) in fields.last_weekdays)
    }
    return by_date | by_weekday if fields.either_day else by_date & by_weekday
