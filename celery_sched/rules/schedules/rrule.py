"""``rrule:FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9``: RFC 5545 recurrence rules in the zone of the job.

A rule gives wall times; each becomes one instant: the first at which the zone's clocks have got that far. A
wall time that a clock change repeats is due on its first pass only, one that is jumped over at the first
instant after the jump, together with all others that were ("literal": not at all). Because the way from wall
times to instants keeps the order, first, last and count are questions about wall times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.base import as_utc
from celery_sched.rules.schedules.rruletext import RuleParts, read_rule
from celery_sched.rules.schedules.rrulewalls import END, SEARCH_YEARS, RuleWalls
from celery_sched.rules.schedules.zones import (
    DAY,
    EPOCH,
    check_zone,
    instant_of,
    instant_of_wall,
    offset_at,
    seconds_of,
    stretches,
)

# Offsets change by a day at most and no two changes are closer than three: what the clock has shown so far
# is decided by the last two days.
_MEMORY = 2 * DAY
_FIRST = seconds_of(datetime(1900, 1, 3, tzinfo=UTC))
_LAST = END - 3 * DAY


@dataclass(frozen=True, slots=True)
class Rrule:
    """A recurrence rule, a zone and a policy for clock changes. Made by ``rrule``. Ends with 2999."""

    text: str
    zone: ZoneInfo
    walls: RuleWalls
    make_good: bool = True
    kind: str = "rrule"

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after ``instant``; None when the rule is over."""
        second = seconds_of(as_utc(instant))
        if second >= _LAST:
            return None
        wall = self.walls.first_from(self._shown(second) + 1)
        while wall is not None and (jump := self._jumped(wall)):
            wall = self.walls.first_from(jump[1])
        return None if wall is None else self._instant(wall)

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence in (after, until], or None."""
        first, last = self._shown_by(after), self._shown_by(until)
        wall = self.walls.last_before(last + 1)
        while wall is not None and wall > first and (jump := self._jumped(wall)):
            wall = self.walls.last_before(jump[0])
        return None if wall is None or wall <= first else self._instant(wall)

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (after, until]."""
        first, last = self._shown_by(after), self._shown_by(until)
        if last <= first:
            return 0
        count = self.walls.count(first + 1, last + 1)
        start, end = (min(max(seconds_of(as_utc(at)), _FIRST), _LAST) for at in (after, until))
        before: int | None = None
        for stretch in stretches(self.zone, start, end + 1):
            if before is not None and stretch.offset > before:
                low, high = stretch.start + before, stretch.start + stretch.offset
                if self.make_good:
                    # All that was jumped over and the first time after it are one instant.
                    count -= max(self.walls.count(low, high + 1) - 1, 0)
                else:
                    count -= self.walls.count(low, high)
            before = stretch.offset
        return count

    def bits(self, start: int, end: int) -> int:
        """Which of the seconds start <= t < end are due: bit k is start + k."""
        end = min(end, _LAST + 1)
        if end <= max(start, _FIRST + _MEMORY):
            return 0
        first, *changes = stretches(self.zone, max(start, _FIRST + _MEMORY) - _MEMORY, end)
        if not changes:
            return self.walls.bits(start + first.offset, end + first.offset)
        bits, last = 0, instant_of(start - 1)
        while (following := self.next_after(last)) is not None and (second := seconds_of(following)) < end:
            bits |= 1 << (second - start)
            last = following
        return bits

    def _shown_by(self, instant: datetime) -> int:
        return self._shown(min(seconds_of(as_utc(instant)), _LAST))

    def _shown(self, second: int) -> int:
        return _latest_shown(self.zone, second)

    def _instant(self, wall: int) -> datetime:
        return instant_of_wall(self.zone, instant_of(wall).replace(tzinfo=None))

    def _jumped(self, wall: int) -> tuple[int, int] | None:
        """The wall times low <= w < high that the clock jumped over, this one among them, and not made up."""
        if self.make_good:
            return None
        change = seconds_of(self._instant(wall))
        high = change + offset_at(self.zone, change)
        return None if wall >= high else (change + offset_at(self.zone, change - 1), high)


def rrule(
    text: str,
    body: str,
    *,
    tz: str,
    anchor: datetime | None = None,
    dst: Literal["vixie", "literal"] = "vixie",
) -> Rrule:
    """Read a rule; ``body`` is what follows ``rrule:`` in ``text``.

    Without a DTSTART the rule begins at ``anchor``, read in the zone, fractions of a second dropped.
    Raises InvalidValue naming the part at fault, also for a rule that never occurs. Where the anchor is not
    known yet (None: the epoch stands in) only a rule that no anchor makes occur is refused.
    """
    zone = check_zone(tz)
    walls = _walls(text, body, tz, None if anchor is None else as_utc(anchor))
    return Rrule(text, zone, walls, dst == "vixie")


@lru_cache(maxsize=1024)
def _walls(text: str, body: str, tz: str, anchor: datetime | None) -> RuleWalls:
    """Cached, because the same texts are read again and ``RuleWalls`` fills its tables once."""
    zone, parts = check_zone(tz), read_rule(text, body, tz)
    walls = RuleWalls(parts, _wall(zone, parts.start or anchor or EPOCH))
    first = walls.first_from(walls.start)
    if first is None and not (anchor is None and parts.start is None and _occurs_from_some_anchor(walls)):
        given = "DTSTART" if parts.start else "no DTSTART"
        hint = (
            f"Nothing matches in the {SEARCH_YEARS} years from {instant_of(walls.start):%Y-%m-%d %H:%M:%S} "
            f"({given}); look at the BY... parts and at INTERVAL."
        )
        raise InvalidValue("schedule", text, "it never occurs", hint)
    walls = replace(walls, end=_end(zone, parts, walls))
    if parts.start is not None and first is not None and first >= walls.end:
        raise InvalidValue("schedule", text, "it never occurs", "UNTIL lies before the first occurrence.")
    return walls


def _occurs_from_some_anchor(walls: RuleWalls) -> bool:
    """Only INTERVAL makes a rule miss from one beginning what it would hit from another.

    (What it takes from the beginning otherwise, the first of a month and midnight at the epoch, exists in
    every period.) An anchor inside the period that matches makes it hit.
    """
    return (
        replace(walls, parts=replace(walls.parts, interval=1), _years={}, _times={}).first_from(walls.start)
        is not None
    )


def _end(zone: ZoneInfo, parts: RuleParts, walls: RuleWalls) -> int:
    """The wall time from which on the rule is over."""
    last: int | None = None
    if parts.count is not None:
        last = walls.nth(parts.count)
    elif parts.until is not None and parts.until.tzinfo is None:
        last = seconds_of(parts.until.replace(tzinfo=UTC))
    elif parts.until is not None:
        last = _latest_shown(zone, seconds_of(parts.until))
    return walls.end if last is None else min(last + 1, walls.end)


def _wall(zone: ZoneInfo, at: datetime) -> int:
    """A naive time is a wall time already; an aware one is what the zone's clocks show then."""
    local = at if at.tzinfo is None else at.astimezone(zone)
    return seconds_of(local.replace(tzinfo=UTC))


def _latest_shown(zone: ZoneInfo, second: int) -> int:
    """The latest wall time the zone's clocks have shown up to and at that instant."""
    second = max(second, _FIRST)
    near = stretches(zone, second - _MEMORY, second + 1)
    return max(stretch.end - 1 + stretch.offset for stretch in near)
