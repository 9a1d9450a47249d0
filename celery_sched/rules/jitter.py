"""Jitter: a run is planned a little after its occurrence, so that many jobs of one instant spread out.

The occurrence itself, its key and the mark stay where the schedule says: another jitter never makes a second
run of an occurrence, and the data that a run is for does not depend on it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from celery_sched.rules.schedules import Schedule

_INSTANT = timedelta(microseconds=1)
_MOST = 2**64


@dataclass(frozen=True)
class Jitter:
    """When the occurrences of a schedule are due. ``amount`` None or zero: at once."""

    schedule: Schedule
    name: str
    amount: timedelta | None

    def due(self, occurrence: datetime) -> datetime:
        """When an occurrence is due: in [occurrence, occurrence + amount], and before the next occurrence."""
        if not self.amount:
            return occurrence
        room = self.amount
        following = self.schedule.next_after(occurrence)
        if following is not None:
            room = min(room, following - occurrence - _INSTANT)
        key = f"{self.name}\0{occurrence.astimezone(UTC).isoformat()}"
        # the same number in every process and release
        share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
        return occurrence + timedelta(microseconds=(room // _INSTANT) * share // _MOST)

    def occurrence_of(self, due_at: datetime) -> datetime:
        """The occurrence that is due at an instant; the instant itself, where it was set by hand."""
        if self.amount:
            latest = self.schedule.latest_in(due_at - self.amount - _INSTANT, due_at)
            if latest is not None and self.due(latest) == due_at:
                return latest
        return due_at

    def decided(self, now: datetime) -> datetime:
        """The instant up to which occurrences are due: ``now``, or just before one that still waits.

        An occurrence is due before the next one comes, so only the latest can be waiting.
        """
        if self.amount:
            latest = self.schedule.latest_in(now - self.amount - _INSTANT, now)
            if latest is not None and self.due(latest) > now:
                return latest - _INSTANT
        return now
