"""When a job begins and ends, how late its runs are by design, what follows a run, what is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition, JobStatus, RunId, Source
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import define
from tests import invariants
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage at noon, on SQLite."""
    return make_stage(NOON)


@pytest.fixture
def each_stage(database_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage at noon, on each database."""
    made = Stage(tmp_path, database_url, NOON)
    yield made
    made.close()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def only(stage: Stage, job: str = "job") -> RunId:
    """The one run that is not finished."""
    (run,) = [run for run in stage.active() if run.job == job]
    return run.id


def ran(stage: Stage, job: str = "job") -> list[str]:
    """The occurrences that ran, as times of the day."""
    return stage.by_status(job).get("succeeded", [])


def upcoming(stage: Stage, job: str = "job") -> datetime | None:
    return stage.client.get(job).next_run_at


# -- after ---------------------------------------------------------------------------------------------


def test_after_counts_from_the_end_of_the_last_run(each_stage: Stage) -> None:
    """The first run comes after the delay; each next one after the end of the one before, however long."""
    stage = each_stage
    assert NOON + 5 * MINUTE == stage.client.add("job", task="t", schedule="after 5m").next_run_at
    stage.poll_at(NOON + 5 * MINUTE)
    key = stage.key(only(stage))
    stage.start(key)
    assert (None, JobStatus.ACTIVE) == (upcoming(stage), stage.client.get("job").status)
    stage.poll_at(NOON + 20 * MINUTE, NOON + 37 * MINUTE)
    assert 1 == len(stage.scheduler.runs())
    assert stage.finish(key).settled
    assert NOON + 42 * MINUTE == upcoming(stage)
    stage.poll_at(NOON + 42 * MINUTE)
    stage.work()
    assert ["12:05", "12:42"] == ran(stage)
    assert NOON + 47 * MINUTE == upcoming(stage)
    invariants.check(stage.database)


@pytest.mark.parametrize(
    "ending", ["failed", "timed_out", "lost", "cancelled", "expired", "cancelled waiting", "expired waiting"]
)
def test_after_goes_on_whatever_the_end(make_stage: MakeStage, ending: str) -> None:
    """Every way for a run to end sets the next instant: none stops the job for ever."""
    stage = make_stage(NOON, sched_lease=60, sched_max_runtime=30)
    ending, _, waiting = ending.partition(" ")
    expires = {"expires": "1m"} if ending == "expired" else {}
    stage.client.add("job", task="t", schedule="after 5m", **expires)
    stage.scheduler.poll()
    if waiting:
        stage.client.resize_pool("default", 0)
    stage.poll_at(NOON + 5 * MINUTE)
    run_id = only(stage)
    assert ("queued" if waiting else "dispatched") == stage.client.get_run(run_id).status
    key = stage.key(run_id)
    match ending:
        case "failed":
            stage.start(key)
            stage.finish(key, RunStatus.FAILED)
        case "timed_out":
            stage.start(key)
            stage.scheduler.advance(120, step=10)
        case "lost":
            stage.receive(key)
            for _ in range(4):  # received, and its worker died; published again, three times at most
                stage.receive(stage.key(run_id))
                stage.scheduler.advance(70, step=10)
            stage.scheduler.advance(3600, step=60)
        case "cancelled":
            stage.client.cancel(run_id)
        case "expired":
            stage.scheduler.advance(90, step=10)
    run = stage.client.get_run(run_id)
    assert ("skipped" if ending == "expired" else ending) == run.status
    assert run.finished_at is not None
    runs = stage.scheduler.runs()
    following = upcoming(stage) if len(runs) == 1 else runs[1].scheduled_for
    assert run.finished_at + 5 * MINUTE == following


def test_after_and_a_run_by_hand(stage: Stage) -> None:
    """A run by hand is a last run too: while it is active nothing is due, its end sets the next instant."""
    stage.client.add("job", task="t", schedule="after 5m")
    stage.client.run("job")
    stage.poll_at(NOON + SECOND)
    key = stage.key(only(stage))
    stage.start(key)
    stage.poll_at(NOON + 5 * MINUTE, NOON + 6 * MINUTE)
    assert [key.id] == [run.id for run in stage.scheduler.runs()], "not skipped: there was no occurrence"
    stage.finish(key)
    assert NOON + 11 * MINUTE == upcoming(stage)


def test_after_paused_while_it_runs(stage: Stage) -> None:
    """The end of a run does not wake a paused job; the resume counts from itself."""
    stage.client.add("job", task="t", schedule="after 5m")
    stage.poll_at(NOON + 5 * MINUTE)
    key = stage.key(only(stage))
    stage.start(key)
    stage.client.pause("job")
    stage.clock.advance(MINUTE)
    stage.finish(key)
    assert None is upcoming(stage)
    stage.clock.advance(HOUR)
    assert NOON + HOUR + 11 * MINUTE == stage.client.resume("job").next_run_at
    assert [] == stage.gaps("job")


def test_after_found_late(stage: Stage) -> None:
    """Due while nobody planned: `once` makes it good, `skip` records it and counts from now."""
    for policy in ("once", "skip"):
        stage.client.add(policy, task="t", schedule="after 5m", misfire=policy)
    stage.poll_at(NOON + 2 * HOUR)
    assert {"dispatched": ["12:05"]} == stage.by_status("once")
    assert {"skipped: missed": ["12:05"]} == stage.by_status("skip")
    assert NOON + 2 * HOUR + 5 * MINUTE == upcoming(stage, "skip")


def test_a_sync_does_not_move_an_after_job(stage: Stage) -> None:
    """Deploys every minute neither shift nor starve a delay."""
    definition = JobDefinition("job", "t", "after 5m", args=[], exclude=[])
    for minute in range(6):
        stage.clock.now = NOON + minute * MINUTE
        stage.database.run(lambda tx, now: define.sync(tx, now, stage.config, [definition]))
    stage.scheduler.poll()
    stage.work()
    assert ["12:05"] == ran(stage)


# -- start_at, end_at, max_runs ------------------------------------------------------------------------


def test_start_at_lays_the_grid_of_every(each_stage: Stage) -> None:
    """`every 1h` from 12:30 on is due at 12:30, 13:30, ...; both ends are included, then it is expired."""
    stage = each_stage
    stage.client.add(
        "job", task="t", schedule="every 1h", start_at="2026-03-02T12:30Z", end_at="2026-03-02T14:30Z"
    )
    for minute in range(0, 240, 10):
        stage.poll_at(NOON + minute * MINUTE)
        stage.work()
    assert ["12:30", "13:30", "14:30"] == ran(stage)
    job = stage.client.get("job")
    assert (JobStatus.EXPIRED, "no further occurrence up to end_at (2026-03-02 14:30:00 UTC)") == (
        job.status,
        job.status_reason,
    )


def test_a_longer_end_wakes_an_expired_job(stage: Stage) -> None:
    """What lay after the end was no occurrence: it is neither run nor recorded."""
    stage.client.add("job", task="t", schedule="every 1h", end_at="2026-03-02T13:00Z")
    stage.poll_at(NOON + HOUR)
    stage.work()
    stage.clock.now = NOON + 5 * HOUR + MINUTE
    assert NOON + 6 * HOUR == stage.client.edit("job", end_at=None).next_run_at
    assert [] == stage.gaps("job")


def test_max_runs(each_stage: Stage) -> None:
    """Three runs, then expired; what is skipped or run by hand does not count; a higher number goes on."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1m", max_runs=3)
    stage.poll_at(NOON + MINUTE, NOON + 2 * MINUTE)  # the second is skipped: the first is still active
    stage.work()
    stage.client.run("job")
    stage.work_off()
    for minute in range(3, 10):
        stage.poll_at(NOON + minute * MINUTE)
        stage.work()
    assert 4 == len(ran(stage)), "three by the schedule, one by hand"
    assert {"skipped: overlap": ["12:02"]}.items() <= stage.by_status("job").items()
    job = stage.client.get("job")
    assert (JobStatus.EXPIRED, "max_runs (3) is reached", 3) == (
        job.status,
        job.status_reason,
        job.planned_count,
    )
    assert NOON + 10 * MINUTE == stage.client.edit("job", max_runs=4).next_run_at
    ((first, last, count, reason),) = stage.gaps("job")
    assert (NOON + 5 * MINUTE, NOON + 9 * MINUTE, 5) == (first, last, count)
    assert "expired: max_runs (3) is reached" == reason


