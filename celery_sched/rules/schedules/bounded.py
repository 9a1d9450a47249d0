"""A schedule between ``start_at`` and ``end_at``, both inclusive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_sched.rules.schedules.base import Schedule, as_utc

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The occurrences of ``base`` from ``start`` to ``end``; None: no bound on that side."""

    base: Schedule
    start: datetime | None
    end: datetime | None

    @property
    def text(self) -> str:
        return self.base.text

    @property
    def kind(self) -> str:
        return self.base.kind

    def next_after(self, instant: datetime) -> datetime | None:
        instant = as_utc(instant)
        if self.start is not None and self.kind == "after":
            # counts from the end of a run, so it has no occurrence of its own at the start
            found = self.base.next_after(instant)
            found = None if found is None else max(found, self.start)
        else:
            found = self.base.next_after(self._from(instant))
        return None if found is None or (self.end is not None and found > self.end) else found

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        return self.base.latest_in(self._from(after), self._to(until))

    def count_in(self, after: datetime, until: datetime) -> int:
        return self.base.count_in(self._from(after), self._to(until))

    def _from(self, instant: datetime) -> datetime:
        return instant if self.start is None else max(instant, self.start - _INSTANT)

    def _to(self, instant: datetime) -> datetime:
        return instant if self.end is None else min(instant, self.end)
