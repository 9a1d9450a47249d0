"""Events of .ics files: read once, stored, and asked in wall times of the job's zone."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_sched import calendar_files
from celery_sched.calendar_files import read_files
from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars import canonical, read_calendar
from celery_sched.rules.schedules import between, parse
from celery_sched.rules.schedules.excluding import Excluding

OFFICE = """\
BEGIN:VEVENT
UID:closed@office
SUMMARY:Office closed\\, all of it
DTSTART;VALUE=DATE:20260803
DTEND;VALUE=DATE:20260815
END:VEVENT
BEGIN:VEVENT
UID:birthday@office
SUMMARY:Founder's day
DTSTART;VALUE=DATE:20200229
RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=-1
EXDATE;VALUE=DATE:20270228
END:VEVENT
BEGIN:VEVENT
UID:cancelled@office
SUMMARY:Never
STATUS:CANCELLED
DTSTART;VALUE=DATE:20260601
END:VEVENT
BEGIN:VEVENT
UID:free@office
SUMMARY:Free
TRANSP:TRANSPARENT
DTSTART;VALUE=DATE:20260602
END:VEVENT
"""
SERIES = """\
BEGIN:VEVENT
UID:window
SUMMARY:Maintenance
DTSTART;TZID=America/New_York:20260302T020000
DTEND;TZID=America/New_York:20260302T040000
RRULE:FREQ=WEEKLY;BYDAY=MO;UNTIL=20260427T060000Z
EXDATE;TZID=America/New_York:20260316T020000
RDATE;TZID=America/New_York:20260318T050000
END:VEVENT
BEGIN:VEVENT
UID:window
RECURRENCE-ID;TZID=America/New_York:20260323T020000
SUMMARY:Maintenance (moved)
DTSTART;TZID=America/New_York:20260324T030000
DTEND;TZID=America/New_York:20260324T033000
END:VEVENT
BEGIN:VEVENT
UID:window
RECURRENCE-ID:20260330T060000Z
STATUS:CANCELLED
DTSTART;TZID=America/New_York:20260330T020000
END:VEVENT
"""


def calendar_text(events: str) -> str:
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//EN\r\n{events}END:VCALENDAR\r\n"


def event(*lines: str) -> str:
    return "\n".join(("BEGIN:VEVENT", "UID:1", *lines, "END:VEVENT", ""))


def stored(folder: Path, events: str, now: datetime | None = None) -> dict[str, Any]:
    """The stored form of a file with these events."""
    (folder / "office.ics").write_text(calendar_text(events))
    (term,) = read_files(["ics:office.ics"], folder, now)
    assert isinstance(term, dict)
    return json.loads(json.dumps(term))


def spans(term: dict[str, Any], zone: str, first: str, last: str) -> list[tuple[str, str, str]]:
    found = read_calendar(term, ZoneInfo(zone)).spans(date.fromisoformat(first), date.fromisoformat(last))
    return [
        (f"{span.start:%m-%dT%H:%M}", f"{span.end:%m-%dT%H:%M}", span.reason)
        for span in sorted(found, key=lambda span: span.start)
    ]


def test_all_day_events_are_days_of_the_jobs_zone(tmp_path: Path) -> None:
    """Their end is not included; rules go on but for EXDATE; cancelled and free ones do not count."""
    term = stored(tmp_path, OFFICE)
    closed = ("08-03T00:00", "08-15T00:00", "Office closed, all of it")
    for zone in ("Europe/Berlin", "Pacific/Kiritimati"):
        found = spans(term, zone, "2026-01-01", "2026-12-31")
        assert [("02-28T00:00", "03-01T00:00", "Founder's day"), closed] == found
    assert [closed] == spans(term, "UTC", "2026-08-14", "2026-08-20")
    assert [] == spans(term, "UTC", "2027-01-01", "2027-12-31")
    assert [("02-29T00:00", "03-01T00:00", "Founder's day")] == spans(term, "UTC", "2128-01-01", "2128-12-31")


def test_a_series_in_another_zone(tmp_path: Path) -> None:
    """Instants by the series' clock: rule, UNTIL, EXDATE, RDATE, one occurrence moved and one cancelled."""
    term = stored(tmp_path, SERIES)
    assert [
        ("03-02T08:00", "03-02T10:00", "Maintenance"),
        ("03-09T07:00", "03-09T09:00", "Maintenance"),  # summer time came in New York, not yet in Berlin
        ("03-18T10:00", "03-18T12:00", "Maintenance"),
        ("03-24T08:00", "03-24T08:30", "Maintenance (moved)"),
        ("04-06T08:00", "04-06T10:00", "Maintenance"),
        ("04-13T08:00", "04-13T10:00", "Maintenance"),
        ("04-20T08:00", "04-20T10:00", "Maintenance"),
        ("04-27T08:00", "04-27T10:00", "Maintenance"),
    ] == spans(term, "Europe/Berlin", "2026-01-01", "2026-12-31")


