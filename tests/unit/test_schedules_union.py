"""Several schedules in one: `a | b`."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from celery_sched.rules.schedules.bits import bits_of, evenly

FAR = datetime(2900, 1, 1, tzinfo=UTC)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_instants_of_all_members() -> None:
    """Weekdays at nine, Saturdays at noon and one more instant, in order."""
    schedule = parse("0 9 * * 1-5 | 0 12 * * 6 | once 2026-01-02T12:00Z")
    expected = ["01-01 09", "01-02 09", "01-02 12", "01-03 12", "01-05 09"]
    assert expected == [f"{instant:%m-%d %H}" for instant in between(schedule, NEW_YEAR, FAR, 5)]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@daily | @hourly", "@hourly"),
        ("@daily|@hourly", "@hourly"),
        ("0 9 * * * | 0 9 * * *", "0 9 * * *"),
        ("0 9 * * 1-5 | 0 9 * * 6,0", "0 9 * * *"),
        ("every 2h | every 3h | every 6h", "0 0,2,3,4,6,8,9,10,12,14,15,16,18,20,21,22 * * *"),
        ("quartz:0 0 9 ? * 2-6 | 0 9 * * sat,sun", "0 9 * * *"),
        ("rrule:DTSTART=20260101T000000;FREQ=HOURLY;BYHOUR=3,4 | 0 4,5 * * *", "0 3-5 * * *"),
    ],
)
def test_the_same_as_one_schedule(text: str, same: str) -> None:
    """What several say together and one says alone is the same: instants, the latest, the number."""
    one, other = parse(text), parse(same)
    start = NEW_YEAR - SECOND
    assert between(other, start, FAR, 300) == between(one, start, FAR, 300)
    assert latest_in(other, start, at("2027-06-01T10:30Z")) == latest_in(one, start, at("2027-06-01T10:30Z"))
    assert count_in(other, start, at("2027-06-01T10:30Z")) == count_in(one, start, at("2027-06-01T10:30Z"))


@pytest.mark.parametrize(
    ("text", "day", "expected"),
    [
        # 02:30 is jumped over and made good at 03:00; 03:30 comes half an hour later.
        ("30 2 * * * | 30 3 * * *", "2026-03-29", "01:00 01:30"),
        ("30 2 * * * | rrule:FREQ=DAILY;BYHOUR=2;BYMINUTE=45;BYSECOND=0", "2026-03-29", "01:00"),
        ("30 2 * * * | */30 2 * * *", "2026-10-25", "00:00 00:30 01:00 01:30"),
        # A rule begins and ends in the middle of a day.
        (
            "rrule:DTSTART=20260101T120000;FREQ=HOURLY;COUNT=3 | 0 1 * * *",
            "2026-01-01",
            "00:00 11:00 12:00 13:00",
        ),
        (
            "rrule:DTSTART=20260101T120000Z;FREQ=HOURLY;COUNT=2 | every 13h",
            "2026-01-01",
            "10:00 12:00 13:00",
        ),
    ],
)
def test_the_number_on_special_days(text: str, day: str, expected: str) -> None:
    """Made-good times, repeated ones and the two ends of a rule are counted as they are listed."""
    schedule, start = parse(text, tz="Europe/Berlin"), at(f"{day}T00:00Z")
    begin, end = start - SECOND, start + timedelta(hours=22)
    assert expected == " ".join(f"{instant:%H:%M}" for instant in between(schedule, begin, end, 100))
    assert len(expected.split()) == count_in(schedule, begin, end)


MEMBERS = [
    *["* * * * *", "*/7 1-3 * * *", "30 2 * * *", "0 0-23 * * *", "0 0 1 1 *", "* 2 * * * 0,30"],
    *["H H(0-4) * * *", "quartz:0/20 0/7 0-3 * * ?", "quartz:0 30 2 ? * 1", "@hourly"],
    *["every 1m", "every 7m", "every 61s", "every 1d", "every 17s"],
    *["once 2026-03-29T02:30", "once 2026-10-25T02:30:00.25", "solar:sunset@52.52,13.40"],
    *["rrule:DTSTART=20260101T000000;FREQ=MINUTELY;INTERVAL=11", "rrule:FREQ=DAILY;BYHOUR=2,3;BYMINUTE=30"],
    "rrule:DTSTART=20260101T000000Z;FREQ=SECONDLY;INTERVAL=19;COUNT=5000",
]
ANCHORS = ["1970-01-01T00:00Z", "2026-02-03T04:05:06Z", "2026-02-03T04:05:06.25Z", "2026-04-01T00:00Z"]


@settings(max_examples=120, deadline=None)
@given(
    texts=st.lists(st.sampled_from(MEMBERS), min_size=2, max_size=4),
    tz=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]),
    anchor=st.sampled_from(ANCHORS),
    dst=st.sampled_from(["vixie", "literal"]),
    start=st.sampled_from(
        ["2026-03-28T12:00Z", "2026-10-24T03:00:00.25Z", "2026-04-04T09:30Z", "2026-11-01T00:00Z"]
    ),
    later=st.timedeltas(timedelta(0), timedelta(hours=30)),
    length=st.timedeltas(timedelta(0), timedelta(hours=30)),
)
def test_a_union_is_the_set_of_its_members(
    texts: list[str], tz: str, anchor: str, dst: str, start: str, later: timedelta, length: timedelta
) -> None:
    """List, latest and number in any span are those of the sets of the members' occurrences, put together."""
    more = {"tz": tz, "name": "night", "anchor": at(anchor), "dst": dst}
    begin = at(start) + later
    end = begin + length
    members = [parse(text, **more) for text in texts]  # type: ignore[arg-type]
    expected = sorted({instant for member in members for instant in between(member, begin, end, 10**6)})
    schedule = parse(" | ".join(texts), **more)  # type: ignore[arg-type]
    assert len(expected) == count_in(schedule, begin, end)
    assert expected == between(schedule, begin, end, 10**6)
    assert (expected[-1] if expected else None) == latest_in(schedule, begin, end)


