"""`why`: every answer, from what the real scheduler and the real steps have written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from celery_sched.beat.prune import prune
from celery_sched.errors import InvalidValue
from celery_sched.model import RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.why import Outcome, Why
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import run as run_table
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage at noon on a Monday, on SQLite, whose scheduler is up."""
    made = make_stage(NOON)
    made.scheduler.poll()
    return made


@pytest.fixture
def each_stage(database_url: str, tmp_path: Path) -> Iterator[Stage]:
    """The same on each database."""
    made = Stage(tmp_path, database_url, NOON)
    made.scheduler.poll()
    yield made
    made.close()


def step(stage: Stage, minutes: float) -> None:
    """Let so many minutes pass, with a poll each minute; of more than ten, every ten."""
    stage.scheduler.advance(minutes * 60, step=60 if minutes <= 10 else 600)


def worked(stage: Stage, minutes: int) -> None:
    """The same, with a worker that takes no time."""
    every = 1 if minutes <= 10 else 10
    for passed in range(0, minutes, every):
        stage.clock.advance(min(every, minutes - passed) * MINUTE)
        stage.work_off()


def only(stage: Stage, job: str = "job") -> RunId:
    """The one run that is not finished."""
    (run,) = [run for run in stage.active() if run.job == job]
    return run.id


def ask(stage: Stage, at: datetime | str, job: str = "job") -> Why:
    return stage.client.why(job, at)


def said(stage: Stage, at: datetime | str, outcome: Outcome, *words: str, job: str = "job") -> Why:
    """Ask, and see that the answer is this one and has these words."""
    why = ask(stage, at, job)
    assert outcome == why.outcome, why
    text = " ".join((*why.notes, why.text, *why.next_steps)).lower()
    missing = [word for word in words if word.lower() not in text]
    assert [] == missing, why
    return why


# -- runs ----------------------------------------------------------------------------------------------


def test_it_ran(stage: Stage) -> None:
    """Which run, how it ended, when it started, where, how long it took."""
    stage.client.add("job", task="t", schedule="every 1h")
    step(stage, 60)
    key = stage.key(only(stage))
    stage.start(key)
    stage.clock.advance(90)
    stage.finish(key)
    why = said(stage, "13:00", Outcome.RAN, f"run {key.id} succeeded", "on time", "on w@host", "took 1m30s")
    assert (NOON + HOUR, NOON + HOUR, NOON + HOUR, key.id) == (
        why.at,
        why.occurrence,
        why.due_at,
        why.run and why.run.id,
    )


def test_it_ran_late_for_want_of_a_slot(make_stage: MakeStage) -> None:
    """While it waits it is capped; afterwards the run says how long it waited."""
    stage = make_stage(NOON, sched_max_concurrent_jobs=1)
    for name in ("first", "job"):
        stage.client.add(name, task="t", schedule="every 1h", priority=9 if name == "first" else 1)
    step(stage, 60)
    said(
        stage,
        NOON + HOUR,
        Outcome.CAPPED,
        "for a slot of pool 'default' since 2026-03-02 13:00:00 UTC: 1 of 1 are taken",
        "sched pools",
    )
    step(stage, 5)
    stage.work()
    stage.work_off()
    said(
        stage, NOON + HOUR, Outcome.RAN, "5m late", "from 2026-03-02 13:00:00 UTC to 2026-03-02 13:05:00 UTC"
    )


def test_it_expired_for_want_of_a_slot(make_stage: MakeStage) -> None:
    """A run that found no slot and expired is capped, not only skipped."""
    stage = make_stage(NOON, sched_max_concurrent_jobs=1)
    for name in ("first", "job"):
        priority = 9 if name == "first" else 1
        stage.client.add(name, task="t", schedule="every 1h", priority=priority, expires="2m")
    step(stage, 60)
    stage.start(stage.key(only(stage, "first")))
    step(stage, 3)
    said(stage, NOON + HOUR, Outcome.CAPPED, "could not start in time", "2026-03-02 13:02:00 UTC", "(capped)")


def test_it_expired(stage: Stage) -> None:
    """No worker took it in time."""
    stage.client.add("job", task="t", schedule="every 1h", expires="2m")
    step(stage, 63)
    said(stage, NOON + HOUR, Outcome.SKIPPED, "expired", "(the job's expires)", "sched backfill job")


@pytest.mark.parametrize("status", ["failed", "timed_out", "lost"])
def test_it_ran_and_did_not_succeed(make_stage: MakeStage, status: str) -> None:
    """The status and the reason are in the answer, and where the whole error is."""
    stage = make_stage(NOON, sched_max_runtime=600 if status == "lost" else 70)
    stage.client.add("job", task="t", schedule="every 1h")
    step(stage, 60)
    key = stage.key(only(stage))
    stage.start(key)
    if status == "failed":
        stage.finish(key, RunStatus.FAILED)
    for _ in range(30):
        stage.clock.advance(10)
        if status == "timed_out":
            stage.renew(key)
        stage.scheduler.poll()
    over = "ran longer than its max_runtime (70 s)"
    words = {"failed": "", "timed_out": over, "lost": "gave no sign of life"}
    shown = {"failed": "failed", "timed_out": "timed out", "lost": "was lost"}[status]
    why = said(stage, NOON + HOUR, Outcome.RAN, f"run {key.id} {shown}", words[status])
    assert [f"sched runs show {key.id}", f"sched retry {key.id}"] == list(why.next_steps)


