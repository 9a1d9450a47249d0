"""`quartz:` expressions: seconds first, Sunday is 1, `?`; the meaning is that of Quartz's own tutorial."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, parse

FAR = datetime(2900, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def instants(text: str, start: str, n: int, tz: str = "UTC") -> list[str]:
    found = between(parse(f"quartz:{text}", tz=tz), at(start), FAR, n)
    return [f"{instant:%Y-%m-%d %H:%M:%S}" for instant in found]


# The examples of Quartz's CronTrigger tutorial, with the instants that its explanations mean.
TUTORIAL = [
    ("0 0 12 * * ?", "2026-01-01", ["2026-01-01 12:00:00", "2026-01-02 12:00:00"]),
    ("0 15 10 ? * *", "2026-01-01", ["2026-01-01 10:15:00", "2026-01-02 10:15:00"]),
    ("0 15 10 * * ? *", "2026-01-01", ["2026-01-01 10:15:00", "2026-01-02 10:15:00"]),
    ("0 15 10 * * ? 2005", "2005-12-30", ["2005-12-30 10:15:00", "2005-12-31 10:15:00"]),
    ("0 * 14 * * ?", "2026-01-01T14:58", ["2026-01-01 14:59:00", "2026-01-02 14:00:00"]),
    ("0 0/5 14 * * ?", "2026-01-01T14:50", ["2026-01-01 14:55:00", "2026-01-02 14:00:00"]),
    ("0 0/5 14,18 * * ?", "2026-01-01T14:54", ["2026-01-01 14:55:00", "2026-01-01 18:00:00"]),
    ("0 0-5 14 * * ?", "2026-01-01T14:04", ["2026-01-01 14:05:00", "2026-01-02 14:00:00"]),
    (
        "0 10,44 14 ? 3 WED",
        "2026-01-01",
        ["2026-03-04 14:10:00", "2026-03-04 14:44:00", "2026-03-11 14:10:00"],
    ),
    ("0 15 10 ? * MON-FRI", "2026-01-02", ["2026-01-02 10:15:00", "2026-01-05 10:15:00"]),
    ("0 15 10 15 * ?", "2026-01-01", ["2026-01-15 10:15:00", "2026-02-15 10:15:00"]),
    ("0 15 10 L * ?", "2026-01-01", ["2026-01-31 10:15:00", "2026-02-28 10:15:00"]),
    ("0 15 10 L-2 * ?", "2026-01-01", ["2026-01-29 10:15:00", "2026-02-26 10:15:00"]),
    ("0 15 10 ? * 6L", "2026-01-01", ["2026-01-30 10:15:00", "2026-02-27 10:15:00"]),
    ("0 15 10 ? * 6L 2002-2005", "2005-12-01", ["2005-12-30 10:15:00"]),
    ("0 15 10 ? * 6#3", "2026-01-01", ["2026-01-16 10:15:00", "2026-02-20 10:15:00"]),
    ("0 0 12 1/5 * ?", "2026-01-25", ["2026-01-26 12:00:00", "2026-01-31 12:00:00", "2026-02-01 12:00:00"]),
    ("0 11 11 11 11 ?", "2026-01-01", ["2026-11-11 11:11:00", "2027-11-11 11:11:00"]),
    ("10 0/5 * * * ?", "2026-01-01T10:00", ["2026-01-01 10:00:10", "2026-01-01 10:05:10"]),
    ("0 0/30 8-9 5,20 * ?", "2026-01-05T09:00", ["2026-01-05 09:30:00", "2026-01-20 08:00:00"]),
]
# What Quartz's tests and its reference of terms say beyond the tutorial.
TERMS = [
    ("0 15 10 L-5W * ? 2010", "2010-10-01", ["2010-10-26 10:15:00"]),
    ("0 15 10 L-1W * ? 2010", "2010-10-01", ["2010-10-29 10:15:00"]),
    ("0 0 0 LW * ?", "2026-01-01", ["2026-01-30 00:00:00", "2026-02-27 00:00:00", "2026-03-31 00:00:00"]),
    ("0 0 0 1W * ?", "2026-07-15", ["2026-08-03 00:00:00", "2026-09-01 00:00:00"]),
    ("0 0 0 L-30 * ?", "2026-01-31", ["2026-03-01 00:00:00", "2026-05-01 00:00:00"]),
    ("0 0 0 ? * L", "2026-01-01", ["2026-01-03 00:00:00", "2026-01-10 00:00:00"]),
    ("0 0 0 ? * 7", "2026-01-01", ["2026-01-03 00:00:00", "2026-01-10 00:00:00"]),
    ("0 0 0 ? * 1", "2026-01-01", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
    ("0 0 0 ? * 2#1", "2026-01-01", ["2026-01-05 00:00:00", "2026-02-02 00:00:00"]),
    (
        "0 0 0 ? * FRI-SUN",
        "2026-01-01",
        ["2026-01-02 00:00:00", "2026-01-03 00:00:00", "2026-01-04 00:00:00"],
    ),
    ("0 0 22-2 * * ?", "2026-01-01T22:30", ["2026-01-01 23:00:00", "2026-01-02 00:00:00"]),
    ("0 0 22-3/2 * * ?", "2026-01-01T12:00", ["2026-01-01 22:00:00", "2026-01-02 00:00:00"]),
    (
        "0 0 0 1 NOV-FEB ?",
        "2026-01-15",
        ["2026-02-01 00:00:00", "2026-11-01 00:00:00", "2026-12-01 00:00:00"],
    ),
    ("0 0 0 30-1 * ?", "2026-01-15", ["2026-01-30 00:00:00", "2026-01-31 00:00:00", "2026-02-01 00:00:00"]),
    ("0 0 0 1,15,L 2 ?", "2026-01-15", ["2026-02-01 00:00:00", "2026-02-15 00:00:00", "2026-02-28 00:00:00"]),
    ("5/25 0 0 * * ?", "2026-01-01T00:00:05", ["2026-01-01 00:00:30", "2026-01-01 00:00:55"]),
    ("0 0 0 1 1 ? 2026/2", "2026-06-01", ["2028-01-01 00:00:00", "2030-01-01 00:00:00"]),
]


@pytest.mark.parametrize(("text", "start", "expected"), TUTORIAL + TERMS)
def test_meaning(text: str, start: str, expected: list[str]) -> None:
    """Each expression is due when Quartz's documentation says, strictly after the start (UTC)."""
    assert expected == instants(text, f"{at(start).replace(tzinfo=UTC)}", len(expected))