@given(first=st.integers(0, 200), step=st.integers(1, 300), end=st.integers(0, 1000))
def test_evenly_spaced_bits(first: int, step: int, end: int) -> None:
    """The bits made by doubling are those that are written one by one."""
    assert sum(1 << bit for bit in range(first, end, step)) == evenly(first, step, end)
    assert evenly(first, step, end) == bits_of(list(range(first, end, step)))
    assert evenly(first, step, end) == bits_of(range(first, end, step))


def test_a_year_of_dense_members_is_counted_not_listed() -> None:
    """After an outage of a year the number of distinct instants costs less than listing three days."""
    schedule = parse("* * * * * | every 90s | */2 * * * * 30 | quartz:0/45 * * * * ?", tz="Europe/Berlin")
    year = at("2027-01-01T00:00Z")
    begin = time.perf_counter()
    day = between(schedule, NEW_YEAR, NEW_YEAR + timedelta(days=3), 10**6)
    listed = time.perf_counter() - begin
    begin = time.perf_counter()
    assert len(day) // 3 * 365 == count_in(schedule, NEW_YEAR, year)
    assert year == latest_in(schedule, NEW_YEAR, year)
    assert time.perf_counter() - begin < listed


def test_members_on_other_fractions_of_a_second_never_coincide() -> None:
    """A job made at 04:05:06.25 has its interval a quarter second beside the full minutes: both count."""
    schedule = parse("* * * * * | every 1m", anchor=at("2026-02-03T04:05:00.25Z"))
    assert 120 == count_in(schedule, NEW_YEAR, NEW_YEAR + timedelta(hours=1))
    assert 119 == count_in(schedule, NEW_YEAR, NEW_YEAR + timedelta(hours=1) - SECOND)
    quarter = NEW_YEAR + timedelta(seconds=0.25)
    assert [quarter, NEW_YEAR + 60 * SECOND] == between(schedule, NEW_YEAR, FAR, 2)
    assert 0 == count_in(schedule, quarter, NEW_YEAR + 59 * SECOND)


