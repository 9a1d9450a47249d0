"""Terms of exclusion calendars: what they exclude, how they are written, what is refused."""

from __future__ import annotations

import sys
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars import canonical, read_calendar
from celery_sched.rules.calendars import holidays as holiday_terms

BERLIN = ZoneInfo("Europe/Berlin")


def spans(term: str, first: str, last: str) -> list[tuple[str, str, str]]:
    """The spans of a term on these days, as text."""
    found = read_calendar(term, BERLIN).spans(date.fromisoformat(first), date.fromisoformat(last))
    return [(f"{span.start:%Y-%m-%dT%H:%M}", f"{span.end:%Y-%m-%dT%H:%M}", span.reason) for span in found]


def test_dates() -> None:
    """Days and ranges are whole days, both ends of a range included, and only those asked for are given."""
    term = "dates:2026-12-24,2026-12-27..2026-12-31"
    christmas = ("2026-12-24T00:00", "2026-12-25T00:00", "2026-12-24")
    rest = ("2026-12-27T00:00", "2027-01-01T00:00", "2026-12-27..2026-12-31")
    assert [christmas, rest] == spans(term, "2026-12-01", "2027-01-31")
    assert [christmas] == spans(term, "2026-12-24", "2026-12-24")
    assert [] == spans(term, "2026-12-25", "2026-12-26")
    assert [rest] == spans(term, "2026-12-31", "2027-01-01")
    assert [] == spans(term, "2027-01-01", "2027-01-01")


def test_weekly() -> None:
    """Days of the week as a whole or between hours, which may run into the next day."""
    assert [
        ("2026-01-03T00:00", "2026-01-04T00:00", "sat,sun"),
        ("2026-01-04T00:00", "2026-01-05T00:00", "sat,sun"),
    ] == spans("weekly:sat,sun", "2026-01-02", "2026-01-06")
    assert [("2026-01-02T00:00", "2026-01-02T08:00", "mon-fri 00:00-08:00")] == spans(
        "weekly:mon-fri 00:00-08:00", "2026-01-02", "2026-01-04"
    )
    assert [("2026-01-02T22:00", "2026-01-03T06:30", "fri 22:00-06:30")] == spans(
        "weekly:fri 22:00-06:30", "2026-01-03", "2026-01-03"
    )
    over_the_weekend = spans("weekly:fri-mon 18:00-24:00", "2026-01-02", "2026-01-08")
    assert ["02T18:00", "03T18:00", "04T18:00", "05T18:00"] == [start[8:] for start, _, _ in over_the_weekend]


@pytest.mark.parametrize(
    ("term", "day", "reason"),
    [
        ("holidays:DE", "2026-04-03", "Good Friday"),
        ("holidays:DE-BY", "2026-01-06", "Epiphany"),
        ("holidays:DE-BE", "2026-03-08", "Women's Day"),
        ("holidays:DE", "2026-10-03", "German Unity Day"),
        ("holidays:US", "2026-11-26", "Thanksgiving Day"),
        ("holidays:US", "2021-12-31", "New Year's Day (observed)"),
        ("holidays:FR", "2026-07-14", "National Day"),
        ("holidays:JP", "2026-05-03", "Constitution Day"),
        ("holidays:GB-SCT", "2026-11-30", "Saint Andrew's Day"),
        ("holidays:US-CA", "2026-03-31", "Cesar Chavez Day"),
    ],
)
def test_known_holidays(term: str, day: str, reason: str) -> None:
    """Public holidays of countries and their parts fall on the known days, with their names in English."""
    assert [reason] == [name for _, _, name in spans(term, day, day)]


@pytest.mark.parametrize(
    ("term", "day"),
    [
        ("holidays:DE", "2026-01-06"),  # Epiphany is one only in some parts
        ("holidays:DE-BE", "2026-01-06"),
        ("holidays:DE", "2026-03-08"),
        ("holidays:DE", "2026-04-05"),  # Easter Sunday, but for Brandenburg and Hesse
        ("holidays:GB", "2026-11-30"),
    ],
)
def test_days_that_are_no_holidays(term: str, day: str) -> None:
    """A day that only a part of the country keeps is none of the whole country."""
    assert [] == spans(term, day, day)


