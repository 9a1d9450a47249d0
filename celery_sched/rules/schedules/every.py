"""``every 5m``: a fixed rate on a grid laid through an anchor, so a restart or deploy never shifts it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_sched.rules.schedules.base import as_utc
from celery_sched.rules.schedules.bits import evenly
from celery_sched.rules.schedules.zones import seconds_of


@dataclass(frozen=True, slots=True)
class Every:
    """Occurrences at anchor + k * period for every whole k, before the anchor too: it only sets the phase.

    A first and a last time are the job's ``start_at`` and ``end_at``. Zones and clock changes
    do not touch it.
    """

    text: str
    period: timedelta
    anchor: datetime
    kind: str = "every"

    def next_after(self, instant: datetime) -> datetime | None:
        return self._at(self._steps(instant) + 1)

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        steps = self._steps(until)
        return self._at(steps) if steps > self._steps(after) else None

    def count_in(self, after: datetime, until: datetime) -> int:
        return max(self._steps(until) - self._steps(after), 0)

    def bits(self, start: int, end: int) -> int:
        """Which of the seconds start <= t < end are due, for a period of whole seconds.

        Bit k is second start + k, the fraction of a second of the anchor left off.
        """
        period = self.period // timedelta(seconds=1)
        return evenly((seconds_of(self.anchor) - start) % period, period, end - start)

    def _steps(self, instant: datetime) -> int:
        """The number of the last occurrence at or before ``instant``."""
        return (as_utc(instant) - self.anchor) // self.period

    def _at(self, steps: int) -> datetime | None:
        try:
            return self.anchor + steps * self.period
        except OverflowError:
            return None  # beyond the year 9999 there are no datetimes, so no occurrences
