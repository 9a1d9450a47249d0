"""`rrule:` schedules: the meaning of RFC 5545 in a time zone, held against python-dateutil."""

from __future__ import annotations

import pickle
import random
import time
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from celery_sched.rules.schedules.rrule import Rrule

SECOND = timedelta(seconds=1)
FAR = datetime(2998, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def instants(text: str, tz: str, start: str, n: int, **more: str) -> list[str]:
    found = between(parse(text, tz=tz, **more), at(start), FAR, n)  # type: ignore[arg-type]
    return [f"{instant:%Y-%m-%dT%H:%M:%SZ}" for instant in found]


# --- against python-dateutil -------------------------------------------------------------------------------

FREQUENCIES = ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
# How far from DTSTART the questions lie: python-dateutil enumerates all from there.
REACH = {"YEARLY": 20_000, "MONTHLY": 4000, "WEEKLY": 1500, "DAILY": 800, "HOURLY": 60, "MINUTELY": 3}
WALLS = st.datetimes(datetime(1970, 1, 2), datetime(2090, 1, 1)).map(lambda wall: wall.replace(microsecond=0))


@st.composite
def rules(draw: st.DrawFn) -> tuple[datetime, str]:
    """DTSTART and the other parts of a rule."""
    freq = draw(st.sampled_from(FREQUENCIES))
    parts = [f"FREQ={freq}"]
    if draw(st.booleans()):
        parts.append(f"INTERVAL={draw(st.integers(1, 100 if freq in FREQUENCIES[4:] else 7))}")

    def numbers(name: str, values: st.SearchStrategy[int], chance: int, most: int = 4) -> None:
        if draw(st.integers(1, chance)) == 1:
            chosen = draw(st.lists(values, min_size=1, max_size=most, unique=True))
            parts.append(f"{name}={','.join(map(str, chosen))}")

    def both(most: int) -> st.SearchStrategy[int]:
        return st.integers(1, most) | st.integers(-most, -1)

    numbers("BYMONTH", st.integers(1, 12), 4)
    numbers("BYMONTHDAY", both(31), 5)
    numbers("BYYEARDAY", both(366), 12)
    weeks = freq == "YEARLY" and draw(st.integers(1, 5)) == 1
    if weeks:
        numbers("BYWEEKNO", both(53), 1)
    if draw(st.integers(1, 3)) == 1:
        days = draw(st.lists(st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]), min_size=1))
        if freq in ("YEARLY", "MONTHLY") and not weeks:
            n = draw(st.sampled_from(["", "1", "+2", "3", "-1", "-2"]))
            days = [n + day for day in days]
        parts.append(f"BYDAY={','.join(days)}")
    numbers("BYHOUR", st.integers(0, 23), 3)
    numbers("BYMINUTE", st.integers(0, 59), 3)
    numbers("BYSECOND", st.integers(0, 59), 3)
    numbers("BYSETPOS", both(5), 4, 2)
    if draw(st.booleans()):
        parts.append(f"WKST={draw(st.sampled_from(['MO', 'SU', 'WE']))}")
    return draw(WALLS), ";".join(parts)


