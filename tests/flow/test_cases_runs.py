"""Faults that people reported of other schedulers: locks, brokers, lost workers, overlap, expiry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store.tables import job as job_table
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = datetime(2026, 2, 2, 12, 0, tzinfo=UTC)
DATABASES = ("sqlite", "postgresql")


def minutes(*numbers: int) -> list[str]:
    """Times of the day after noon."""
    return [f"{12 + n // 60}:{n % 60:02}" for n in numbers]


def test_a37_a_lock_deleted_by_hand_is_no_second_run(make_stage: MakeStage) -> None:
    """A37: the lock is wiped by plain SQL while a run holds it: no second run, no crash, and all goes on."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="* * * * *", overlap="queue")
    stage.poll_at(NOON + MINUTE)
    (first,) = stage.active()
    key = stage.key(first.id)
    stage.start(key)
    wiped = update(job_table).values(lock_token=None, locked_by=None, locked_at=None)
    stage.database.run(lambda tx, now: tx.execute(wiped))
    stage.poll_at(NOON + MINUTE + 10 * SECOND, NOON + 2 * MINUTE)
    stage.renew(key)
    assert ["running", "queued"] == [run.status for run in stage.scheduler.runs()]
    assert stage.finish(key).settled
    assert [NOON + 2 * MINUTE] == [run.scheduled_for for run in stage.work_off()]
    assert None is stage.scheduler.job_row("job").lock_token


def test_a39_the_broker_is_away_at_the_due_time(make_stage: MakeStage) -> None:
    """A39: nothing claims success, other work goes on; after its return each occurrence has one run."""
    stage = make_stage(NOON)
    for name in ("a", "b"):
        stage.client.add(name, task="t", schedule="* * * * *", overlap="concurrent")
    stage.scheduler.poll()
    hidden = stage.folder.with_name("away")
    stage.folder.rename(hidden)
    for second in (0, 1, 20, 40):
        stage.poll_at(NOON + MINUTE + second * SECOND)
        for name in ("a", "b"):
            found = stage.client.get(name)
            assert (None, None, 0) == (found.last_run_at, found.last_status, found.run_count)
    assert {"queued"} == {run.status for run in stage.scheduler.runs()}, "planned, and kept"
    assert 0 == stage.client.status().inflight, "what was not published holds no slot"
    hidden.rename(stage.folder)
    stage.clock.advance(SECOND)
    assert ["a", "b"] == sorted(run.job for run in stage.work_off())
    assert [NOON + MINUTE] == stage.occurrences("a") == stage.occurrences("b")


def test_a41_a_message_that_comes_again_is_dropped(make_stage: MakeStage) -> None:
    """A41: a redelivery during the run and one after it are dropped; the run's history shows one attempt."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.poll_at(NOON + MINUTE)
    (run,) = stage.active()
    key = stage.key(run.id)
    assert Verdict.YOURS == stage.start(key).verdict
    for _ in range(5):
        stage.clock.advance(20 * SECOND)
        again = stage.start(key)
        assert (Verdict.DROP, True) == (again.verdict, "is running on w@host" in again.why)
        stage.renew(key)
    assert stage.finish(key).settled
    assert Verdict.DROP == stage.start(key).verdict
    found = stage.client.get_run(run.id)
    assert ("succeeded", 1, 1) == (found.status, found.attempt, stage.client.get("job").run_count)


@pytest.mark.parametrize("database", DATABASES)
def test_a43_a_killed_worker_does_not_block_its_job(make_stage: MakeStage, database: str) -> None:
    """A43: overlap skip, the worker dies in the run of 12:05: by 12:07 it is lost, and 12:10 runs."""
    stage = make_stage(NOON, database=database, sched_max_concurrent_jobs=1)
    stage.client.add("job", task="t", schedule="*/5 * * * *")
    stage.poll_at(NOON + 5 * MINUTE)
    (run,) = stage.active()
    stage.clock.advance(SECOND)
    assert Verdict.YOURS == stage.start(stage.key(run.id)).verdict
    for second in range(10, 120, 10):
        stage.poll_at(NOON + 5 * MINUTE + second * SECOND)
    lost = stage.client.get_run(run.id)
    assert "lost" == lost.status
    assert "gave no sign of life" in (lost.reason or "") and lost.finished_at is not None
    assert NOON + 7 * MINUTE > lost.finished_at
    assert (0, None) == (stage.client.status().inflight, stage.scheduler.job_row("job").lock_token)
    assert (1, 0, 1) == counts(stage, "job")
    for second in range(120, 301, 10):
        stage.poll_at(NOON + 5 * MINUTE + second * SECOND)
    assert [NOON + 10 * MINUTE] == [run.scheduled_for for run in stage.work()]


def counts(stage: Stage, name: str) -> tuple[int, int, int]:
    """Runs, successes, failures."""
    found = stage.client.get(name)
    return found.run_count, found.success_count, found.failure_count


def test_a44_a_run_that_shows_life_is_never_lost(make_stage: MakeStage) -> None:
    """A44: 300 s of work with renewals every third of the lease stay live and end as succeeded."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="*/5 * * * *")
    stage.poll_at(NOON + 5 * MINUTE)
    (run,) = stage.active()
    key = stage.key(run.id)
    stage.start(key)
    for second in range(20, 301, 20):
        stage.clock.now = NOON + 5 * MINUTE + second * SECOND
        assert {run.id} == set(stage.renew(key).leases)
        stage.scheduler.poll()
        assert "running" == stage.client.get_run(run.id).status
    assert stage.finish(key).settled
    assert {"succeeded": ["12:05"], "skipped: overlap": ["12:10"]} == stage.by_status("job")