def test_max_runs_bounds_a_catch_up(stage: Stage) -> None:
    """`all` makes good no more than are left."""
    stage.client.add("job", task="t", schedule="every 1m", max_runs=5, misfire="all")
    stage.poll_at(NOON + MINUTE)
    stage.work()
    stage.clock.advance(HOUR)
    stage.work_off()
    assert ["12:01", "12:02", "12:03", "12:04", "12:05"] == ran(stage)
    assert JobStatus.EXPIRED is stage.client.get("job").status


# -- jitter --------------------------------------------------------------------------------------------


def test_jitter_delays_the_run_and_keeps_the_occurrence(each_stage: Stage) -> None:
    """Each run is planned within its jitter; its occurrence is the schedule's."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 10m", jitter="9m")
    due: list[datetime] = []
    while len(due) < 6:
        following = upcoming(stage)
        assert following is not None
        due.append(following)
        stage.poll_at(following - SECOND)
        assert len(due) - 1 == len(stage.scheduler.runs())
        stage.poll_at(following)
        stage.work()
    occurrences = [NOON + n * 10 * MINUTE for n in range(1, 7)]
    assert occurrences == stage.occurrences("job")
    delays = [one - occurrence for one, occurrence in zip(due, occurrences, strict=True)]
    assert all(timedelta(0) <= delay <= 9 * MINUTE for delay in delays), delays
    assert len(set(delays)) > 1


def test_another_jitter_does_not_run_an_occurrence_again(stage: Stage) -> None:
    """The mark is the occurrence: with more jitter the same one is not due once more."""
    stage.client.add("job", task="t", schedule="every 1h", jitter="1m")
    stage.poll_at(NOON + HOUR + MINUTE)
    stage.work()
    stage.client.edit("job", jitter="50m")
    for minute in range(61, 120):
        stage.poll_at(NOON + minute * MINUTE)
    assert [NOON + HOUR] == stage.occurrences("job")


def test_an_edit_while_jitter_holds_an_occurrence_back(stage: Stage) -> None:
    """An occurrence that waits for its jitter when its job is changed or paused is recorded, not lost."""
    stage.client.add("job", task="t", schedule="every 1h", jitter="59m")
    assert (upcoming(stage) or NOON) > NOON + HOUR + SECOND
    stage.clock.now = NOON + HOUR + SECOND
    stage.client.pause("job")
    assert [(NOON + HOUR, NOON + HOUR, 1, "missed: late when the job was paused")] == stage.gaps("job")


def test_late_ones_with_jitter(stage: Stage) -> None:
    """After an outage the one whose jitter is not over yet still waits; the others are late as ever."""
    stage.client.add("job", task="t", schedule="every 10m", jitter="9m59s", misfire="all")
    stage.clock.now = NOON + 40 * MINUTE
    stage.work_off()
    assert ["12:10", "12:20", "12:30"] == ran(stage)[:3]
    assert NOON + 40 * MINUTE <= (upcoming(stage) or NOON) < NOON + 60 * MINUTE


def test_expires_counts_from_when_it_is_due(stage: Stage) -> None:
    """Jitter longer than `expires` does not skip every run."""
    stage.client.add("job", task="t", schedule="every 1h", jitter="30m", expires="10s")
    due = upcoming(stage)
    assert due is not None and due > NOON + HOUR + 10 * SECOND
    stage.poll_at(due)
    stage.work()
    assert ["13:00"] == ran(stage)


# -- calendars -----------------------------------------------------------------------------------------


def test_an_excluded_day(each_stage: Stage) -> None:
    """Nothing runs on excluded days, and nothing is recorded there: `why` derives it."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 13 * * *", exclude=["weekly:tue,wed", "dates:2026-03-06"])
    for day in range(7):
        stage.poll_at(NOON + day * DAY + HOUR)
        stage.work()
    expected = [NOON + day * DAY + HOUR for day in (0, 3, 5, 6)]
    assert expected == stage.occurrences("job")
    assert ([], "") == (stage.gaps("job"), stage.client.get("job").status_reason or "")


