"""``after 5m``: a fixed delay from the end of the last run, which the finish of that run passes in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_sched.rules.schedules.base import as_utc


@dataclass(frozen=True, slots=True)
class After:
    """One occurrence, ``delay`` after the instant given: the next is known only when that run has ended."""

    text: str
    delay: timedelta
    kind: str = "after"

    def next_after(self, instant: datetime) -> datetime | None:
        try:
            return as_utc(instant) + self.delay
        except OverflowError:
            return None  # beyond the year 9999 there are no datetimes, so no occurrences

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        occurrence = self.next_after(after)
        return occurrence if occurrence is not None and occurrence <= until else None

    def count_in(self, after: datetime, until: datetime) -> int:
        return 0 if self.latest_in(after, until) is None else 1
