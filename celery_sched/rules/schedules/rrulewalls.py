"""The wall times a recurrence rule allows, a year at a time, so that no question enumerates from DTSTART.

python-dateutil says which days of one year match the BY... parts (asked for a single year it always ends;
asked for the next occurrence of a rule that has none it walks to the year 9999). The interval, the times of
the day and BYSETPOS are arithmetic on top. Wall times are whole seconds since 1970-01-01 00:00 on a local
clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate, groupby

from dateutil import rrule as dateutil_rules

from celery_sched.rules.schedules.bits import bits_of, moved
from celery_sched.rules.schedules.cronterms import LAST_YEAR
from celery_sched.rules.schedules.rruletext import DAILY, MONTHLY, WEEKLY, YEARLY, RuleParts
from celery_sched.rules.schedules.rruletimes import period_of, places, times_of_day
from celery_sched.rules.schedules.zones import DAY, EPOCH, seconds_of

SEARCH_YEARS = 400
"""The calendar repeats after 400 years: a rule that is silent for longer is taken to be over."""
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# More tables than the longest questions (a catch-up window, a preview) look at; the rest is made again.
_MOST_YEARS = 64
END = seconds_of(datetime(LAST_YEAR + 1, 1, 1, tzinfo=EPOCH.tzinfo))


@dataclass(frozen=True, slots=True)
class _Year:
    """Days (since 1970-01-01) with their seconds of the day, and how many wall times lie before each day."""

    days: tuple[int, ...]
    times: tuple[Sequence[int], ...]
    before: tuple[int, ...]  # one longer than ``days``: the last is the year's total

    def rank(self, wall: int) -> int:
        """How many wall times of the year are < wall."""
        day, second = divmod(wall, DAY)
        place = bisect_left(self.days, day)
        rank = self.before[place]
        if place < len(self.days) and self.days[place] == day:
            rank += bisect_left(self.times[place], second)
        return rank

    def select(self, rank: int) -> int:
        """The wall time that has ``rank`` others of the year before it."""
        place = bisect_left(self.before, rank + 1) - 1
        return self.days[place] * DAY + self.times[place][rank - self.before[place]]


@dataclass(frozen=True, slots=True)
class RuleWalls:
    """first_from, last_before and count over the wall times start <= wall < end of a rule."""

    parts: RuleParts
    start: int
    end: int = END
    _years: dict[int, _Year] = field(default_factory=dict, compare=False, repr=False)
    # The times of a day by where the day lies in the interval.
    _times: dict[int, Sequence[int]] = field(default_factory=dict, compare=False, repr=False)

    def first_from(self, wall: int) -> int | None:
        """The first wall time >= wall, or None if there is none in the next 400 years."""
        wall = max(wall, self.start)
        first = _year_of(wall) if wall < self.end else LAST_YEAR + 1
        for year in range(first, min(first + SEARCH_YEARS, LAST_YEAR) + 1):
            table = self._year(year)
            rank = table.rank(wall) if year == first else 0
            if rank < table.before[-1]:
                found = table.select(rank)
                return found if found < self.end else None
        return None

    def last_before(self, wall: int) -> int | None:
        """The last wall time < wall."""
        wall = min(wall, self.end)
        last = _year_of(wall)
        for year in range(last, _year_of(self.start) - 1, -1):
            table = self._year(year)
            rank = table.rank(wall) if year == last else table.before[-1]
            if rank:
                found = table.select(rank - 1)
                return found if found >= self.start else None
        return None

    def count(self, start: int, end: int) -> int:
        """How many wall times lie in start <= wall < end."""
        start, end = max(start, self.start), min(end, self.end)
        if end <= start:
            return 0
        first, last = _year_of(start), _year_of(end)
        whole_years = sum(self._year(year).before[-1] for year in range(first, last))
        return whole_years + self._year(last).rank(end) - self._year(first).rank(start)

    def bits(self, start: int, end: int) -> int:
        """Which of the wall times start <= wall < end the rule allows: bit k is start + k."""
        first, last = max(start, self.start), min(end, self.end)
        bits = 0
        for year in range(_year_of(first), _year_of(last - 1) + 1) if first < last else ():
            table = self._year(year)
            begin, stop = (bisect_left(table.days, day) for day in (first // DAY, (last - 1) // DAY + 1))
            for day, times in zip(table.days[begin:stop], table.times[begin:stop], strict=True):
                bits |= moved(bits_of(times), day * DAY - start)
        return bits & ((1 << max(last - start, 0)) - 1) & -(1 << max(first - start, 0))

    def nth(self, n: int) -> int | None:
        """The n-th wall time (1 = the first); None if the rule has fewer."""
        first = _year_of(self.start)
        left = n - 1 + self._year(first).rank(self.start)
        for year in range(first, LAST_YEAR + 1):
            table = self._year(year)
            if left < table.before[-1]:
                return table.select(left)
            left -= table.before[-1]
        return None

    def _year(self, year: int) -> _Year:
        table = self._years.get(year)
        if table is None:
            if len(self._years) >= _MOST_YEARS:
                self._years.clear()
            table = self._years[year] = self._table(year)
        return table

    def _table(self, year: int) -> _Year:
        if year > LAST_YEAR:
            return _Year((), (), (0,))
        found: list[tuple[int, Sequence[int]]] = []
        positions = self.parts.numbers.get("BYSETPOS", ())
        if positions and self.parts.freq < DAILY:
            found = self._chosen(year, positions)
        else:
            pairs = ((day, self._times_of(day)) for day in self._days(year))
            found = [(day, times) for day, times in pairs if times]
        days, times = tuple(day for day, _ in found), tuple(times for _, times in found)
        return _Year(days, times, tuple(accumulate(map(len, times), initial=0)))

    def _days(self, year: int) -> list[int]:
        """The days of that year on which the rule's periods and BY... parts allow anything."""
        parts = self.parts
        start = date.fromordinal(self.start // DAY + _EPOCH_ORDINAL)
        if parts.freq == YEARLY and (year - start.year) % parts.interval:
            return []
        matching = _matching_days(parts, start, year)
        if parts.freq == MONTHLY:
            months = start.year * 12 + start.month
            return [
                day.toordinal() - _EPOCH_ORDINAL
                for day in matching
                if (day.year * 12 + day.month - months) % parts.interval == 0
            ]
        days = [day.toordinal() - _EPOCH_ORDINAL for day in matching]
        if parts.freq == WEEKLY:
            week = self._week(self.start // DAY)
            return [day for day in days if (self._week(day) - week) % parts.interval == 0]
        if parts.freq == DAILY:
            return [day for day in days if (day - self.start // DAY) % parts.interval == 0]
        return days

    def _week(self, day: int) -> int:
        """The number of the week (by WKST) a day is in; 1970-01-01 was a Thursday."""
        return (day + 3 - self.parts.week_start) // 7

    def _chosen(self, year: int, positions: tuple[int, ...]) -> list[tuple[int, Sequence[int]]]:
        """BYSETPOS in years, months or weeks: of all wall times of a period only those at the positions."""
        freq, times = self.parts.freq, self._times_of(0)
        period: Callable[[int], int]
        if freq == WEEKLY:
            # A week may lie in two years. As in python-dateutil the first one begins with DTSTART.
            near = [day for other in (year - 1, year, year + 1) for day in self._days(other)]
            days, period = [day for day in near if day >= self.start // DAY], self._week
        else:
            days = self._days(year)
            period = _month_of if freq == MONTHLY else _constant
        chosen: list[int] = []
        for _, group in groupby(days, key=period):
            members = list(group)
            chosen_places = places(len(members) * len(times), positions)
            chosen += [members[at // len(times)] * DAY + times[at % len(times)] for at in chosen_places]
        inside = [divmod(wall, DAY) for wall in chosen if _year_of(wall) == year]
        return [(day, [second for _, second in of]) for day, of in groupby(inside, key=lambda pair: pair[0])]

    def _times_of(self, day: int) -> Sequence[int]:
        """The seconds of that day at which the rule allows a time, the day itself being allowed."""
        step = period_of(self.parts)
        phase = (self.start - day * DAY) % step if step else 0
        if phase not in self._times:
            self._times[phase] = times_of_day(self.parts, self.start % DAY, phase)
        return self._times[phase]


def _matching_days(parts: RuleParts, start: date, year: int) -> list[date]:
    """The days of one year that match the BY... parts, whatever the interval. From python-dateutil."""
    numbers = parts.numbers
    months, of_month = numbers.get("BYMONTH"), numbers.get("BYMONTHDAY")
    year_days, weeks = numbers.get("BYYEARDAY"), numbers.get("BYWEEKNO")
    weekdays = [dateutil_rules.weekday(day, n or None) for day, n in parts.days]
    if not (weekdays or of_month or year_days or weeks):
        # RFC 5545: what the rule leaves open is as in DTSTART.
        if parts.freq == YEARLY:
            months = months or (start.month,)
        if parts.freq in (YEARLY, MONTHLY):
            of_month = (start.day,)
        elif parts.freq == WEEKLY:
            weekdays = [dateutil_rules.weekday(start.weekday())]
        else:
            weekdays = [dateutil_rules.weekday(day) for day in range(7)]
    if parts.freq == MONTHLY and months is None:
        months = tuple(range(1, 13))  # numbered weekdays then count in the month
    one_year = dateutil_rules.rrule(
        dateutil_rules.YEARLY,
        dtstart=datetime(year, 1, 1),  # noqa: DTZ001 - a wall time
        interval=10_000,  # beyond the last year of datetimes: it stops after this one
        wkst=parts.week_start,
        bymonth=months,
        bymonthday=of_month,
        byyearday=year_days,
        byweekno=weeks,
        byweekday=weekdays or None,
        byhour=0,
        byminute=0,
        bysecond=0,
    )
    return [found.date() for found in one_year]


def _year_of(wall: int) -> int:
    return date.fromordinal(wall // DAY + _EPOCH_ORDINAL).year


def _month_of(day: int) -> int:
    return date.fromordinal(day + _EPOCH_ORDINAL).month


def _constant(_day: int) -> int:
    return 0
