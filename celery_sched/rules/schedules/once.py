"""``once 2026-01-01T09:00:00Z``: a single occurrence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_sched.rules.schedules.base import as_utc


@dataclass(frozen=True, slots=True)
class Once:
    """The one instant ``at`` (aware UTC)."""

    text: str
    at: datetime
    kind: str = "once"

    def next_after(self, instant: datetime) -> datetime | None:
        return self.at if as_utc(instant) < self.at else None

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        return self.at if as_utc(after) < self.at <= until else None

    def count_in(self, after: datetime, until: datetime) -> int:
        return 0 if self.latest_in(after, until) is None else 1
