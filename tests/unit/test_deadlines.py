"""Deadlines: which occurrence must have succeeded by when, in days of every kind; and ages."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules import deadlines
from celery_sched.rules.deadlines import Deadline
from celery_sched.rules.definition import checked
from celery_sched.rules.schedules.base import between
from celery_sched.rules.upcoming import jitter_for

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def passed(
    by: str,
    now: str,
    *,
    schedule: str = "0 2 * * *",
    tz: str = "UTC",
    since: datetime = LONG_AGO,
    last_success: datetime | None = None,
    **fields: object,
) -> Deadline | None:
    job = checked(name="job", task="t", schedule=schedule, timezone=tz, **fields)
    return deadlines.passed(
        by, jitter_for(job, LONG_AGO), ZoneInfo(tz), at(now), since=since, last_success=last_success
    )


@pytest.mark.parametrize(
    ("by", "schedule", "tz", "now", "deadline", "occurrence"),
    [
        # nightly at two, by six
        ("06:00", "0 2 * * *", "UTC", "2026-01-05T06:00:00.000001Z", "2026-01-05T06Z", "2026-01-05T02Z"),
        ("06:00", "0 2 * * *", "UTC", "2026-01-05T06:00:00Z", "2026-01-04T06Z", "2026-01-04T02Z"),
        ("06:00", "0 2 * * *", "UTC", "2026-01-05T03:00:00Z", "2026-01-04T06Z", "2026-01-04T02Z"),
        # in the zone of the job
        ("06:00", "0 2 * * *", BERLIN, "2026-01-05T05:30Z", "2026-01-05T05Z", "2026-01-05T01Z"),
        ("06:00", "0 2 * * *", "Asia/Tokyo", "2026-01-05T00:00Z", "2026-01-04T21Z", "2026-01-04T17Z"),
        # in the evening before the deadline: the next day's
        ("06:00", "0 22 * * *", "UTC", "2026-01-05T12:00Z", "2026-01-05T06Z", "2026-01-04T22Z"),
        # several before one deadline: the last
        ("06:00", "0 1,3,5 * * *", "UTC", "2026-01-05T12:00Z", "2026-01-05T06Z", "2026-01-05T05Z"),
        ("06:00", "*/5 * * * *", "UTC", "2026-01-05T12:00Z", "2026-01-05T06Z", "2026-01-05T05:55Z"),
        # due when the deadline passes: by the next one
        ("06:00", "0 6 * * *", "UTC", "2026-01-05T12:00Z", "2026-01-05T06Z", "2026-01-04T06Z"),
        # on Saturdays nothing is due, so Friday's is still the last one
        ("06:00", "0 2 * * 1-5", "UTC", "2026-01-04T12:00Z", "2026-01-02T06Z", "2026-01-02T02Z"),
        ("06:00", "0 2 * * 1-5", "UTC", "2026-01-05T06:01Z", "2026-01-05T06Z", "2026-01-05T02Z"),
        # once a month
        ("06:00", "0 2 1 * *", "UTC", "2026-01-25T12:00Z", "2026-01-01T06Z", "2026-01-01T02Z"),
        # the clocks go forward: 02:30 does not exist, the deadline is at 03:00 CEST
        ("02:30", "0 1 * * *", BERLIN, "2026-03-29T01:00:01Z", "2026-03-29T01Z", "2026-03-29T00Z"),
        ("02:30", "0 1 * * *", BERLIN, "2026-03-29T01:00:00Z", "2026-03-28T01:30Z", "2026-03-28T00Z"),
        # they go back: 02:30 is there twice, the first is meant
        ("02:30", "0 1 * * *", BERLIN, "2026-10-25T00:30:01Z", "2026-10-25T00:30Z", "2026-10-24T23Z"),
        # and after a change a day has 23 or 25 hours
        ("06:00", "0 2 * * *", BERLIN, "2026-03-29T04:00:01Z", "2026-03-29T04Z", "2026-03-29T01Z"),
        ("06:00", "30 1 * * *", BERLIN, "2026-10-25T05:00:01Z", "2026-10-25T05Z", "2026-10-24T23:30Z"),
        # a zone that left out a whole day
        ("06:00", "0 2 * * *", "Pacific/Apia", "2011-12-30T18:00Z", "2011-12-30T16Z", "2011-12-30T12Z"),
    ],
)
def test_times_of_day(by: str, schedule: str, tz: str, now: str, deadline: str, occurrence: str) -> None:
    """The last deadline with an occurrence before it, and that occurrence."""
    since = datetime(2011, 1, 1, tzinfo=UTC)
    found = passed(by, now, schedule=schedule, tz=tz, since=since)
    assert Deadline(at(deadline), at(occurrence)) == found


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2026-01-05T02:00:00Z", None),  # an occurrence in the moment in which it is made is not planned
        ("2026-01-05T01:59:59Z", Deadline(at("2026-01-05T06Z"), at("2026-01-05T02Z"))),
        ("2026-01-05T03:00:00Z", None),  # made, or resumed, after its occurrence: not today's
    ],
)
def test_what_came_before_it_was_watched(since: str, expected: Deadline | None) -> None:
    """Only occurrences after a job was made, or resumed, must have succeeded."""
    assert expected == passed("06:00", "2026-01-05T06:01Z", since=at(since))


def test_excluded_days_have_no_deadline() -> None:
    """An occurrence that a calendar excludes is none, so its day asks for nothing."""
    found = passed("06:00", "2026-01-06T12:00Z", exclude=["dates: 2026-01-05, 2026-01-06"])
    assert Deadline(at("2026-01-04T06Z"), at("2026-01-04T02Z")) == found


def test_jitter_counts() -> None:
    """A run that is due later by its jitter, after the deadline even, belongs to the deadline after that."""
    job = checked(name="job", task="t", schedule="59 5 * * *", jitter="1h")
    times = jitter_for(job, LONG_AGO)
    occurrence = at("2026-01-05T05:59Z")
    assert times.due(occurrence) > at("2026-01-05T06:00Z")  # else this test says nothing
    found = deadlines.passed(
        "06:00", times, ZoneInfo("UTC"), at("2026-01-05T12:00Z"), since=LONG_AGO, last_success=None
    )
    assert found is not None and occurrence - timedelta(days=1) == found.occurrence
    after = deadlines.passed(
        "06:00", times, ZoneInfo("UTC"), at("2026-01-06T06:01Z"), since=LONG_AGO, last_success=None
    )
    assert Deadline(at("2026-01-06T06Z"), occurrence) == after


@pytest.mark.parametrize(
    ("since", "last_success", "now", "expected"),
    [
        ("2026-01-01T00:00Z", None, "2026-01-02T01:00:00Z", None),
        ("2026-01-01T00:00Z", None, "2026-01-02T01:00:01Z", "2026-01-02T01:00Z"),
        ("2026-01-01T00:00Z", "2026-01-01T12:00Z", "2026-01-02T12:00:00Z", None),
        ("2026-01-01T00:00Z", "2026-01-01T12:00Z", "2026-01-02T13:00:01Z", "2026-01-02T13:00Z"),
        ("2026-01-02T00:00Z", "2025-12-01T12:00Z", "2026-01-02T13:00:00Z", None),
        ("2026-01-02T00:00Z", "2025-12-01T12:00Z", "2026-01-03T01:00:01Z", "2026-01-03T01:00Z"),
    ],
)
def test_ages(since: str, last_success: str | None, now: str, expected: str | None) -> None:
    """It counts from the last success, or from when it was made or resumed, whichever is later."""
    success = None if last_success is None else at(last_success)
    for schedule in ("0 2 * * *", "after 5m"):
        found = passed("25h", now, schedule=schedule, since=at(since), last_success=success)
        assert (None if expected is None else Deadline(at(expected), None)) == found


def test_an_hour_of_a_changing_day_is_an_hour() -> None:
    """An age is a length of time, whatever the clocks do."""
    success = at("2026-03-28T12:00+01:00")
    assert passed("24h", "2026-03-29T12:59:59+02:00", tz=BERLIN, last_success=success) is None
    found = passed("24h", "2026-03-29T13:00:01+02:00", tz=BERLIN, last_success=success)
    assert Deadline(at("2026-03-29T13:00+02:00"), None) == found


@pytest.mark.parametrize("schedule", ["after 5m", "none"])
def test_a_time_of_day_needs_occurrences(schedule: str) -> None:
    """Where nobody knows when a job runs, only an age can be missed, and the message says so."""
    with pytest.raises(InvalidValue, match=r"must_succeed_by '06:00' is refused: an age such as '25h'"):
        checked(name="job", task="t", schedule=schedule, must_succeed_by="06:00")
    assert "1d1h" == checked(name="job", task="t", schedule=schedule, must_succeed_by="25h").must_succeed_by


ZONES = ["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"]


def _first_instant(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first minute at which the clocks of a zone show a time, or a later one: found by looking."""
    found = (wall - timedelta(hours=16)).replace(tzinfo=UTC)
    while found.astimezone(zone).replace(tzinfo=None) < wall:
        found += timedelta(minutes=1)
    return found


