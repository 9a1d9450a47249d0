"""A schedule without what calendars exclude, its excluded occurrences left out or moved to a business day.

No question walks through what is excluded minute by minute: the search jumps from one excluded stretch to the
next, and what is counted are the occurrences of the base less those in each stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery_sched.rules.calendars.base import ONE_DAY, Calendar, Span
from celery_sched.rules.calendars.blocks import Block, block_at, blocks_in
from celery_sched.rules.calendars.business import MOVE_DAYS, BusinessDays
from celery_sched.rules.schedules.base import Schedule, as_utc
from celery_sched.rules.schedules.zones import instant_of, seconds_of

HORIZON = timedelta(days=30 * 366)
MOST_STEPS = 10_000
"""``next_after`` gives up (None) when all occurrences of 30 years, or so many in a row, are excluded.

(Of those in one stretch the search looks at one; if they are to be moved, at those of its last days.)
"""
MOST_A_DAY = 24
_TICK = timedelta(microseconds=1)
# What lies deeper inside a stretch cannot move out of it.
_DEEP = timedelta(days=MOVE_DAYS + 3)


@dataclass(frozen=True, slots=True)
class Excluding:
    """``base`` in the wall times of ``zone``, without the occurrences that one of ``calendars`` excludes.

    ``move`` (next_business_day): an excluded occurrence takes place at the same wall time on the next
    business day on which that time is not excluded. A business day is not excluded as a whole and no day of
    the weekend: of the calendars' countries, else Saturday and Sunday. Occurrences that meet are one.
    """

    base: Schedule
    zone: ZoneInfo
    calendars: tuple[Calendar, ...]
    move: bool = False

    @property
    def text(self) -> str:
        return self.base.text

    @property
    def kind(self) -> str:
        return self.base.kind

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly later than ``instant``, or None."""
        after = as_utc(instant)
        if self.kind == "after":
            return self._after_a_run(after)
        return self._next_moving(after) if self.move else self._next_kept(after)

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence in (after, until], or None."""
        after, until = as_utc(after), as_utc(until)
        if self.kind == "after":
            found = self._after_a_run(after)
            return found if found is not None and found <= until else None
        latest = self._latest_kept(after, until)
        for moved in self._moved_into(latest or after, until) if self.move else ():
            latest = moved if latest is None else max(latest, moved)
        return latest

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (after, until]."""
        after, until = as_utc(after), as_utc(until)
        if until <= after:
            return 0
        if self.kind == "after":
            return 0 if self.latest_in(after, until) is None else 1
        count = self.base.count_in(after, until)
        for start, end in self._blocks(after, until):
            count -= self.base.count_in(max(after, start - _TICK), min(until, end - _TICK))
        moved = self._moved_into(after, until) if self.move else set()
        return count + sum(self.base.next_after(at - _TICK) != at for at in moved)

    def excluded(self, instant: datetime) -> tuple[Calendar, Span] | None:
        """The first calendar that excludes an instant, and its span; None if none does."""
        at = as_utc(instant)
        if self._block(at) is None:
            return None
        day = at.astimezone(self.zone).date()
        for calendar in self.calendars:
            for span in calendar.spans(day - ONE_DAY, day + ONE_DAY):
                if span.holds(at, self.zone):
                    return calendar, span
        return None

    def moved(self, instant: datetime) -> datetime | None:
        """Where an excluded occurrence of ``base`` takes place instead; None: nowhere (or it stays)."""
        at = as_utc(instant)
        return self._business.target(at, {}) if self.move and self._block(at) is not None else None

    @property
    def _business(self) -> BusinessDays:
        return BusinessDays(self.calendars, self.zone)

    def _block(self, at: datetime) -> Block | None:
        return block_at(self.calendars, self.zone, seconds_of(at))

    def _end(self, block: Block) -> datetime:
        """Where a stretch ends that is cut at New Year, at most a horizon away."""
        begin, end = block
        while end - begin < HORIZON.total_seconds() and (further := block_at(self.calendars, self.zone, end)):
            end = further[1]
        return instant_of(end)

    def _blocks(self, after: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
        found = blocks_in(self.calendars, self.zone, seconds_of(after), seconds_of(until) + 1)
        return ((instant_of(start), instant_of(end)) for start, end in found)

    def _next_kept(self, after: datetime) -> datetime | None:
        first: datetime | None = None
        for _ in range(MOST_STEPS):
            found = self.base.next_after(after)
            block = None if found is None else self._block(found)
            if found is None or block is None:
                return found
            first = first or found
            if found - first > HORIZON:
                return None
            after = self._end(block) - _TICK
        return None

    def _latest_kept(self, after: datetime, until: datetime) -> datetime | None:
        while (found := self.base.latest_in(after, until)) is not None:
            block = self._block(found)
            if block is None:
                return found
            until = instant_of(block[0]) - _TICK
        return None

    def _after_a_run(self, ended: datetime) -> datetime | None:
        """A delay from the end of a run: while the result is excluded, the delay once more."""
        found = self.base.next_after(ended)
        if found is None or self._block(found) is None:
            return found
        if self.move and (target := self._business.target(found, {})) is not None:
            return target
        delay, first = found - ended, found
        while (block := self._block(found)) is not None:
            if found - first > HORIZON:
                return None
            found += -((found - self._end(block)) // delay) * delay
        return found

    def _next_moving(self, after: datetime) -> datetime | None:
        blocked: dict[time, date] = {}
        best: datetime | None = None
        for dropped in self._dropped(self._business.settled_before(after), after):
            target = self._business.target(dropped, blocked)
            if target is not None and target > after:
                best = target if best is None else min(best, target)
        first: datetime | None = None
        for _ in range(MOST_STEPS):
            found = self.base.next_after(after)
            if found is None or (best is not None and found >= best):
                return best
            block = self._block(found)
            if block is None:
                return found
            first = first or found
            if found - first > HORIZON:
                return best
            target = self._business.target(found, blocked)
            if target is not None:
                best = target if best is None else min(best, target)
            after = max(found, self._end(block) - _DEEP)
        return best

    def _moved_into(self, after: datetime, until: datetime) -> set[datetime]:
        """The distinct instants in (after, until] that excluded occurrences move to."""
        blocked: dict[time, date] = {}
        dropped = self._dropped(self._business.settled_before(after), until)
        targets = (self._business.target(at, blocked) for at in dropped)
        return {target for target in targets if target is not None and after < target <= until}

    def _dropped(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The excluded occurrences of the base in (after, until] that could move, oldest first."""
        found = self.base.next_after(after)
        for start, end in self._blocks(after, until):
            begin = max(start, self._end((seconds_of(start), seconds_of(end))) - _DEEP)
            if found is not None and found < begin:
                found = self.base.next_after(begin - _TICK)
            while found is not None and found < end and found <= until:
                yield found
                found = self.base.next_after(found)


def too_frequent_to_move(schedule: Schedule, anchor: datetime) -> bool:
    """True if a schedule is due more than 24 times a day on average in the year after ``anchor``.

    ``next_business_day`` is refused for it: each excluded occurrence is moved by itself.
    """
    start = anchor.astimezone(UTC)
    return schedule.count_in(start, start + 365 * ONE_DAY) > 365 * MOST_A_DAY