def test_clock_changes_are_those_of_cron() -> None:
    """`0/15` follows real time as `*/15` does; a fixed time that is jumped over is made good once."""
    fixed = ["2026-03-29 01:00:00", "2026-03-30 00:30:00"]
    assert fixed == instants("0 30 2 * * ?", "2026-03-28T12:00Z", 2, "Europe/Berlin")
    for minute in ("0/30", "*/30", "00/30"):
        real = ["2026-03-30 00:00:00", "2026-03-30 00:30:00"]
        assert real == instants(f"0 {minute} 2 * * ?", "2026-03-28T12:00Z", 2, "Europe/Berlin")
        twice = [f"2026-10-25 0{time}:00" for time in ("0:00", "0:30", "1:00", "1:30")]
        assert twice == instants(f"0 {minute} 2 * * ?", "2026-10-24T12:00Z", 4, "Europe/Berlin")
    once = ["2026-10-25 00:15:00", "2026-10-26 01:15:00"]
    assert once == instants("0 15/50 2 * * ?", "2026-10-24T12:00Z", 2, "Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0 12 * * *", "one is \\?"),
        ("0 0 12 ? * ?", "one is \\?"),
        ("0 0 12 15 * 2", "one is \\?"),
        ("0 12 ? * MON", "this has 5.*leave quartz: out"),
        ("0 0 12 ? * MON 2026 7", "this has 8"),
        ("", "this has 0"),
        ("? 0 12 ? * MON", "second field is not understood"),
        ("0 0 12 1,? * ?", "one is|not understood"),
        ("0 0 12 ? * 0", "day-of-week is 1-7"),
        ("0 0 12 ? * 8", "day-of-week is 1-7"),
        ("0 0 24 ? * 1", "hour is 0-23"),
        ("0 0 12 ? * L6", "not understood"),
        ("0 0 12 ? * 6#6", "1 to 5"),
        ("0 0 12 15C * ?", "not understood.*L-n"),
        ("0 0 12 L-31 * ?", "1 to 30"),
        ("0 0 12 L-0 * ?", "1 to 30"),
        ("0 0/60 * * * ?", "goes beyond the minute's 59"),
        ("0 0 0/24 * * ?", "goes beyond the hour's 23"),
        ("0 0/0 * * * ?", "1 or more"),
        ("0 0 12 ? * MON 2030-2026", "backwards"),
        ("0 0 12 30 2 ?", "never occurs"),
        ("0 0 12 L-29 2 ? 2027", "never occurs"),
        ("0 0 12 1,,2 * ?", "empty place"),
        ("0 0 12 1 * ? " + "2026," * 200 + "2027", "1000 characters"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """What Quartz would not take, or what never comes, is refused with what is wrong."""
    with pytest.raises(InvalidValue, match=says):
        parse(f"quartz:{text}")


def test_cron_text_with_a_question_mark_points_to_quartz() -> None:
    """Who pastes a Quartz expression without the prefix is told of it."""
    with pytest.raises(InvalidValue, match="Write quartz: before"):
        parse("0 0 12 ? * MON-FRI")


def test_day_mode_does_not_touch_quartz() -> None:
    """One of the day fields is always `?`, so both ways of reading them are one."""
    texts = [parse("quartz:0 0 12 13 * ?", day_mode=mode) for mode in ("or", "and")]
    start = at("2026-01-01T00:00Z")
    assert between(texts[0], start, FAR, 20) == between(texts[1], start, FAR, 20)


def test_hashed_values() -> None:
    """H is made from the job's name here too, also as a day of the week 1-7."""
    start = at("2026-01-01T00:00Z")
    found = {parse("quartz:H H H ? * H", name=f"job-{n}").next_after(start) for n in range(200)}
    assert len(found) > 190
    assert set(range(7)) == {instant.weekday() for instant in found if instant is not None}
    assert 1 == count_in(
        parse("quartz:H 0 0 1 1 ?", name="a"), start - timedelta(seconds=1), at("2026-12-31T00:00Z")
    )


def test_text_and_pickle() -> None:
    """The text is kept as typed; case and blanks after the colon do not matter; a pickle answers the same."""
    schedule = parse(" Quartz: 0 0 12 ? * mon \n")
    assert ("Quartz: 0 0 12 ? * mon", "cron") == (schedule.text, schedule.kind)
    now = at("2026-01-01T00:00Z")
    assert (
        at("2026-01-05T12:00Z")
        == schedule.next_after(now)
        == pickle.loads(pickle.dumps(schedule)).next_after(now)
    )