def test_it_never_started(make_stage: MakeStage) -> None:
    """Published three times and no worker took it: that it never started is in the answer."""
    stage = make_stage(NOON, sched_start_timeout=60)
    stage.client.add("job", task="t", schedule="every 1h")
    step(stage, 60)
    stage.scheduler.advance(15 * 60, step=30)
    said(stage, NOON + HOUR, Outcome.NOT_STARTED, "is lost and never started", "published 3 times")


def test_it_is_on_its_way(stage: Stage) -> None:
    """Published, received, running, asked to stop: each says where it stands."""
    stage.client.add("job", task="t", schedule="every 1h", options={"queue": "slow"})
    step(stage, 60)
    key = stage.key(only(stage))
    said(stage, NOON + HOUR, Outcome.WAITING, "was published at", "no worker has received it", "queue 'slow'")
    stage.receive(key)
    said(stage, NOON + HOUR, Outcome.WAITING, "was received by a worker at", "a free process")
    stage.start(key)
    said(stage, NOON + HOUR, Outcome.RUNNING, f"run {key.id} is running", "on w@host")
    stage.client.cancel(key.id, by="me", reason="wrong day")
    said(stage, NOON + HOUR, Outcome.RUNNING, "me asked it to stop (wrong day)")


def test_it_was_cancelled(stage: Stage) -> None:
    """By whom, why, and that it had not started."""
    stage.client.add("job", task="t", schedule="every 1h")
    step(stage, 60)
    run_id = only(stage)
    stage.client.cancel(run_id, by="me", reason="wrong day")
    why = said(stage, NOON + HOUR, Outcome.CANCELLED, "stopped by me: wrong day", "it had not started")
    assert [f"sched runs show {run_id}", f"sched retry {run_id}"] == list(why.next_steps)


def test_it_waits_for_the_run_before(each_stage: Stage) -> None:
    """Queued behind a run of the same job: which, and of when."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1h", overlap="queue")
    step(stage, 60)
    key = stage.key(only(stage))
    stage.start(key)
    for _ in range(60):
        stage.clock.advance(60)
        stage.renew(key)
    stage.scheduler.poll()
    said(
        stage,
        NOON + 2 * HOUR,
        Outcome.WAITING,
        f"waits for run {key.id} (of 2026-03-02 13:00:00 UTC), which is running: overlap is 'queue'",
    )


def test_it_waits_for_a_scheduler(stage: Stage) -> None:
    """Queued by hand while no scheduler is there: nothing but that is in its way."""
    stage.client.add("job", task="t", schedule="every 1d")
    stage.clock.advance(20 * MINUTE)
    stage.client.run("job")
    said(
        stage,
        NOON + 20 * MINUTE,
        Outcome.WAITING,
        "nothing is in its way",
        "no scheduler is alive, the last pass was 20m ago",
        "by hand",
    )


def test_it_waits_for_a_pool_that_there_is_not(stage: Stage) -> None:
    """A pool that was taken away by plain SQL."""
    stage.client.add("job", task="t", schedule="every 1h")
    nowhere = update(job_table).values(pool="gone")
    stage.database.run(lambda tx, now: tx.execute(nowhere))
    step(stage, 60)
    said(stage, NOON + HOUR, Outcome.CAPPED, "pool 'gone', which does not exist")


def test_it_waits_for_its_retry(stage: Stage) -> None:
    """A run that is ready later says when, and which attempt it will be."""
    stage.client.add("job", task="t", schedule="every 1h")
    step(stage, 60)
    stage.client.pause("job")
    run_id = only(stage)
    cleared = {"status": "queued", "token": None, "holds_job": None, "lease_expires_at": None}
    again = update(run_table).values(ready_at=NOON + 2 * HOUR, attempt=2, **cleared)
    stage.database.run(lambda tx, now: tx.execute(again))
    said(
        stage,
        NOON + HOUR,
        Outcome.WAITING,
        f"run {run_id} waits until 2026-03-02 14:00:00 UTC for attempt 2",
    )


def test_overlap_says_what_became_of_the_other(stage: Stage) -> None:
    """Skipped because of a run: which one, of when, and how that ended."""
    stage.client.add("job", task="t", schedule="every 1m")
    step(stage, 1)
    key = stage.key(only(stage))
    stage.start(key)
    step(stage, 1.5)
    stage.finish(key)
    said(
        stage,
        NOON + 2 * MINUTE,
        Outcome.SKIPPED,
        f"overlap: run {key.id} is active",
        "of 2026-03-02 12:01:00 UTC, is succeeded at 2026-03-02 12:02:30 UTC; overlap is 'skip'",
    )


def test_one_waits_already(stage: Stage) -> None:
    """Skipped because one waits: which, and what became of it."""
    stage.client.add("job", task="t", schedule="every 1m", overlap="queue_one")
    step(stage, 1)
    key = stage.key(only(stage))
    stage.start(key)
    step(stage, 2)
    (waiting,) = [run for run in stage.active() if run.id != key.id]
    words = (f"queue_one: run {waiting.id} waits already", "of 2026-03-02 12:02:00 UTC, is queued")
    said(stage, NOON + 3 * MINUTE, Outcome.SKIPPED, *words)


def test_a_full_queue(stage: Stage) -> None:
    """More waiting runs than max_queued."""
    stage.client.add("job", task="t", schedule="every 1m", overlap="queue", max_queued=1)
    step(stage, 3)
    said(stage, NOON + 3 * MINUTE, Outcome.SKIPPED, "queue_full", "max_queued is 1")


def test_a_run_by_hand_is_retried(stage: Stage) -> None:
    """What is shown for one that was cancelled does what it says: no backfill has it."""
    stage.client.add("job", task="t", schedule="every 1d")
    stage.clock.advance(20 * MINUTE)
    run = stage.client.run("job")
    stage.client.cancel(run.id, by="me")
    why = said(stage, NOON + 20 * MINUTE, Outcome.CANCELLED, "by hand")
    assert [f"sched runs show {run.id}", f"sched retry {run.id}"] == list(why.next_steps)
    assert 2 == stage.client.retry(run.id).attempt
    said(stage, NOON + 20 * MINUTE, Outcome.WAITING, "attempt 2")


def test_a_run_by_hand_that_expired_is_retried(stage: Stage) -> None:
    """Though there is an occurrence at that very time: what ran by hand is none of a backfill."""
    stage.client.add("job", task="t", schedule="every 1m", expires="2m")
    stage.client.pause("job")
    stage.clock.advance(20 * MINUTE)
    run = stage.client.run("job")
    step(stage, 4)
    why = said(stage, NOON + 20 * MINUTE, Outcome.SKIPPED, "expired", "by hand")
    assert [f"sched runs show {run.id}", f"sched retry {run.id}"] == list(why.next_steps)


def test_a_missed_run_of_after_is_retried(stage: Stage) -> None:
    """Its occurrences are none of a backfill."""
    stage.client.add("job", task="t", schedule="after 1h", expires="2m")
    step(stage, 60)
    run_id = only(stage)
    step(stage, 4)
    why = said(stage, NOON + HOUR, Outcome.SKIPPED, "expired")
    assert [f"sched runs show {run_id}", f"sched retry {run_id}"] == list(why.next_steps)


# -- missed --------------------------------------------------------------------------------------------


def test_missed_while_no_scheduler_ran(each_stage: Stage) -> None:
    """From a row and from a counted range: when nobody ran, the policy, and how to make it good."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1m")
    stage.clock.advance(30 * MINUTE + SECOND)
    stage.work_off()
    down = "no scheduler ran from 2026-03-02 12:00:00 to 2026-03-02 12:30:01 UTC"
    why = said(stage, NOON + 25 * MINUTE, Outcome.MISSED, down, "misfire='once'")
    assert why.run is not None and RunStatus.SKIPPED == why.run.status
    assert ["sched backfill job --from 2026-03-02T12:25:00Z --to 2026-03-02T12:25:00Z"] == list(
        why.next_steps
    )
    why = said(stage, NOON + 7 * MINUTE, Outcome.MISSED, down, "one of 19 occurrences")
    assert why.gap is not None and (None, 19) == (why.run, why.gap.count)
    said(stage, NOON + 30 * MINUTE, Outcome.RAN, "1s late")