def test_until_is_an_instant(tmp_path: Path) -> None:
    """East of Greenwich too the last occurrence is the one at UNTIL."""
    term = stored(
        tmp_path,
        event(
            "DTSTART;TZID=Asia/Tokyo:20260105T100000",
            "DURATION:PT1H",
            "RRULE:FREQ=DAILY;UNTIL=20260107T010000Z",
        ),
    )
    found = spans(term, "Asia/Tokyo", "2026-01-01", "2026-01-31")
    assert ["01-05T10:00", "01-06T10:00", "01-07T10:00"] == [start for start, _, _ in found]


def test_a_job_is_not_due_during_the_series(tmp_path: Path) -> None:
    """From the file to the occurrences of a schedule."""
    calendar = read_calendar(stored(tmp_path, SERIES), ZoneInfo("UTC"))
    schedule = Excluding(parse("0 * * * *"), ZoneInfo("UTC"), (calendar,))
    day = datetime(2026, 3, 9, tzinfo=UTC)
    hours = [found.hour for found in between(schedule, day, day + timedelta(hours=23), 100)]
    assert [hour for hour in range(1, 24) if hour not in (6, 7)] == hours
    found = schedule.excluded(day + timedelta(hours=6))
    assert found is not None
    assert ("ics:office.ics", "Maintenance") == (found[0].text, found[1].reason)


def test_floating_times_are_those_of_the_job(tmp_path: Path) -> None:
    """A time without a zone is what the clocks of the job's zone show."""
    term = stored(tmp_path, event("SUMMARY:Lunch", "DTSTART:20260105T120000", "DURATION:PT45M"))
    for zone in ("Asia/Tokyo", "America/Lima"):
        assert [("01-05T12:00", "01-05T12:45", "Lunch")] == spans(term, zone, "2026-01-05", "2026-01-05")


@pytest.mark.parametrize(
    ("tzid", "hour"),
    [("W. Europe Standard Time", 9), ("Europe/Berlin", 9), ("Asia/Kolkata", 4), ("Etc/GMT+5", 15)],
)
def test_zones_have_names_of_all_kinds(tmp_path: Path, tzid: str, hour: int) -> None:
    """IANA names and those of Windows are understood."""
    term = stored(tmp_path, event(f"DTSTART;TZID={tzid}:20260105T100000", "DURATION:PT1H"))
    (found,) = spans(term, "UTC", "2026-01-05", "2026-01-05")
    assert f"01-05T{hour:02}:{0 if tzid != 'Asia/Kolkata' else 30:02}" == found[0]


def test_a_zone_of_the_files_own(tmp_path: Path) -> None:
    """One event in a zone that only the file describes is the instant it means; a series is refused."""
    zone = (
        "BEGIN:VTIMEZONE\nTZID:Home\nBEGIN:STANDARD\nDTSTART:19700101T000000\nTZOFFSETFROM:+0330\n"
        "TZOFFSETTO:+0330\nEND:STANDARD\nEND:VTIMEZONE\n"
    )
    once = event("DTSTART;TZID=Home:20260105T100000", "DURATION:PT1H")
    assert [("01-05T06:30", "01-05T07:30", "an event without a name")] == spans(
        stored(tmp_path, zone + once), "UTC", "2026-01-05", "2026-01-05"
    )
    series = event("SUMMARY:x", "DTSTART;TZID=Home:20260105T100000", "DURATION:PT1H", "RRULE:FREQ=DAILY")
    with pytest.raises(InvalidValue, match=r"event 'x' of .*office\.ics.*'Home'"):
        stored(tmp_path, zone + series)


