"""Reading the text of an RFC 5545 recurrence rule into its parts.

Stricter than python-dateutil, which ignores or guesses at some of what it does not know: a half understood
schedule runs at wrong times. Every refusal names the part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.cronfields import LONGEST_TEXT

# In the order of python-dateutil's numbers for them, so that the index is the frequency.
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY, SECONDLY = range(7)
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MOST_OCCURRENCES = 100_000
"""Highest COUNT: its end is worked out when the rule is read."""
_LONGEST_INTERVAL = 1_000_000_000
# name: (lowest, highest, whether -highest .. -1 count from the end)
_NUMBERS = {
    "BYSECOND": (0, 59, False),
    "BYMINUTE": (0, 59, False),
    "BYHOUR": (0, 23, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYMONTH": (1, 12, False),
    "BYSETPOS": (1, 366, True),
}
_PARTS = ("FREQ", "DTSTART", "INTERVAL", "COUNT", "UNTIL", *_NUMBERS, "BYDAY", "WKST")
_TIME = re.compile(r"\d{8}(T\d{6}Z?)?")
_START_LINE = re.compile(r"DTSTART(?P<options>(;[^:\s]*)?):(?P<time>\S*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuleParts:
    """A rule as written. Times without Z are naive: wall times of the job's zone. None = not given."""

    freq: int
    interval: int
    count: int | None
    until: datetime | None
    start: datetime | None
    numbers: Mapping[str, tuple[int, ...]]
    """The BY... parts that are lists of numbers, sorted."""
    days: tuple[tuple[int, int], ...]
    """BYDAY: (0 = Monday .. 6, n-th of month or year or 0)."""
    week_start: int


def read_rule(text: str, body: str, zone: str) -> RuleParts:
    """Read what follows ``rrule:``. Raises InvalidValue with the whole ``text`` and the part at fault."""
    return _Reader(text, zone).read(body)