def test_made_good_by_a_backfill(stage: Stage) -> None:
    """The command that is shown for what was missed does what it says, and the run says who made it."""
    stage.client.add("job", task="t", schedule="every 1m")
    stage.clock.advance(30 * MINUTE + SECOND)
    stage.work_off()
    for minute in (7, 25):  # of a counted range, and with a row of its own
        at = NOON + minute * MINUTE
        (shown,) = ask(stage, at).next_steps
        assert f"sched backfill job --from {at:%Y-%m-%dT%H:%M:%SZ} --to {at:%Y-%m-%dT%H:%M:%SZ}" == shown
        made = stage.client.backfill("job", at, at)
        stage.scheduler.poll()
        said(stage, at, Outcome.WAITING, f"by backfill {made.id}")
        stage.work_off()
        said(stage, at, Outcome.RAN, f"by backfill {made.id}", "attempt 2" if minute == 25 else "it ran")


def test_missed_by_misfire_skip(stage: Stage) -> None:
    """Older than the grace: which grace."""
    stage.client.add("job", task="t", schedule="every 1h", misfire="skip", misfire_grace="5s")
    stage.clock.now = NOON + HOUR + 20 * SECOND
    stage.scheduler.poll()
    said(stage, NOON + HOUR, Outcome.MISSED, "misfire='skip' with a grace of 5s")


def test_late_when_it_was_paused(stage: Stage) -> None:
    """What had come and was not planned when the job was paused is missed, not paused."""
    stage.client.add("job", task="t", schedule="every 1m")
    stage.clock.advance(3 * MINUTE + SECOND)
    stage.client.pause("job")
    stage.clock.advance(3 * MINUTE)
    stage.client.resume("job")
    said(stage, NOON + 2 * MINUTE, Outcome.MISSED, "late when the job was paused", "one of 3 occurrences")
    said(stage, NOON + 4 * MINUTE, Outcome.PAUSED)


# -- a job that is not active --------------------------------------------------------------------------


