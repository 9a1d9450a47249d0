"""Which instant and which occurrence are meant by a time that somebody types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import parse
from celery_sched.rules.why import Outcome, read_asked, within_minute

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
NOW = datetime(2026, 3, 2, 23, 30, 5, tzinfo=UTC)
"""Half past midnight of the third in Berlin."""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("2026-03-02T09:00", "2026-03-02T08:00Z"),
        ("2026-03-02 09:00:01.5", "2026-03-02T08:00:01.500000Z"),
        ("2026-03-02T09:00Z", "2026-03-02T09:00Z"),
        ("2026-03-02T09:00+05:30", "2026-03-02T03:30Z"),
        ("2026-03-02", "2026-03-01T23:00Z"),
        ("09:00", "2026-03-03T08:00Z"),
        ("9:00", "2026-03-03T08:00Z"),
        (" 09:00:30 ", "2026-03-03T08:00:30Z"),
        ("now", "2026-03-02T23:30:05Z"),
        ("1970-01-01T01:00", "1970-01-01T00:00Z"),
        ("2999-12-31T23:59:59", "2999-12-31T22:59:59Z"),
    ],
)
def test_times_are_read_in_the_zone_of_the_job(typed: str, meant: str) -> None:
    """Times without a zone are local ones; a time of day is today's there."""
    assert at(meant) == read_asked(typed, BERLIN, NOW).at


@pytest.mark.parametrize(
    "typed",
    [
        *(
            "",
            "soon",
            "24:01",
            "2026-02-30",
            "2026-13-01",
            "1970-01-01T00:30",
            "3000-01-01T01:00",
            "0001-01-01",
        ),
        *("9999-12-31T23:59", "9999-12-31T23:59-12:00", "0001-01-01T00:00+14:00", "1e9", "-1"),
    ],
)
def test_refused_times(typed: str) -> None:
    """What cannot be read, or lies outside of 1970 to 2999, is refused with what is allowed."""
    with pytest.raises(InvalidValue, match="a time from 1970 to 2999"):
        read_asked(typed, BERLIN, NOW)


def test_every_outcome_is_explained() -> None:
    """The page of schedules has a row for each outcome and for nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    table = page.partition("| outcome | it |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(Outcome) == sorted(name.strip(" `") for cell in cells for name in cell.split(","))


@given(st.text())
def test_any_text_is_read_or_refused(typed: str) -> None:
    """Nothing but InvalidValue comes of any text."""
    try:
        assert 1970 <= read_asked(typed, BERLIN, NOW).at.year <= 2999
    except InvalidValue as error:
        assert "TIME" == error.what


@pytest.mark.parametrize(
    ("zone", "typed", "meant", "second", "note"),
    [
        (
            *("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T01:00Z", None),
            "02:30 does not exist on 2026-03-29 in Europe/Berlin"
            " (clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST): 03:00 is meant.",
        ),
        (
            *("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30Z", "2026-10-25T01:30Z"),
            "02:30 comes twice on 2026-10-25 in Europe/Berlin: at 00:30Z and at 01:30Z.",
        ),
        (
            *("Australia/Lord_Howe", "2026-10-04T02:10", "2026-10-03T15:30Z", None),
            "02:10 does not exist on 2026-10-04 in Australia/Lord_Howe"
            " (clocks go forward 30 min at 2026-10-04 02:00 +1030 -> 02:30 +11): 02:30 is meant.",
        ),
        ("Europe/Berlin", "2026-10-25T02:30+01:00", "2026-10-25T01:30Z", None, None),
        ("Europe/Berlin", "2026-10-25T03:00", "2026-10-25T02:00Z", None, None),
    ],
)
def test_changes_of_the_clocks(
    zone: str, typed: str, meant: str, second: str | None, note: str | None
) -> None:
    """A time that is jumped over is the first one after, one that comes twice is the first; both are said."""
    asked = read_asked(typed, ZoneInfo(zone), NOW)
    assert (at(meant), None if second is None else at(second), note) == (asked.at, asked.second, asked.note)


@pytest.mark.parametrize(
    ("schedule", "typed", "meant"),
    [
        ("30 * * * * 17", "2026-03-02T12:30Z", "2026-03-02T12:30:17Z"),
        ("30 * * * * 17", "2026-03-02T12:30:59Z", "2026-03-02T12:30:17Z"),
        ("30 * * * * 17", "2026-03-02T12:31Z", None),
        ("30 * * * * 17", "2026-03-02T12:29:59Z", None),
        ("every 10s", "2026-03-02T12:30:17Z", "2026-03-02T12:30:20Z"),
        ("0 12 * * *", "2026-03-02T12:00:30Z", "2026-03-02T12:00Z"),
        ("after 1s", "2026-03-02T12:00Z", None),
    ],
)
def test_the_occurrence_of_a_minute(schedule: str, typed: str, meant: str | None) -> None:
    """The nearest one in the same minute, and none of another."""
    times = Jitter(parse(schedule, tz="UTC", name="job"), "job", None)
    found = within_minute(times, read_asked(typed, UTC_ZONE, NOW))
    assert (None if meant is None else at(meant)) == found


@given(st.integers(0, 10_000), st.sampled_from(["every 1h", "every 7m", "*/5 * * * *", "every 30s"]))
def test_when_a_run_was_due_finds_its_occurrence(number: int, schedule: str) -> None:
    """The minute in which the run of an occurrence is due by its jitter leads to an occurrence due in it."""
    times = Jitter(parse(schedule, tz="UTC", name="job"), "job", timedelta(minutes=40))
    occurrence = times.schedule.next_after(NOW + number * timedelta(minutes=1))
    assert occurrence is not None
    due = times.due(occurrence)
    found = within_minute(times, read_asked(due, UTC_ZONE, NOW))
    assert found is not None
    assert due in (found, times.due(found))