def test_the_next_business_day(stage: Stage) -> None:
    """A run of the 1st moves from Sunday and a holiday to the next business day, at the same time of day."""
    stage.client.add(
        "job",
        task="t",
        schedule="0 13 1 * *",
        exclude=["weekly:sat,sun", "holidays:DE"],
        on_excluded="next_business_day",
        timezone="Europe/Berlin",
    )
    found = []
    for _ in range(5):
        following = upcoming(stage)
        assert following is not None
        stage.poll_at(following)
        stage.work()
        found.append(f"{stage.occurrences('job')[-1]:%m-%d %H:%M}")
    # 1 May is a holiday and a Friday; 1 August a Saturday
    assert ["04-01 11:00", "05-04 11:00", "06-01 11:00", "07-01 11:00", "08-03 11:00"] == found


# -- what is written down ------------------------------------------------------------------------------


def test_time_spent_paused_is_a_gap_and_not_missed(each_stage: Stage) -> None:
    """A resume records the pause, with its reason and the number of occurrences; none of them is missed."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1m")
    stage.client.pause("job", "the warehouse moves")
    stage.clock.now = NOON + 5 * MINUTE + SECOND
    stage.client.resume("job")
    assert [(NOON + MINUTE, NOON + 5 * MINUTE, 5, "paused: the warehouse moves")] == stage.gaps("job")
    job = stage.client.get("job")
    assert (0, None, NOON + 6 * MINUTE) == (job.skipped_count, job.inactive_since, job.next_run_at)


def test_a_pause_without_an_occurrence_leaves_nothing(stage: Stage) -> None:
    """Ten seconds between two occurrences are not worth a record."""
    stage.client.add("job", task="t", schedule="every 1h")
    stage.client.pause("job")
    stage.clock.advance(10)
    stage.client.resume("job")
    assert [] == stage.gaps("job")


def test_each_span_has_its_own_reason(stage: Stage) -> None:
    """Paused, then disabled, then edited while disabled: a gap each, by the schedule that was in force."""
    stage.client.add("job", task="t", schedule="every 1m")
    stage.client.pause("job", "first")
    stage.clock.advance(3 * MINUTE + SECOND)
    stage.client.edit("job", enabled=False)
    stage.clock.advance(2 * MINUTE)
    stage.client.edit("job", schedule="every 30s")
    stage.clock.advance(MINUTE)
    stage.client.edit("job", enabled=True)
    gaps = [(count, reason) for _, _, count, reason in reversed(stage.gaps("job"))]
    disabled = "disabled: disabled in its definition"
    assert [(3, "paused: first"), (2, disabled), (2, disabled)] == gaps


def test_gone_from_code_and_back(stage: Stage) -> None:
    """A deploy that lacked a job leaves the span on record."""
    definition = JobDefinition("job", "t", "every 1m", args=[], exclude=[])
    stage.database.run(lambda tx, now: define.create(tx, now, stage.config, definition, Source.CODE))
    stage.database.run(lambda tx, now: define.sync(tx, now, stage.config, []))
    stage.clock.advance(2 * MINUTE + SECOND)
    stage.database.run(lambda tx, now: define.sync(tx, now, stage.config, [definition]))
    assert [(NOON + MINUTE, NOON + 2 * MINUTE, 2, "disabled: gone from code")] == stage.gaps("job")


def test_missed_while_no_scheduler_ran(each_stage: Stage) -> None:
    """Rows and the gap say from when to when nobody passed, not only that it was late."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1m")
    stage.scheduler.poll()
    stage.clock.now = NOON + 30 * MINUTE + SECOND
    stage.scheduler.poll()
    down = "missed: no scheduler ran from 2026-03-02 12:00:00 to 2026-03-02 12:30:01 UTC"
    skipped = [run for run in stage.scheduler.runs("job") if run.status == "skipped"]
    assert [down] * 10 == [run.reason for run in skipped]
    assert [(NOON + MINUTE, NOON + 19 * MINUTE, 19, down)] == stage.gaps("job")


