"""Jitter and windows against what enumeration gives: nothing comes early, twice or past the next one."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.model import Misfire
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.misfire import decide
from celery_sched.rules.schedules import between, parse
from celery_sched.rules.schedules.bounded import Bounded

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
START = datetime(2026, 3, 28, 20, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
TEXTS = (
    "* * * * *",
    "*/7 1-3 * * *",
    "30 2 * * *",
    "every 13m",
    "every 1h | 5 * * * *",
    "once 2026-03-29T01:30Z",
)
texts = st.sampled_from(TEXTS)
amounts = st.sampled_from([None, INSTANT, SECOND, 59 * SECOND, 10 * MINUTE, 3 * DAY])
instants = st.integers(0, 2 * 86_400 * 10**6).map(lambda n: START + n * INSTANT)


def jitter(text: str, amount: timedelta | None, name: str = "job") -> Jitter:
    return Jitter(parse(text, tz="Europe/Berlin", anchor=START), name, amount)


@given(texts, amounts)
def test_due_lies_between_an_occurrence_and_the_next(text: str, amount: timedelta | None) -> None:
    """Never early, never later than the jitter allows, never at or past the next occurrence."""
    times = jitter(text, amount)
    occurrences = between(times.schedule, START, START + DAY, 60)
    for occurrence in occurrences:
        due, following = times.due(occurrence), times.schedule.next_after(occurrence)
        assert occurrence <= due <= occurrence + (amount or timedelta(0))
        assert following is None or due < following
        assert occurrence == times.occurrence_of(due)


@given(texts, amounts, instants)
def test_decided_is_what_enumeration_says(text: str, amount: timedelta | None, now: datetime) -> None:
    """The occurrences up to `decided(now)` are exactly those that are due by now."""
    times = jitter(text, amount)
    known = between(times.schedule, START - DAY, now, 10_000)
    due = [occurrence for occurrence in known if times.due(occurrence) <= now]
    assert due == [occurrence for occurrence in known if occurrence <= times.decided(now)]


@given(texts, amounts, st.lists(instants, min_size=1, max_size=40), st.sampled_from(Misfire))
def test_every_occurrence_is_decided_once(
    text: str, amount: timedelta | None, looks: list[datetime], policy: Misfire
) -> None:
    """Whenever schedulers look, each occurrence runs, is missed, or is in a gap exactly once, in order."""
    times = jitter(text, amount)
    first = times.schedule.next_after(START)
    assert first is not None
    due_at: datetime | None = times.due(first)
    mark: datetime | None = None
    decided: list[datetime] = []
    for now in sorted(looks):
        while due_at is not None and due_at <= now:
            due = decide(
                times.schedule,
                policy=policy,
                grace=None,
                catchup_window=365 * DAY,
                due_at=due_at,
                mark=mark,
                now=now,
                most=50,
                jitter=times,
            )
            for gap in [] if due.gap is None else [due.gap]:
                inside = [gap.first, *between(times.schedule, gap.first, gap.last, 10_000)]
                assert gap.count == len(inside)
                decided += inside
            decided += sorted({*due.missed, *due.run})
            mark, due_at = due.mark, due.next_run_at
    expected = [
        occurrence
        for occurrence in between(times.schedule, START, max(looks), 10_000)
        if times.due(occurrence) <= max(looks)
    ]
    assert expected == decided


def test_jitter_spreads_and_stays() -> None:
    """A thousand jobs of one instant spread over the ten minutes evenly; another process says the same."""
    occurrence = datetime(2026, 1, 1, tzinfo=UTC)
    names = [f"job-{n}" for n in range(1000)]
    minutes = [(jitter("@daily", 10 * MINUTE, name).due(occurrence).minute) for name in names]
    counts = [minutes.count(minute) for minute in range(10)]
    assert all(70 <= count <= 130 for count in counts), counts
    code = (
        "from datetime import *; from celery_sched.rules.jitter import Jitter\n"
        "from celery_sched.rules.schedules import parse\n"
        "print(Jitter(parse('@daily', tz='Europe/Berlin'), 'job-7', timedelta(minutes=10))"
        ".due(datetime(2026, 1, 1, tzinfo=UTC)).isoformat())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert jitter("@daily", 10 * MINUTE, "job-7").due(occurrence).isoformat() == said.stdout.strip()


bounds = st.one_of(st.none(), instants)


@given(texts, bounds, bounds, instants, instants)
def test_a_window_is_what_enumeration_leaves(
    text: str, start: datetime | None, end: datetime | None, one: datetime, other: datetime
) -> None:
    """Both ends belong to the window; next, last and count agree with the occurrences inside it."""
    base = parse(text, tz="Europe/Berlin", anchor=START)
    bounded = Bounded(base, start, end)
    after, until = min(one, other), max(one, other)
    inside = [
        occurrence
        for occurrence in between(base, START - DAY, START + 4 * DAY, 10_000)
        if (start is None or start <= occurrence) and (end is None or occurrence <= end)
    ]
    within = [occurrence for occurrence in inside if after < occurrence <= until]
    assert within == between(bounded, after, until, 10_000)
    assert len(within) == bounded.count_in(after, until)
    assert (within[-1] if within else None) == bounded.latest_in(after, until)
    later = [occurrence for occurrence in inside if occurrence > after]
    if later:
        assert later[0] == bounded.next_after(after)


@pytest.mark.parametrize("start", [START, START + 90 * MINUTE])
def test_an_after_schedule_in_a_window(start: datetime) -> None:
    """`after` counts from the instant given, but never before the start; past the end there is none."""
    bounded = Bounded(parse("after 1h"), start, START + 3 * HOUR)
    assert max(START + HOUR, start) == bounded.next_after(START)
    assert None is bounded.next_after(START + 2 * HOUR + SECOND)
