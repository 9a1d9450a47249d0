"""Schedules with exclusion calendars, against an enumeration of all their occurrences."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_sched.rules.calendars import read_calendar
from celery_sched.rules.calendars.business import MOVE_DAYS
from celery_sched.rules.schedules import between, parse
from celery_sched.rules.schedules.excluding import Excluding, too_frequent_to_move
from celery_sched.rules.schedules.zones import instant_of_wall

DAY = timedelta(days=1)


def excluding(schedule: str, zone: str, *terms: str, move: bool = False) -> Excluding:
    """A schedule in a zone without what the terms exclude."""
    calendars = tuple(read_calendar(term, ZoneInfo(zone)) for term in terms)
    base = parse(schedule, tz=zone, anchor=datetime(2026, 1, 1, tzinfo=UTC))
    return Excluding(base, ZoneInfo(zone), calendars, move)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


# ---- the oracle: what the words mean, one occurrence at a time


def is_excluded(schedule: Excluding, instant: datetime) -> bool:
    """By what the clocks show, straight from the spans."""
    wall = instant.astimezone(schedule.zone).replace(tzinfo=None)
    near = wall.date() - DAY, wall.date() + DAY
    return any(span.start <= wall < span.end for cal in schedule.calendars for span in cal.spans(*near))


def is_business(schedule: Excluding, day: date) -> bool:
    """No weekend, and some time of it (spans here begin and end at quarters) is not excluded."""
    weekends = [days for cal in schedule.calendars if (days := cal.weekend()) is not None]
    if day.weekday() in (set().union(*weekends) if weekends else {5, 6}):
        return False
    begin = instant_of_wall(schedule.zone, datetime(day.year, day.month, day.day))
    times = (begin + timedelta(minutes=15 * quarter) for quarter in range(26 * 4))
    return not all(
        is_excluded(schedule, time) for time in times if time.astimezone(schedule.zone).date() == day
    )


def expected_of(schedule: Excluding, after: datetime, until: datetime) -> list[datetime]:
    """All occurrences in (after, until]."""
    found = set()
    lead = timedelta(days=MOVE_DAYS + 3) if schedule.move else timedelta(0)
    business: dict[date, bool] = {}
    for occurrence in between(schedule.base, after - lead, until, 100_000):
        if not is_excluded(schedule, occurrence):
            found.add(occurrence)
            continue
        wall = occurrence.astimezone(schedule.zone).replace(tzinfo=None, fold=0)
        for days in range(1, MOVE_DAYS + 1) if schedule.move else ():
            day = wall.date() + days * DAY
            if day not in business:
                business[day] = is_business(schedule, day)
            moved = instant_of_wall(schedule.zone, datetime.combine(day, wall.time()))
            if business[day] and not is_excluded(schedule, moved):
                found.add(moved)
                break
    return sorted(occurrence for occurrence in found if after < occurrence <= until)


# ---- comparison

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia")
SCHEDULES = (
    "0 12 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "0 9 1 * *",
    "15 */3 * * 1-6",
    "0 3,23 * * 0,6",
    "every 7h",
    "every 1d",
    "once 2026-03-29T02:30",
    "rrule:FREQ=DAILY;INTERVAL=2;BYHOUR=2;BYMINUTE=15;BYSECOND=0",
    "@yearly",
)
TERMS = (
    "weekly:sat,sun",
    "weekly:sun",
    "weekly:mon-fri 00:00-08:00",
    "weekly:tue-sat 22:30-02:45",
    "weekly:sun 02:00-02:30",
    "weekly:mon 00:00-24:00",
    "dates:2026-03-28..2026-03-29,2026-10-25,2026-11-01..2026-11-03",
    "dates:2026-12-24..2027-01-03",
    "holidays:DE",
    "holidays:SA",
)
# Days around clock changes, New Year and nothing in particular; Apia left out the 30th of December 2011.
STARTS = tuple(
    map(
        at, ("2026-03-05", "2026-03-26", "2026-10-20", "2026-12-20", "2026-06-01", "2011-12-27", "2026-04-01")
    )
)


def check(schedule: Excluding, after: datetime, until: datetime) -> None:
    """Every question about the span has the oracle's answer."""
    found = expected_of(schedule, after, until)
    assert found == between(schedule, after, until, 100_000)
    assert len(found) == schedule.count_in(after, until)
    assert (found[-1] if found else None) == schedule.latest_in(after, until)
    middle = after + (until - after) / 3
    place = bisect_right(found, middle)
    assert place == schedule.count_in(after, middle)
    assert (found[place - 1] if place else None) == schedule.latest_in(after, middle)
    assert 0 == schedule.count_in(until, after)