def test_paused(stage: Stage) -> None:
    """While it is paused and after: since when, by whom, why."""
    stage.client.add("job", task="t", schedule="every 1m")
    worked(stage, 1)
    stage.client.pause("job", "the warehouse moves", by="me")
    step(stage, 3.5)
    words = ("the warehouse moves", "me")
    said(
        stage, NOON + 3 * MINUTE, Outcome.PAUSED, *words, "since 2026-03-02 12:01:00 UTC", "sched resume job"
    )
    said(stage, NOON + 9 * MINUTE, Outcome.FUTURE, *words, "is paused", "nothing runs before it is resumed")
    stage.client.resume("job")
    why = said(stage, NOON + 3 * MINUTE, Outcome.PAUSED, *words, "one of 3 occurrences")
    assert () == tuple(why.next_steps)
    said(stage, NOON + MINUTE, Outcome.RAN)


def test_disabled(stage: Stage) -> None:
    """Switched off in its definition, now and then."""
    stage.client.add("job", task="t", schedule="every 1m", enabled=False)
    step(stage, 2)
    said(stage, NOON + MINUTE, Outcome.DISABLED, "disabled in its definition")
    stage.client.edit("job", enabled=True)
    said(stage, NOON + MINUTE, Outcome.DISABLED, "disabled in its definition")


def test_error(stage: Stage) -> None:
    """A zone that vanished: in error while it lasts; the occurrence at which it was found stays on record."""
    stage.client.add("job", task="t", schedule="every 1m", timezone="Europe/Berlin")
    broken = update(job_table).values(timezone="Mars/Olympus")
    stage.database.run(lambda tx, now: tx.execute(broken))
    said(stage, NOON + MINUTE, Outcome.ERROR, "Mars/Olympus")
    stage.poll_at(NOON + MINUTE + SECOND, NOON + 3 * MINUTE)
    said(stage, NOON + MINUTE, Outcome.ERROR, "Mars/Olympus")
    said(stage, NOON + 2 * MINUTE, Outcome.ERROR, "Mars/Olympus", "sched resume job")
    stage.client.edit("job", timezone="Europe/Berlin")
    stage.clock.advance(10 * MINUTE)
    for minute in (1, 2, 3):
        said(stage, NOON + minute * MINUTE, Outcome.ERROR, "Mars/Olympus")


def test_late_while_its_times_could_not_be_read(stage: Stage) -> None:
    """Nobody passed while the zone was gone: what came is on record, though nobody can count it."""
    stage.client.add("job", task="t", schedule="every 1m", timezone="Europe/Berlin")
    broken = update(job_table).values(timezone="Mars/Olympus")
    stage.database.run(lambda tx, now: tx.execute(broken))
    stage.clock.advance(3 * MINUTE + SECOND)
    said(stage, NOON + 2 * MINUTE, Outcome.ERROR, "nobody can say when the job was due", "Mars/Olympus")
    stage.client.edit("job", timezone="Europe/Berlin")
    for minute in (1, 2, 3):
        said(stage, NOON + minute * MINUTE, Outcome.MISSED, "late when the job was changed")


def test_a_pause_does_not_hide_an_error(stage: Stage) -> None:
    """What was wrong stands beside the reason of the pause; a resume names the job and what to do."""
    stage.client.add("job", task="t", schedule="every 1m", timezone="Europe/Berlin")
    broken = update(job_table).values(timezone="Mars/Olympus")
    stage.database.run(lambda tx, now: tx.execute(broken))
    stage.poll_at(NOON + MINUTE + SECOND)
    stage.client.pause("job", "until it is repaired", by="me")
    reason = stage.client.get("job").status_reason or ""
    assert reason.startswith(
        "until it is repaired (before that it was in error: InvalidValue: time zone 'Mars/Olymp"
    )
    said(stage, "now", Outcome.PAUSED, "until it is repaired", "before that it was in error", "Mars/Olympus")
    for refused in (lambda: stage.client.resume("job"), lambda: stage.client.backfill("job", NOON, NOON)):
        with pytest.raises(InvalidValue) as told:
            refused()
        assert "job 'job': time zone 'Mars/Olympus' is refused: " in str(told.value)
        assert str(told.value).endswith("To repair it: sched jobs edit job --tz ZONE")
    stage.client.edit("job", timezone="Europe/Berlin")
    assert "active" == stage.client.resume("job").status


# -- now ----------------------------------------------------------------------------------------------


def test_now_of_an_active_job(stage: Stage) -> None:
    """When it is due next, not the occurrence nearby; what runs and what waits."""
    stage.client.add("job", task="t", schedule="every 1h", overlap="queue")
    step(stage, 60)
    key = stage.key(only(stage))
    due = "its next occurrence is 2026-03-02 14:00:00 UTC: its run is due in 1h"
    said(stage, "now", Outcome.WAITING, due, f"run {key.id}", "is dispatched since 2026-03-02 13:00:00 UTC")
    stage.start(key)
    stage.clock.advance(30)
    why = said(
        stage, " NOW ", Outcome.RUNNING, "due in 59m30s", f"{key.id} (of 2026-03-02 13:00:00 UTC) is running"
    )
    assert ("2026-03-02 13:00:30 UTC", NOON + 2 * HOUR, key.id) == (
        why.about,
        why.occurrence,
        why.run and why.run.id,
    )
    stage.finish(key)
    assert None is said(stage, "now", Outcome.FUTURE, "due in 59m30s").run
    for _ in range(8):
        stage.client.run("job")
    why = said(stage, "now", Outcome.WAITING, "is queued since", "3 more wait")
    assert 5 == why.text.count("is queued since")