@settings(max_examples=150, deadline=None)
@given(rule=rules(), place=st.floats(0, 1))
def test_same_as_python_dateutil(rule: tuple[datetime, str], place: float) -> None:
    """Without clock changes the occurrences are python-dateutil's, from DTSTART and from later instants."""
    start, parts = rule
    try:
        schedule = parse(f"rrule:DTSTART={start:%Y%m%dT%H%M%S};{parts}")
    except InvalidValue as refusal:
        assert "never occurs" in str(refusal)
        return
    begin = start.replace(tzinfo=UTC) - SECOND
    horizon = start + timedelta(days=REACH.get(parts[5:].partition(";")[0], 0.1))
    found = [one.replace(tzinfo=None) for one in between(schedule, begin, FAR, 10)]
    # Those beyond the horizon python-dateutil would find only by walking there, through centuries at worst.
    found = [one for one in found if one <= horizon]
    oracle = rrulestr(f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{parts}")
    expected = list(islice(oracle, len(found)))
    assert expected == found
    if not expected:
        return
    later = start + (expected[-1] - start) * place
    following = [one for one in expected if one > later]
    again = between(schedule, later.replace(tzinfo=UTC), FAR, len(following))
    assert following == [one.replace(tzinfo=None) for one in again]


def test_years_and_weeks_far_from_dtstart() -> None:
    """Intervals keep their phase over decades, as python-dateutil counts them from DTSTART."""
    dice = random.Random(5)
    for parts in (
        "FREQ=YEARLY;INTERVAL=3;BYDAY=-1FR",
        "FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=-1",
        "FREQ=WEEKLY;INTERVAL=3;BYDAY=SU,MO;WKST=SU",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;BYSETPOS=-1",
        "FREQ=DAILY;INTERVAL=10",
        "FREQ=HOURLY;INTERVAL=7;BYMINUTE=5,10;BYSETPOS=-1",
    ):
        oracle = rrulestr(f"DTSTART:19970902T090000\nRRULE:{parts}")
        schedule = parse(f"rrule:DTSTART=19970902T090000;{parts}")
        for _ in range(4):
            when = datetime(2000, 1, 1) + timedelta(days=dice.randrange(3650), seconds=dice.randrange(86400))
            found = schedule.next_after(when.replace(tzinfo=UTC))
            assert found is not None
            assert oracle.after(when) == found.replace(tzinfo=None), parts


def test_positions_in_the_first_week() -> None:
    """BYSETPOS counts in the first week from DTSTART on, as python-dateutil does; then in whole weeks."""
    expected = ["2026-03-04T00:00:00Z", "2026-03-09T00:00:00Z", "2026-03-16T00:00:00Z"]
    text = "rrule:DTSTART=20260304;FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=1"
    assert expected == instants(text, "UTC", "2026-01-01T00:00Z", 3)
    oracle = rrulestr("DTSTART:20260304T000000\nRRULE:FREQ=WEEKLY;BYDAY=MO,WE,FR;BYSETPOS=1")
    assert expected == [f"{one:%Y-%m-%dT%H:%M:%SZ}" for one in islice(oracle, 3)]


# --- time zones --------------------------------------------------------------------------------------------

NIGHT = "FREQ=DAILY;BYHOUR=2;BYMINUTE=30;BYSECOND=0"
CHANGES = [
    ("Europe/Berlin", NIGHT, "2026-03-28T12:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
    ("Europe/Berlin", NIGHT, "2026-10-24T12:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    (
        "America/New_York",
        "FREQ=HOURLY;BYMINUTE=15,45;BYSECOND=0",
        "2026-03-08T06:40Z",
        ["2026-03-08T06:45:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:15:00Z", "2026-03-08T07:45:00Z"],
    ),
    (
        "America/New_York",
        "FREQ=HOURLY;BYMINUTE=0;BYSECOND=0",
        "2026-11-01T04:30Z",
        ["2026-11-01T05:00:00Z", "2026-11-01T07:00:00Z", "2026-11-01T08:00:00Z"],
    ),
    (
        "Australia/Lord_Howe",
        "FREQ=DAILY;BYHOUR=2;BYMINUTE=0,20;BYSECOND=0",
        "2026-10-03T12:00Z",
        ["2026-10-03T15:30:00Z", "2026-10-04T15:00:00Z", "2026-10-04T15:20:00Z"],
    ),
    (
        "Pacific/Apia",
        "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0",
        "2011-12-29T00:00Z",
        ["2011-12-29T19:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T19:00:00Z"],
    ),
]


@pytest.mark.parametrize(("tz", "rule", "start", "expected"), CHANGES)
def test_across_clock_changes(tz: str, rule: str, start: str, expected: list[str]) -> None:
    """What falls into a gap is due once right after it; what is repeated is due on the first pass only."""
    assert expected == instants(f"rrule:{rule}", tz, start, len(expected))


def test_literal_makes_nothing_up() -> None:
    """With dst="literal" what falls into a gap is not due at all."""
    expected = ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"]
    assert expected == instants(f"rrule:{NIGHT}", "Europe/Berlin", "2026-03-27T12:00Z", 2, dst="literal")


def first_instants(zone: ZoneInfo, walls: list[datetime]) -> list[datetime]:
    """The oracle: the first minute at which the zone's clocks have got to each of the rising wall times."""
    found: list[datetime] = []
    instant = walls[0].replace(tzinfo=UTC) - timedelta(days=2)
    for wall in walls:
        while instant.astimezone(zone).replace(tzinfo=None) < wall:
            instant += timedelta(minutes=1)
        found.append(instant)
    return found


@pytest.mark.parametrize("make_good", [True, False])
@pytest.mark.parametrize(
    ("tz", "around"),
    [
        ("Europe/Berlin", "2026-03-29T00:00"),
        ("Europe/Berlin", "2026-10-25T00:00"),
        ("Australia/Lord_Howe", "2026-04-05T00:00"),
        ("Australia/Lord_Howe", "2026-10-04T00:00"),
        ("America/Havana", "2026-03-08T00:00"),
        ("Pacific/Apia", "2011-12-30T12:00"),
        ("America/Santiago", "2026-09-06T00:00"),
        ("Pacific/Kwajalein", "1993-08-21T12:00"),
    ],
)
@pytest.mark.parametrize("rule", ["FREQ=HOURLY;BYMINUTE=0,20,50", "FREQ=DAILY;BYHOUR=0,2,23;BYMINUTE=30"])
def test_all_wall_times_of_a_change(tz: str, around: str, rule: str, make_good: bool) -> None:
    """Around a change the instants are those of python-dateutil's wall times, converted one by one."""
    zone, middle = ZoneInfo(tz), at(around)
    start = middle - timedelta(days=2)
    walls = rrulestr(f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}").between(
        start, middle + timedelta(days=2)
    )
    expected = list(zip(first_instants(zone, walls), walls, strict=True))
    if not make_good:
        expected = [pair for pair in expected if pair[0].astimezone(zone).replace(tzinfo=None) == pair[1]]
    want = sorted({instant for instant, _ in expected})
    schedule = parse(
        f"rrule:DTSTART={start:%Y%m%dT%H%M%S};{rule}", tz=tz, dst="vixie" if make_good else "literal"
    )
    begin = want[0] - SECOND
    assert want == between(schedule, begin, want[-1], 1000)
    for size in (1, len(want) // 2, len(want)):
        until = want[size - 1]
        assert size == count_in(schedule, begin, until)
        assert until == latest_in(schedule, begin, until + SECOND / 2)
        assert 0 == count_in(schedule, until, until)
    # From anywhere, in the second pass of a repeated hour too, the answers are those of the list.
    instant = begin
    while instant < want[-1]:
        passed = bisect_right(want, instant)
        assert want[passed] == schedule.next_after(instant)
        assert passed == count_in(schedule, begin, instant)
        assert (want[passed - 1] if passed else None) == latest_in(schedule, begin, instant)
        instant += timedelta(minutes=17)


TEXTS = [
    "rrule:FREQ=MINUTELY;INTERVAL=7",
    "rrule:FREQ=HOURLY;BYMINUTE=0,30",
    "rrule:FREQ=DAILY;BYHOUR=0,1,2,3;BYMINUTE=15",
    "rrule:DTSTART=20260301T020000;FREQ=HOURLY;INTERVAL=5;COUNT=100",
    "rrule:FREQ=WEEKLY;BYDAY=MO,SU;BYHOUR=2;UNTIL=20260329T010000Z",
    "rrule:FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1,-1;BYHOUR=2",
]


@pytest.mark.parametrize("dst", ["vixie", "literal"])
@settings(deadline=None)
@given(
    text=st.sampled_from(TEXTS),
    tz=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Europe/Berlin"]),
    after=st.datetimes(datetime(2026, 3, 1), datetime(2026, 4, 10), timezones=st.just(UTC)),
    length=st.timedeltas(timedelta(0), timedelta(days=9)),
)
def test_spans_agree_with_the_list(dst: str, text: str, tz: str, after: datetime, length: timedelta) -> None:
    """The list of a span rises inside (after, until]; latest_in and count_in are its end and length."""
    schedule, until = parse(text, tz=tz, dst=dst), after + length
    found = between(schedule, after, until, 10**6)
    assert sorted(set(found)) == found
    assert all(after < instant <= until for instant in found)
    assert (found[-1] if found else None) == latest_in(schedule, after, until)
    assert len(found) == count_in(schedule, after, until)


# --- begin, end, cost --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "rrule:DTSTART:20260101T090000\nRRULE:FREQ=DAILY;INTERVAL=2",
        "rrule:DTSTART:20260101T090000\\nRRULE:FREQ=DAILY;INTERVAL=2",
        "RRULE:dtstart=20260101T090000;freq=daily;interval=2",
        "rrule: DTSTART;TZID=Europe/Berlin:20260101T090000 RRULE:FREQ=DAILY;INTERVAL=2;",
        "rrule:RRULE:FREQ=DAILY; INTERVAL=2; DTSTART=20260101T080000Z",
    ],
)
def test_ways_to_write_dtstart(text: str) -> None:
    """DTSTART has its own line or is one of the parts, local or with Z; nothing is due before it."""
    expected = ["2026-01-01T08:00:00Z", "2026-01-03T08:00:00Z"]
    assert expected == instants(text, "Europe/Berlin", "2020-01-01T00:00Z", 2)
    assert "rrule" == parse(text, tz="Europe/Berlin").kind