def test_an_end_of_all_members_is_the_end() -> None:
    """When the last member is over the union is; before the first years of schedules there is nothing."""
    schedule = parse(
        "once 2026-01-01T12:00Z | once 2026-01-02T12:00Z | rrule:DTSTART=20260101T000000;FREQ=DAILY;COUNT=2"
    )
    assert 4 == count_in(schedule, at("1900-01-01T00:00Z"), FAR)
    assert at("2026-01-02T12:00Z") == latest_in(schedule, at("1900-01-01T00:00Z"), FAR)
    assert schedule.next_after(at("2026-01-02T12:00Z")) is None
    end, begin = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    for text in ("@yearly | 0 0 2 1 *", "rrule:FREQ=YEARLY | @yearly"):
        assert parse(text).next_after(end) is None
        assert 0 == count_in(parse(text), end, begin)
        assert count_in(parse("@yearly"), begin, end) <= count_in(parse(text), begin, end)


def test_the_day_mode_is_that_of_each_cron_member() -> None:
    """Friday the 13th in one member, the first of the month in the other."""
    schedule = parse("0 0 13 * 5 | 0 0 1 1 *", day_mode="and")
    expected = ["2026-02-13", "2026-03-13", "2026-11-13", "2027-01-01"]
    assert expected == [f"{instant:%Y-%m-%d}" for instant in between(schedule, NEW_YEAR, FAR, 4)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 9 * * * | 60 * * * *", r"'60 \* \* \* \*', schedule 2 of 2 in it: the minute is 0-59"),
        ("0 0 30 2 * | @daily", r"'0 0 30 2 \*', schedule 1 of 2 in it: it never occurs"),
        ("@daily | tuesday", "'tuesday', schedule 2 of 2 in it: a schedule is"),
        ("@daily | every 5 minutes", "'every 5 minutes', schedule 2 of 2 in it: a duration"),
        ("@daily | rrule:FREQ=DALY", "schedule 2 of 2 in it: FREQ=DALY is not one of"),
        ("@daily | H * * * *", "schedule 2 of 2 in it: H stands for"),
        ("@daily | ", "empty: schedule 2"),
        ("| @daily", "empty: schedule 1"),
        ("@daily || @hourly", "empty: schedule 2"),
        ("after 5m | @daily", "'after 5m' counts from the end of a run"),
        ("every 1.5s | @daily", "'every 1.5s' is not"),
        (" | ".join(["@daily"] * 21), "at most 20"),
        ("0 9 * * * | " + "0," * 500 + "0 * * * *", "1000 characters"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """The refusal shows the whole text and names the schedule in it that is at fault."""
    with pytest.raises(InvalidValue, match=says) as refusal:
        parse(text)
    assert text.strip()[:100] in str(refusal.value)


def test_text_and_pickle() -> None:
    """A union keeps its text as typed and answers the same after a pickle; twenty members are possible."""
    schedule = parse(" 0 9 * * *  |  every 5m ")
    assert ("0 9 * * *  |  every 5m", "union") == (schedule.text, schedule.kind)
    assert schedule.next_after(NEW_YEAR) == pickle.loads(pickle.dumps(schedule)).next_after(NEW_YEAR)
    twenty = parse(" | ".join(f"{minute} 0 * * *" for minute in range(20)))
    assert 20 == count_in(twenty, NEW_YEAR - SECOND, NEW_YEAR + timedelta(hours=23))
    with pytest.raises(InvalidValue, match="no time zone"):
        schedule.next_after(datetime(2026, 3, 1))