def test_now_of_a_job_that_is_overdue(stage: Stage) -> None:
    """That it missed its deadline is in the answer."""
    stage.client.add("job", task="t", schedule="every 1h", must_succeed_by="2h")
    assert "overdue" not in ask(stage, "now").text
    late = update(job_table).values(overdue_since=NOON)
    stage.database.run(lambda tx, now: tx.execute(late))
    said(stage, "now", Outcome.FUTURE, "overdue", "2026-03-02 12:00:00", "must_succeed_by")


@pytest.mark.parametrize(("on", "how"), [(None, "runs by hand"), ("orders.*", "when an event comes")])
def test_now_of_a_job_without_times(stage: Stage, on: str | None, how: str) -> None:
    """It is not due again: what makes it run is in the answer."""
    stage.client.add("job", task="t", schedule="none", on=on)
    why = said(stage, "now", Outcome.FUTURE, "has no times", how)
    assert ("sched run job",) == tuple(why.next_steps)
    assert "due again" not in why.text


def test_now_of_a_job_that_is_not_active(stage: Stage) -> None:
    """Its status and the reason, though an occurrence of before is near; a run that goes on is told too."""
    stage.client.add("job", task="t", schedule="every 1m")
    step(stage, 1)
    key = stage.key(only(stage))
    stage.start(key)
    stage.client.pause("job", "holidays", by="me")
    said(
        stage,
        "now",
        Outcome.PAUSED,
        "is paused",
        "holidays",
        f"run {key.id}",
        "is running",
        "sched resume job",
    )
    stage.client.add("off", task="t", schedule="every 1m", enabled=False)
    said(stage, "now", Outcome.DISABLED, "disabled in its definition", job="off")
    stage.client.add("once", task="t", schedule=f"once {NOON + 2 * MINUTE:%Y-%m-%dT%H:%MZ}")
    step(stage, 2)
    said(stage, "now", Outcome.OUTSIDE, "is expired", "no further occurrence", job="once")
    stage.client.delete("off", by="me")
    said(stage, "now", Outcome.DELETED, "deleted by me", job="off")


def test_now_of_a_job_in_error(stage: Stage) -> None:
    """Before a scheduler has come to it and after: what is wrong and how it is repaired."""
    stage.client.add("job", task="t", schedule="every 1m", timezone="Europe/Berlin")
    broken = update(job_table).values(timezone="Mars/Olympus")
    stage.database.run(lambda tx, now: tx.execute(broken))
    cure = "to repair it: sched jobs edit job --tz ZONE"
    said(stage, "now", Outcome.ERROR, "Mars/Olympus", cure)
    stage.poll_at(NOON + MINUTE + SECOND)
    said(stage, "now", Outcome.ERROR, "the job is in error since", "Mars/Olympus", cure)


def test_now_while_no_scheduler_is_there(stage: Stage) -> None:
    """Due, and nobody has come to it."""
    stage.client.add("job", task="t", schedule="every 1m")
    stage.clock.advance(10 * MINUTE)
    said(stage, "now", Outcome.UNPLANNED, "was due 9m ago", "no scheduler is alive")


# -- its times -----------------------------------------------------------------------------------------


def test_excluded(stage: Stage) -> None:
    """Which calendar, and the holiday; before it comes and after."""
    stage.client.add(
        "job", task="t", schedule="0 12 * * *", timezone="Europe/Berlin", exclude=["holidays:DE"]
    )
    stage.client.edit("job", description="an edit of something else is none of its times")
    for _ in range(2):
        said(stage, "2026-04-03T12:00", Outcome.EXCLUDED, "calendar holidays:DE excludes it (Good Friday)")
        stage.clock.advance(50 * DAY)
        stage.work_off()


def test_an_excluded_time_of_after(stage: Stage) -> None:
    """Which calendar holds the next one back; asked for the excluded time, now, and the next occurrence."""
    stage.client.add("job", task="t", schedule="after 5h", exclude=["weekly:mon 20:00-24:00"])
    worked(stage, 300)
    names = "calendar weekly:mon 20:00-24:00 excludes"
    why = said(stage, NOON + 10 * HOUR, Outcome.EXCLUDED, names, "its delay is added again until no calendar")
    assert why.run is None
    held = f"{names} 2026-03-02 22:00:00 UTC, when it would have been due"
    said(stage, "now", Outcome.FUTURE, "due in 10h, at 2026-03-03 03:00:00 UTC", held)
    said(stage, NOON + 15 * HOUR, Outcome.FUTURE, held)
    said(stage, NOON + 5 * HOUR, Outcome.RAN)
    worked(stage, 900)
    why = said(stage, "now", Outcome.FUTURE)
    assert "calendar" not in why.text


def test_moved_to_a_business_day(stage: Stage) -> None:
    """Where an excluded occurrence went, and that the other came from there."""
    stage.client.add(
        "job", task="t", schedule="0 12 7 * *", exclude=["weekly:sat,sun"], on_excluded="next_business_day"
    )
    stage.poll_at(NOON + 7 * DAY)
    stage.work()
    moved = "moved to the next business day: 2026-03-09 12:00:00 UTC"
    said(
        stage,
        "2026-03-07T12:00",
        Outcome.EXCLUDED,
        "weekly:sat,sun",
        moved,
        "sched why job 2026-03-09T12:00:00Z",
    )
    said(stage, "2026-03-09T12:00", Outcome.RAN, "moved here from an excluded day")