def test_the_anchor_is_the_start_of_a_rule_without_one() -> None:
    """Without DTSTART a rule begins at the anchor, in the zone, fractions dropped; else at the Unix epoch."""
    anchor = at("2026-06-01T10:20:30.987654Z")
    schedule = parse("rrule:FREQ=DAILY;INTERVAL=2", tz="Europe/Berlin", anchor=anchor)
    assert at("2026-06-01T10:20:30Z") == schedule.next_after(at("2026-01-01T00:00Z"))
    assert at("2026-06-03T10:20:30Z") == schedule.next_after(anchor)
    assert ["1970-01-01T00:00:00Z"] == instants("rrule:FREQ=YEARLY", "UTC", "1969-01-01T00:00Z", 1)


@pytest.mark.parametrize(
    ("end", "last", "n"),
    [
        ("COUNT=3", "2026-03-30T00:30:00Z", 3),
        ("UNTIL=20260330T023000", "2026-03-30T00:30:00Z", 3),
        ("UNTIL=20260330T003000Z", "2026-03-30T00:30:00Z", 3),
        ("UNTIL=20260330T002959Z", "2026-03-29T01:00:00Z", 2),
        ("UNTIL=20260329T010000Z", "2026-03-29T01:00:00Z", 2),
        ("UNTIL=20260329T005959Z", "2026-03-28T01:30:00Z", 1),
        ("UNTIL=20260330", "2026-03-29T01:00:00Z", 2),
    ],
)
def test_rules_end(end: str, last: str, n: int) -> None:
    """COUNT and UNTIL end a rule, UNTIL inclusively; a date as UNTIL is the start of that day."""
    text = f"rrule:DTSTART=20260328T023000;FREQ=DAILY;{end}"
    found = instants(text, "Europe/Berlin", "2026-01-01T00:00Z", 10)
    assert (n, last) == (len(found), found[-1])
    schedule = parse(text, tz="Europe/Berlin")
    assert n == count_in(schedule, at("2026-01-01T00:00Z"), FAR)
    assert at(last) == latest_in(schedule, at("2026-01-01T00:00Z"), FAR)
    assert schedule.next_after(at(last)) is None
    assert latest_in(schedule, at(last), FAR) is None


