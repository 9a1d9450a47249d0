"""The kinds of schedule: what their text means, what is refused, spans of time."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import Schedule, between, check_zone, count_in, latest_in, parse
from celery_sched.rules.schedules.zones import SUMMER

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_every_lies_on_a_grid_through_its_anchor() -> None:
    """A fixed rate is anchor + k periods, whenever it is asked, in any zone."""
    schedule = parse("every 1h", tz="America/Los_Angeles", anchor=at("2022-11-06T07:30Z"))
    hours = [at(f"2022-11-06T{hour:02}:30Z") for hour in (7, 8, 9, 10)]
    assert hours == between(schedule, at("2022-11-06T07:29:59Z"), at("2022-11-06T10:30Z"), 10)
    assert at("2022-11-06T06:30Z") == schedule.next_after(at("2022-11-06T06:00Z"))


def test_every_from_the_epoch_without_an_anchor() -> None:
    """Without an anchor the grid goes through the Unix epoch, so all nodes agree on it."""
    assert at("2026-03-01T12:05Z") == parse("every 5m").next_after(NOON)
    assert at("2026-03-05T00:00Z") == parse("every 1w").next_after(NOON), "the epoch was a Thursday"


@given(
    period=st.integers(1, 10**7),
    anchor=st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    instant=st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
def test_every_is_never_late_or_early(period: int, anchor: datetime, instant: datetime) -> None:
    """The next occurrence is later than the instant by at most one period, and on the grid."""
    following = parse(f"every {period}s", anchor=anchor).next_after(instant)
    assert following is not None
    assert timedelta(0) < following - instant <= timedelta(seconds=period)
    assert timedelta(0) == (following - anchor) % timedelta(seconds=period)


def test_every_at_the_end_of_time_is_over() -> None:
    """Where datetimes end, schedules end instead of failing."""
    end = datetime.max.replace(tzinfo=UTC)
    for text in ("every 1d", "after 1d", "* * * * *", "once 2026-01-01T00:00Z"):
        assert parse(text).next_after(end) is None


def test_after_counts_from_the_instant_given() -> None:
    """A fixed delay is due once, the delay after the end of the last run."""
    schedule = parse("after 90s")
    assert NOON + timedelta(seconds=90) == schedule.next_after(NOON)
    assert NOON + timedelta(seconds=90) == latest_in(schedule, NOON, NOON + timedelta(days=1))
    assert 1 == count_in(schedule, NOON, NOON + timedelta(days=1))
    assert 0 == count_in(schedule, NOON, NOON + timedelta(seconds=89))


def test_once_is_due_once() -> None:
    """A single occurrence: strictly before it it is the next one, from then on there is none."""
    schedule = parse("once 2026-03-01T12:00:00Z")
    assert NOON == schedule.next_after(NOON - timedelta(microseconds=1))
    assert schedule.next_after(NOON) is None
    assert [NOON] == between(schedule, NOON - SECOND, NOON, 5)
    assert NOON == latest_in(schedule, NOON - SECOND, NOON)
    assert latest_in(schedule, NOON, NOON + SECOND) is None
    assert 1 == count_in(schedule, NOON - SECOND, NOON)


@pytest.mark.parametrize(
    ("text", "tz", "utc"),
    [
        ("once 2026-07-01T09:00", "Europe/Berlin", "2026-07-01T07:00Z"),
        ("once 2026-07-01 09:00:30", "UTC", "2026-07-01T09:00:30Z"),
        ("ONCE 2026-07-01T09:00+05:30", "Europe/Berlin", "2026-07-01T03:30Z"),
        ("once 2026-07-01", "Asia/Tokyo", "2026-06-30T15:00Z"),
        ("once 2026-11-01T01:30", "America/New_York", "2026-11-01T05:30Z"),
        ("once 2026-03-08T02:30", "America/New_York", "2026-03-08T07:00Z"),
        ("once 2011-12-30T09:00", "Pacific/Apia", "2011-12-30T10:00Z"),
    ],
)
def test_once_in_a_zone(text: str, tz: str, utc: str) -> None:
    """A time without an offset is the job's zone's: its first pass, or right after a gap it falls into."""
    assert at(utc) == parse(text, tz=tz).next_after(at("2000-01-01T00:00Z"))


ALL_KINDS = [
    "*/7 3-20 * * 1-5",
    "30 2 * * *",
    "@hourly",
    "*/20 * * * * 7,30",
    "every 17m",
    "once 2026-03-08T02:30",
]


@given(
    text=st.sampled_from(ALL_KINDS),
    tz=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
    after=st.datetimes(datetime(2026, 3, 1), datetime(2026, 4, 10), timezones=st.just(UTC)),
    length=st.timedeltas(timedelta(0), timedelta(days=3)),
)
def test_spans_agree_with_the_list(text: str, tz: str, after: datetime, length: timedelta) -> None:
    """The list of a span rises inside (after, until]; latest_in and count_in are its end and length."""
    schedule, until = parse(text, tz=tz), after + length
    found = between(schedule, after, until, 10**6)
    assert sorted(set(found)) == found
    assert all(after < instant <= until for instant in found)
    assert (found[-1] if found else None) == latest_in(schedule, after, until)
    assert len(found) == count_in(schedule, after, until)
    assert found[:3] == between(schedule, after, until, 3)


def test_an_empty_or_backward_span_has_nothing() -> None:
    """A span that ends where it begins, or before, holds no occurrence of any kind."""
    for text in [*ALL_KINDS, "after 5m"]:
        for until in (NOON, NOON - timedelta(days=400)):
            schedule = parse(text)
            assert [] == between(schedule, NOON, until, 5)
            assert latest_in(schedule, NOON, until) is None
            assert 0 == count_in(schedule, NOON, until)


def test_instants_in_other_zones_are_the_same_instants() -> None:
    """An aware instant of any zone gives the same answer, in UTC; a naive one is refused."""
    for text in [*ALL_KINDS, "after 5m"]:
        schedule = parse(text, tz="Asia/Kolkata")
        elsewhere = datetime(2026, 3, 1, 7, tzinfo=timezone(timedelta(hours=-5)))
        following = schedule.next_after(elsewhere)
        assert schedule.next_after(NOON) == following
        assert following is not None
        assert UTC == following.tzinfo
        with pytest.raises(InvalidValue, match="no time zone"):
            schedule.next_after(datetime(2026, 3, 1, 12))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "every 5m"),
        ("   ", "once 2026"),
        ("rule:FREQ=DAILY", "rrule:FREQ="),
        ("sunset@52.52,13.40", "solar:sunset@"),
        ("tuesday", "every 5m"),
        ("every5m", "every 5m"),
        ("@every 5m", "Write .every 5m."),
        ("every", "the duration of schedule 'every'"),
        ("every 5 minutes", "'5 minutes' is refused"),
        ("every 0s", "longer than zero"),
        ("every 0.5s", "1 second"),
        ("after 999ms", "1 second"),
        ("every -5m", "Units are"),
        ("once", "ISO 8601"),
        ("once tomorrow", "ISO 8601"),
        ("once 2026-02-30T00:00Z", "ISO 8601"),
        ("once 0001-01-01T00:00+14:00", "ISO 8601"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """A text that is no schedule is refused with the text itself and the forms that are possible."""
    with pytest.raises(InvalidValue, match=says) as refusal:
        parse(text)
    assert text.strip() in str(refusal.value)


@pytest.mark.parametrize("value", [None, 5, timedelta(minutes=5), b"* * * * *", ["* * * * *"]])
def test_other_types_are_refused(value: object) -> None:
    """Only text is a schedule; another type is refused, not guessed at."""
    with pytest.raises(InvalidValue, match="a schedule is a cron expression"):
        parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "zone"), SUMMER.items())
def test_the_names_of_summer_time(name: str, zone: str) -> None:
    """Each is what the clocks of its zone show in one half of the year, and no zone's own name."""
    assert name in {datetime(2026, month, 10, tzinfo=check_zone(zone)).tzname() for month in (1, 7)}
    with pytest.raises(InvalidValue):
        check_zone(name)