@given(
    schedule=st.sampled_from(SCHEDULES),
    zone=st.sampled_from(ZONES),
    terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=3, unique=True),
    start=st.sampled_from(STARTS),
    days=st.integers(1, 16),
    seconds=st.integers(0, 86_400),
)
@example("*/15 * * * *", "Europe/Berlin", ["weekly:sun 02:00-02:30"], at("2026-10-24"), 3, 0)
@example("*/10 * * * *", "Australia/Lord_Howe", ["weekly:sun 01:40-02:10"], at("2026-04-04"), 3, 0)
@example("0 * * * *", "Pacific/Apia", ["dates:2011-12-30"], at("2011-12-29"), 3, 0)
def test_left_out(
    schedule: str, zone: str, terms: list[str], start: datetime, days: int, seconds: int
) -> None:
    """`skip`: next, last and count are those of an enumeration, also where the clocks change."""
    after = start.replace(tzinfo=UTC) + timedelta(seconds=seconds)
    check(excluding(schedule, zone, *terms), after, after + days * DAY)


@given(
    schedule=st.sampled_from(SCHEDULES),
    zone=st.sampled_from(ZONES),
    terms=st.lists(st.sampled_from(TERMS), min_size=1, max_size=2, unique=True),
    start=st.sampled_from(STARTS),
    days=st.integers(1, 12),
    seconds=st.integers(0, 86_400),
)
@example("0 0 1 1 *", "UTC", ["dates:2025-12-01..2026-03-31"], at("2026-03-05"), 40, 0)
@example("0 0 10 1 *", "UTC", ["dates:2025-12-01..2026-03-31"], at("2026-03-05"), 40, 0)
@example("0 5 * * *", "UTC", ["weekly:mon-fri 00:00-08:00"], at("2026-03-05"), 12, 0)
@example("0 5 * * 1", "UTC", ["weekly:mon,tue 00:00-08:00"], at("2026-03-11"), 3, 0)
@example("30 2 * * 6", "Europe/Berlin", ["weekly:sat"], at("2026-03-26"), 12, 0)
def test_moved(schedule: str, zone: str, terms: list[str], start: datetime, days: int, seconds: int) -> None:
    """`next_business_day`: what is excluded comes at the same time of the next business day, once."""
    after = start.replace(tzinfo=UTC) + timedelta(seconds=seconds)
    check(excluding(schedule, zone, *terms, move=True), after, after + days * DAY)


# ---- by hand


def test_a_holiday_moves_to_the_next_business_day() -> None:
    """Good Friday 2026 comes on Tuesday after Easter Monday; the Saturday and Sunday between do not count."""
    schedule = excluding("0 10 3 4 *", "Europe/Berlin", "holidays:DE", move=True)
    assert at("2026-04-07T08:00Z") == schedule.next_after(at("2026-04-01T00:00Z"))
    assert at("2026-04-07T08:00Z") == schedule.moved(at("2026-04-03T08:00Z"))
    assert schedule.moved(at("2026-04-08T08:00Z")) is None


def test_occurrences_that_meet_are_one() -> None:
    """Saturday and Sunday move to Monday, where there is an occurrence already."""
    schedule = excluding("0 10 * * *", "UTC", "weekly:sat,sun", move=True)
    week = at("2026-06-01T00:00Z"), at("2026-06-08T23:00Z")
    assert [1, 2, 3, 4, 5, 8] == [found.day for found in between(schedule, *week, 100)]
    assert 6 == schedule.count_in(*week)


def test_a_countrys_weekend_counts() -> None:
    """In Saudi Arabia Friday moves to Sunday: Saturday is the weekend, Sunday is not."""
    schedule = excluding("0 10 * * 5", "Asia/Riyadh", "holidays:SA", "weekly:fri", move=True)
    assert at("2026-06-07T07:00Z") == schedule.next_after(at("2026-06-02T00:00Z"))


def test_who_excludes() -> None:
    """The calendar and the span with its reason, for `why`; nothing for an instant that is not excluded."""
    schedule = excluding("0 10 * * *", "Europe/Berlin", "weekly:sun", "holidays:DE")
    calendar, span = schedule.excluded(at("2026-12-25T09:00Z")) or pytest.fail("not excluded")
    assert ("holidays:DE", "Christmas Day") == (calendar.text, span.reason)
    assert schedule.excluded(at("2026-12-24T09:00Z")) is None
    # 23:30 UTC on Saturday is Sunday in Berlin
    calendar, _ = schedule.excluded(at("2026-06-06T23:30Z")) or pytest.fail("not excluded")
    assert "weekly:sun" == calendar.text


