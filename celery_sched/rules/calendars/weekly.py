"""``weekly:sat,sun`` and ``weekly:mon-fri 00:00-08:00``: the same days, or hours, of every week."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars.base import ONE_DAY, Span, midnight, touching

FORM = '"weekly:sat,sun" or "weekly:mon-fri 00:00-08:00"'
_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEK = len(_NAMES)
_TIME = r"(\d{1,2}):(\d{2})(?::(\d{2}))?"
_TIMES = re.compile(rf"{_TIME}\s*-\s*{_TIME}")


@dataclass(frozen=True, eq=False, slots=True)
class Weekly:
    """Weekdays (0 = Monday), each from ``start`` to ``end`` after its midnight. Made by ``weekly``."""

    text: str
    days: frozenset[int]
    start: timedelta
    end: timedelta

    def spans(self, first: date, last: date) -> Sequence[Span]:
        return touching(self._around(first, last), first, last)

    def _around(self, first: date, last: date) -> Iterator[Span]:
        reason = self.text.removeprefix("weekly:")
        day = midnight(first) - ONE_DAY  # its hours may run into the next day
        while day.date() <= last:
            if day.weekday() in self.days:
                yield Span(day + self.start, day + self.end, reason)
            day += ONE_DAY

    def weekend(self) -> frozenset[int] | None:
        return None


def weekly(text: str, body: str) -> Weekly:
    """Read a term; ``body`` is what follows ``weekly:`` in ``text``. Raises InvalidValue naming the part."""
    found = re.fullmatch(r"([^\d:]*)(.*)", body.strip(), re.DOTALL)
    days_text, times_text = (found[1], found[2].strip()) if found else (body, "")
    days: set[int] = set()
    shown = []
    for part in days_text.split(","):
        begin, dash, end = (word.strip() for word in part.partition("-"))
        first = _weekday(text, begin)
        last = _weekday(text, end) if dash else first
        days |= {(first + step) % _WEEK for step in range((last - first) % _WEEK + 1)}
        shown.append(f"{_NAMES[first][:3]}-{_NAMES[last][:3]}" if dash else _NAMES[first][:3])
    start, stop = timedelta(0), ONE_DAY
    canonical = f"weekly:{','.join(shown)}"
    if times_text:
        times = _TIMES.fullmatch(times_text)
        if times is None:
            raise _refused(text, f"{times_text!r} are no hours")
        start, stop = _time(text, times.groups()[:3]), _time(text, times.groups()[3:])
        if start == ONE_DAY:
            raise _refused(text, "hours begin at 23:59:59 at the latest")
        canonical += f" {_shown(start)}-{_shown(stop)}"
        if stop <= start:
            stop += ONE_DAY
    return Weekly(canonical, frozenset(days), start, stop)


def _weekday(text: str, word: str) -> int:
    found = [at for at, name in enumerate(_NAMES) if word.lower() in (name, name[:3])]
    if not found:
        what = f"{word!r} is no weekday" if word else "a weekday is missing"
        raise _refused(text, f"{what} (mon, tue, wed, thu, fri, sat, sun)")
    return found[0]


def _time(text: str, numbers: Sequence[str | None]) -> timedelta:
    hour, minute, second = (int(number or 0) for number in numbers)
    time = timedelta(hours=hour, minutes=minute, seconds=second)
    if minute > 59 or second > 59 or time > ONE_DAY:
        raise _refused(text, f"there is no time {hour:02}:{minute:02}:{second:02} (00:00 to 24:00)")
    return time


def _shown(time: timedelta) -> str:
    minutes, second = divmod(time // timedelta(seconds=1), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{second:02}" if second else "")


def _refused(text: str, what: str) -> InvalidValue:
    return InvalidValue("exclusion calendar", text, f"{what}; write {FORM}")
