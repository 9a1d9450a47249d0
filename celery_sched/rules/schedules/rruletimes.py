"""The times of one day that a recurrence rule allows, in seconds since midnight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from celery_sched.rules.schedules.rruletext import DAILY, HOURLY, MINUTELY, SECONDLY, RuleParts
from celery_sched.rules.schedules.zones import DAY

_UNITS = {HOURLY: 3600, MINUTELY: 60, SECONDLY: 1}


def period_of(parts: RuleParts) -> int:
    """FREQ x INTERVAL in seconds for rules of hours, minutes or seconds; 0 for whole days and longer."""
    return _UNITS.get(parts.freq, 0) * parts.interval


def times_of_day(parts: RuleParts, start: int, phase: int) -> Sequence[int]:
    """The allowed seconds of a day, sorted.

    ``start`` is DTSTART's second of the day. ``phase``: so many seconds after this day's midnight lies a
    time that is a whole number of periods from DTSTART (0 without a period).
    """
    default = (start // 3600, start // 60 % 60, start % 60)
    # What is finer than the frequency comes from DTSTART where no BY... part says otherwise.
    hours, minutes, seconds = (
        parts.numbers.get(name, (default[place],) if parts.freq < HOURLY + place else range(length))
        for place, (name, length) in enumerate((("BYHOUR", 24), ("BYMINUTE", 60), ("BYSECOND", 60)))
    )
    positions = parts.numbers.get("BYSETPOS", ()) if parts.freq >= DAILY else ()
    unit = _UNITS.get(parts.freq)
    if unit is None:
        found = [h * 3600 + m * 60 + s for h, m, s in product(hours, minutes, seconds)]
        return _compact([found[at] for at in places(len(found), positions)] if positions else found)
    # Inside a period of an hour, a minute or a second only what is finer varies.
    inside = [
        minute * 60 + second
        for minute in (minutes if unit == 3600 else (0,))
        for second in (seconds if unit > 1 else (0,))
    ]
    if positions:
        inside = [inside[at] for at in places(len(inside), positions)]
    of_hours, of_minutes, of_seconds = frozenset(hours), frozenset(minutes), frozenset(seconds)
    return _compact(
        begin + second
        for begin in range(phase - phase % unit, DAY, period_of(parts))
        if begin // 3600 in of_hours
        and (unit > 60 or begin // 60 % 60 in of_minutes)
        and (unit > 1 or begin % 60 in of_seconds)
        for second in inside
    )


def places(length: int, positions: Sequence[int]) -> list[int]:
    """BYSETPOS as sorted indexes into a set of ``length``; those outside it choose nothing."""
    found = {position - 1 if position > 0 else length + position for position in positions}
    return sorted(place for place in found if 0 <= place < length)


def _compact(times: Iterable[int]) -> Sequence[int]:
    """Evenly spaced times as a range: every second of a day would be 86,400 numbers."""
    found = tuple(times)
    if len(found) > 2:
        even = range(found[0], found[-1] + 1, found[1] - found[0])
        if len(even) == len(found) and all(map(int.__eq__, even, found)):
            return even
    return found