@pytest.mark.parametrize(
    ("tz", "says"),
    [
        ("Europe/Berln", "Did you mean Europe/Berlin"),
        ("berlin", "Did you mean Europe/Berlin"),
        ("CEST", "CEST is summer time, for example in Europe/Berlin: name the city's zone"),
        ("pdt", "PDT is summer time, for example in America/Los_Angeles"),
        ("New York", "Did you mean America/New_York"),
        ("europe/berlin", "Did you mean Europe/Berlin"),
        ("+02:00", "Etc/GMT-2"),
        ("America", "Did you mean"),
        ("../UTC", "no such IANA zone"),
        ("/etc/localtime", "no such IANA zone"),
        ("Europe/Ber\0lin", "no such IANA zone"),
        ("localtime", "machine to machine"),
        ("", "IANA name"),
        (None, "IANA name"),
        (2, "IANA name"),
    ],
)
def test_unknown_zones_are_refused(tz: object, says: str) -> None:
    """A zone that does not exist is refused with the nearest names, for every kind of schedule."""
    with pytest.raises(InvalidValue, match=says):
        check_zone(tz)
    for text in ("* * * * *", "every 5m", "once 2026-01-01T00:00Z"):
        with pytest.raises(InvalidValue, match="time zone"):
            parse(text, tz=tz)  # type: ignore[arg-type]


def test_known_zones() -> None:
    """Names of the time zone database are zones, links and UTC included."""
    for tz in ("UTC", "Europe/Berlin", "US/Pacific", "Etc/GMT-2"):
        assert tz == check_zone(tz).key


def test_unknown_dst_policy_is_refused() -> None:
    """Only the two policies for clock changes exist."""
    with pytest.raises(InvalidValue, match="vixie"):
        parse("* * * * *", dst="posix")


def test_unknown_day_mode_is_refused() -> None:
    """Only the two ways to read the day fields exist, whatever the kind of schedule."""
    for text in ("* * * * *", "every 5m"):
        with pytest.raises(InvalidValue, match="both must match"):
            parse(text, day_mode="xor")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0  5 * * 1-5", "cron"),
        ("@daily", "cron"),
        ("every 5m", "every"),
        ("after PT5M", "after"),
        ("once 2026-01-01", "once"),
    ],
)
def test_text_and_kind(text: str, kind: str) -> None:
    """A schedule keeps its text as typed, but for blanks around it, knows its kind and survives a pickle."""
    schedule: Schedule = parse(f" {text}\n")
    assert (text, kind) == (schedule.text, schedule.kind)
    assert schedule.next_after(NOON) == pickle.loads(pickle.dumps(schedule)).next_after(NOON)
