"""``dates:2026-12-24,2026-12-27..2026-12-31``: whole days, one by one or from .. to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars.base import ONE_DAY, Span, midnight, touching

FORM = '"dates:2026-12-24,2026-12-27..2026-12-31" (days as YYYY-MM-DD, both ends of a range included)'


@dataclass(frozen=True, eq=False, slots=True)
class Dates:
    """Whole days of the job's zone. Made by ``dates``."""

    text: str
    days: tuple[Span, ...]

    def spans(self, first: date, last: date) -> Sequence[Span]:
        return touching(self.days, first, last)

    def weekend(self) -> frozenset[int] | None:
        return None


def dates(text: str, body: str) -> Dates:
    """Read a term; ``body`` is what follows ``dates:`` in ``text``. Raises InvalidValue naming the day."""
    spans, shown = [], []
    for part in body.split(","):
        begin, dots, end = (word.strip() for word in part.partition(".."))
        first = _day(text, begin)
        last = _day(text, end) if dots else first
        if last < first:
            raise InvalidValue("exclusion calendar", text, f"{end} lies before {begin}", "Turn them round.")
        shown.append(f"{first}..{last}" if dots else str(first))
        spans.append(Span(midnight(first), midnight(last) + ONE_DAY, shown[-1]))
    return Dates(f"dates:{','.join(shown)}", tuple(spans))


def _day(text: str, word: str) -> date:
    try:
        day = date.fromisoformat(word)
        _ = day + ONE_DAY  # the last day of the year 9999 has no end
    except (ValueError, OverflowError) as error:
        what = f"{word!r} is no date" if word else "a date is missing"
        raise InvalidValue("exclusion calendar", text, f"{what}; write {FORM}") from error
    return day
