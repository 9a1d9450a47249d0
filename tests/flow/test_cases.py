"""Faults that people reported of other schedulers, in the order of their numbers: time, misfires, edits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.model import JobStatus
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
DATABASES = ("sqlite", "postgresql")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ats(*texts: str) -> list[datetime]:
    return [at(text) for text in texts]


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts the process into a time zone."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles"])
def test_a18_a_job_in_a_zone_behind_the_servers(
    make_stage: MakeStage, local_time: Callable[[str], None], zone: str
) -> None:
    """A18: 09:00 in New York runs once a day, whatever the zone of process and app; not at every tick."""
    local_time(zone)
    stage = make_stage(at("2026-03-06T00:00"), timezone=zone, enable_utc=False, sched_lease="1h")
    stage.client.add("report", task="t", schedule="0 9 * * *", timezone="America/New_York")
    for hour in range(4 * 24):
        whole = at("2026-03-06T00:00") + hour * HOUR
        near = whole.hour in (0, 13, 14)  # 09:00 in Tokyo; 09:00 in New York, before and after the change
        for tick in range(-1, 3) if near else (0,):
            stage.clock.now = max(stage.clock.now, whole + tick * SECOND)
            stage.scheduler.poll()
            stage.work()
    expected = ats("2026-03-06T14:00", "2026-03-07T14:00", "2026-03-08T13:00", "2026-03-09T13:00")
    assert expected == stage.occurrences("report")


def test_a19_no_zone_is_left_out(make_stage: MakeStage, local_time: Callable[[str], None]) -> None:
    """A19: daily jobs of every hour in zones of +5:30, +14 and -9:30 each run twice in 48 hours."""
    local_time("America/New_York")
    stage = make_stage(at("2026-02-02T00:00"), timezone="America/New_York", sched_lease="4h")
    zones = ("Asia/Kolkata", "Pacific/Kiritimati", "Pacific/Marquesas")
    for zone in zones:
        for hour in range(24):
            stage.client.add(f"{zone} {hour}", task="t", schedule=f"0 {hour} * * *", timezone=zone)
    stage.clock.advance(SECOND)  # half past and whole hours, not the one at which the jobs were made
    for tick in range(1, 97):
        stage.poll_at(at("2026-02-02T00:00") + tick * 30 * MINUTE)
        stage.work()
    counts = {name: len(stage.occurrences(name)) for name in (job.name for job in stage.client.list())}
    assert dict.fromkeys((f"{zone} {hour}" for zone in zones for hour in range(24)), 2) == counts
    assert ats("2026-02-02T16:30", "2026-02-03T16:30") == stage.occurrences("Asia/Kolkata 22")


def test_a20_an_interval_in_the_repeated_hour(
    make_stage: MakeStage, local_time: Callable[[str], None]
) -> None:
    """A20: an interval of an hour goes on through the night on which clocks go back: zones never touch it."""
    local_time("America/Los_Angeles")
    stage = make_stage(at("2022-11-06T06:30"), timezone="America/Los_Angeles", enable_utc=False)
    stage.client.add("hourly", task="t", schedule="every 3600s", timezone="America/Los_Angeles")
    for tick in range(1, 25):
        stage.poll_at(at("2022-11-06T06:30") + tick * 10 * MINUTE + SECOND)
        stage.work()
    assert [at("2022-11-06T06:30") + n * HOUR for n in (1, 2, 3, 4)] == stage.occurrences(
        "hourly", "succeeded"
    )


@pytest.mark.parametrize("database", DATABASES)
def test_a22_the_zone_of_a_job_is_changed(make_stage: MakeStage, database: str) -> None:
    """A22: a monthly job gets another zone in mid-month: no run now, the next is in the new zone."""
    stage = make_stage(at("2026-04-30T12:00"), database=database)
    stage.client.add("monthly", task="t", schedule="0 5 1 * *")
    stage.poll_at(at("2026-05-01T05:00"))
    stage.work()
    stage.clock.now = at("2026-05-17T16:00")
    edited = stage.client.edit("monthly", timezone="Europe/Vienna")
    stage.scheduler.poll()
    assert at("2026-06-01T03:00") == edited.next_run_at == stage.client.get("monthly").next_run_at
    assert ats("2026-05-01T05:00") == stage.occurrences("monthly")
    stage.poll_at(at("2026-06-01T02:59:59"), at("2026-06-01T03:00"))
    assert ats("2026-05-01T05:00", "2026-06-01T03:00") == stage.occurrences("monthly")


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    ("policy", "grace", "ran", "missed"),
    [
        ("skip", "60s", [], ["10:05", "10:10", "10:15"]),
        ("once", "60s", ["10:15"], ["10:05", "10:10"]),
        ("all", "60s", ["10:05", "10:10", "10:15"], []),
        ("skip", "180s", ["10:15"], ["10:05", "10:10"]),
    ],
)
def test_a23_an_outage_under_each_policy(
    make_stage: MakeStage, database: str, policy: str, grace: str, ran: list[str], missed: list[str]
) -> None:
    """A23: down from 10:02 to 10:17; runs stand for their own times, in order; the missed are recorded."""
    stage = make_stage(at("2026-02-02T09:58"), database=database)
    stage.client.add("job", task="t", schedule="*/5 * * * *", misfire=policy, misfire_grace=grace)
    stage.poll_at(at("2026-02-02T10:00"))
    stage.work()
    stage.clock.now = at("2026-02-02T10:17")
    bodies = [f"{run.scheduled_for:%H:%M}" for run in stage.work_off()]
    assert ran == bodies, "one at a time, oldest first: overlap holds while catching up too"
    expected = {"succeeded": ["10:00", *ran]} | ({"skipped: missed": missed} if missed else {})
    assert expected == stage.by_status("job")
    found = stage.client.get("job")
    assert (at("2026-02-02T10:20"), len(missed)) == (found.next_run_at, found.skipped_count)


def test_a24_very_many_missed_runs(make_stage: MakeStage) -> None:
    """A24: after a night without scheduler one run of a minute job; 779 missed ones are on record."""
    stage = make_stage(at("2026-02-01T17:59:30"))
    stage.client.add("minutely", task="t", schedule="* * * * *", misfire_grace="60s")
    stage.poll_at(at("2026-02-01T18:00"))
    stage.work()
    stage.clock.now = at("2026-02-02T07:00:30")
    assert ats("2026-02-02T07:00") == [run.scheduled_for for run in stage.work_off()]
    down = "missed: no scheduler ran from 2026-02-01 18:00:00 to 2026-02-02 07:00:30 UTC"
    assert [(at("2026-02-01T18:01"), at("2026-02-02T06:49"), 769, down)] == stage.gaps("minutely")
    assert [at("2026-02-02T06:50") + n * MINUTE for n in range(10)] == stage.occurrences(
        "minutely", "skipped"
    )
    found = stage.client.get("minutely")
    assert (at("2026-02-02T07:01"), 779) == (found.next_run_at, found.skipped_count)


def test_a24_run_all_has_a_cap_and_takes_turns(make_stage: MakeStage) -> None:
    """A24: `all` makes the last 1,000 good, some in each poll, and a job due beside it is not held up."""
    stage = make_stage(at("2026-02-01T00:00:30"), sched_max_concurrent_jobs=1)
    stage.client.add("minutely", task="t", schedule="* * * * *", misfire="all")
    stage.client.add("hourly", task="t", schedule="0 * * * *", misfire="skip", priority=9)
    stage.clock.now = at("2026-02-01T20:00")
    first = stage.scheduler.poll()
    assert ["hourly"] == [run.job for run in stage.work()]
    assert 1000 > first.counts.planned, "no poll plans all of a burst"
    for _ in range(20):
        stage.scheduler.poll()
    runs = [run for run in stage.scheduler.runs("minutely") if run.status != "skipped"]
    assert [at("2026-02-01T20:00") - n * MINUTE for n in reversed(range(1000))] == [
        run.scheduled_for for run in runs
    ]
    ((_, last, count, reason),) = stage.gaps("minutely")
    assert (at("2026-02-01T03:20"), 200) == (last, count)
    assert reason.startswith("missed: more than 1000")


def test_a25_late_and_too_late(make_stage: MakeStage) -> None:
    """A25: 1.8 s late runs; 4 h late with a grace of 1 h is in the history, counted and logged."""
    stage = make_stage(at("2026-02-02T08:00"))
    stage.client.add("daily", task="t", schedule="0 9 * * *", misfire="skip", misfire_grace="1h")
    stage.poll_at(at("2026-02-02T09:00") + 1.8 * SECOND)
    stage.work()
    stage.clock.now = at("2026-02-03T13:00")
    polled = stage.scheduler.poll()
    runs = stage.scheduler.runs("daily")
    down = "missed: no scheduler ran from 2026-02-02 09:00:01 to 2026-02-03 13:00:00 UTC"
    assert [("succeeded", None), ("skipped", down)] == [(run.status, run.reason) for run in runs]
    assert "missed=1" in polled.counts.line()
    found = stage.client.get("daily")
    assert (1, 1, 1) == (found.run_count, found.success_count, found.skipped_count)


@pytest.mark.parametrize("policy", ["once", "all", "skip"])
@pytest.mark.parametrize("switch", ["pause", "disable"])
def test_a26_time_spent_disabled_is_no_outage(make_stage: MakeStage, policy: str, switch: str) -> None:
    """A26: disabled for weeks, enabled on a Friday: nothing runs before Sunday; figures are kept."""
    stage = make_stage(at("2026-02-28T12:00"))
    stage.client.add("sundays", task="t", schedule="0 0 * * 0", misfire=policy)
    stage.poll_at(at("2026-03-01T00:00"))
    stage.work()
    stage.clock.now = at("2026-03-01T12:00")
    off = stage.client.pause("sundays") if switch == "pause" else stage.client.edit("sundays", enabled=False)
    assert (None, 1, at("2026-03-01T00:00")) == (off.next_run_at, off.run_count, off.last_run_at)
    stage.poll_at(at("2026-03-15T00:00"), at("2026-03-20T15:00"))
    on = stage.client.resume("sundays") if switch == "pause" else stage.client.edit("sundays", enabled=True)
    assert (JobStatus.ACTIVE, at("2026-03-22T00:00")) == (on.status, on.next_run_at)
    stage.scheduler.poll()
    assert ats("2026-03-01T00:00") == stage.occurrences("sundays")
    assert (1, 0, at("2026-03-01T00:00")) == (on.run_count, on.skipped_count, on.last_run_at)
    stage.poll_at(at("2026-03-22T00:00"))
    assert ats("2026-03-01T00:00", "2026-03-22T00:00") == stage.occurrences("sundays")


def test_a27_an_edit_runs_nothing(make_stage: MakeStage) -> None:
    """A27: `0 3` becomes `0 2` at noon: no run, and 02:00 of that day is not missed either."""
    stage = make_stage(at("2026-01-10T00:00"))
    stage.client.add("nightly", task="t", schedule="0 3 * * *", misfire="all")
    stage.poll_at(at("2026-01-10T03:00"))
    stage.work()
    stage.clock.now = at("2026-01-10T12:00")
    edited = stage.client.edit("nightly", schedule="0 2 * * *")
    stage.scheduler.poll()
    assert at("2026-01-11T02:00") == edited.next_run_at
    assert {"succeeded": ["03:00"]} == stage.by_status("nightly")
    assert 0 == stage.client.get("nightly").skipped_count


def test_a28_a_long_interval_holds_up_nothing(make_stage: MakeStage) -> None:
    """A28: an interval of 30 s goes on beside one of a day, which starts from its own anchor."""
    stage = make_stage(at("2026-02-02T12:00"), sched_lease="1h")
    stage.client.add("short", task="t", schedule="every 30s")
    stage.poll_at(at("2026-02-02T12:00:30"))
    stage.work()
    stage.clock.now = at("2026-02-02T12:01")
    stage.client.add("long", task="t", schedule="every 86400s", run_immediately=True)
    for tick in range(2, 20):
        stage.poll_at(at("2026-02-02T12:00") + tick * 30 * SECOND)
        stage.work()
    assert [at("2026-02-02T12:00") + n * 30 * SECOND for n in range(1, 20)] == stage.occurrences("short")
    assert ats("2026-02-02T12:01") == stage.occurrences("long")
    assert at("2026-02-03T12:01") == stage.client.get("long").next_run_at


@pytest.mark.parametrize("database", DATABASES)
def test_a29_one_off_jobs_run_once(make_stage: MakeStage, database: str) -> None:
    """A29: three one-offs of one instant, and a new scheduler again and again: each runs once and is over."""
    stage = make_stage(at("2026-02-02T09:59"), database=database)
    for name in ("a", "b", "c"):
        stage.client.add(name, task="t", schedule="once 2026-02-02T10:00:00Z")
    for second in range(6):
        stage.clock.now = at("2026-02-02T10:00") + second * SECOND
        stage.new_scheduler().poll()
        stage.work()
    for name in ("a", "b", "c"):
        assert ats("2026-02-02T10:00") == stage.occurrences(name, "succeeded") == stage.occurrences(name)
        found = stage.client.get(name)
        assert (JobStatus.EXPIRED, None, 1) == (found.status, found.next_run_at, found.run_count)
        again = stage.client.resume(name)
        assert (JobStatus.EXPIRED, None, 1) == (again.status, again.next_run_at, again.run_count)
    stage.scheduler.poll()
    assert 3 == len(stage.scheduler.runs())
    edited = stage.client.edit("a", schedule="once 2026-02-02T11:00:00Z")
    assert (JobStatus.ACTIVE, at("2026-02-02T11:00")) == (edited.status, edited.next_run_at)


def test_a29_a_time_in_the_past_is_never_sent(make_stage: MakeStage) -> None:
    """A47, last line: an absolute time in the past means: not scheduled at all."""
    stage = make_stage(at("2026-02-02T12:00"))
    past = stage.client.add("past", task="t", schedule="once 2026-02-02T11:59:59Z")
    assert (JobStatus.EXPIRED, None) == (past.status, past.next_run_at)
    assert past.status_reason
    stage.scheduler.poll()
    assert [] == stage.scheduler.runs()


def test_a30_restarts_do_not_reset_the_wait(make_stage: MakeStage) -> None:
    """A30: every six hours, with a scheduler that is replaced every hour: four runs in a day."""
    start = at("2026-01-01T00:00")
    stage = make_stage(start, sched_lease="4h")
    stage.client.add("job", task="t", schedule="every 21600s")
    for hour in range(1, 25):
        stage.clock.now = start + hour * HOUR
        stage.new_scheduler().poll()
        stage.work()
    assert [start + n * 6 * HOUR for n in (1, 2, 3, 4)] == stage.occurrences("job", "succeeded")
    assert 4 == len(stage.scheduler.runs())


def test_a31_delays_do_not_add_up(make_stage: MakeStage) -> None:
    """A31: every tick 0.4 s late: the n-th occurrence is still anchor + n minutes."""
    start = at("2026-02-02T00:00")
    stage = make_stage(start, sched_lease="1h")
    stage.client.add("job", task="t", schedule="every 60s")
    for n in range(1, 41):
        stage.poll_at(start + n * MINUTE + 0.4 * SECOND)
        stage.work()
    assert [start + n * MINUTE for n in range(1, 41)] == stage.occurrences("job", "succeeded")


@pytest.mark.parametrize("schedule", ["every 0.5s", "every 0s", "every 500ms", "every -1s"])
def test_a31_below_a_second_is_refused(make_stage: MakeStage, schedule: str) -> None:
    """A31: half a second is refused when it is saved, never taken as 0 or 1."""
    stage = make_stage(at("2026-02-02T00:00"))
    with pytest.raises(InvalidValue):
        stage.client.add("job", task="t", schedule=schedule)
    assert [] == stage.client.list()
