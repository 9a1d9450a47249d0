"""What holds for every cron expression, Quartz's too, and for every union: order, truth, completeness."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import Schedule, between, count_in, latest_in, parse
from tests.unit.cron_compare import random_schedule
from tests.unit.cron_oracle import Rule, Window

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
# Days of clock changes: forward, back, half an hour, at midnight, a calendar day left out, three hours.
DAYS = [
    ("Europe/Berlin", "2026-03-29"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("America/Havana", "2026-03-08"),
    ("Pacific/Apia", "2011-12-30"),
    ("Antarctica/Casey", "2018-10-06"),
    ("UTC", "2026-02-28"),
]


@st.composite
def questions(draw: st.DrawFn) -> tuple[Schedule, list[Rule], Window, str]:
    """A schedule, what it should mean, two or three days around a clock change, and the policy for it."""
    zone, day = draw(st.sampled_from(DAYS))
    start = datetime.fromisoformat(f"{day}T00:00Z") - timedelta(minutes=draw(st.integers(0, 2880)))
    dst, day_mode = draw(st.sampled_from(["vixie", "vixie", "literal"])), draw(st.sampled_from(["or", "and"]))
    text, rules = random_schedule(random.Random(draw(st.integers(0, 10**9))), day_mode)
    try:
        schedule = parse(text, tz=zone, dst=dst, day_mode=day_mode)
    except InvalidValue:
        assume(False)
    return schedule, rules, Window(zone, start, 2), dst


def allowed(rule: Rule, wall: datetime) -> bool:
    """Does the clock show a time that the rule has?"""
    return (
        wall.second in rule.seconds
        and wall.minute in rule.minutes
        and wall.hour in rule.hours
        and rule.on_day(date(wall.year, wall.month, wall.day))
    )


@settings(max_examples=150, deadline=None)
@given(question=questions())
def test_instants_rise_and_are_true(question: tuple[Schedule, list[Rule], Window, str]) -> None:
    """Strictly rising, and never at a local time that the expression excludes except right after a gap."""
    schedule, rules, window, dst = question
    found = between(schedule, window.start - SECOND, window.end - SECOND, 10**6)
    assert all(earlier < later for earlier, later in pairwise(found))
    forward = [
        change
        for change in window.changes
        if (change - MINUTE).astimezone(ZoneInfo(window.zone)).utcoffset()
        < change.astimezone(ZoneInfo(window.zone)).utcoffset()  # type: ignore[operator]
    ]
    for instant in found:
        wall = instant.astimezone(ZoneInfo(window.zone)).replace(tzinfo=None)
        made_good = dst == "vixie" and any(timedelta(0) <= instant - change < MINUTE for change in forward)
        assert made_good or any(allowed(rule, wall) for rule in rules), (schedule.text, instant)


@settings(max_examples=100, deadline=None)
@given(question=questions())
def test_nothing_is_skipped(question: tuple[Schedule, list[Rule], Window, str]) -> None:
    """Every real minute that a look at each of them finds due is there."""
    schedule, rules, window, dst = question
    expected = {
        window.start + minute * MINUTE + second * SECOND
        for rule in rules
        for minute in window.due(rule, literal=dst == "literal")
        for second in rule.seconds
    }
    assert sorted(expected) == between(schedule, window.start - SECOND, window.end - SECOND, 10**6)


@settings(max_examples=150, deadline=None)
@given(
    question=questions(),
    after=st.timedeltas(timedelta(0), timedelta(days=2)),
    length=st.timedeltas(timedelta(0), timedelta(hours=9)),
)
def test_the_latest_and_the_number_are_those_of_the_list(
    question: tuple[Schedule, list[Rule], Window, str], after: timedelta, length: timedelta
) -> None:
    """latest_in and count_in say of any span, microseconds included, what listing it says."""
    schedule, _, window, _ = question
    begin = window.start + after
    found = between(schedule, begin, begin + length, 10**6)
    assert len(found) == count_in(schedule, begin, begin + length)
    assert (found[-1] if found else None) == latest_in(schedule, begin, begin + length)
    following = schedule.next_after(begin)
    inside = following is not None and following <= begin + length
    assert (found[0] if found else None) == (following if inside else None)