def test_the_end_of_a_long_count() -> None:
    """The highest COUNT ends exactly there."""
    schedule = parse("rrule:DTSTART=20000101T000000;FREQ=MINUTELY;INTERVAL=11;COUNT=100000")
    last = at("2000-01-01T00:00Z") + 99_999 * timedelta(minutes=11)
    assert last == latest_in(schedule, at("1990-01-01T00:00Z"), FAR)
    assert 100_000 == count_in(schedule, at("1990-01-01T00:00Z"), FAR)


def test_at_the_ends_of_time() -> None:
    """Far before and after the years of schedules there is an answer, not an error."""
    schedule = parse("rrule:FREQ=DAILY", tz="Asia/Tokyo")
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert at("1970-01-01T00:00Z") == schedule.next_after(datetime.min.replace(tzinfo=UTC))
    assert 0 == count_in(schedule, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))


def test_a_year_of_minutes_is_counted_not_listed() -> None:
    """Only the years asked about are looked at, however long ago the rule began and however dense it is."""
    for rule, step in (("FREQ=MINUTELY", 60), ("FREQ=SECONDLY;INTERVAL=7", 7)):
        schedule = parse(f"rrule:DTSTART=19700101T000000;{rule}")
        assert isinstance(schedule, Rrule)
        start, end = at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")
        many = int(end.timestamp()) // step - int(start.timestamp()) // step
        assert many == count_in(schedule, start, end)
        latest = latest_in(schedule, start, end)
        assert latest is not None
        assert end - timedelta(seconds=step) < latest <= end
        assert {1970, 2026, 2027} >= set(schedule.walls._years)