def test_missed_while_schedulers_were_late(stage: Stage) -> None:
    """A scheduler that was there, and late, says by how much."""
    stage.client.add("job", task="t", schedule="every 2s")
    stage.scheduler.poll()
    stage.clock.now = NOON + 7 * SECOND
    stage.scheduler.poll()
    reasons = [run.reason for run in stage.scheduler.runs("job") if run.status == "skipped"]
    assert ["missed: found 5.0 s late", "missed: found 3.0 s late"] == reasons


def test_a_calendar_file_is_read_when_it_is_given(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads the file once; afterwards it may be gone, and an edit of something else keeps it."""
    file = tmp_path / "closed.ics"
    file.write_text(
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//t//EN\r\nBEGIN:VEVENT\r\nUID:1\r\n"
        "DTSTART;VALUE=DATE:20260303\r\nSUMMARY:Stocktaking\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    monkeypatch.chdir(tmp_path)
    stage.client.add("job", task="t", schedule="0 9 * * *", exclude="ics:closed.ics")
    file.unlink()
    job = stage.client.edit("job", description="kept")
    assert NOON + DAY + 21 * HOUR == job.next_run_at
    with pytest.raises(InvalidValue, match=r"there is no file .*closed\.ics"):
        stage.client.edit("job", exclude=["ics:closed.ics"])
