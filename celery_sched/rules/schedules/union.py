"""``0 9 * * 1-5 | 0 12 * * 6``: several schedules in one; an instant that several of them have is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.after import After
from celery_sched.rules.schedules.base import Schedule, as_utc
from celery_sched.rules.schedules.every import Every
from celery_sched.rules.schedules.once import Once
from celery_sched.rules.schedules.zones import DAY, EPOCH, instant_of, seconds_of

MOST_MEMBERS = 20
_MICROSECOND = timedelta(microseconds=1)


@runtime_checkable
class _Dense(Protocol):
    """A kind of schedule that can be due every second."""

    def bits(self, start: int, end: int) -> int:
        """Which of the seconds start <= t < end are due: bit k is start + k."""


@dataclass(frozen=True, slots=True)
class Union:
    """All occurrences of its members, each instant once. Made by ``union``."""

    text: str
    members: tuple[Schedule, ...]
    kind: str = "union"

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence of any member strictly after ``instant``."""
        return _first_after(self.members, instant)

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence of any member in (after, until], or None."""
        found = [member.latest_in(after, until) for member in self.members]
        return max((instant for instant in found if instant is not None), default=None)

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many instants in (after, until] are an occurrence of a member, each counted once."""
        after, until = as_utc(after), as_utc(until)
        fractions: dict[int, list[Schedule]] = {}
        for member in self.members:
            fractions.setdefault(_fraction(member), []).append(member)
        # Members on different fractions of a second never coincide.
        return sum(_count(members, fraction, after, until) for fraction, members in fractions.items())


def union(text: str, members: Sequence[Schedule]) -> Union:
    """Put schedules together. Raises InvalidValue for those that cannot be part of a union."""
    for member in members:
        if isinstance(member, After):
            allowed = (
                f"{member.text!r} counts from the end of a run, so it cannot be one of several schedules"
            )
            raise InvalidValue("schedule", text, allowed, "Give it a job of its own.")
        if isinstance(member, Every) and member.period % timedelta(seconds=1):
            allowed = f"among several schedules intervals are whole seconds, {member.text!r} is not"
            raise InvalidValue("schedule", text, allowed)
    return Union(text, tuple(members))


def _first_after(members: Sequence[Schedule], instant: datetime) -> datetime | None:
    found = [member.next_after(instant) for member in members]
    return min((following for following in found if following is not None), default=None)


def _fraction(member: Schedule) -> int:
    """The fraction of a second, in microseconds, on which all occurrences of a member lie."""
    if isinstance(member, Every):
        return member.anchor.microsecond
    return member.at.microsecond if isinstance(member, Once) else 0


def _count(members: Sequence[Schedule], fraction: int, after: datetime, until: datetime) -> int:
    """Distinct occurrences in (after, until] of members that all lie on the same fraction of a second."""
    if len(members) == 1:
        return members[0].count_in(after, until)
    shift = fraction * _MICROSECOND
    end = ((until - EPOCH) // _MICROSECOND - fraction) // 1_000_000 + 1
    count, last = 0, after
    # A day at a time, from the next occurrence on: days without any cost nothing.
    while (following := _first_after(members, last)) is not None and following <= until:
        start = seconds_of(following)
        stop = min(start + DAY, end)
        due = 0
        for member in members:
            due |= _bits(member, start, stop)
        count += due.bit_count()
        last = instant_of(stop - 1) + shift
    return count


def _bits(member: Schedule, start: int, stop: int) -> int:
    """Which seconds start <= t < stop are due; a fraction of a second is left off."""
    if isinstance(member, _Dense):
        return member.bits(start, stop)
    bits, last = 0, instant_of(start) - _MICROSECOND
    while (following := member.next_after(last)) is not None and (second := seconds_of(following)) < stop:
        bits |= 1 << (second - start)
        last = following
    return bits