def test_a44_what_was_lost_is_not_rewritten(make_stage: MakeStage) -> None:
    """A44: a run declared lost that finishes after all stays lost; an audit line and a figure say so."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="*/5 * * * *")
    stage.poll_at(NOON + 5 * MINUTE)
    (run,) = stage.active()
    key = stage.key(run.id)
    stage.start(key)
    for second in range(10, 80, 10):
        stage.poll_at(NOON + 5 * MINUTE + second * SECOND)
    before = stage.client.get_run(run.id)
    assert "lost" == before.status
    assert {run.id} == stage.renew(key).stale
    assert not stage.finish(key).settled
    assert before == stage.client.get_run(run.id)
    assert [("late_settle", f"run:{run.id}")] == [line[1:3] for line in stage.audit("late_settle")]
    assert 1 == stage.client.status().late_settlers


def play(stage: Stage, until: datetime, step: timedelta, length: timedelta) -> tuple[list[datetime], int]:
    """Polls at every step, with bodies of one length; when they started, and the most at once."""
    running: list[tuple[datetime, RunKey]] = []
    starts, most = [], 0
    while stage.clock.now <= until:
        for ends, key in [body for body in running if body[0] <= stage.clock.now]:
            assert stage.finish(key).settled
            running.remove((ends, key))
        stage.scheduler.poll()
        for run in stage.active():
            if run.status == RunStatus.DISPATCHED:
                key = stage.key(run.id)
                assert Verdict.YOURS == stage.start(key).verdict
                running.append((stage.clock.now + length, key))
                starts.append(stage.clock.now)
        most = max(most, len(running))
        stage.clock.advance(step)
    return starts, most


@pytest.mark.parametrize("database", DATABASES)
def test_a45_overlap_skip(make_stage: MakeStage, database: str) -> None:
    """A45, skip: runs of 150 s every minute: each third occurrence runs, the others are skipped."""
    stage = make_stage(NOON - SECOND, database=database, sched_lease="10m")
    stage.client.add("job", task="t", schedule="* * * * *", overlap="skip")
    stage.clock.now = NOON
    starts, most = play(stage, NOON + 9 * MINUTE, 30 * SECOND, 150 * SECOND)
    assert ([NOON + n * MINUTE for n in (0, 3, 6, 9)], 1) == (starts, most)
    assert minutes(1, 2, 4, 5, 7, 8) == stage.by_status()["skipped: overlap"]
    assert (3, 3, 0) == counts(stage, "job")
    assert 6 == stage.client.get("job").skipped_count
    reasons = {run.reason for run in stage.scheduler.runs() if run.status == "skipped"}
    assert 3 == len(reasons), "each names the run in its way"


def test_a45_overlap_concurrent(make_stage: MakeStage) -> None:
    """A45, concurrent: a run each minute, at most three at once."""
    stage = make_stage(NOON - SECOND, sched_lease="10m")
    stage.client.add("job", task="t", schedule="* * * * *", overlap="concurrent")
    stage.clock.now = NOON
    starts, most = play(stage, NOON + 10 * MINUTE, 30 * SECOND, 150 * SECOND)
    assert ([NOON + n * MINUTE for n in range(11)], 3) == (starts, most)


def test_a45_overlap_queue(make_stage: MakeStage) -> None:
    """A45, queue: all run in order, one after the other; after an hour 36 wait."""
    stage = make_stage(NOON - SECOND, sched_lease="10m")
    stage.client.add("job", task="t", schedule="* * * * *", overlap="queue")
    stage.clock.now = NOON
    starts, most = play(stage, NOON + HOUR, 30 * SECOND, 150 * SECOND)
    assert ([NOON + n * 150 * SECOND for n in range(25)], 1) == (starts, most)
    found = stage.by_status("job")
    assert (24, 1, 36) == tuple(len(found[status]) for status in ("succeeded", "running", "queued"))
    assert minutes(*range(24)) == found["succeeded"], "oldest first"
    assert 36 == stage.client.status().queued


def test_a45_a_full_queue_is_bounded_and_says_so(make_stage: MakeStage) -> None:
    """A45, queue: with `max_queued` 2 the fourth occurrence is skipped with the reason and the numbers."""
    stage = make_stage(NOON, sched_lease="1h")
    stage.client.add("job", task="t", schedule="* * * * *", overlap="queue", max_queued=2)
    stage.poll_at(NOON + MINUTE)
    (run,) = stage.active()
    key = stage.key(run.id)
    stage.start(key)
    stage.poll_at(*(NOON + n * MINUTE for n in (2, 3, 4)))
    assert {
        "running": minutes(1),
        "queued": minutes(2, 3),
        "skipped: queue_full": minutes(4),
    } == stage.by_status("job")
    assert stage.finish(key).settled
    stage.poll_at(NOON + 5 * MINUTE)
    assert minutes(3, 5) == stage.by_status("job")["queued"], "room again"


@pytest.mark.parametrize("dispatched", [True, False])
def test_a46_cancelled_while_no_worker_is_up(make_stage: MakeStage, dispatched: bool) -> None:
    """A46: cancelled before any worker saw it: it does not run later, and history says by whom and when."""
    stage = make_stage(NOON, sched_max_concurrent_jobs=1)
    stage.client.add("job", task="t", schedule="0 13 * * *")
    run = stage.client.run("job")
    if dispatched:
        stage.scheduler.poll()
    key = stage.key(run.id)
    stage.clock.advance(10 * SECOND)
    stage.client.cancel(run.id, by="ada", reason="not today")
    stage.clock.advance(10 * SECOND)
    assert Verdict.DROP == stage.start(key).verdict, "the message that a new worker finds"
    assert [] == stage.work_off()
    found = stage.client.get_run(run.id)
    assert ("cancelled", "stopped by ada: not today") == (found.status, found.reason)
    assert ("ada", NOON + 10 * SECOND) == (found.stop_requested_by, found.stop_requested_at)
    again = stage.client.cancel(run.id, by="bob")
    assert found == again, "cancelling a finished run changes nothing"
    assert [("ada", "cancel", f"run:{run.id}")] == [line[:3] for line in stage.audit("cancel")]
    assert 0 == stage.client.status().inflight
    stage.client.run("job")
    assert 1 == len(stage.work_off()), "the slot and the lock are free"


@pytest.mark.parametrize("database", DATABASES)
def test_a47_a_stale_backlog_expires(make_stage: MakeStage, database: str) -> None:
    """A47: no worker for half an hour, `expires` 60 s: the last of 30 occurrences runs, 29 expired."""
    stage = make_stage(NOON, database=database)
    stage.client.add("job", task="t", schedule="* * * * *", expires="60s")
    stage.poll_at(*(NOON + n * 30 * SECOND for n in range(1, 61)))
    stage.clock.now = NOON + 30 * MINUTE + 5 * SECOND
    assert [NOON + 30 * MINUTE] == [run.scheduled_for for run in stage.work_off()]
    assert {"skipped: expired": minutes(*range(1, 30)), "succeeded": minutes(30)} == stage.by_status("job")
    assert (1, 1, 0) == counts(stage, "job")
    assert 29 == stage.client.get("job").skipped_count


def test_a47_a_message_that_is_too_old_is_not_run(make_stage: MakeStage) -> None:
    """A47: the worker comes back before the sweep: its start refuses the outdated run and settles it."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="* * * * *", expires="60s")
    stage.poll_at(NOON + MINUTE)
    (run,) = stage.active()
    key = stage.key(run.id)
    stage.clock.now = NOON + 2 * MINUTE
    refused = stage.start(key)
    assert (Verdict.DROP, "it expired before it could start") == (refused.verdict, refused.why)
    assert {"skipped: expired": minutes(1)} == stage.by_status("job")
    assert 0 == stage.client.status().inflight
