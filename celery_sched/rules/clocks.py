"""What a zone's clocks do between two instants, and what is special about one: for people who look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from celery_sched.rules.schedules import Schedule
from celery_sched.rules.schedules.base import as_utc
from celery_sched.rules.schedules.bounded import Bounded
from celery_sched.rules.schedules.cron import Cron
from celery_sched.rules.schedules.excluding import Excluding
from celery_sched.rules.schedules.once import Once
from celery_sched.rules.schedules.rrule import Rrule
from celery_sched.rules.schedules.union import Union
from celery_sched.rules.schedules.zones import instant_of, seconds_of, stretches

_INSTANT = timedelta(microseconds=1)
LAST = datetime(9999, 12, 30, tzinfo=UTC)
"""From here on an instant may have no local time: there are no datetimes beyond the year 9999."""
_FIRST = datetime(1, 1, 3, tzinfo=UTC)
_MOST_NAMED = 2
"""Times of the clock that do not exist, named one by one; of more it is said how many."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a zone's UTC offset (east positive), with the zone's abbreviations around it."""

    at: datetime
    before: timedelta
    after: timedelta
    name_before: str
    name_after: str

    @property
    def wall_before(self) -> datetime:
        """What the clocks would have shown at ``at``, naive."""
        return self.at.replace(tzinfo=None) + self.before

    @property
    def wall_after(self) -> datetime:
        """What the clocks show at ``at``, naive."""
        return self.at.replace(tzinfo=None) + self.after

    def __str__(self) -> str:
        """``clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST``."""
        before, after = self.wall_before, self.wall_after
        shown = clock(after) if after.date() == before.date() else f"{after:%Y-%m-%d} {clock(after)}"
        way = "forward" if self.after > self.before else "back"
        return (
            f"clocks go {way} {_length(abs(self.after - self.before))} at {before:%Y-%m-%d} {clock(before)}"
            f" {self.name_before} -> {shown} {self.name_after}"
        )


def changes(zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[Change]:
    """The changes of the zone's UTC offset in (after, until], oldest first, found while iterating."""
    before: int | None = None
    start, end = max(as_utc(after), _FIRST), min(as_utc(until), LAST)
    for stretch in stretches(zone, seconds_of(start), seconds_of(end) + 1):
        if before is not None:
            at = instant_of(stretch.start)
            names = tuple(when.astimezone(zone).tzname() or "" for when in (at - _INSTANT, at))
            old, new = timedelta(seconds=before), timedelta(seconds=stretch.offset)
            yield Change(at, old, new, names[0], names[1])
        before = stretch.offset


def peculiarity(schedule: Schedule, zone: ZoneInfo, occurrence: datetime) -> str | None:
    """Why an occurrence's local time may surprise: what the clocks jumped over, or one of two equal times.

    ``02:30 does not exist`` (it is made good by this occurrence), ``first 02:30 of two``; None: it is plain.
    """
    if occurrence >= LAST:
        return None
    local = occurrence.astimezone(zone)
    wall = local.replace(tzinfo=None)
    # the next whole minute at most lies between a jump and what is made good after it (rule R6a)
    for change in changes(zone, occurrence - timedelta(minutes=2), occurrence):
        lost = [at for one in _having(schedule, occurrence) for at in _jumped_over(one, change, wall)]
        if lost:
            return _missing(sorted(set(lost)), wall)
    if local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset():
        return f"{'second' if local.fold else 'first'} {clock(wall)} of two"
    return None


def clock(wall: datetime) -> str:
    """A time of day: with seconds, and six digits of their fraction, only where it has some."""
    if wall.microsecond:
        return f"{wall:%H:%M:%S.%f}"
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"


def _length(shift: timedelta) -> str:
    """``1 h``, ``30 min``, ``1 h 30 min``."""
    hours, rest = divmod(int(shift.total_seconds()), 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount)


def _having(schedule: Schedule, occurrence: datetime) -> Iterator[Schedule]:
    """The schedules of one text, among those that make up this one, that have the occurrence."""
    if isinstance(schedule, Bounded | Excluding):
        yield from _having(schedule.base, occurrence)
    elif isinstance(schedule, Union):
        for member in schedule.members:
            yield from _having(member, occurrence)
    elif schedule.next_after(occurrence - _INSTANT) == occurrence:
        yield schedule


def _jumped_over(schedule: Schedule, change: Change, wall: datetime) -> list[datetime]:
    """The times of the clock that the schedule names and the change jumped over; ``wall`` stands for them.

    None if the schedule names ``wall`` itself: then it is due for its own sake.
    """
    if isinstance(schedule, Once):
        named = datetime.fromisoformat(schedule.text.split(maxsplit=1)[1])
        return [named] if named.tzinfo is None and change.wall_before <= named < wall else []
    if not isinstance(schedule, Cron | Rrule) or schedule.walls.first_from(_seconds(wall)) == _seconds(wall):
        return []
    found: list[datetime] = []
    at = schedule.walls.first_from(_seconds(change.wall_before))
    while at is not None and at < _seconds(change.wall_after):
        found.append(instant_of(at).replace(tzinfo=None))
        at = schedule.walls.first_from(at + 1)
    return found


def _seconds(wall: datetime) -> int:
    """A time of the clock as schedules count it."""
    return seconds_of(wall.replace(tzinfo=instant_of(0).tzinfo))


def _missing(lost: list[datetime], wall: datetime) -> str:
    shown = [clock(at) if at.date() == wall.date() else f"{at:%Y-%m-%d} {clock(at)}" for at in lost]
    if len(shown) > _MOST_NAMED:
        first, more = shown[0], len(shown) - 1
        return f"{first} and {more} more times do not exist"
    return f"{' and '.join(shown)} {'do' if len(shown) > 1 else 'does'} not exist"
