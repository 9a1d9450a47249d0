"""Reading one field of cron text: values, names, ranges, steps, hashed values and the day terms L, W, #."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NoReturn

from celery_sched.errors import InvalidValue

FIRST_YEAR, LAST_YEAR = 1970, 2999


@dataclass(frozen=True, slots=True)
class Kind:
    """One field: its name in messages, its bounds, its three-letter names, the highest value of a bare ``H``
    and, for days of the week, the number of Sunday."""

    title: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int = 0
    sunday: int = 0

    def number_of(self, word: str) -> int:
        return self.names.index(word) + self.low

    def weekday(self, value: int) -> int:
        """A day of the week as 0 = Sunday .. 6."""
        return (value - self.sunday) % 7


MINUTE = Kind("minute", 0, 59, hash_high=59)
HOUR = Kind("hour", 0, 23, hash_high=23)
# A bare H stays within 1-28, so that a hashed monthly job runs in every month.
DAY_OF_MONTH = Kind("day-of-month", 1, 31, hash_high=28)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
MONTH = Kind("month", 1, 12, tuple(_MONTHS.split()), hash_high=12)
_WEEKDAYS = "sun mon tue wed thu fri sat"
DAY_OF_WEEK = Kind("day-of-week", 0, 7, tuple(_WEEKDAYS.split()), hash_high=6)
SECOND = Kind("second", 0, 59, hash_high=59)
YEAR = Kind("year", FIRST_YEAR, LAST_YEAR)

_VALUE = r"(?:[0-9]{1,4}|[a-z]{3})"
_SPAN = re.compile(rf"(?:\*|({_VALUE})-({_VALUE}))(?:/([0-9]{{1,4}}))?")
_HASHED = re.compile(r"h(?:\(([0-9]{1,4})-([0-9]{1,4})\))?(?:/([0-9]{1,4}))?")
_ONE = re.compile(_VALUE)
_NEAREST = re.compile(r"([0-9]{1,2})w")
_NTH = re.compile(rf"({_VALUE})#([0-9]{{1,2}})")
_LAST = re.compile(rf"(?:l({_VALUE})|([0-9]|[a-z]{{3}})l)")


class Field:
    """The values and day terms of one field's text."""

    def __init__(self, kind: Kind, field: str, text: str, name: str) -> None:
        self.kind, self.field, self.text, self.name = kind, field, text, name
        self.values: set[int] = set()
        self.from_last: set[int] = set()
        self.workdays_from_last: set[int] = set()
        self.nearest: set[int] = set()
        self.nth: set[tuple[int, int]] = set()
        self.last: set[int] = set()
        for term in field.split(","):
            self._read(term)

    def _read(self, term: str) -> None:
        if _ONE.fullmatch(term):
            self.values.add(self._value(term))
        elif span := _SPAN.fullmatch(term):
            self._add_span(term, *span.groups())
        elif hashed := _HASHED.fullmatch(term):
            self._add_hashed(term, *hashed.groups())
        elif not (self._read_day(term) or self._read_weekday(term)):
            self._refuse_term(term)

    def _read_day(self, term: str) -> bool:
        if self.kind is not DAY_OF_MONTH:
            return False
        if term == "l":
            self.from_last.add(0)
        elif term == "lw":
            self.workdays_from_last.add(0)
        elif nearest := _NEAREST.fullmatch(term):
            self.nearest.add(self._value(nearest[1]))
        else:
            return False
        return True

    def _read_weekday(self, term: str) -> bool:
        if self.kind.title != DAY_OF_WEEK.title:  # Quartz has other numbers for them
            return False
        if nth := _NTH.fullmatch(term):
            k = int(nth[2])
            if not 1 <= k <= 5:
                self._refuse(f"the number after # is 1 to 5, {term!r} has {k}")
            self.nth.add((self.kind.weekday(self._value(nth[1])), k))
        elif last := _LAST.fullmatch(term):
            self.last.add(self.kind.weekday(self._value(last[1] or last[2])))
        else:
            return False
        return True

    def _add_span(self, term: str, first: str | None, last: str | None, step: str | None) -> None:
        kind = self.kind
        low, high = kind.low, kind.high
        if first is not None and last is not None:
            low, high = self._value(first), self._value(last)
            if last == "sun" and first != "sun":
                high = 7  # R2: Sunday ends the week when it ends a range
        if high < low:
            hint = f"Write the two parts as a list, such as {first}-{kind.high},{kind.low}-{last}."
            self._refuse(f"the {kind.title} range {term!r} runs backwards", hint)
        self.values.update(range(low, high + 1, self._step(term, step)))

    def _add_hashed(self, term: str, first: str | None, last: str | None, step: str | None) -> None:
        kind = self.kind
        if kind is YEAR:
            self._refuse("a year cannot be hashed")
        if not self.name:
            self._refuse("H stands for a value made from the job's name", "Give the name.")
        low, high = kind.low, kind.hash_high
        if first is not None and last is not None:
            low, high = self._value(first), self._value(last)
            if high < low:
                self._refuse(f"the {kind.title} range {term!r} runs backwards")
        width = high - low + 1
        stride = width if step is None else self._step(term, step)
        begin = low + _hash(self.name, kind.title) % min(stride, width)
        self.values.update([begin] if step is None else range(begin, high + 1, stride))

    def _step(self, term: str, step: str | None) -> int:
        if step is not None and int(step) == 0:
            self._refuse(f"the step of {term!r} must be 1 or more")
        return 1 if step is None else int(step)

    def _value(self, word: str) -> int:
        kind = self.kind
        if not word.isdigit():
            if word not in kind.names:
                known = f", or {', '.join(kind.names)}" if kind.names else ""
                self._refuse(f"{word!r} is no {kind.title}; it is a number {kind.low}-{kind.high}{known}")
            return kind.number_of(word)
        value = int(word)
        if not kind.low <= value <= kind.high:
            self._refuse(f"the {kind.title} is {kind.low}-{kind.high}, {self.field!r} has {value}")
        return value

    def _refuse_term(self, term: str) -> NoReturn:
        kind = self.kind
        if not term:
            self._refuse(f"the {kind.title} list {self.field!r} has an empty place")
        if re.fullmatch(r"r(\(.*\))?(/.*)?", term):
            self._refuse("R would be another value at every load", "Write H: it spreads jobs too, and stays.")
        if re.fullmatch(r"[0-9]+/[0-9]+", term):
            first, _, step = term.partition("/")
            self._refuse(
                f"a step follows * or a range, not the single value of {term!r}",
                f"Write {first}-{kind.high}/{step}.",
            )
        self._refuse(f"{term!r} in the {kind.title} field is not understood", _TERMS[kind.title])

    def _refuse(self, allowed: str, hint: str = "") -> NoReturn:
        raise InvalidValue("schedule", self.text, allowed, hint)


_COMMON = "Terms are *, n, a-b, */step, a-b/step, H, H(a-b), H/step"
_TERMS = {
    kind.title: f"{_COMMON}{extra}, separated by commas."
    for kind, extra in (
        (MINUTE, ""),
        (HOUR, ""),
        (DAY_OF_MONTH, ", L (last day), LW (last Mon-Fri day), nW (Mon-Fri day nearest to n)"),
        (MONTH, " and names such as jan"),
        (DAY_OF_WEEK, ", names such as mon, d#k (k-th such day of the month), dL (the last one)"),
        (SECOND, ""),
        (YEAR, ""),
    )
}


def _hash(name: str, title: str) -> int:
    """The same number in every process and release: changing it would move every hashed job."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{title}".encode()).digest()[:8])