def test_text_and_kind_are_those_of_the_base() -> None:
    """People see the schedule they typed."""
    schedule = excluding("0 10 * * *", "UTC", "weekly:sun")
    assert ("0 10 * * *", "cron") == (schedule.text, schedule.kind)


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("0 * * * *", ["weekly:mon-sun"]),
        ("0 12 * * 6", ["weekly:sat", "weekly:mon-fri"]),
        ("0 3 * * *", ["weekly:mon-sun 00:00-08:00"]),
        ("0 0 29 2 *", ["weekly:mon-sun"]),
        ("once 2026-06-01", ["weekly:mon-sun"]),
        ("after 2h", ["weekly:mon-sun"]),
        ("every 1h", ["dates:2000-01-01..2998-12-31"]),
    ],
)
def test_where_everything_is_excluded_the_search_ends(text: str, terms: list[str], move: bool) -> None:
    """No occurrence is an answer, found in reasonable time."""
    schedule = excluding(text, "Europe/Berlin", *terms, move=move)
    assert schedule.next_after(at("2026-01-01T00:00Z")) is None
    assert 0 == schedule.count_in(at("2026-01-01T00:00Z"), at("2026-03-01T00:00Z"))
    assert schedule.latest_in(at("2026-01-01T00:00Z"), at("2026-03-01T00:00Z")) is None


@pytest.mark.parametrize("move", [False, True])
def test_a_long_closure_is_jumped_over(move: bool) -> None:
    """Years of excluded occurrences are not walked through; the first one after them is found."""
    # moving a job of each minute is refused at entry
    schedule = excluding(
        "0 * * * *" if move else "* * * * *", "UTC", "dates:2026-01-01..2045-12-31", move=move
    )
    monday = at("2046-01-01T00:00Z")
    assert monday == schedule.next_after(at("2026-06-01T00:00Z"))
    per_day = 24 if move else 1440
    assert per_day == schedule.count_in(at("2026-06-01T00:00Z"), monday + DAY - timedelta(minutes=1))


def test_an_occurrence_that_finds_no_business_day_is_left_out() -> None:
    """After a hundred days the search for one ends."""
    closed = excluding("0 9 1 1 *", "UTC", f"dates:2026-01-01..{date(2026, 4, 10) + DAY}", move=True)
    assert at("2027-01-01T09:00Z") == closed.next_after(at("2026-01-01T00:00Z"))
    nearly = excluding("0 9 1 1 *", "UTC", f"dates:2026-01-01..{date(2026, 4, 9)}", move=True)
    assert at("2026-04-10T09:00Z") == nearly.next_after(at("2026-01-01T00:00Z"))


def test_a_delay_from_the_end_of_a_run() -> None:
    """`after` jobs: while the result is excluded, the delay is waited for once more."""
    schedule = excluding("after 3h", "UTC", "weekly:sat,sun")
    assert at("2026-06-05T20:10Z") == schedule.next_after(at("2026-06-05T17:10Z"))
    assert at("2026-06-08T00:30Z") == schedule.next_after(at("2026-06-05T21:30Z"))
    assert at("2026-06-08T00:00Z") == schedule.next_after(at("2026-06-05T21:00Z"))
    moving = excluding("after 3h", "UTC", "weekly:sat,sun", move=True)
    assert at("2026-06-08T00:30Z") == moving.next_after(at("2026-06-05T21:30Z"))
    assert 1 == moving.count_in(at("2026-06-05T21:30Z"), at("2026-06-08T01:00Z"))
    assert 0 == moving.count_in(at("2026-06-05T21:30Z"), at("2026-06-08T00:00Z"))


def test_fractions_of_a_second_survive() -> None:
    """A grid that lies between whole seconds is neither shifted nor excluded a second too long."""
    base = parse("every 1h", anchor=at("2026-01-01T00:00:00.250000Z"))
    schedule = Excluding(base, ZoneInfo("UTC"), (read_calendar("weekly:mon 10:00-12:00", ZoneInfo("UTC")),))
    assert at("2026-06-01T12:00:00.250000Z") == schedule.next_after(at("2026-06-01T09:00:00.250000Z"))
    assert 1 == schedule.count_in(at("2026-06-01T09:00:00.250000Z"), at("2026-06-01T12:00:00.250000Z"))


def test_the_ends_of_time() -> None:
    """Questions about the first and last years there are cost no error."""
    for move in (False, True):
        schedule = excluding("every 1d", "Europe/Berlin", "weekly:sun", move=move)
        first = schedule.next_after(datetime.min.replace(tzinfo=UTC) + 400 * DAY)
        assert first == datetime.min.replace(tzinfo=UTC) + 401 * DAY
        assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
        late = datetime.max.replace(tzinfo=UTC)
        assert 3 == schedule.count_in(late - 3 * DAY, late)


@pytest.mark.parametrize(
    ("text", "too_often"),
    [
        ("0 * * * *", False),
        ("*/30 * * * *", True),
        ("0,30 9-20 * * 1", False),
        ("*/2 9-20 * * 1", True),
        ("every 1h", False),
        ("every 59m", True),
        ("after 5m", False),
        ("@daily", False),
    ],
)
def test_what_is_too_frequent_to_move(text: str, too_often: bool) -> None:
    """More than 24 occurrences a day on average over a year are not moved one by one."""
    assert too_often == too_frequent_to_move(parse(text), at("2026-01-01T00:00Z"))