def test_the_two_passes_of_a_repeated_hour_differ(tmp_path: Path) -> None:
    """An instant in the first 02:30 of the night excludes that one only."""
    term = stored(tmp_path, event("DTSTART:20261025T002500Z", "DTEND:20261025T003500Z"))
    zone = ZoneInfo("Europe/Berlin")
    schedule = Excluding(parse("*/30 * * * *", tz="Europe/Berlin"), zone, (read_calendar(term, zone),))
    night = datetime(2026, 10, 25, 0, 0, tzinfo=UTC), datetime(2026, 10, 25, 2, 0, tzinfo=UTC)
    found = [f"{at:%H:%M}" for at in between(schedule, *night, 100)]
    assert ["01:00", "01:30", "02:00"] == found
    assert 3 == schedule.count_in(*night)
    both = stored(
        tmp_path,
        event("DTSTART:20261025T002500Z", "DTEND:20261025T003500Z")
        + event("DTSTART:20261025T012500Z", "DTEND:20261025T013500Z"),
    )
    schedule = Excluding(schedule.base, zone, (read_calendar(both, zone),))
    assert ["01:00", "02:00"] == [f"{at:%H:%M}" for at in between(schedule, *night, 100)]


def test_lengths_where_the_clocks_change(tmp_path: Path) -> None:
    """DTEND and hours of a DURATION are exact in every occurrence; its days are days of the calendar."""
    zone = "TZID=Europe/Berlin"
    for lines, end in (
        ([f"DTSTART;{zone}:20260328T220000", "DURATION:P1D"], "03-29T22:00"),
        ([f"DTSTART;{zone}:20260328T220000", "DURATION:P1DT2H"], "03-30T00:00"),
        ([f"DTSTART;{zone}:20260328T220000", "DURATION:PT6H"], "03-29T05:00"),
        (
            [f"DTSTART;{zone}:20260321T220000", f"DTEND;{zone}:20260322T220000", "RRULE:FREQ=WEEKLY"],
            "03-29T23:00",
        ),
    ):
        (found,) = spans(stored(tmp_path, event(*lines)), "Europe/Berlin", "2026-03-28", "2026-03-29")
        assert ("03-28T22:00", end) == found[:2], lines


def test_an_event_over_new_year_is_found_once(tmp_path: Path) -> None:
    """Spans are worked out by year; one that lies in two is still one."""
    term = stored(tmp_path, event("SUMMARY:x", "DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20270103"))
    expected = [("12-24T00:00", "01-03T00:00", "x")]
    assert expected == spans(term, "UTC", "2026-12-20", "2027-01-10")
    assert expected == spans(term, "UTC", "2027-01-01", "2027-01-01")


def test_a_single_day_and_a_period(tmp_path: Path) -> None:
    """A day without an end, or that ends where it begins, is that day; an RDATE may have its own length."""
    days = event("DTSTART;VALUE=DATE:20260105") + event(
        "DTSTART;VALUE=DATE:20260107", "DTEND;VALUE=DATE:20260107"
    )
    assert [("01-05T00:00", "01-06T00:00"), ("01-07T00:00", "01-08T00:00")] == [
        found[:2] for found in spans(stored(tmp_path, days), "UTC", "2026-01-01", "2026-01-31")
    ]
    period = event("DTSTART:20260105T100000Z", "DURATION:PT1H", "RDATE;VALUE=PERIOD:20260106T110000Z/PT3H")
    assert [("01-05T10:00", "01-05T11:00"), ("01-06T11:00", "01-06T14:00")] == [
        found[:2] for found in spans(stored(tmp_path, period), "UTC", "2026-01-01", "2026-01-31")
    ]


def test_a_rule_that_never_comes_leaves_its_start(tmp_path: Path) -> None:
    """A series that ended before it began is its first event, as calendars show it."""
    term = stored(tmp_path, event("DTSTART;VALUE=DATE:20260105", "RRULE:FREQ=DAILY;UNTIL=20250101"))
    assert 1 == len(spans(term, "UTC", "2025-01-01", "2027-12-31"))


def test_what_can_still_matter(tmp_path: Path) -> None:
    """With a now, what ended more than a year before it is left out; series that go on are kept."""
    events = (
        event("SUMMARY:old", "DTSTART;VALUE=DATE:20240101")
        + event("SUMMARY:recent", "DTSTART;VALUE=DATE:20250801")
        + event("SUMMARY:ended", "DTSTART;VALUE=DATE:20200101", "RRULE:FREQ=YEARLY;COUNT=3")
        + event("SUMMARY:going on", "DTSTART;VALUE=DATE:20200101", "RRULE:FREQ=YEARLY")
    )
    now = datetime(2026, 6, 1, tzinfo=UTC)
    assert ["recent", "going on"] == [kept["summary"] for kept in stored(tmp_path, events, now)["events"]]
    assert 4 == len(stored(tmp_path, events)["events"])