def test_rules_that_never_occur_are_refused() -> None:
    """An impossible date is refused, at little more than what it costs to count 400 years of days."""
    begin = time.perf_counter()
    count_in(parse("rrule:FREQ=DAILY"), at("2000-01-01T00:00Z"), at("2400-01-01T00:00Z"))
    counted = time.perf_counter() - begin
    for freq in FREQUENCIES:
        begin = time.perf_counter()
        with pytest.raises(InvalidValue, match="never occurs"):
            parse(f"rrule:FREQ={freq};BYMONTH=2;BYMONTHDAY=30")
        assert time.perf_counter() - begin < 20 * counted


@pytest.mark.parametrize(
    "rule",
    [
        "DTSTART=20260101T000000;FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
        "DTSTART=20260101T100000;FREQ=HOURLY;INTERVAL=24;BYHOUR=9",
        "DTSTART=20260101T100000;FREQ=DAILY;UNTIL=20251231T000000",
        "FREQ=DAILY;BYSETPOS=2",
    ],
)
def test_never_because_of_dtstart(rule: str) -> None:
    """A rule that its own beginning, interval or end leaves empty is refused too."""
    with pytest.raises(InvalidValue, match="never occurs"):
        parse(f"rrule:{rule}")


@pytest.mark.parametrize(
    ("rule", "hits", "misses"),
    [
        ("FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29", "2024-05-01T00:00Z", "2026-05-01T00:00Z"),
        ("FREQ=HOURLY;INTERVAL=24;BYHOUR=9", "2026-01-01T09:30Z", "2026-01-01T10:30Z"),
        ("FREQ=MONTHLY;INTERVAL=12;BYMONTH=3", "2026-03-05T00:00Z", "2026-04-05T00:00Z"),
        ("FREQ=YEARLY;BYMONTH=2", "2026-01-29T00:00Z", "2026-01-30T00:00Z"),
    ],
)
def test_a_rule_that_only_some_anchors_leave_empty(rule: str, hits: str, misses: str) -> None:
    """Without DTSTART the anchor decides: before it is known the rule is taken, with it the truth is told."""
    parse(f"rrule:{rule}")
    assert parse(f"rrule:{rule}", anchor=at(hits)).next_after(at(hits)) is not None
    with pytest.raises(InvalidValue, match=r"never occurs.*no DTSTART"):
        parse(f"rrule:{rule}", anchor=at(misses))


@pytest.mark.parametrize("rule", ["FREQ=DAILY;BYSETPOS=2", "FREQ=YEARLY;INTERVAL=3;BYMONTH=4;BYMONTHDAY=31"])
def test_a_rule_that_every_anchor_leaves_empty(rule: str) -> None:
    """What no anchor makes occur is refused before the anchor is known, and with any."""
    for anchor in (None, *(datetime(2024, month, 29, 9, tzinfo=UTC) for month in range(1, 13))):
        with pytest.raises(InvalidValue, match="never occurs"):
            parse(f"rrule:{rule}", anchor=anchor)


@settings(max_examples=100, deadline=None)
@given(rule=rules(), anchor=WALLS)
def test_nothing_refused_without_an_anchor_has_occurrences_with_one(
    rule: tuple[datetime, str], anchor: datetime
) -> None:
    """A refusal at entry, where the anchor is not known, is right for every anchor that a job may get."""
    try:
        parse(f"rrule:{rule[1]}")
    except InvalidValue:
        with pytest.raises(InvalidValue, match="never occurs"):
            parse(f"rrule:{rule[1]}", anchor=anchor.replace(tzinfo=UTC))