@given(
    st.datetimes(datetime(2024, 1, 1), datetime(2027, 12, 31)),
    st.sampled_from(ZONES),
    st.times(),
    st.sampled_from(["0 2 * * *", "30 */5 * * *", "15 3 * * 1-5", "every 7h"]),
)
@example(datetime(2026, 3, 29, 1, 0, 1), BERLIN, time(2, 30), "0 2 * * *")
@example(datetime(2026, 10, 25, 1, 15), BERLIN, time(2, 30), "0 1 * * *")
@settings(max_examples=60, deadline=None)
def test_each_occurrence_has_the_first_deadline_after_it(
    naive: datetime, tz: str, clock: time, schedule: str
) -> None:
    """The same as going through all days and all occurrences, whatever the zone's clocks do."""
    now, zone = naive.replace(tzinfo=UTC), ZoneInfo(tz)
    times = jitter_for(checked(name="job", task="t", schedule=schedule, timezone=tz), LONG_AGO)
    clock = clock.replace(second=0, microsecond=0)
    today = datetime.combine(now.astimezone(zone).date(), clock)
    found = [_first_instant(zone, today - timedelta(days=number)) for number in range(-1, 7)]
    last = max(at for at in found if at < now)
    occurrence = max(between(times.schedule, now - timedelta(days=6), last - timedelta(microseconds=1), 100))
    expected = Deadline(min(at for at in found if at > occurrence), occurrence)
    by = f"{clock:%H:%M}"
    assert expected == deadlines.passed(by, times, zone, now, since=LONG_AGO, last_success=None)