def test_outside_its_window(stage: Stage) -> None:
    """Before start_at, after end_at, before and after it came."""
    window = {"start_at": "2026-03-02T13:00Z", "end_at": "2026-03-02T15:00Z"}
    stage.client.add("job", task="t", schedule="0 * * * *", **window)
    stage.client.add("late", task="t", schedule="0 * * * *", start_at="2026-03-02T20:00Z")
    for _ in range(2):
        said(stage, "2026-03-02T14:20Z", Outcome.NOT_AN_OCCURRENCE)
        said(stage, "2026-03-02T16:00Z", Outcome.OUTSIDE, "after the job's end_at, 2026-03-02 15:00:00 UTC")
        worked(stage, 5 * 60)
    said(
        stage,
        "2026-03-02T18:00",
        Outcome.OUTSIDE,
        "before the job's start_at, 2026-03-02 20:00:00 UTC",
        job="late",
    )


def test_max_runs(stage: Stage) -> None:
    """Reached: also after a higher number woke the job again, and of those that were due together."""
    stage.client.add("job", task="t", schedule="every 1m", max_runs=2, misfire="all")
    said(stage, NOON + 10 * MINUTE, Outcome.FUTURE, "2 of its max_runs left")
    stage.clock.advance(5 * MINUTE)
    stage.work_off()
    said(stage, NOON + 2 * MINUTE, Outcome.RAN)
    for minute in (3, 5, 6):
        said(stage, NOON + minute * MINUTE, Outcome.OUTSIDE, "max_runs (2) is reached")
    stage.clock.advance(MINUTE + SECOND)
    stage.client.edit("job", max_runs=3)
    for minute in (3, 4, 5, 6):
        said(stage, NOON + minute * MINUTE, Outcome.OUTSIDE, "max_runs (2) is reached")


def test_not_an_occurrence(stage: Stage) -> None:
    """The nearest ones, and that the same time of another clock would be one."""
    stage.client.add("job", task="t", schedule="30 9 * * *", timezone="Europe/Berlin")
    worked_until = NOON + DAY
    stage.poll_at(worked_until)
    why = said(
        stage,
        "2026-03-03T09:30Z",
        Outcome.NOT_AN_OCCURRENCE,
        "2026-03-03 10:30:00 CET is not an occurrence of '30 9 * * *' (Europe/Berlin)",
        "the nearest are 2026-03-03 09:30:00 CET and 2026-03-04 09:30:00 CET",
        "did you mean 2026-03-03T08:30:00Z?",
        "sched next --job job",
    )
    assert (datetime(2026, 3, 3, 8, 30, tzinfo=UTC), datetime(2026, 3, 4, 8, 30, tzinfo=UTC), None) == (
        why.occurrence_before,
        why.occurrence_after,
        why.occurrence,
    )
    said(stage, "2026-03-03T08:30", Outcome.NOT_AN_OCCURRENCE, "the same time in UTC is one")


def test_a_time_that_does_not_exist(make_stage: MakeStage) -> None:
    """02:30 of the night in which the clocks go forward is answered for the run that makes it good."""
    stage = make_stage(datetime(2026, 3, 28, 12, tzinfo=UTC))
    stage.client.add("job", task="t", schedule="30 2 * * *", timezone="Europe/Berlin")
    stage.client.add("star", task="t", schedule="*/30 2 * * *", timezone="Europe/Berlin")
    stage.poll_at(datetime(2026, 3, 29, 1, tzinfo=UTC))
    stage.work()
    stage.poll_at(datetime(2026, 3, 29, 12, tzinfo=UTC))
    missing = "02:30 does not exist on 2026-03-29 in Europe/Berlin (clocks go forward 1 h"
    why = said(stage, "2026-03-29T02:30", Outcome.RAN, missing, "03:00 is meant")
    assert datetime(2026, 3, 29, 1, tzinfo=UTC) == why.occurrence
    said(stage, "2026-03-29T03:00", Outcome.RAN, "02:30 does not exist")
    said(stage, "2026-03-29T02:30", Outcome.NOT_AN_OCCURRENCE, missing, job="star")


