"""What ``sched next`` shows: the occurrences of a schedule, and what lies between two of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from celery_sched.cli.output import Line, instant
from celery_sched.rules.clocks import LAST, Change, changes, peculiarity
from celery_sched.rules.schedules import Schedule

MOST_CHANGES = 3
"""Clock changes shown between two occurrences; of more it is said how many."""


@dataclass(frozen=True)
class Shown:
    """An occurrence with what leads up to it."""

    at: datetime
    run_at: datetime
    """Later than ``at`` by the job's jitter."""
    changes: Sequence[Change]
    """The zone's clock changes since the occurrence before it."""
    note: str | None
    """Why its local time may surprise."""


def upcoming(schedule: Schedule, start: datetime, count: int) -> list[datetime]:
    """The first ``count`` instants strictly after ``start``; fewer where the schedule ends."""
    found: list[datetime] = []
    last = start
    while len(found) < count:
        following = schedule.next_after(last)
        if following is None:
            break
        found.append(following)
        last = following
    return found


def shown(
    schedule: Schedule,
    zone: ZoneInfo,
    start: datetime,
    occurrences: Sequence[datetime],
    due: Callable[[datetime], datetime],
) -> list[Shown]:
    """The occurrences after ``start`` with all that is worth a word. ``due`` says when one's run is due."""
    last, found = start, []
    for at in occurrences:
        known = [] if zone.key == "UTC" else list(changes(zone, last, at))
        found.append(Shown(at, due(at), known, peculiarity(schedule, zone, at)))
        last = at
    return found


def details(one: Shown, zone: ZoneInfo) -> dict[str, Any]:
    """An occurrence for programs."""
    local = one.at.astimezone(zone) if one.at < LAST else None
    offset = local.utcoffset() if local else None
    return {
        "utc": instant(one.at),
        "local": local.isoformat() if local else None,
        "abbreviation": local.tzname() if local else None,
        "offset_seconds": int(offset.total_seconds()) if offset is not None else None,
        "run_at": instant(one.run_at),
        "dst_change": change_json(one.changes),
        "note": one.note,
    }


def change_json(known: Sequence[Change]) -> dict[str, Any] | None:
    """The latest of the clock changes before an occurrence, and how many there are; None: there is none."""
    if not known:
        return None
    change = known[-1]
    return {
        "at": instant(change.at),
        "before": int(change.before.total_seconds()),
        "after": int(change.after.total_seconds()),
        "abbreviation_before": change.name_before,
        "abbreviation_after": change.name_after,
        "local_before": change.wall_before.isoformat(),
        "local_after": change.wall_after.isoformat(),
        "text": str(change),
        "changes": len(known),
    }


def lines(zone: ZoneInfo, found: Sequence[Shown]) -> Iterator[Line]:
    """What people read: local and UTC time of each occurrence, between them what the clocks do."""
    rows = [(local_text(one.at, zone), instant(one.at), remark(one, zone)) for one in found]
    widths = [
        max(len(title), *(len(row[place]) for row in rows)) for place, title in enumerate((zone.key, "UTC"))
    ]
    yield f"{zone.key:<{widths[0]}}  UTC", "bold"
    for one, (local, utc, words) in zip(found, rows, strict=True):
        for change in islice(one.changes, MOST_CHANGES):
            yield f"  ~ {change}", "yellow"
        if len(one.changes) > MOST_CHANGES:
            yield f"  ~ and {len(one.changes) - MOST_CHANGES} more changes of the clocks", "yellow"
        yield f"{local:<{widths[0]}}  {utc:<{widths[1]}}  {words}".rstrip(), ""


def local_text(at: datetime, zone: ZoneInfo) -> str:
    """``Sun 2026-03-29 03:00:00 +0200``."""
    if at >= LAST:
        return "at the end of all years"
    local = at.astimezone(zone)
    fraction = f"{local:.%f}".rstrip("0") if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%z}"


def remark(one: Shown, zone: ZoneInfo) -> str:
    """What is said beside an occurrence."""
    words = [one.note] if one.note else []
    if one.run_at != one.at:
        run = one.run_at.astimezone(zone)
        day = "" if run.date() == one.at.astimezone(zone).date() else f"{run:%Y-%m-%d} "
        words.append(f"runs at {day}{run:%H:%M:%S}")
    return ", ".join(words)