def test_names_of_holidays_do_not_depend_on_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `why` says is the same on every node."""
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    holiday_terms._year.cache_clear()
    assert ["Good Friday"] == [name for _, _, name in spans("holidays:DE", "2026-04-03", "2026-04-03")]


@pytest.mark.parametrize(
    ("term", "weekend"),
    [
        ("holidays:DE", {5, 6}),
        ("holidays:SA", {4, 5}),
        ("holidays:IR", {4}),
        ("weekly:fri,sat", None),
        ("dates:2026-01-01", None),
    ],
)
def test_weekends_are_those_of_the_countries(term: str, weekend: set[int] | None) -> None:
    """A country knows its weekend; the other kinds have no opinion."""
    assert weekend == read_calendar(term, BERLIN).weekend()


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (" dates: 2026-12-24 , 20261227 .. 2026-12-31 ", "dates:2026-12-24,2026-12-27..2026-12-31"),
        ("Weekly: Saturday, SUN", "weekly:sat,sun"),
        ("weekly:mon - fri 8:00 - 09:30:15", "weekly:mon-fri 08:00-09:30:15"),
        ("holidays:de", "holidays:DE"),
        ("holidays: de - be", "holidays:DE-BE"),
        ("holidays:DE-Bayern", "holidays:DE-BY"),
        ("holidays:DE-augsburg", "holidays:DE-Augsburg"),
    ],
)
def test_what_means_the_same_is_stored_alike(typed: str, kept: str) -> None:
    """Blanks, case and long names do not make another term, and the stored form is read as itself."""
    assert kept == canonical(typed)
    assert kept == canonical(kept)
    assert kept == read_calendar(typed, BERLIN).text


def test_equal_terms_are_one_calendar() -> None:
    """What was worked out for a job is there for the next one with the same term and zone."""
    assert read_calendar("weekly:sat", BERLIN) is read_calendar("weekly:sat", ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("", ["an exclusion calendar is", '"weekly:sat,sun"']),
        ("2026-12-24", ["an exclusion calendar is"]),
        ("holiday:DE", ["Did you mean holidays:DE?"]),
        ("dates:", ["a date is missing"]),
        ("dates:2026-02-30", ["'2026-02-30' is no date", "YYYY-MM-DD"]),
        ("dates:2026-12-31..2026-12-24", ["2026-12-24 lies before 2026-12-31"]),
        ("dates:9999-12-31", ["'9999-12-31' is no date"]),
        ("weekly:", ["a weekday is missing"]),
        ("weekly:funday", ["'funday' is no weekday", "mon, tue"]),
        ("weekly:mon 8-9", ["'8-9' are no hours", "00:00-08:00"]),
        ("weekly:mon 25:00-26:00", ["no time 25:00:00"]),
        ("weekly:mon 24:00-26:00", ["no time 26:00:00"]),
        ("weekly:mon 24:00-02:00", ["begin at 23:59:59"]),
        ("weekly:mon 10:60-11:00", ["no time 10:60:00"]),
        ("holidays:", ["no country ''", "holidays:DE-BE"]),
        ("holidays:XQ", ["no country 'XQ'"]),
        ("holidays:germany", ["Did you mean DE?"]),
        ("holidays:DE-BX", ["DE has no part 'BX'", "Did you mean", "BY, HB, HE"]),
        ("holidays:DE-", ["DE has no part ''"]),
        ("holidays:VA-X", ["Write holidays:VA."]),
        ("ics:office.ics", ["where the job is defined"]),
        (7, ["an exclusion calendar is"]),
        ({"ics": "x.ics"}, ["stored form"]),
        ({"ics": "x.ics", "events": [{"start": "2026-01-01"}]}, ["event 1 of x.ics", "start, end"]),
        ({"ics": "x.ics", "events": [{"start": "2026-01-01", "end": "2026-01-01T10:00"}]}, ["both days"]),
        ({"ics": "x.ics", "events": [{"start": "soon", "end": "2026-01-01"}]}, ["'soon'", "2026-12-24"]),
        ({"ics": "x.ics", "events": [{"start": "2026-01-02", "end": "2026-01-01"}]}, ["ends before"]),
        (
            {"ics": "x.ics", "events": [{"start": "2026-01-02", "end": "2026-01-03", "zone": "UTC"}]},
            ["no zone"],
        ),
        (
            {"ics": "x.ics", "events": [{"start": "2026-01-02T10:00:00Z", "end": "2026-01-03T10:00:00"}]},
            ["no offset"],
        ),
        (
            {"ics": "x.ics", "events": [{"start": "2026-01-02", "end": "2026-01-03", "rrule": "FREQ=OFTEN"}]},
            ["event 1 of x.ics", "RRULE", "YEARLY"],
        ),
        (
            {
                "ics": "x.ics",
                "events": [
                    {"start": "2026-01-02T00:00", "end": "2026-01-02T00:01", "rrule": "FREQ=MINUTELY"}
                ],
            },
            ["'ics:x.ics'", "10000 times a year"],
        ),
    ],
)
def test_what_is_refused(term: Any, said: list[str]) -> None:
    """The message names the term, what is wrong and what to write instead."""
    with pytest.raises(InvalidValue) as error:
        canonical(term)
    assert [] == [words for words in said if words not in str(error.value)], str(error.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package `holidays` the term says how to get it."""
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(InvalidValue, match=r"pip install 'celery_sched\[calendars\]'"):
        read_calendar("holidays:DE-HH", ZoneInfo("Europe/Vienna"))


def test_years_without_known_holidays() -> None:
    """The package ends with 2100: later years have none, and asking costs no error."""
    first, last = date(2300, 1, 1), date(2300, 12, 31)
    assert [] == list(read_calendar("holidays:DE", BERLIN).spans(first, last))
    (new_year,) = read_calendar("holidays:DE", BERLIN).spans(date(2100, 1, 1), date(2100, 1, 1))
    assert datetime(2100, 1, 1) == new_year.start
