"""Time zones: names people give, and the stretches of constant UTC offset that a zone consists of.

Instants are whole seconds since 1970-01-01T00:00Z here; a wall time is the same count read off a local
clock, so that ``wall = instant + offset``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from celery_sched.errors import InvalidValue

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 86_400
SUMMER = {
    "CEST": "Europe/Berlin",
    "BST": "Europe/London",
    "WEST": "Europe/Lisbon",
    "EEST": "Europe/Helsinki",
    "EDT": "America/New_York",
    "CDT": "America/Chicago",
    "MDT": "America/Denver",
    "PDT": "America/Los_Angeles",
    "AKDT": "America/Anchorage",
    "HDT": "America/Adak",
    "ADT": "America/Halifax",
    "NDT": "America/St_Johns",
    "IDT": "Asia/Jerusalem",
    "AEDT": "Australia/Sydney",
    "ACDT": "Australia/Adelaide",
    "NZDT": "Pacific/Auckland",
}
"""What people read off a clock in summer, and take for the name of a zone -> a zone that has it."""


def check_zone(tz: object) -> ZoneInfo:
    """The IANA zone of that name; InvalidValue with the nearest names otherwise."""
    if not isinstance(tz, str) or not tz.strip():
        raise InvalidValue("time zone", tz, 'a zone is an IANA name such as "UTC" or "Europe/Berlin"')
    if tz == "localtime":
        # It exists on most machines, but is another zone on each: two schedulers would disagree.
        raise InvalidValue("time zone", tz, "it differs from machine to machine", "Name the zone itself.")
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidValue("time zone", tz, "there is no such IANA zone here", _nearest(tz)) from error


def _nearest(tz: str) -> str:
    summer = SUMMER.get(tz.strip().upper())
    if summer is not None:
        return f"{tz.strip().upper()} is summer time, for example in {summer}: name the city's zone."
    names = _zone_names()
    wanted = tz.strip().casefold().replace(" ", "_")
    found = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    if not found:
        cities = {name.rpartition("/")[2]: name for name in names}
        found = [cities[city] for city in difflib.get_close_matches(wanted, cities, n=3, cutoff=0.8)]
    if not found:
        return 'Names look like "Europe/Berlin"; fixed offsets are "Etc/GMT-2" (which is UTC+2).'
    return f"Did you mean {' or '.join(names[near] for near in found)}?"


@lru_cache(maxsize=1)
def _zone_names() -> dict[str, str]:
    return {name.casefold(): name for name in sorted(available_timezones())}


def seconds_of(instant: datetime) -> int:
    """Whole seconds since the epoch, rounded down. ``instant`` must be aware."""
    return (instant - EPOCH) // timedelta(seconds=1)


def instant_of(seconds: int) -> datetime:
    """The aware UTC instant that many seconds after the epoch."""
    return EPOCH + timedelta(seconds=seconds)


def offset_at(zone: ZoneInfo, instant: int) -> int:
    """The zone's UTC offset in seconds, east positive, at that instant."""
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    if offset is None:  # pragma: no cover - ZoneInfo gives every aware datetime an offset
        raise InvalidValue("time zone", zone.key, "it has no UTC offset at this instant")
    return offset.days * DAY + offset.seconds


@dataclass(frozen=True, slots=True)
class Stretch:
    """Instants start <= t < end during which the zone's offset stays the same."""

    start: int
    end: int
    offset: int


def stretches(zone: ZoneInfo, start: int, end: int) -> Iterator[Stretch]:
    """Cut start <= t < end at each change of the UTC offset, oldest first, found while iterating.

    The offset is looked at once a day and a difference is narrowed down to the second. Two changes that
    undo each other within one day would be overlooked: in tzdata no two changes of any zone lie
    closer than three days (a test holds this against the installed data).
    """
    begin, offset = start, offset_at(zone, start)
    seen = start
    while seen < end:
        probe = min(seen + DAY, end)
        if offset_at(zone, probe) == offset:
            seen = probe
            continue
        change = _first_other(zone, seen, probe, offset)
        if change >= end:
            break
        yield Stretch(begin, change, offset)
        begin = seen = change
        offset = offset_at(zone, change)
    if begin < end:
        yield Stretch(begin, end, offset)


def _first_other(zone: ZoneInfo, same: int, other: int, offset: int) -> int:
    while other - same > 1:
        middle = (same + other) // 2
        if offset_at(zone, middle) == offset:
            same = middle
        else:
            other = middle
    return other


def instant_of_wall(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first instant at which the zone's clocks show the naive time ``wall``.

    A time that a clock change jumps over is made good at the first instant after the jump, as rule R6a
    does for cron (design, Time).
    """
    aware = wall.replace(tzinfo=zone, fold=0)
    instant = aware.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    # fold=0 in a gap reads the clock from before the jump, so the instant found lies after it.
    seconds = seconds_of(instant)
    return instant_of(list(stretches(zone, seconds - DAY, seconds + 1))[-1].start)