class _Reader:
    def __init__(self, text: str, zone: str) -> None:
        self.text, self.zone = text, zone

    def read(self, body: str) -> RuleParts:
        if len(self.text) > LONGEST_TEXT:
            raise self._refused(f"a rule has at most {LONGEST_TEXT} characters")
        # The two characters \n are what a line break becomes in shells, JSON typed by hand and .ini files.
        body = body.replace("\\n", "\n").strip()
        start = None
        if line := _START_LINE.match(body):
            self._check_options(line["options"])
            start = self._time("DTSTART", line["time"].upper())
            body = body[line.end() :]
        body = "".join(body.split()).upper().removeprefix("RRULE:")
        if ":" in body:
            hint = "EXDATE, RDATE and further rules are not part of it."
            raise self._refused("an rrule is one DTSTART and one RRULE", hint)
        parts = self._split(body)
        if "DTSTART" in parts:
            if start is not None:
                raise self._refused("DTSTART is given twice")
            start = self._time("DTSTART", parts["DTSTART"])
        if "FREQ" not in parts:
            raise self._refused("FREQ is missing", f"Begin with FREQ= and {' or '.join(FREQUENCIES)}.")
        if "COUNT" in parts and "UNTIL" in parts:
            raise self._refused("COUNT and UNTIL exclude each other")
        freq = self._freq(parts["FREQ"])
        return RuleParts(
            freq=freq,
            interval=self._number("INTERVAL", parts.get("INTERVAL", "1"), 1, _LONGEST_INTERVAL),
            count=self._number("COUNT", parts["COUNT"], 1, MOST_OCCURRENCES) if "COUNT" in parts else None,
            until=self._time("UNTIL", parts["UNTIL"]) if "UNTIL" in parts else None,
            start=start,
            numbers={name: self._numbers(name, parts[name]) for name in _NUMBERS if name in parts},
            days=self._days(parts["BYDAY"], freq, "BYWEEKNO" in parts) if "BYDAY" in parts else (),
            week_start=self._week_start(parts.get("WKST", "MO")),
        )

    def _refused(self, allowed: str, hint: str = "") -> InvalidValue:
        return InvalidValue("schedule", self.text, allowed, hint)

    def _split(self, body: str) -> dict[str, str]:
        parts: dict[str, str] = {}
        for part in body.rstrip(";").split(";"):
            name, _, value = part.partition("=")
            if name not in _PARTS:
                near = get_close_matches(name, _PARTS, n=1)
                hint = f"Did you mean {near[0]}?" if near else f"Parts are {', '.join(_PARTS)}."
                raise self._refused(f"{name or part!r} is no part of an rrule", hint)
            if name in parts:
                raise self._refused(f"{name} is given twice")
            if not value:
                raise self._refused(f"{name} has no value", f"Write {name}=...")
            parts[name] = value
        return parts

    def _freq(self, value: str) -> int:
        if value not in FREQUENCIES:
            raise self._refused(f"FREQ={value} is not one of {', '.join(FREQUENCIES)}")
        return FREQUENCIES.index(value)

    def _number(self, name: str, value: str, lowest: int, highest: int, negative: bool = False) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,10}", value):
            number = int(value)
            if lowest <= number <= highest or (negative and lowest <= -number <= highest):
                return number
        also = f" or -{highest} to -{lowest}" if negative else ""
        raise self._refused(f"{name} takes whole numbers {lowest} to {highest}{also}, not {value!r}")

    def _numbers(self, name: str, value: str) -> tuple[int, ...]:
        lowest, highest, negative = _NUMBERS[name]
        found = {self._number(name, one, lowest, highest, negative) for one in value.split(",")}
        return tuple(sorted(found))

    def _days(self, value: str, freq: int, weeks: bool) -> tuple[tuple[int, int], ...]:
        found = set()
        for one in value.split(","):
            match = re.fullmatch(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)", one)
            n = int(match[1]) if match and match[1] else 0
            most = 5 if freq == MONTHLY else 53
            if match is None or abs(n) > most or (match[1] and n == 0):
                allowed = f"BYDAY takes {', '.join(DAYS)}, with 1 to {most} or -{most} to -1 before them"
                raise self._refused(f"{allowed}, not {one!r}")
            if n and (freq > MONTHLY or weeks):
                hint = "Only in months and years are weekdays numbered."
                raise self._refused(f"BYDAY={one} needs FREQ=MONTHLY or YEARLY without BYWEEKNO", hint)
            found.add((DAYS.index(match[2]), n))
        return tuple(sorted(found))

    def _week_start(self, value: str) -> int:
        if value not in DAYS:
            raise self._refused(f"WKST={value} is not one of {', '.join(DAYS)}")
        return DAYS.index(value)

    def _time(self, name: str, value: str) -> datetime:
        allowed = f"{name} takes a time such as 20260101T090000, 20260101T080000Z or 20260101"
        if _TIME.fullmatch(value):
            try:
                found = datetime.fromisoformat(value)
            except ValueError as error:
                raise self._refused(f"{allowed}, not {value!r}", "No such date or time exists.") from error
            if 1900 <= found.year <= 2999:
                return found if found.tzinfo is None else found.astimezone(UTC)
            raise self._refused(f"{name} lies in the years 1900 to 2999, not {value!r}")
        raise self._refused(f"{allowed}, not {value!r}")

    def _check_options(self, options: str) -> None:
        for option in options.split(";")[1:]:
            name, _, value = option.partition("=")
            if name.upper() == "TZID" and value.casefold() != self.zone.casefold():
                hint = f"Give the job the time zone {value}, or leave TZID out."
                raise self._refused(f"TZID={value} is not the zone of the job, {self.zone}", hint)
            if name.upper() not in ("TZID", "VALUE"):
                raise self._refused(f"{option!r} is no option of DTSTART", "TZID and VALUE are.")
