"""Cron expressions: checked cases with their instants, public bug reports, terms and their meaning."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from croniter import croniter

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from tests.unit.cron_oracle import random_expression

CASES = json.loads((Path(__file__).parent / "data" / "schedules.json").read_text())
FAR = datetime(2900, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def instants(text: str, tz: str, start: str, n: int, *, dst: str = "vixie") -> list[str]:
    found = between(parse(text, tz=tz, dst=dst), at(start), FAR, n)
    return [f"{instant:%Y-%m-%dT%H:%M:%SZ}" for instant in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_checked_cases(case: dict[str, object]) -> None:
    """Each case has the instants that an independent oracle found; an empty list is refused at entry."""
    text, tz, expected = str(case["expr"]), str(case["tz"]), case["expected_utc"]
    if not expected:
        with pytest.raises(InvalidValue, match="never occurs"):
            parse(text, tz=tz)
        return
    n = case["n"]
    assert isinstance(n, int)
    assert expected == instants(text, tz, str(case["start_utc"]), n), case["rule"]


# Public bug reports, by number of the case in this project's list of them. Instants follow crontab(5) and
# the offsets of the zones.
REPORTS = [
    ("A01", "0 * * * *", "America/Los_Angeles", "2026-11-01T07:30Z", "2026-11-01 08:00 09:00"),
    ("A02", "30 7 * * 1-5", "Europe/Zurich", "2025-03-28T06:30Z", "2025-03-31 05:30 2025-04-01 05:30"),
    ("A03", "0 2 * * *", "Europe/Berlin", "2023-10-28T12:00Z", "2023-10-29 00:00 2023-10-30 01:00"),
    (
        "A04",
        *("0 0 * * 0", "America/Santiago", "2022-08-21T12:00Z"),
        "2022-08-28 04:00 2022-09-04 04:00 2022-09-11 04:00 2022-09-18 03:00",
    ),
    ("A05 fixed", "30 2 * * *", "America/New_York", "2026-03-08T05:00Z", "2026-03-08 07:00 2026-03-09 06:30"),
    ("A05 star minute", "*/15 2 * * *", "America/New_York", "2026-03-08T05:00Z", "2026-03-09 06:00 06:15"),
    ("A05 star hour", "30 */2 * * *", "America/New_York", "2026-03-08T05:00Z", "2026-03-08 05:30 08:30"),
    (
        "A05 list",
        "0,15,30,45 2 * * *",
        "America/New_York",
        "2026-03-08T05:00Z",
        "2026-03-08 07:00 2026-03-09 06:00",
    ),
    ("A05 range", "0 0-23/2 * * *", "America/New_York", "2026-03-08T05:30Z", "2026-03-08 07:00 08:00"),
    ("A06 a", "0 * * * *", "Australia/Lord_Howe", "2019-10-05T15:13Z", "2019-10-05 16:00"),
    (
        "A06 b",
        *("10-40/10 * * * *", "Australia/Lord_Howe", "2023-04-01T14:21Z"),
        "2023-04-01 14:30 14:40 15:00 15:10 15:40 15:50",
    ),
    (
        "A07 Chatham",
        *("50 3 * * *", "Pacific/Chatham", "2026-09-25T14:00Z"),
        "2026-09-25 15:05 2026-09-26 14:05 2026-09-27 14:05",
    ),
    (
        "A07 Troll",
        *("0 1-2 * * *", "Antarctica/Troll", "2026-10-24T12:00Z"),
        "2026-10-24 23:00 2026-10-25 00:00 2026-10-26 01:00",
    ),
    ("A08 fixed", "30 1 * * *", "America/New_York", "2026-11-01T06:00Z", "2026-11-02 06:30"),
    ("A08 star", "* * * * *", "America/New_York", "2026-11-01T06:00Z", "2026-11-01 06:01 06:02"),
    ("A09 day", "0 0 * * *", "America/Los_Angeles", "2022-03-13T08:00Z", "2022-03-14 07:00"),
    ("A09 week", "0 12 * * 0", "Europe/Berlin", "2022-03-24T11:00Z", "2022-03-27 10:00"),
    (
        "A10",
        *("0 22 1-7 * 6", "UTC", "2026-01-07T23:00Z"),
        "2026-01-10 22:00 2026-01-17 22:00 2026-01-24 22:00 2026-01-31 22:00 2026-02-01 22:00",
    ),
    (
        "A11",
        "0 16 */2 * SAT",
        "UTC",
        "2023-05-01T00:00Z",
        "2023-05-13 16:00 2023-05-27 16:00 2023-06-03 16:00",
    ),
    ("A12", "0 0 1-31 * 1", "UTC", "2026-03-05T00:00Z", "2026-03-06 00:00 2026-03-07 00:00 2026-03-08 00:00"),
    ("A13", "0 0 29 2 *", "UTC", "2096-03-01T00:00Z", "2104-02-29 00:00 2108-02-29 00:00"),
    ("A13 zone", "0 6 29 2 *", "Pacific/Auckland", "2026-01-01T00:00Z", "2028-02-28 17:00"),
    ("A15", "1 * * * *", "UTC", "2020-01-01T10:00:59.500Z", "2020-01-01 10:01 11:01"),
    ("A15 exact", "1 * * * *", "UTC", "2020-01-01T10:01Z", "2020-01-01 11:01"),
    ("A16", "0 6 2 2 * 0 2028", "UTC", "2026-01-01T00:00Z", "2028-02-02 06:00"),
    (
        "A18",
        "0 9 * * *",
        "America/New_York",
        "2026-03-06T00:00Z",
        "2026-03-06 14:00 2026-03-07 14:00 2026-03-08 13:00",
    ),
    ("A19", "0 22 * * *", "Asia/Kolkata", "2026-03-06T00:00Z", "2026-03-06 16:30"),
    ("A22", "0 5 1 * *", "Europe/Vienna", "2026-05-17T16:00Z", "2026-06-01 03:00"),
]


@pytest.mark.parametrize(
    ("report", "text", "tz", "start", "listed"), REPORTS, ids=[report[0] for report in REPORTS]
)
def test_public_reports(report: str, text: str, tz: str, start: str, listed: str) -> None:
    """The right instants for the inputs of public bug reports, the first ones and in order."""
    expected, day = [], ""
    for word in listed.split():
        if "-" in word:
            day = word
        else:
            expected.append(f"{day}T{word}:00Z")
    assert expected == instants(text, tz, start, len(expected))


def test_a_long_day_has_1500_minutes() -> None:
    """A01: every minute of the local day on which clocks go back 1500 times, forward 1380 times."""
    schedule = parse("* * * * *", tz="America/Los_Angeles")
    before = timedelta(seconds=1)
    assert 1500 == count_in(schedule, at("2026-11-01T07:00Z") - before, at("2026-11-02T08:00Z") - before)
    assert 1380 == count_in(schedule, at("2026-03-08T08:00Z") - before, at("2026-03-09T07:00Z") - before)


def test_previous_and_next_agree_in_half_hour_changes() -> None:
    """A06: the latest at or before the next is the next, and the next after the latest is not before now."""
    schedule = parse("0 * * * *", tz="Australia/Lord_Howe")
    before_16 = at("2019-10-05T15:59:59Z")
    assert at("2019-10-05T14:30Z") == latest_in(schedule, at("2019-10-05T00:00Z"), before_16)
    for minute in range(0, 48 * 60, 7):
        now = at("2019-10-04T20:00Z") + timedelta(minutes=minute)
        following, latest = schedule.next_after(now), latest_in(schedule, now - timedelta(days=2), now)
        assert following is not None
        assert latest is not None
        assert following == latest_in(schedule, now, following)
        assert following == schedule.next_after(latest)


def test_latest_leap_day() -> None:
    """A13: asked on the day before a leap day, the latest one is four years back."""
    assert at("2020-02-29T00:00Z") == latest_in(
        parse("0 0 29 2 *"), at("2000-01-01T00:00Z"), at("2024-02-28T12:00Z")
    )


LITERAL = [
    ("30 2 * * *", "2026-03-07T12:00Z", ["2026-03-09T06:30:00Z"]),
    (
        "*/30 1 * * *",
        "2026-11-01T04:00Z",
        ["2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:00:00Z"],
    ),
    ("30 1 * * *", "2026-11-01T04:00Z", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
]


@pytest.mark.parametrize(("text", "start", "expected"), LITERAL)
def test_literal_policy(text: str, start: str, expected: list[str]) -> None:
    """With dst="literal" a wall time fires at its first instant only and a skipped one not at all."""
    assert expected == instants(text, "America/New_York", start, len(expected), dst="literal")


CORRECTIONS = [
    # Seven hours back: the clock shows 20:30 twice, and both count.
    (
        "Antarctica/Vostok",
        "30 20 * * *",
        "1994-01-31T00:00Z",
        ["1994-01-31T13:30:00Z", "1994-01-31T20:30:00Z"],
    ),
    # A calendar day left out: its 09:00 is not made good.
    ("Pacific/Apia", "0 9 * * *", "2011-12-29T12:00Z", ["2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z"]),
    # Exactly three hours forward is a correction too.
    ("Antarctica/Casey", "30 5 * * *", "2018-10-05T12:00Z", ["2018-10-05T21:30:00Z", "2018-10-07T18:30:00Z"]),
]


@pytest.mark.parametrize(("tz", "text", "start", "expected"), CORRECTIONS)
def test_corrections_of_the_clock(tz: str, text: str, start: str, expected: list[str]) -> None:
    """R6c: a change of three hours or more is used as it is, nothing made good, nothing suppressed."""
    assert expected == instants(text, tz, start, len(expected))


def test_seconds_within_the_minutes_of_the_rule() -> None:
    """X3: seconds divide each due minute, also the one in which skipped times are made good."""
    due = ["2026-03-08T07:00:15Z", "2026-03-08T07:00:45Z", "2026-03-09T06:30:15Z"]
    assert due == instants("30 2 * * * 15,45", "America/New_York", "2026-03-08T05:00Z", 3)
    assert due[1:] == instants("30 2 * * * 15,45", "America/New_York", "2026-03-08T07:00:15Z", 2)
    schedule = parse("30 2 * * * 15,45", tz="America/New_York")
    assert at(due[1]) == latest_in(schedule, at("2026-03-01T00:00Z"), at("2026-03-08T12:00Z"))
    assert at(due[0]) == latest_in(schedule, at("2026-03-01T00:00Z"), at("2026-03-08T07:00:44Z"))
    assert 2 == count_in(schedule, at("2026-03-08T06:00Z"), at("2026-03-08T12:00Z"))


SAME = [
    ("0 0 * * sat-sun", "0 0 * * 0,6"),
    ("0 0 * * 5-7", "0 0 * * 0,5,6"),
    ("0 0 * * sun-sun", "0 0 * * 0"),
    ("0 0 * * SUN-Tue", "0 0 * * 0-2"),
    ("0 0 * * mon#1,7#2", "0 0 * * 1#1,0#2"),
    ("0 0 * * friL", "0 0 * * L5"),
    ("0 0 lw,15w * *", "0 0 LW,15W * *"),
    ("*/90 * * * *", "0 * * * *"),
    ("07 05 * * *", "7 5 * * *"),
    ("@HOURLY", "0 * * * *"),
    ("@annually", "0 0 1 1 *"),
    ("@midnight", "0 0 * * *"),
    ("* * * * * 0 *", "* * * * *"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_same_meaning(one: str, other: str) -> None:
    """Two ways of writing one schedule have the same instants over 30 years."""
    start, limit = at("2026-01-01T00:00Z"), 300
    assert between(parse(other), start, FAR, limit) == between(parse(one), start, FAR, limit)


DAYS = [
    ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30", "2026-05-29"]),
    ("0 0 1W * *", ["2026-01-01", "2026-02-02", "2026-03-02", "2026-04-01", "2026-05-01"]),
    ("0 0 31W * *", ["2026-01-30", "2026-02-27", "2026-03-31", "2026-04-30", "2026-05-29"]),
    ("0 0 L,15 * *", ["2026-01-15", "2026-01-31", "2026-02-15", "2026-02-28"]),
    ("0 0 L * 1", ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26", "2026-01-31"]),
    ("0 0 L * */2", ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31", "2026-06-30"]),
    ("0 0 * * sun#5", ["2026-03-29", "2026-05-31", "2026-08-30", "2026-11-29"]),
    ("0 0 * * 7L", ["2026-01-25", "2026-02-22", "2026-03-29", "2026-04-26", "2026-05-31", "2026-06-28"]),
]


@pytest.mark.parametrize(("text", "days"), DAYS)
def test_day_terms(text: str, days: list[str]) -> None:
    """X1, X2, X4: last days, workdays and k-th weekdays of 2026, by the calendar on the wall."""
    if (
        text == "0 0 L * */2"
    ):  # both fields must match: only month ends on Sunday, Tuesday, Thursday, Saturday
        days = [day for day in days if at(day).isoweekday() % 7 % 2 == 0]
    assert [f"{day}T00:00:00Z" for day in days] == instants(text, "UTC", "2025-12-31T12:00Z", len(days))


BOTH = [
    ("0 0 13 * 5", ["2026-02-13", "2026-03-13", "2026-11-13", "2027-08-13"]),
    ("0 0 1-7 * mon", ["2026-01-05", "2026-02-02", "2026-03-02", "2026-04-06"]),
    ("0 0 L * fri#5,sat", ["2026-01-31", "2026-02-28", "2026-07-31", "2026-10-31"]),
    ("0 0 */10 * 1-5", ["2026-01-01", "2026-01-21", "2026-02-11", "2026-03-11", "2026-03-31"]),
    ("0 0 15W * 1", ["2026-02-16", "2026-03-16", "2026-06-15"]),
    ("0 0 10 * *", ["2026-01-10", "2026-02-10"]),
]


@pytest.mark.parametrize(("text", "days"), BOTH)
def test_both_day_fields_must_match(text: str, days: list[str]) -> None:
    """With day_mode="and" a day must satisfy both day fields, whatever they begin with, by the calendar."""
    found = between(parse(text, day_mode="and"), at("2025-12-31T12:00Z"), FAR, len(days))
    assert days == [f"{instant:%Y-%m-%d}" for instant in found]


def test_days_that_both_fields_never_allow_are_refused() -> None:
    """The fifth Friday is never on the 13th: together they never occur, in cron's way they do."""
    with pytest.raises(InvalidValue, match="never occurs"):
        parse("0 0 13 * fri#5", day_mode="and")
    assert at("2026-01-13T00:00Z") == parse("0 0 13 * fri#5").next_after(at("2026-01-01T00:00Z"))


def test_a_past_year_is_a_schedule_that_has_ended() -> None:
    """A schedule whose years are over is no error: it has no next occurrence."""
    schedule = parse("0 0 1 1 * 0 2020")
    assert schedule.next_after(at("2026-01-01T00:00Z")) is None
    assert at("2020-01-01T00:00Z") == latest_in(schedule, at("1990-01-01T00:00Z"), at("2026-01-01T00:00Z"))


def test_agrees_with_croniter_in_utc() -> None:
    """A second opinion: plain expressions in UTC have the instants that croniter finds."""
    dice, compared = random.Random(11), 0
    start = at("2026-01-01T00:00Z")
    while compared < 150:
        text = random_expression(dice)
        # Left out: where croniter departs from crontab(5), and its own day terms in lists.
        if any(mark in text.upper() for mark in ("L", "W", "#")) or "-" in text or "*/" in text:
            continue
        try:
            schedule = parse(text)
        except InvalidValue:
            continue
        other = croniter(text, start, implement_cron_bug=True)
        assert [other.get_next(datetime) for _ in range(10)] == between(schedule, start, FAR, 10), text
        compared += 1
