"""Cron expressions in a time zone: Debian cron's rule for clock changes, worked out without enumerating.

The zone is cut into pieces of constant offset; inside a piece, due instants are the allowed wall times
shifted by the offset, so first, last and count are arithmetic. Repeated wall times are cut away and
skipped ones are made good as R5 and R6 say (named in the functions below).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.base import as_utc
from celery_sched.rules.schedules.cronfields import CronFields, DayMode, read_fields
from celery_sched.rules.schedules.cronterms import LAST_YEAR
from celery_sched.rules.schedules.quartz import read_quartz
from celery_sched.rules.schedules.walls import TimesOfDay, WallTimes
from celery_sched.rules.schedules.zones import DAY, EPOCH, check_zone, instant_of, seconds_of, stretches

Dst = Literal["vixie", "literal"]

# R6: a smaller change of the offset is daylight saving time, a larger one a correction of the clock.
_DST_LIMIT = 3 * 3600
# A due instant and the wall time it stands for, read as UTC, never lie further apart: zones stay within
# +-16 h, the largest jump is 24 h (a skipped or repeated calendar day).
_REACH = 40 * 3600
# How much time is cut into pieces at once. Longer than 2 * _REACH, so that one look nearly always finds.
_LOOK = 4 * DAY
_END = seconds_of(datetime(LAST_YEAR, 12, 30, tzinfo=EPOCH.tzinfo))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Instants start <= t < end of one offset; every minute of it is due if ``made_good``."""

    start: int
    end: int
    offset: int
    made_good: bool = False


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, a zone and a policy for clock changes. Made by ``cron`` and ``quartz``.

    ``dst`` "vixie" is Debian cron's rule. "literal" gives each matching wall time its first real instant
    and nothing else: repeated wall times are not fired again and skipped ones are not made good.
    Instants lie in the years 1970 to 2999.
    """

    text: str
    zone: ZoneInfo
    dst: Dst
    walls: WallTimes
    kind: str = "cron"

    def next_after(self, instant: datetime) -> datetime | None:
        """The first due instant strictly after ``instant``, or None."""
        start = max(seconds_of(as_utc(instant)) + 1, 0)
        while start < _END:
            wall = self.walls.first_from(start - _REACH)
            if wall is None:
                return None
            # Nothing before the first allowed wall time can be due: years are skipped in one step.
            start = max(start, wall - _REACH)
            for piece in self._pieces(start, start + _LOOK):
                found = self._first(piece)
                if found is not None:
                    return instant_of(found)
            start += _LOOK
        return None

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last due instant in (after, until], or None."""
        start, end = _half_open(after, until)
        while start < end:
            wall = self.walls.last_before(end + _REACH)
            if wall is None:
                return None
            end = min(end, wall + _REACH + 1)
            look = max(start, end - _LOOK)
            for piece in reversed(list(self._pieces(look, end))):
                found = self._last(piece)
                if found is not None:
                    return instant_of(found)
            end = look
        return None

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many due instants lie in (after, until]."""
        start, end = _half_open(after, until)
        return sum(self._count(piece) for piece in self._pieces(start, end)) if start < end else 0

    def bits(self, start: int, end: int) -> int:
        """Which of the seconds start <= t < end are due: bit k is start + k."""
        bits = 0
        for piece in self._pieces(max(start, 0), min(end, _END)):
            if piece.made_good:
                found = sum(1 << (instant - piece.start) for instant in self._made_good(piece))
            else:
                found = self.walls.bits(piece.start + piece.offset, piece.end + piece.offset)
            bits |= found << (piece.start - start)
        return bits

    def _pieces(self, start: int, end: int) -> Iterator[_Piece]:
        """The parts of start <= t < end in which allowed wall times are due, oldest first."""
        wildcard = self.walls.fields.wildcard and self.dst == "vixie"
        before: int | None = None  # the offset before the change at the start of this stretch
        shown = 0  # wall times below this one have been on the clock already (R6b)
        for stretch in stretches(self.zone, start - DAY, end):
            begin, offset = stretch.start, stretch.offset
            jump = 0 if before is None else offset - before
            if jump and not wildcard:
                shown = max(shown, begin + offset - jump)
                if self.dst == "vixie" and abs(jump) >= _DST_LIMIT:
                    shown = 0  # R6c: nothing is suppressed
                elif self.dst == "vixie" and jump > 0 and self.walls.count(shown, begin + offset):
                    # R6a: all that was jumped over is made good in the first whole minute after.
                    begin += -(begin + offset) % 60
                    good = _Piece(
                        max(begin, start), min(begin + 60, stretch.end, end), offset, made_good=True
                    )
                    if good.start < good.end:
                        yield good
                    begin += 60
            if shown:
                begin = max(begin, shown - offset)
            begin, stop = max(begin, start), min(stretch.end, end)
            if begin < stop:
                yield _Piece(begin, stop, offset)
            before = offset

    def _first(self, piece: _Piece) -> int | None:
        wall = piece.start + piece.offset
        if piece.made_good:
            second = next((second for second in self.walls.times.seconds if second >= wall % 60), None)
            found = None if second is None else wall - wall % 60 + second
        else:
            found = self.walls.first_from(wall)
        return None if found is None or found >= piece.end + piece.offset else found - piece.offset

    def _last(self, piece: _Piece) -> int | None:
        if piece.made_good:
            due = self._made_good(piece)
            return due[-1] if due else None
        found = self.walls.last_before(piece.end + piece.offset)
        return None if found is None or found < piece.start + piece.offset else found - piece.offset

    def _count(self, piece: _Piece) -> int:
        if piece.made_good:
            return len(self._made_good(piece))
        return self.walls.count(piece.start + piece.offset, piece.end + piece.offset)

    def _made_good(self, piece: _Piece) -> list[int]:
        minute = piece.start - (piece.start + piece.offset) % 60
        due = (minute + second for second in self.walls.times.seconds)
        return [instant for instant in due if piece.start <= instant < piece.end]


def cron(text: str, *, tz: str = "UTC", name: str = "", dst: Dst = "vixie", day_mode: DayMode = "or") -> Cron:
    """Read a cron expression or macro. Raises InvalidValue, also for dates that never come."""
    zone = check_zone(tz)
    walls = _walls(text, name if "h" in text.lower() else "", day_mode)
    return _cron(text, zone, dst, walls)


def quartz(text: str, body: str, *, tz: str = "UTC", name: str = "", dst: Dst = "vixie") -> Cron:
    """Read an expression of Quartz; ``body`` is what follows ``quartz:`` in ``text``. Errors as ``cron``."""
    zone = check_zone(tz)
    return _cron(text, zone, dst, _quartz_walls(text, body, name if "h" in body.lower() else ""))


def _cron(text: str, zone: ZoneInfo, dst: Dst, walls: WallTimes) -> Cron:
    if walls.never():
        raise InvalidValue("schedule", text, "it never occurs", "No such date exists in any year it allows.")
    return Cron(text, zone, dst, walls)


@lru_cache(maxsize=4096)
def _walls(text: str, name: str, day_mode: DayMode) -> WallTimes:
    """Cached, because each pass reads the same texts again and ``WallTimes`` fills its tables once."""
    return _walls_of(read_fields(text, name, day_mode))


@lru_cache(maxsize=1024)
def _quartz_walls(text: str, body: str, name: str) -> WallTimes:
    return _walls_of(read_quartz(text, body, name))


def _walls_of(fields: CronFields) -> WallTimes:
    return WallTimes(fields, TimesOfDay(fields.hours, fields.minutes, fields.seconds))


def _half_open(after: datetime, until: datetime) -> tuple[int, int]:
    """(after, until] as whole seconds start <= t < end, within the years that are computed."""
    return max(seconds_of(as_utc(after)) + 1, 0), min(seconds_of(as_utc(until)) + 1, _END)