def test_other_terms_and_stored_ones_pass(tmp_path: Path) -> None:
    """Only paths are read, in order; what was read before needs no file and is stored as it is."""
    (tmp_path / "office.ics").write_text(calendar_text(OFFICE))
    first = read_files(["weekly:Sunday", f"ics:{tmp_path}/office.ics"], Path("/"))
    (tmp_path / "office.ics").unlink()
    assert first == read_files(first, tmp_path)
    assert "weekly:sun" == first[0]
    assert first[1] == canonical(first[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, ["there is no file", "Relative paths begin at"]),
        ("", ["is no iCalendar file", "Export"]),
        ("<html>Sign in</html>", ["is no iCalendar file"]),
        (event("DTSTART:20260101"), ["is no iCalendar file (no VCALENDAR)"]),
        (calendar_text(event("SUMMARY:no start")), ["event 'no start' of", "is not understood"]),
        (calendar_text(event("SUMMARY:odd", "DTSTART:garbage")), ["event 'odd' of", "is not understood"]),
        (
            calendar_text(event("SUMMARY:odd", "DTSTART:20260101T100000Z", "RRULE:FREQ=OFTEN")),
            ["event 'odd' of"],
        ),
        (
            calendar_text(event("SUMMARY:odd", "DTSTART:20260101T100000Z", "EXDATE:never")),
            ["event 'odd' of", "EXDATE"],
        ),
        (
            calendar_text(event("SUMMARY:far", "DTSTART;TZID=Nowhere/Land:20260101T100000", "DURATION:PT1H")),
            ["event 'far' of", "'Nowhere/Land' is not known"],
        ),
        (
            calendar_text(event("SUMMARY:back", "DTSTART:20260102T100000Z", "DTEND:20260101T100000Z")),
            ["event 'back' of", "ends before it begins"],
        ),
        (
            calendar_text(event("SUMMARY:all", "TRANSP:TRANSPARENT", "DTSTART;VALUE=DATE:20260101")),
            ["all 1 events of", "leave their owner free", "Remove TRANSP:TRANSPARENT"],
        ),
        (
            calendar_text(SERIES.replace("RECURRENCE-ID:2026", "RECURRENCE-ID;RANGE=THISANDFUTURE:2026")),
            ["event 'Maintenance' of", "RANGE=THISANDFUTURE"],
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str | None, said: list[str]) -> None:
    """The message names the term, the file, the event at fault and what to do."""
    if text is not None:
        (tmp_path / "bad.ics").write_text(text)
    with pytest.raises(InvalidValue) as error:
        read_files(["ics:bad.ics"], tmp_path)
    wanted = ["exclusion calendar 'ics:bad.ics'", "bad.ics", *said]
    assert [] == [words for words in wanted if words not in str(error.value)], str(error.value)


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file and too many events are refused with their numbers."""
    (tmp_path / "large.ics").write_bytes(b" " * 1_000_001)
    with pytest.raises(InvalidValue, match="1000001 bytes, at most 1000000"):
        read_files(["ics:large.ics"], tmp_path)
    monkeypatch.setattr(calendar_files, "MOST_EVENTS", 2)
    with pytest.raises(InvalidValue, match=r"office\.ics has 3 events, at most 2"):
        stored(tmp_path, event("DTSTART;VALUE=DATE:20260105") * 3)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Other bytes, a folder and an address are named for what they are."""
    (tmp_path / "latin.ics").write_bytes("SUMMARY:Büro".encode("latin-1"))
    with pytest.raises(InvalidValue, match="is not in UTF-8"):
        read_files(["ics:latin.ics"], tmp_path)
    with pytest.raises(InvalidValue, match="there is no file"):
        read_files([f"ics:{tmp_path}"], tmp_path)
    with pytest.raises(InvalidValue, match="download the file"):
        read_files(["ics:https://example.org/a.ics"], tmp_path)
    with pytest.raises(InvalidValue, match="ics:PATH"):
        read_files(["ics:"], tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without icalendar the term says how to get it."""
    monkeypatch.setitem(sys.modules, "icalendar", None)
    with pytest.raises(InvalidValue, match=r"pip install 'celery_sched\[calendars\]'"):
        stored(tmp_path, OFFICE)
