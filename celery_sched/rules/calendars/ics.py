"""``{"ics": "office.ics", "events": [...]}``: the events of an iCalendar file, as read when it was given.

An event is a mapping: ``start`` and ``end`` (ISO 8601 without an offset; days for an all-day event, the end
not included), ``zone`` (IANA name; without one the times are wall times of the job's zone), ``summary``,
``rrule`` (RFC 5545 without ``RRULE:``), ``exdates`` and ``rdates`` (times as ``start``; a day takes out all
that begin on it). Cancelled events and those that leave their owner free were not stored (see
``calendar_files``); one that has no length excludes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars.base import ONE_DAY, Span, midnight, touching
from celery_sched.rules.schedules.base import Schedule
from celery_sched.rules.schedules.rrule import rrule
from celery_sched.rules.schedules.zones import check_zone

FIELDS = ("start", "end", "zone", "summary", "rrule", "exdates", "rdates")
MOST_A_YEAR = 10_000
"""Occurrences of all recurring events of a calendar in a year: each becomes a span when it is asked for."""
_YEAR = timedelta(days=366)
# The wall times of two zones differ by less (zones stay within +-16 h), and by how much a jump moves them.
_APART = timedelta(days=2)


@dataclass(frozen=True, eq=False, slots=True)
class Event:
    """Wall times of ``zone``, or of the job's if it is None; ``rule`` gives walls, read as UTC."""

    start: datetime
    end: datetime
    zone: ZoneInfo | None
    summary: str
    rule: Schedule | None
    more: tuple[datetime, ...]
    without: frozenset[datetime | date]

    def length(self) -> timedelta:
        """RFC 5545: the exact length, in every occurrence, also where the clocks change."""
        return self._absolute(self.end) - self._absolute(self.start)

    def starts(self, low: datetime, high: datetime) -> Iterator[datetime]:
        """The wall times low < t <= high at which it begins, in no order."""
        taken = {self._absolute(at) for at in self.without if isinstance(at, datetime)}
        begins = {at for at in (self.start, *self.more) if low < at <= high}
        if self.rule is not None:
            last: datetime = low.replace(tzinfo=UTC)
            while (found := self.rule.next_after(last)) is not None and found <= high.replace(tzinfo=UTC):
                begins.add(found.replace(tzinfo=None))
                last = found
        return (at for at in begins if at.date() not in self.without and self._absolute(at) not in taken)

    def over(self, since: datetime) -> bool:
        """True if nothing of it lies at or after the aware ``since``."""
        low = since.astimezone(self.zone or UTC).replace(tzinfo=None) - self.length() - _APART
        if any(at > low for at in (self.start, *self.more)):
            return False
        return self.rule is None or self.rule.next_after(low.replace(tzinfo=UTC)) is None

    def spans(self, low: datetime, high: datetime, zone: ZoneInfo) -> Iterator[Span]:
        """Spans in wall times of ``zone``, at least those that touch low <= t <= high there."""
        length = self.length()
        for start in self.starts(low - length - _APART, high + _APART):
            if self.zone is None:
                yield Span(start, start + length, self.summary)
            else:
                begin = self._absolute(start).astimezone(zone).replace(tzinfo=None)
                end = (self._absolute(start) + length).astimezone(zone).replace(tzinfo=None)
                yield Span(begin, end, self.summary, exact=True)

    def _absolute(self, wall: datetime) -> datetime:
        # RFC 5545: a time that comes twice is its first, one that is jumped over is read by the clock before.
        return wall.replace(tzinfo=self.zone or UTC).astimezone(UTC)


@dataclass(frozen=True, eq=False, slots=True)
class Ics:
    """The events of a file. Made by ``ics``."""

    text: str
    events: tuple[Event, ...]
    zone: ZoneInfo
    _years: dict[int, tuple[Span, ...]] = field(default_factory=dict, repr=False)

    def spans(self, first: date, last: date) -> Sequence[Span]:
        years = range(first.year, last.year + 1)
        # An event over New Year is found in both years.
        found = (
            span
            for year in years
            for span in self._year(year)
            if year == first.year or span.start.year == year
        )
        return touching(found, first, last)

    def weekend(self) -> frozenset[int] | None:
        return None

    def _year(self, year: int) -> tuple[Span, ...]:
        if year not in self._years:
            first, last = date(year, 1, 1), date(year, 12, 31)
            low, high = midnight(first), midnight(last) + ONE_DAY
            found = (span for event in self.events for span in event.spans(low, high, self.zone))
            self._years[year] = tuple(touching(found, first, last))
        return self._years[year]


