"""``quartz:0 0 12 ? * MON-FRI``: cron expressions in Quartz's layout and numbers.

Seconds come first and the year last; days of the week are 1 = Sunday .. 7 = Saturday; ``?`` stands in one of
the two day fields. Source: Quartz's CronTrigger tutorial and, where that is silent (``L-3`` is three days
before the last), the tests of its CronExpression. What happens when clocks change is the same as for cron.
"""

from __future__ import annotations

import re
from typing import NoReturn

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import cronterms
from celery_sched.rules.schedules.cronfields import LONGEST_TEXT, CronFields
from celery_sched.rules.schedules.cronterms import Field, Kind

LAYOUT = (
    "Quartz's fields are second minute hour day-of-month month day-of-week (1 = SUN .. 7 = SAT) "
    "and, if wanted, year"
)
_DAY_OF_WEEK = Kind("day-of-week", 1, 7, cronterms.DAY_OF_WEEK.names, hash_high=7, sunday=1)

_FROM = re.compile(r"([0-9]{1,4}|[a-z]{3})/([0-9]{1,4})")
_BEFORE_LAST = re.compile(r"l-([0-9]{1,2})(w?)")
_MOST_BEFORE_LAST = 30
_MORE = {
    "day-of-month": ", L (last day), L-n (n days before it), LW and L-nW (Mon-Fri day nearest to them), nW",
    "month": " and names such as jan",
    "day-of-week": ", names such as mon, d#k (k-th such day of the month), dL (the last one), L (Saturday)",
}


class _QuartzField(Field):
    """As cron's, and ``a/step``, ranges over the end of the field, ``L-n``, ``L-nW``, ``L`` for Saturday."""

    def _read(self, term: str) -> None:
        if start := _FROM.fullmatch(term):
            step = self._step(term, start[2])
            self.values.update(range(self._value(start[1]), self.kind.high + 1, step))
        else:
            super()._read(term)

    def _read_day(self, term: str) -> bool:
        before = _BEFORE_LAST.fullmatch(term) if self.kind is cronterms.DAY_OF_MONTH else None
        if before is None:
            return super()._read_day(term)
        if not 1 <= int(before[1]) <= _MOST_BEFORE_LAST:
            self._refuse(f"L-n is n = 1 to {_MOST_BEFORE_LAST} days before the last day, not {term!r}")
        (self.workdays_from_last if before[2] else self.from_last).add(int(before[1]))
        return True

    def _read_weekday(self, term: str) -> bool:
        if self.kind is _DAY_OF_WEEK and term == "l":
            self.values.add(self.kind.high)
            return True
        return not term.startswith("l") and super()._read_weekday(term)

    def _add_span(self, term: str, first: str | None, last: str | None, step: str | None) -> None:
        kind = self.kind
        low, high = kind.low, kind.high
        if first is not None and last is not None:
            low, high = self._value(first), self._value(last)
        if high < low and kind is cronterms.YEAR:
            self._refuse(f"the {kind.title} range {term!r} runs backwards")
        size = kind.high - kind.low + 1
        if high < low:
            high += size  # 22-2 goes on after midnight
        self.values.update(
            kind.low + (value - kind.low) % size for value in range(low, high + 1, self._step(term, step))
        )

    def _step(self, term: str, step: str | None) -> int:
        found = super()._step(term, step)
        if found > self.kind.high:
            self._refuse(f"the step of {term!r} goes beyond the {self.kind.title}'s {self.kind.high}")
        return found

    def _refuse_term(self, term: str) -> NoReturn:
        if not term:
            super()._refuse_term(term)
        title = self.kind.title
        hint = f"Terms are *, n, a-b, a/step, */step, a-b/step{_MORE.get(title, '')}, separated by commas."
        self._refuse(f"{term!r} in the {title} field is not understood", hint)


def read_quartz(text: str, body: str, name: str) -> CronFields:
    """Read what follows ``quartz:`` in ``text``; ``name`` is what ``H`` hashes. Raises InvalidValue."""
    if len(text) > LONGEST_TEXT:
        raise InvalidValue("schedule", text, f"cron text has at most {LONGEST_TEXT} characters")
    words = body.lower().split()
    if not 6 <= len(words) <= 7:
        hint = "An expression of 5 fields is cron's: leave quartz: out." if len(words) == 5 else ""
        raise InvalidValue("schedule", text, f"{LAYOUT}: 6 or 7, this has {len(words)}", hint)
    second, minute, hour, day, month, weekday = words[:6]
    year = words[6] if len(words) > 6 else "*"
    if [day, weekday].count("?") != 1:
        allowed = "of Quartz's two day fields one is ?, which leaves the days to the other"
        hint = "For days by date write ? in the sixth field, for days of the week in the fourth."
        raise InvalidValue("schedule", text, allowed, hint)

    def read(kind: Kind, field: str) -> _QuartzField:
        return _QuartzField(kind, field, text, name)

    days = read(cronterms.DAY_OF_MONTH, "*" if day == "?" else day)
    weekdays = read(_DAY_OF_WEEK, "*" if weekday == "?" else weekday)
    return CronFields(
        seconds=tuple(sorted(read(cronterms.SECOND, second).values)),
        minutes=tuple(sorted(read(cronterms.MINUTE, minute).values)),
        hours=tuple(sorted(read(cronterms.HOUR, hour).values)),
        months=frozenset(read(cronterms.MONTH, month).values),
        years=None if year == "*" else tuple(sorted(read(cronterms.YEAR, year).values)),
        days=frozenset(days.values),
        from_last=frozenset(days.from_last),
        workdays_from_last=frozenset(days.workdays_from_last),
        nearest_workdays=frozenset(days.nearest),
        weekdays=frozenset(map(_DAY_OF_WEEK.weekday, weekdays.values)),
        nth_weekdays=frozenset(weekdays.nth),
        last_weekdays=frozenset(weekdays.last),
        either_day=False,
        wildcard=_is_wildcard(minute) or _is_wildcard(hour),
    )


def _is_wildcard(field: str) -> bool:
    """R5 for Quartz, where a step from the lowest value on, ``0/5``, is the usual way to write ``*/5``."""
    return field.startswith("*") or re.match(r"0+/", field) is not None