def test_a_time_that_comes_twice(make_stage: MakeStage) -> None:
    """Fixed times run at the first of the two; asking for the second says so."""
    stage = make_stage(datetime(2026, 10, 24, 12, tzinfo=UTC))
    stage.client.add("job", task="t", schedule="30 2 * * *", timezone="Europe/Berlin")
    stage.poll_at(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    stage.work()
    stage.poll_at(datetime(2026, 10, 25, 12, tzinfo=UTC))
    twice = "02:30 comes twice on 2026-10-25 in Europe/Berlin: at 00:30Z and at 01:30Z"
    said(stage, "2026-10-25T02:30", Outcome.RAN, twice)
    said(stage, "2026-10-25T01:30Z", Outcome.NOT_AN_OCCURRENCE, "2026-10-25 02:30:00 CET", "02:30:00 CEST")


def test_the_second_of_two_times(make_stage: MakeStage) -> None:
    """Where only the second one has a run, that is answered for."""
    stage = make_stage(datetime(2026, 10, 24, 12, tzinfo=UTC))
    stage.client.add("job", task="t", schedule="once 2026-10-25T01:30Z", timezone="Europe/Berlin")
    stage.poll_at(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
    stage.work()
    said(stage, "2026-10-25T02:30", Outcome.RAN, "The second one is meant: 2026-10-25T01:30:00Z")


def test_the_minute_is_enough(stage: Stage) -> None:
    """12:30 is typed for 12:30:17, and the answer says so; a minute without one has none."""
    stage.client.add("job", task="t", schedule="30 * * * * 17")
    worked(stage, 35)
    meant = "this is the answer for 2026-03-02 12:30:17 UTC"
    for typed in ("12:30", "12:30:59", "2026-03-02T12:30:03Z"):
        why = said(stage, typed, Outcome.RAN, meant)
        assert NOON + 30 * MINUTE + 17 * SECOND == why.occurrence
    assert () == said(stage, "12:30:17", Outcome.RAN).notes
    said(stage, "12:31", Outcome.NOT_AN_OCCURRENCE)


def test_jitter(each_stage: Stage) -> None:
    """The occurrence and the time at which its run was due are both known."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1h", jitter="30m")
    due = stage.client.get("job").next_run_at
    assert due is not None and due - NOON - HOUR > 2 * MINUTE
    stage.clock.now = NOON + HOUR + MINUTE
    stage.scheduler.poll()
    why = said(stage, NOON + HOUR, Outcome.FUTURE, "still to come", "after the occurrence by its jitter")
    assert (NOON + HOUR, due) == (why.occurrence, why.due_at)
    stage.poll_at(due)
    stage.work()
    for typed in ("13:00", due, f"{due:%H:%M}"):
        why = said(stage, typed, Outcome.RAN, "on time", "after the occurrence, by its jitter")
        assert (NOON + HOUR, due) == (why.occurrence, why.due_at)


# -- what is to come, and what is not on record --------------------------------------------------------


def test_still_to_come(stage: Stage) -> None:
    """Due in so long, and where."""
    stage.client.add("job", task="t", schedule="every 1h")
    said(stage, NOON + 2 * HOUR, Outcome.FUTURE, "due in 2h, at 2026-03-02 14:00:00 UTC")


def test_not_planned_yet(stage: Stage) -> None:
    """Due, and nobody came: when a scheduler was there last."""
    stage.client.add("job", task="t", schedule="every 1m")
    stage.client.add("first", task="t", schedule="every 1d", run_immediately=True)
    said(stage, NOON, Outcome.UNPLANNED, "due 0s ago", job="first")
    stage.clock.advance(10 * MINUTE)
    last = "no scheduler is alive, the last pass was 10m ago, at 2026-03-02 12:00:00 UTC"
    said(stage, NOON + 5 * MINUTE, Outcome.UNPLANNED, "was due 5m ago", last, "sched status")


def test_a_first_run_at_once(stage: Stage) -> None:
    """An instant set by hand is none of the schedule, and has a run."""
    stage.client.add("job", task="t", schedule="0 0 1 1 *", run_immediately=True)
    stage.work_off()
    said(stage, NOON, Outcome.RAN)


def test_before_the_job(stage: Stage) -> None:
    """The job was made later, occurrence or not."""
    stage.client.add("job", task="t", schedule="every 1h")
    for at in (NOON, NOON - HOUR, NOON - 90 * MINUTE):
        said(
            stage,
            at,
            Outcome.BEFORE_JOB,
            "the job was made later: at 2026-03-02 12:00:00 UTC",
        )


def test_before_an_edit(each_stage: Stage) -> None:
    """What the schedule was then, by whom and when it was changed; what ran then ran."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1h")
    worked(stage, 90)
    stage.client.edit("job", schedule="every 7m", by="me")
    said(stage, NOON + HOUR, Outcome.RAN)
    why = said(
        stage,
        NOON + 70 * MINUTE,
        Outcome.BEFORE_EDIT,
        "changed later: at 2026-03-02 13:30:00 UTC by me",
        "then its schedule was 'every 1h' (UTC)",
        "2026-03-02 13:10:00 UTC is not an occurrence of 'every 1h' (UTC)",
    )
    assert why.occurrence is None
    stage.client.pause("job")
    worked(stage, 10)
    stage.client.edit("job", schedule="every 1m")
    said(stage, NOON + 91 * MINUTE, Outcome.PAUSED)


def test_before_an_edit_the_minute_is_that_of_the_times_of_then(stage: Stage) -> None:
    """A time of the schedule that it has now, which it had not then, is not taken for the one meant."""
    stage.clock.now = NOON + timedelta(seconds=9, microseconds=399_320)
    stage.client.add("job", task="t", schedule="every 12h")
    stage.clock.advance(2 * HOUR)
    stage.client.edit("job", schedule="every 1h")
    why = said(
        stage,
        "13:00",
        Outcome.BEFORE_EDIT,
        "2026-03-02 13:00:00 UTC is not an occurrence of 'every 12h' (UTC)",
    )
    assert ((), "2026-03-02 13:00:00 UTC") == (tuple(why.notes), why.about)
    stage.clock.advance(HOUR)
    meant = "13:00:00 UTC itself is none; this is the answer for 2026-03-02 15:00:09.399320 UTC"
    said(stage, "15:00", Outcome.UNPLANNED, meant.replace("13:00:00", "15:00:00"))


def test_before_an_edit_of_calendars(stage: Stage) -> None:
    """An occurrence that was excluded then is said to have been, though the calendar is gone."""
    stage.client.add("job", task="t", schedule="every 1d", exclude=["weekly:tue"])
    stage.clock.advance(1.5 * DAY)
    stage.client.edit("job", exclude=[])
    said(
        stage, NOON + DAY, Outcome.BEFORE_EDIT, "Then its schedule was 'every 1d' (UTC): calendar weekly:tue"
    )


def test_before_a_deploy(make_stage: MakeStage) -> None:
    """What code changed is not in the audit, and that is said."""
    from celery_sched.model import JobDefinition
    from celery_sched.steps import define

    stage = make_stage(NOON)

    def deploy(schedule: str) -> None:
        wanted = JobDefinition("job", "t", schedule, args=[], exclude=[])
        stage.database.run(lambda tx, now: define.sync(tx, now, stage.config, [wanted]))

    deploy("every 1h")
    stage.clock.advance(30 * MINUTE)
    deploy("every 7m")
    said(stage, NOON + 10 * MINUTE, Outcome.BEFORE_EDIT, "What they were is not in the audit log")


def test_pruned(make_stage: MakeStage) -> None:
    """Older than records are kept: it says so, and does not guess."""
    stage = make_stage(NOON, sched_keep_runs="1h")
    stage.client.add("job", task="t", schedule="every 10m")
    worked(stage, 90)
    prune(stage.scheduler.runtime)
    said(stage, NOON + 10 * MINUTE, Outcome.PRUNED, "older than sched_keep_runs (1h)")
    said(stage, NOON + 80 * MINUTE, Outcome.RAN)


def test_a_deleted_job(each_stage: Stage) -> None:
    """What ran is still known; of the rest it is said by whom the job was deleted; a new one begins anew."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="every 1m", timezone="Europe/Berlin")
    worked(stage, 2)
    stage.client.pause("job")
    worked(stage, 2)
    stage.client.resume("job")
    stage.client.delete("job", by="me")
    said(stage, NOON + MINUTE, Outcome.RAN)
    said(stage, "12:01", Outcome.RAN)  # of a job that is not there nobody knows the zone
    said(stage, NOON + 3 * MINUTE, Outcome.PAUSED)
    said(
        stage,
        NOON + 9 * MINUTE,
        Outcome.DELETED,
        "it was deleted by me at 2026-03-02 12:04:00 UTC",
    )
    stage.clock.advance(MINUTE)
    stage.client.add("job", task="t", schedule="every 1m")
    said(stage, NOON + MINUTE, Outcome.RAN)
    said(stage, NOON + 3 * MINUTE, Outcome.PAUSED)
    said(stage, NOON + 5 * MINUTE, Outcome.BEFORE_JOB)


def test_a_deleted_job_is_not_called_late(make_stage: MakeStage) -> None:
    """Nobody knows its jitter any more; nor that of before an edit by a deploy."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="every 1h", jitter="30m")
    due = stage.client.get("job").next_run_at
    assert due is not None
    stage.poll_at(due)
    stage.work()
    said(stage, NOON + HOUR, Outcome.RAN, "on time")
    stage.client.edit("job", jitter=None)
    said(stage, NOON + HOUR, Outcome.RAN, "on time", "by its jitter")
    stage.client.delete("job")
    why = said(stage, NOON + HOUR, Outcome.RAN, "after its occurrence")
    assert (False, ()) == (" late" in why.text, tuple(why.next_steps))


def test_a_record_that_somebody_deleted(stage: Stage) -> None:
    """It is not made up: the answer is that there should be one."""
    stage.client.add("job", task="t", schedule="every 1m")
    worked(stage, 2)
    stage.database.run(lambda tx, now: tx.execute(delete(run_table)))
    said(stage, NOON + MINUTE, Outcome.UNRECORDED, "no record of it")


def test_after_the_end_of_a_run(stage: Stage) -> None:
    """`after` has the occurrences that it had, the next one, and no others."""
    stage.client.add("job", task="t", schedule="after 5m")
    worked(stage, 6)
    said(stage, NOON + 5 * MINUTE, Outcome.RAN)
    said(stage, NOON + 10 * MINUTE, Outcome.FUTURE)
    said(stage, NOON + 2 * MINUTE, Outcome.NOT_AN_OCCURRENCE, "counts from the end of the last run")


def test_no_such_job(stage: Stage) -> None:
    """A name that never was is refused with the nearest one; so is a time that cannot be read."""
    stage.client.add("nightly", task="t", schedule="every 1h")
    with pytest.raises(LookupError, match="Did you mean 'nightly'"):
        ask(stage, NOON, "nihgtly")
    for typed in ("soon", "25:00", "1969-12-31T00:00", "3000-01-01", "0001-01-01", "9999-12-31T23:59Z", ""):
        with pytest.raises(ValueError, match=r"TIME .* is refused: a time from 1970 to 2999"):
            ask(stage, typed, "nightly")


def test_nothing_is_written(stage: Stage) -> None:
    """An answer changes nothing."""
    stage.client.add("job", task="t", schedule="every 1m")
    worked(stage, 2)
    before = stage.rows()
    for minute in range(5):
        ask(stage, NOON + minute * MINUTE)
    assert before == stage.rows()