def ics(term: Mapping[str, Any], zone: ZoneInfo) -> Ics:
    """Read the stored form of a file. Raises InvalidValue naming the file, the event and its field."""
    name, events = term.get("ics"), term.get("events")
    if not isinstance(name, str) or not isinstance(events, list) or set(term) != {"ics", "events"}:
        allowed = 'the stored form of an .ics file is {"ics": "<file name>", "events": [...]}'
        raise InvalidValue("exclusion calendar", term, allowed, 'Give "ics:PATH" to have a file read.')
    found = tuple(read_event(f"event {place} of {name}", event) for place, event in enumerate(events, 1))
    recurring = [event for event in found if event.rule is not None]
    if len(recurring) > MOST_A_YEAR or sum(map(_in_a_year, recurring)) > MOST_A_YEAR:
        allowed = f"its recurring events may come {MOST_A_YEAR} times a year together"
        hint = "Use weekly: for what comes so often."
        raise InvalidValue("exclusion calendar", f"ics:{name}", allowed, hint)
    return Ics(f"ics:{name}", found, zone)


def _in_a_year(event: Event) -> int:
    start = event.start.replace(tzinfo=UTC)
    return 0 if event.rule is None else event.rule.count_in(start, start + _YEAR)


def stored(term: Mapping[str, Any]) -> dict[str, Any]:
    """The stored form as it is written: checked by ``ics`` before, fields without a value left out."""
    events = [{name: event[name] for name in FIELDS if event.get(name)} for event in term["events"]]
    return {"ics": term["ics"], "events": events}


def read_event(what: str, event: Any) -> Event:
    """Check one event; ``what`` names it in errors."""
    if not isinstance(event, Mapping) or not {"start", "end"} <= set(event) <= set(FIELDS):
        raise InvalidValue(what, event, f"an event has start, end and, if need be, {', '.join(FIELDS[2:])}")
    for name in ("start", "end", "zone", "summary", "rrule"):
        if not isinstance(event.get(name) or "", str):
            raise InvalidValue(what, event, f"its {name} is a text")
    times = {name: _times(what, name, event.get(name)) for name in ("start", "end", "exdates", "rdates")}
    (start,), (end,) = times["start"] or (None,), times["end"] or (None,)
    if start is None or end is None or isinstance(start, datetime) != isinstance(end, datetime):
        raise InvalidValue(what, event, "start and end are both days or both times")
    all_day = not isinstance(start, datetime)
    if all_day and event.get("zone"):
        hint = "Its days are those of the job's zone."
        raise InvalidValue(what, event, "an all-day event has no zone", hint)
    begin = _wall(start)
    found = Event(
        begin,
        _wall(end),
        zone=check_zone(event["zone"]) if event.get("zone") else None,
        summary=event.get("summary") or "an event without a name",
        rule=_rule(what, event["rrule"], begin) if event.get("rrule") else None,
        more=tuple(map(_wall, times["rdates"])),
        without=frozenset(times["exdates"]),
    )
    if found.length() < timedelta(0):
        raise InvalidValue(what, event, "it ends before it begins")
    return found


def _wall(at: date) -> datetime:
    return at if isinstance(at, datetime) else midnight(at)


def _times(what: str, name: str, given: Any) -> tuple[date | datetime, ...]:
    texts = given if isinstance(given, list) else [given] if given else []
    read: Callable[[str], date | datetime]
    found: list[date | datetime] = []
    for text in texts:
        read = date.fromisoformat if len(str(text)) == len("2026-01-01") else datetime.fromisoformat
        try:
            found.append(read(text))
        except (TypeError, ValueError) as error:
            raise InvalidValue(what, text, f"{name} takes 2026-12-24 or 2026-12-24T10:00:00") from error
        if isinstance(found[-1], datetime) and found[-1].tzinfo is not None:
            raise InvalidValue(what, text, f"{name} has no offset", "Give the event a zone.")
    return tuple(found)


def _rule(what: str, body: str, start: datetime) -> Schedule | None:
    try:
        return rrule(f"rrule:{body}", body, tz="UTC", anchor=start.replace(tzinfo=UTC))
    except InvalidValue as error:
        if error.allowed == "it never occurs":
            return None  # what is left is its start, which is an occurrence whatever the rule says
        raise InvalidValue(what, body, f"its RRULE is not understood: {error.allowed}", error.hint) from error
