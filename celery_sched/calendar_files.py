"""Reading .ics files when a job is defined: the schedulers never look at a file.

An ``ics:PATH`` becomes what ``rules.calendars.ics`` describes: the events that can exclude something, with
the times, zones and recurrence rules of the file (RFC 5545, through the package icalendar). Cancelled events
(STATUS:CANCELLED) and those that leave their owner free (TRANSP:TRANSPARENT) exclude nothing; a moved or
cancelled occurrence (RECURRENCE-ID) takes the place of the one it names.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars import canonical
from celery_sched.rules.calendars.ics import read_event
from celery_sched.rules.schedules.zones import check_zone

LARGEST_FILE = 1_000_000
MOST_EVENTS = 2_000
KEPT = timedelta(days=365)
"""Events that ended so long before ``now`` are left out."""
_UNTIL = re.compile(r"UNTIL=(\d{8}T\d{6})Z")
# What a calendar's code may raise on what people's programs write.
_BROKEN = (ValueError, TypeError, AttributeError, KeyError, IndexError)
_USED = {"DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID"}


def read_files(
    terms: Iterable[str | Mapping[str, Any]], folder: Path, now: datetime | None = None
) -> list[str | dict[str, Any]]:
    """The terms in the form that is stored, each ``ics:PATH`` read.

    ``folder`` is where relative paths begin. With ``now`` (aware) events that ended more than a year before
    it are left out; without it the same file gives the same result for ever. Raises InvalidValue naming the
    file.
    """
    found: list[str | dict[str, Any]] = []
    for term in terms:
        if names_a_file(term):
            text = str(term).strip()
            found.append(canonical(_File(text, text.partition(":")[2].strip(), folder).read(now)))
        else:
            found.append(canonical(term))
    return found


def with_files(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The fields of a definition, the files of ``exclude`` read; everything else as it was, unchecked."""
    given = fields.get("exclude")
    terms = [given] if isinstance(given, str) else given
    if not isinstance(terms, list | tuple):
        return dict(fields)
    read = [read_files([term], folder)[0] if names_a_file(term) else term for term in terms]
    return {**fields, "exclude": read}


def names_a_file(term: object) -> bool:
    """Whether a term is an ``ics:PATH`` that has not been read."""
    return isinstance(term, str) and term.partition(":")[0].strip().lower() == "ics"


class _File:
    def __init__(self, term: str, path: str, folder: Path) -> None:
        self.term, self.folder, self.path = term, folder, folder / Path(path).expanduser()
        if not path or "://" in path:
            raise self._refused('write "ics:PATH"', "An address is not read: download the file.")

    def read(self, now: datetime | None) -> dict[str, Any]:
        package, text = self._package(), self._text()
        with warnings.catch_warnings():
            # What icalendar guesses about odd zone names is checked below by the zone it arrived at.
            warnings.simplefilter("ignore")
            try:
                calendars = package.Calendar.from_ical(text, multiple=True)
            except _BROKEN as error:
                raise self._refused(f"{self.path} is no iCalendar file ({error})", _EXPORT) from error
            if not calendars or any(calendar.name != "VCALENDAR" for calendar in calendars):
                raise self._refused(f"{self.path} is no iCalendar file (no VCALENDAR)", _EXPORT)
            components = [part for calendar in calendars for part in calendar.walk("VEVENT")]
            events = list(self._events(components))
        if components and not events and not any(map(_is_cancelled, components)):
            allowed = (
                f"all {len(components)} events of {self.path} leave their owner free, they exclude nothing"
            )
            raise self._refused(allowed, "Remove TRANSP:TRANSPARENT (show as: busy) from those that should.")
        if now is not None:
            events = [event for event in events if not read_event("event", event).over(now - KEPT)]
        if len(events) > MOST_EVENTS:
            allowed = f"{self.path} has {len(events)} events, at most {MOST_EVENTS} are kept"
            raise self._refused(allowed, "Export only the years that matter.")
        return {"ics": self.path.name, "events": events}

    def _package(self) -> Any:
        try:
            return importlib.import_module("icalendar")
        except ImportError as error:
            hint = "Run: pip install 'celery_sched[calendars]'"
            raise self._refused("the package icalendar is not installed here", hint) from error

    def _text(self) -> str:
        try:
            if not self.path.is_file():
                where = f"Relative paths begin at {self.folder.resolve()}."
                raise self._refused(f"there is no file {self.path}", where)
            size = self.path.stat().st_size
            if size > LARGEST_FILE:
                allowed = f"{self.path} has {size} bytes, at most {LARGEST_FILE} are read"
                raise self._refused(allowed, "Export only the years that matter.")
            return self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._refused(f"{self.path} is not in UTF-8", _EXPORT) from error
        except OSError as error:
            raise self._refused(f"{self.path} cannot be read: {error}", "Look at its rights.") from error

    def _refused(self, allowed: str, hint: str = "") -> InvalidValue:
        return InvalidValue("exclusion calendar", self.term, allowed, hint)

    def _events(self, components: Sequence[Any]) -> Iterator[dict[str, Any]]:
        replaced: dict[str, list[Any]] = {}
        for part in components:
            if part.get("RECURRENCE-ID") is not None:
                replaced.setdefault(str(part.get("UID")), []).append(part)
        for part in components:
            if _is_cancelled(part) or str(part.get("TRANSP", "")).upper() == "TRANSPARENT":
                continue
            of_series = part.get("RECURRENCE-ID") is None
            what = f"event {str(part.get('SUMMARY') or part.get('UID') or 'without a name')!r} of {self.path}"
            try:
                found = list(_read(part, replaced.get(str(part.get("UID")), []) if of_series else []))
                for event in found:
                    read_event(what, event)
            except InvalidValue as error:
                raise self._refused(f"{what}: {error}") from error
            except _BROKEN as error:
                raise self._refused(f"{what} is not understood ({error})", "Correct or remove it.") from error
            yield from found