def test_rare_dates() -> None:
    """29 February over 2100, and Friday the 13th."""
    expected = ["2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"]
    assert expected == instants("rrule:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29", "UTC", "2095-01-01T00:00Z", 2)
    expected = ["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z", "2026-11-13T00:00:00Z"]
    assert expected == instants("rrule:FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "UTC", "2026-01-01T00:00Z", 3)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("", "no part of an rrule"),
        ("FREQ", "FREQ has no value"),
        ("BYHOUR=9", "FREQ is missing"),
        ("FREQ=FORTNIGHTLY", "FREQ=FORTNIGHTLY is not one of YEARLY"),
        ("FREQ=DAILY;BYDAYS=MO", "BYDAYS.*Did you mean BYDAY"),
        ("FREQ=DAILY;BYEASTER=1", "BYEASTER"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR takes whole numbers 0 to 23, not '24'"),
        ("FREQ=DAILY;BYHOUR=9,", "BYHOUR"),
        ("FREQ=DAILY;BYMINUTE=x", "BYMINUTE"),
        ("FREQ=DAILY;BYSECOND=60", "BYSECOND"),
        ("FREQ=DAILY;BYMONTH=0", "BYMONTH"),
        ("FREQ=DAILY;BYMONTH=-1", "BYMONTH"),
        ("FREQ=DAILY;BYMONTHDAY=32", "BYMONTHDAY"),
        ("FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY"),
        ("FREQ=YEARLY;BYYEARDAY=-367", "BYYEARDAY"),
        ("FREQ=YEARLY;BYWEEKNO=54", "BYWEEKNO"),
        ("FREQ=MONTHLY;BYSETPOS=0", "BYSETPOS"),
        ("FREQ=MONTHLY;BYDAY=6MO", "BYDAY.*1 to 5"),
        ("FREQ=MONTHLY;BYDAY=0MO", "BYDAY"),
        ("FREQ=MONTHLY;BYDAY=XX", "BYDAY"),
        ("FREQ=WEEKLY;BYDAY=1MO", "BYDAY=1MO needs FREQ=MONTHLY"),
        ("FREQ=WEEKLY;WKST=XX", "WKST"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;INTERVAL=1.5", "INTERVAL"),
        ("FREQ=DAILY;COUNT=0", "COUNT"),
        ("FREQ=DAILY;COUNT=100001", "COUNT takes whole numbers 1 to 100000"),
        ("FREQ=DAILY;COUNT=1;UNTIL=20260101", "COUNT and UNTIL"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
        ("FREQ=DAILY;UNTIL=20260230", "UNTIL.*No such date"),
        ("FREQ=DAILY;UNTIL=99991231", "UNTIL.*2999"),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ is given twice"),
        ("DTSTART:20260101T090000\nRRULE:FREQ=DAILY;DTSTART=20260101", "DTSTART is given twice"),
        ("DTSTART:20260101T250000\nRRULE:FREQ=DAILY", "DTSTART"),
        ("DTSTART;TZID=Asia/Tokyo:20260101T090000\nRRULE:FREQ=DAILY", "TZID=Asia/Tokyo"),
        ("DTSTART;X=1:20260101T090000\nRRULE:FREQ=DAILY", "no option of DTSTART"),
        ("RRULE:FREQ=DAILY\nEXDATE:20260101T090000", "EXDATE"),
        ("FREQ=DAILY;BYHOUR=" + ",".join(["9"] * 1000), "1000 characters"),
    ],
)
def test_refused(rule: str, says: str) -> None:
    """A bad rule is refused with the part at fault."""
    with pytest.raises(InvalidValue, match=says):
        parse(f"rrule:{rule}")


def test_text_and_pickle() -> None:
    """The text is kept as typed; a pickled rule answers the same."""
    schedule = parse(" rrule:FREQ=DAILY;BYHOUR=9 \n", tz="Asia/Tokyo")
    assert "rrule:FREQ=DAILY;BYHOUR=9" == schedule.text
    now = at("2026-03-01T12:00Z")
    assert schedule.next_after(now) == pickle.loads(pickle.dumps(schedule)).next_after(now)
    with pytest.raises(InvalidValue, match="no time zone"):
        schedule.next_after(datetime(2026, 3, 1))
