"""A timeline in text: a column per slot of time, a ruler in local time above, a line per job. Pure.

Widths are cells of a terminal: a letter of Chinese takes two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from rich.cells import cell_len, set_cell_size

from celery_sched.durations import format_duration
from celery_sched.rules.clocks import changes
from celery_sched.rules.schedules import Schedule
from celery_sched.rules.schedules.zones import DAY, instant_of, offset_at, seconds_of

HOUR = 3600
SLOTS = (
    *(10, 15, 20, 30, 60, 120, 180, 240, 300, 360, 600, 720, 900, 1200, 1800),
    *(HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR, 12 * HOUR),
    *(DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY),
)
"""Seconds of a column: all of an hour, an hour of a day, and so on, so that hours have equal widths."""
STEPS = (60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR)
"""Seconds between two labels of the ruler."""
LEAST_CHART = 12
LEAST_NAME = 12
LARGEST_COUNT = 7
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of a drawing."""

    one: str
    now: str
    change: str
    cut: str


UNICODE = Signs("•", "▼", "▲", "…")
ASCII = Signs("*", "v", "^", "~")


def signs_for(encoding: str | None) -> Signs:
    """The signs that an output of that encoding can show."""
    try:
        "".join((UNICODE.one, UNICODE.now, UNICODE.change, UNICODE.cut)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


@dataclass(frozen=True, slots=True)
class Frame:
    """The window now <= t < until, and the columns it is drawn in; the first one holds ``now``."""

    zone: ZoneInfo
    now: datetime
    until: datetime
    start: datetime
    slot: timedelta
    columns: int
    names: int
    """Cells of the column of names."""

    def column(self, instant: datetime) -> int:
        """The column that an instant lies in."""
        return (instant - self.start) // self.slot


def frame(zone: ZoneInfo, now: datetime, hours: int, width: int, longest_name: int) -> Frame:
    """Choose the finest columns for which there is room; what is left over is for the names."""
    longest_name = max(longest_name, len("job"))
    names = min(longest_name, max(width // 4, LEAST_NAME))
    room = max(width - names - LARGEST_COUNT - 2, LEAST_CHART)
    span = hours * HOUR
    # one more column than the window has slots: it begins within one, and ends within one
    slot = next((slot for slot in SLOTS if -(-span // slot) + 1 <= room), SLOTS[-1])
    offset = offset_at(zone, seconds_of(now))
    wall = seconds_of(now) + offset
    start, until = instant_of(wall - wall % slot - offset), now + timedelta(seconds=span)
    columns = -((start - until) // timedelta(seconds=slot))
    names = min(longest_name, max(width - columns - LARGEST_COUNT - 2, names))
    return Frame(zone, now, until, start, timedelta(seconds=slot), columns, names)


def counts(
    schedule: Schedule | None, first: datetime | None, within: Frame, most: int | None = None
) -> list[int]:
    """How many occurrences lie in each column: ``first``, and those of the schedule after it.

    ``first`` may be overdue: then it counts as now. ``most``: the job ends after so many.
    """
    found = [0] * within.columns
    if first is None or first >= within.until:
        return found
    found[within.column(max(first, within.now))] = 1
    after, last = max(first, within.now - INSTANT), within.until - INSTANT
    if schedule is not None:
        # a few are asked for one by one; of many, as every second, only the numbers
        if schedule.count_in(after, last) <= within.columns:
            for occurrence in occurrences(schedule, after, within.until):
                found[within.column(occurrence)] += 1
        else:
            begin = after
            for column in range(within.columns):
                end = min(within.start + (column + 1) * within.slot - INSTANT, last)
                if end > begin:
                    found[column] += schedule.count_in(begin, end)
                    begin = end
    return found if most is None else _at_most(found, most)


def occurrences(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    """The occurrences in after < t < until, oldest first."""
    found = schedule.next_after(after)
    while found is not None and found < until:
        yield found
        found = schedule.next_after(found)


def _at_most(found: Iterable[int], most: int) -> list[int]:
    """The numbers, until they sum up to ``most``."""
    kept = []
    for count in found:
        kept.append(min(count, most))
        most -= kept[-1]
    return kept


def line(name: str, found: Sequence[int], within: Frame, signs: Signs) -> str:
    """A job's line: its name, a mark per column, how many there are."""
    marks = "".join(_mark(count, signs) for count in found)
    return f"{fitted(name, within.names, signs)} {marks} {sum(found):>{LARGEST_COUNT}}".rstrip()


def _mark(count: int, signs: Signs) -> str:
    if count < 2:
        return signs.one if count else " "
    return str(count) if count < 10 else "#"


def fitted(name: str, cells: int, signs: Signs) -> str:
    """A name in exactly so many cells."""
    if cell_len(name) > cells:
        return set_cell_size(name, cells - 1) + signs.cut
    return set_cell_size(name, cells)


def legend(within: Frame, zone_name: str, signs: Signs) -> str:
    """Which zone, and what a column and a mark are."""
    return (
        f"In {zone_name}; a column is {format_duration(within.slot)}: {signs.one} one occurrence,"
        " 2 to 9 so many, # more"
    )


def ruler(within: Frame, width: int, signs: Signs) -> Iterator[str]:
    """The lines above the chart: clock changes, where there are any; now and the days; the hours."""
    left = within.names + 1
    for change in changes(within.zone, within.now, within.until - INSTANT):
        place, words = left + within.column(change.at), str(change)
        if place + 2 + len(words) <= width:
            yield f"{'':{place}}{signs.change} {words}"
        elif len(words) < place:
            yield f"{words:>{place - 1}} {signs.change}"
        else:
            yield words
            yield f"{'':{place}}{signs.change}"
    local = within.now.astimezone(within.zone)
    days = [(within.column(within.now), f"{signs.now} now {local:%a %Y-%m-%d %H:%M}")]
    label = "%a %m-%d" if timedelta(seconds=DAY) >= 10 * within.slot else "%a %d"
    days += [(column, f"{wall:{label}}") for column, wall in _ticks(within, DAY)]
    yield f"{'':{left}}{_labelled(days, within.columns)}".rstrip()
    labels = f"{_labelled(_times(within), within.columns):<{within.columns}}"
    yield f"{'job':<{within.names}} {labels} {'count':>{LARGEST_COUNT}}"


def _times(within: Frame) -> list[tuple[int, str]]:
    """Columns and labels: the hour; of a few hours the minutes too; of many days the day of the month."""
    label, cells = "%H", 4
    if within.columns * within.slot <= timedelta(hours=6):
        label, cells = "%H:%M", 7
    step = next((step for step in STEPS if timedelta(seconds=step) >= cells * within.slot), None)
    if step is None:
        label, step = "%d", DAY
    return [(column, f"{wall:{label}}") for column, wall in _ticks(within, step)]


def _ticks(within: Frame, step: int) -> Iterator[tuple[int, datetime]]:
    """Column and (naive) local time of each time of the clock that is a multiple of ``step`` seconds.

    A time that the clocks jump over has none, one that comes twice has two.
    """
    look = min(step, 900)  # every change of the clocks today is a multiple of a quarter of an hour
    first = seconds_of(within.start)
    end = first + within.columns * int(within.slot.total_seconds())
    first += -(first + offset_at(within.zone, first)) % look
    for instant in range(first, end, look):
        wall = instant + offset_at(within.zone, instant)
        if wall % step == 0:
            yield within.column(instant_of(instant)), instant_of(wall).replace(tzinfo=None)


def _labelled(labels: Iterable[tuple[int, str]], columns: int) -> str:
    """Labels at their columns; one that would touch the one before it, or the end, is left out."""
    text = ""
    for column, label in labels:
        if (not text or column > len(text)) and (column + len(label) <= columns or not text):
            text = f"{text:<{column}}{label}"
    return text