_EXPORT = "Export the calendar as iCalendar (.ics)."


def _is_cancelled(part: Any) -> bool:
    return str(part.get("STATUS", "")).upper() == "CANCELLED"


def _read(part: Any, replacing: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """A VEVENT in stored form; more than one where an RDATE has a length of its own."""
    for name, problem in part.errors:
        if name in _USED:
            raise ValueError(f"{name}: {problem}")
    rules = _values(part, "RRULE")
    if len(rules) > 1 or _values(part, "EXRULE"):
        raise ValueError("one RRULE is possible, and no EXRULE")
    if any(str(other["RECURRENCE-ID"].params.get("RANGE", "")).upper() for other in replacing):
        raise ValueError("a change of all later occurrences (RANGE=THISANDFUTURE) is not possible")
    start = part["DTSTART"].dt
    zone = _zone(part["DTSTART"], recurring=bool(rules or _values(part, "RDATE")))
    end = part["DTEND"].dt if "DTEND" in part else _after(start, part.get("DURATION"))
    if not isinstance(start, datetime) and end == start:
        end = start + timedelta(days=1)  # as some programs write a single day
    common = {"zone": zone, "summary": str(part.get("SUMMARY", ""))}
    more = []
    for at in _times(part, "RDATE"):
        if isinstance(at, tuple):
            stop = at[1] if isinstance(at[1], datetime) else at[0] + at[1]
            yield {"start": _shown(at[0], zone), "end": _shown(stop, zone), **common}
        else:
            more.append(_shown(at, zone))
    taken = [*_times(part, "EXDATE"), *(other["RECURRENCE-ID"].dt for other in replacing)]
    yield {
        "start": _shown(start, zone),
        "end": _shown(end, zone),
        **common,
        "rrule": _rule(rules[0], zone) if rules else None,
        "exdates": [_shown(at, zone) for at in taken],
        "rdates": more,
    }


def _values(part: Any, name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else [] if value is None else [value]


def _times(part: Any, name: str) -> list[Any]:
    return [at.dt for value in _values(part, name) for at in value.dts]


def _zone(start: Any, recurring: bool) -> str | None:
    """The IANA zone of an event, or None if its times are those of the job's zone."""
    at = start.dt
    if not isinstance(at, datetime):
        return None
    named = start.params.get("TZID")
    if at.tzinfo is None:
        if named is not None:
            raise ValueError(f"its time zone {named!r} is not known")
        return None
    name = getattr(at.tzinfo, "key", None)
    if name is not None:
        return check_zone(name).key
    if recurring:
        raise ValueError(f"it recurs in the time zone {named!r}, which is no IANA zone")
    return "UTC"  # a zone of the file's own: the instant is all that counts


def _after(start: Any, duration: Any) -> Any:
    """RFC 5545: days of a DURATION are days of the calendar, the rest is exact; no end: a day, or nothing.

    (icalendar does not tell PT24H from P1D: it is a day.)
    """
    if duration is None:
        return start if isinstance(start, datetime) else start + timedelta(days=1)
    end = start + timedelta(days=duration.dt.days)
    rest = timedelta(seconds=duration.dt.seconds)
    if isinstance(start, datetime) and start.tzinfo is not None:
        return (end.astimezone(UTC) + rest).astimezone(start.tzinfo)
    return end + rest


def _shown(at: Any, zone: str | None) -> str:
    """A time in the event's zone, or a day."""
    if isinstance(at, datetime) and at.tzinfo is not None:
        if zone is None:
            raise ValueError(f"{at.isoformat()} is an instant, while the event has no time zone")
        at = at.astimezone(check_zone(zone)).replace(tzinfo=None)
    if not isinstance(at, date):
        raise TypeError(f"{at!r} is no time")
    return at.isoformat()


def _rule(rule: Any, zone: str | None) -> str:
    """The rule with its UNTIL in the times of the event's zone, which is what its occurrences are in."""

    def local(found: re.Match[str]) -> str:
        until = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return f"UNTIL={until.astimezone(check_zone(zone or 'UTC')):%Y%m%dT%H%M%S}"

    return _UNTIL.sub(local, rule.to_ical().decode())
