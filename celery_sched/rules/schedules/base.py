"""What every kind of schedule is, and questions about a span of time that any kind answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from celery_sched.errors import InvalidValue


class Schedule(Protocol):
    """When a job is due. Pure: the same question has the same answer on every node.

    All instants given must be aware; all instants returned are aware UTC.
    """

    @property
    def text(self) -> str:
        """The schedule as typed: what the database keeps and people see."""

    @property
    def kind(self) -> str:
        """``cron``, ``every``, ``after``, ``once``, ``rrule``, ``solar`` or ``union``."""

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly later than ``instant``; None = never again."""

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence in (after, until], without enumerating the others."""

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (after, until], without enumerating them."""


def as_utc(instant: datetime) -> datetime:
    """The same instant in UTC. A naive time is refused: guessing its zone shifts jobs by hours."""
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise InvalidValue("instant", instant, "it has no time zone", "Pass an aware datetime.")
    return instant.astimezone(UTC)


def between(schedule: Schedule, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The occurrences in (after, until], oldest first, at most ``limit`` of them."""
    found: list[datetime] = []
    last = as_utc(after)
    while len(found) < limit:
        occurrence = schedule.next_after(last)
        if occurrence is None or occurrence > until:
            break
        found.append(occurrence)
        last = occurrence
    return found


def latest_in(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """The last occurrence in (after, until], or None; fast however long the span is."""
    return schedule.latest_in(after, until)


def count_in(schedule: Schedule, after: datetime, until: datetime) -> int:
    """How many occurrences lie in (after, until]; fast however long the span is."""
    return schedule.count_in(after, until)
