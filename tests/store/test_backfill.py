"""Backfills on each kind of database: each occurrence once, never too many at a time, regular runs first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_sched.model import RunId, RunKey, Trigger
from celery_sched.rules.identity import occurrence_key
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import backfill as step
from celery_sched.steps.start import Verdict
from celery_sched.store import backfills, gaps, runs
from tests import invariants
from tests.store.filling import DAY, FIRST, HOUR, fill, hourly, instants, work_off
from tests.store.world import START, Bench, together


def test_the_occurrences_of_a_range_run_once_each(bench: Bench) -> None:
    """Both ends belong to it; oldest first, one at a time; the mark and the next instant stay."""
    hourly(bench)
    before = bench.job_row()
    made = bench.client.backfill("job", FIRST, FIRST + 5 * HOUR, by="ada")
    assert (6, 0, "running", "ada") == (made.total, made.finished, made.status, made.created_by)
    order = fill(bench, made)
    assert [FIRST + n * HOUR for n in range(6)] == instants(bench, order)
    done = bench.client.get_backfill(made.id)
    assert ("done", 6, 6, 0, 0, 6) == (
        *(done.status, done.total, done.created, done.again, done.left, done.succeeded),
    )
    found = bench.scheduler.runs("job")
    assert {(Trigger.BACKFILL, -1, 1, "succeeded")} == {
        (run.trigger, run.priority, run.attempt, run.status) for run in found
    }
    after = bench.job_row()
    assert (before.last_scheduled_for, before.next_run_at, before.version, 0) == (
        *(after.last_scheduled_for, after.next_run_at, after.version, after.planned_count),
    )


def test_never_more_than_it_may(bench: Bench) -> None:
    """However often schedulers pass, at most ``max_concurrent`` of its runs are unfinished."""
    hourly(bench, overlap="concurrent")
    made = bench.client.backfill("job", FIRST, FIRST + 11 * HOUR, max_concurrent=3)
    second, seen = bench.another(), []
    for _ in range(30):
        bench.scheduler.poll()
        second.poll()
        found = bench.client.get_backfill(made.id)
        seen.append(found.queued + found.in_flight)
        keys = bench.messages()
        for key in keys[:2]:
            assert Verdict.YOURS == bench.start(key).verdict
            assert bench.finish(key).settled
        for key in keys[2:]:  # the third one goes on while the others end
            assert Verdict.YOURS == bench.start(key).verdict
            bench.scheduler.poll()
            assert bench.finish(key).settled
        if found.status != "running":
            break
    assert (3, "done", 12) == (max(seen), found.status, found.succeeded)
    assert 12 == len({run.scheduled_for for run in bench.scheduler.runs("job")})


@pytest.mark.parametrize("schedulers", [2, 4])
def test_schedulers_that_step_at_the_same_time(bench: Bench, schedulers: int) -> None:
    """The step of several schedulers at once: no occurrence twice, never more runs than allowed."""
    hourly(bench, overlap="concurrent")
    made = bench.client.backfill("job", FIRST, FIRST + 19 * HOUR, max_concurrent=4)
    sessions = [bench.session() for _ in range(schedulers)]

    def go_on(session: Any) -> Callable[[], Any]:
        return lambda: session.run(lambda tx, now: step.backfill(tx, now, bench.config, made.id))

    created = 0
    while True:
        together(*(go_on(session) for session in sessions))
        found = bench.client.get_backfill(made.id)
        assert found.queued <= 4
        if found.status != "running":
            break
        assert found.created > created, "nobody made anything"
        created = found.created
        for dispatch in bench.claim():
            assert Verdict.YOURS == bench.start(dispatch.key).verdict
            assert bench.finish(dispatch.key).settled
        invariants.check(bench.database)
    assert (20, 20) == (found.created, found.succeeded)
    assert [1] * 20 == list(Counter(run.scheduled_for for run in bench.scheduler.runs("job")).values())


def settled(bench: Bench, hours: int, status: RunStatus | None) -> RunId:
    """A run of the occurrence of some hour, ended so (None: it is running)."""
    occurrence = FIRST + hours * HOUR
    job_row = bench.job_row()
    row = step._row(job_row, None, occurrence, bench.clock.now)  # type: ignore[arg-type]
    run_id = RunId(row["id"])
    bench.set_job("job", last_scheduled_for=START)
    plain = {**row, "trigger_kind": "schedule", "priority": 5}
    bench.database.run(lambda tx, now: runs.add(tx, [plain]))
    (dispatch,) = (one for one in bench.claim() if one.key.id == run_id)
    assert Verdict.YOURS == bench.start(dispatch.key).verdict
    if status is not None:
        assert bench.finish(dispatch.key, status, error="no", result="1", reason="because").settled
    return run_id


@pytest.mark.parametrize(
    ("reprocess", "attempts"),
    [
        # succeeded, failed, timed_out, lost, cancelled while running, cancelled before, skipped, running
        ("none", [1, 1, 1, 1, 1, 2, 2, 1]),
        ("failed", [1, 2, 2, 2, 2, 2, 2, 1]),
        ("all", [2, 2, 2, 2, 2, 2, 2, 1]),
    ],
)
def test_what_has_a_run_already(bench: Bench, reprocess: str, attempts: list[int]) -> None:
    """What never ran is run whatever is asked for; the rest as asked, as a new attempt of the same run."""
    hourly(bench, overlap="concurrent")
    ends = ["succeeded", "failed", "timed_out", "lost", "cancelled"]
    ids = [settled(bench, hour, RunStatus(end)) for hour, end in enumerate(ends)]
    job_row = bench.job_row()
    for hour, status in ((5, RunStatus.QUEUED), (6, RunStatus.SKIPPED)):
        row = {**step._row(job_row, None, FIRST + hour * HOUR, bench.clock.now), "status": status.value}  # type: ignore[arg-type]
        if status is RunStatus.SKIPPED:
            row |= {"finished_at": bench.clock.now, "reason": "missed: found 75.0 s late"}
            bench.set_job("job", skipped_count=1)
        bench.database.run(lambda tx, now, row=row: runs.add(tx, [row]))  # type: ignore[misc]
        ids.append(RunId(row["id"]))
    bench.client.cancel(ids[5])
    ids.append(settled(bench, 7, None))
    invariants.check(bench.database)
    preview = bench.client.preview_backfill("job", FIRST, FIRST + 9 * HOUR)
    assert (10, FIRST, FIRST + 9 * HOUR) == (preview.total, preview.first, preview.last)
    assert {**dict.fromkeys(ends, 1), "cancelled": 2, "skipped": 1, "running": 1} == preview.by_status
    preview = bench.client.preview_backfill("job", FIRST, FIRST + 9 * HOUR, reprocess=reprocess)
    made = bench.client.backfill("job", FIRST, FIRST + 9 * HOUR, reprocess=reprocess, max_concurrent=20)
    fill(bench, made)
    assert attempts == [bench.row(run_id).attempt for run_id in ids]
    done = bench.client.get_backfill(made.id)
    repeated = attempts.count(2)
    assert (10, 2, repeated, 8 - repeated) == (done.total, done.created, done.again, done.left)
    assert (done.created, done.again, done.left) == (preview.new, preview.again, sum(preview.left.values()))
    assert attempts.count(1) == sum(preview.left.values())
    assert 1 == preview.left["running"]
    assert 10 == len(bench.scheduler.runs("job"))
    for run_id, attempt in zip(ids, attempts, strict=True):
        row = bench.row(run_id)
        if attempt == 2:
            assert ("succeeded", None, None, None) == (row.status, row.reason, row.error, row.result)
            assert (made.id, -1, None) == (row.backfill_id, row.priority, row.stop_requested_at)
        else:
            assert None is row.backfill_id


def test_a_preview_counts_by_the_times_of_now(bench: Bench) -> None:
    """What ran by other times than the job has now is none of its occurrences; a zone is told beside it."""
    hourly(bench, timezone="Europe/Berlin")
    for hour in range(3):
        settled(bench, hour, RunStatus.SUCCEEDED)
    bench.client.edit("job", schedule="0 1-23/2 * * *")
    preview = bench.client.preview_backfill("job", FIRST, FIRST + 4 * HOUR)
    assert (3, 1, 0, {"succeeded": 2}) == (preview.total, preview.new, preview.again, preview.left)
    assert "Europe/Berlin" == preview.timezone
    made = bench.client.backfill("job", FIRST, FIRST + 4 * HOUR)
    fill(bench, made)
    done = bench.client.get_backfill(made.id)
    assert (preview.new, preview.again, 2) == (done.created, done.again, done.left)


def test_a_preview_leaves_what_the_schedule_is_to_plan(bench: Bench) -> None:
    """What has come while nobody passed is the schedule's, not a backfill's; of a paused job it is not."""
    hourly(bench)
    bench.clock.advance(2.5 * HOUR)
    asked = ("job", START - HOUR, START + 2 * HOUR)
    preview = bench.client.preview_backfill(*asked)
    assert (4, 2, {"unplanned": 2}) == (preview.total, preview.new, preview.left)
    bench.client.pause("job")
    preview = bench.client.preview_backfill(*asked)
    assert (4, 4, {}) == (preview.total, preview.new, preview.left)


def test_a_message_of_the_last_attempt_starts_nothing(bench: Bench) -> None:
    """What a broker delivers late, or a worker reports late, is of an attempt that is over."""
    hourly(bench)
    run_id = settled(bench, 0, RunStatus.FAILED)
    stale = RunKey(run_id, "a-stale-token", 1)  # type: ignore[arg-type]
    bench.client.backfill("job", FIRST, FIRST, reprocess="failed")
    bench.scheduler.poll()
    (key,) = bench.messages()
    assert (run_id, 2) == (key.id, key.attempt)
    assert Verdict.DROP == bench.start(stale).verdict
    assert not bench.finish(stale).settled
    assert Verdict.YOURS == bench.start(key).verdict
    assert bench.finish(key).settled
    assert "succeeded" == bench.status(run_id)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_regular_occurrences_wait_and_go_first(bench: Bench, overlap: str) -> None:
    """Those that come while a run of a backfill is running wait, none is skipped, and run before the next."""
    hourly(bench, overlap=overlap)
    made = bench.client.backfill("job", FIRST, FIRST + 3 * HOUR)
    bench.scheduler.poll()
    (key,) = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    bench.renew(key)
    for hours in (1, 2):
        bench.clock.now = START + hours * HOUR
        ends = bench.clock.now + HOUR
        bench.set_run(key.id, lease_expires_at=ends, deadline_at=ends)
        bench.scheduler.poll()
    regular = [run for run in bench.scheduler.runs("job") if run.trigger is Trigger.SCHEDULE]
    assert [("queued", START + HOUR), ("queued", START + 2 * HOUR)] == [
        (run.status, run.scheduled_for) for run in regular
    ]
    assert bench.finish(key).settled
    order = [key.id, *fill(bench, made)]
    assert [run.id for run in regular] == order[1:3]
    assert [FIRST + n * HOUR for n in (0, 25, 26, 1, 2, 3)] == instants(bench, order)
    assert {"succeeded"} == set(bench.statuses())


def test_a_waiting_run_of_a_backfill_delays_nobody(make_bench: Callable[..., Bench]) -> None:
    """While its run only waits, for a full pool, regular ones of all jobs go before it."""
    bench = make_bench(max_concurrent_jobs=1)
    hourly(bench)
    hourly(bench, "other", priority=0)
    holder = bench.running("holder")
    bench.client.backfill("job", FIRST, FIRST + HOUR)
    bench.scheduler.poll()
    bench.clock.now = START + HOUR
    bench.set_run(holder.key.id, lease_expires_at=bench.clock.now + HOUR, deadline_at=bench.clock.now + HOUR)
    bench.scheduler.poll()
    assert bench.finish(holder.key).settled
    order = []
    for _ in range(3):
        bench.scheduler.poll()
        order += [(run.job, run.trigger.value) for run in map(bench.client.get_run, work_off(bench))]
    assert [("job", "schedule"), ("other", "schedule"), ("job", "backfill")] == order


def test_what_the_plan_has_not_decided_is_left_to_it(bench: Bench) -> None:
    """An occurrence that waits for its jitter gets its regular run, on time, and not a backfill's."""
    hourly(bench, jitter="30m")
    bench.clock.now = START + HOUR
    due = bench.job_row().next_run_at
    assert due > bench.clock.now
    made = bench.client.backfill("job", START, bench.clock.now)
    for _ in range(3):
        bench.scheduler.poll()
        work_off(bench)
    found = bench.client.get_backfill(made.id)
    assert ("running", 1, 2) == (found.status, found.finished, found.total)
    bench.clock.now = due
    fill(bench, made)
    by_trigger = {run.scheduled_for: run.trigger for run in bench.scheduler.runs("job")}
    assert {START: Trigger.BACKFILL, START + HOUR: Trigger.SCHEDULE} == by_trigger


def test_missed_occurrences_are_made_good(bench: Bench) -> None:
    """Rows and counted ranges of what was missed: each of them is run, the rows as their second attempt."""
    hourly(bench, misfire="skip")
    bench.clock.now = START + 30 * HOUR + 30 * timedelta(minutes=1)
    bench.scheduler.poll()
    missed = [run for run in bench.scheduler.runs("job") if run.status == "skipped"]
    (gap,) = bench.database.read(lambda tx, now: gaps.of_job(tx, bench.client.get("job").id))
    assert (10, 20) == (len(missed), gap.count)
    made = bench.client.backfill("job", START + HOUR, bench.clock.now)
    fill(bench, made)
    done = bench.client.get_backfill(made.id)
    assert (30, 20, 10, 0) == (done.succeeded, done.created, done.again, done.left)
    assert {2} == {bench.row(run.id).attempt for run in missed}
    assert (30, 20) == (
        bench.job_row().success_count,
        bench.job_row().skipped_count,
    )  # the range stays on record


@pytest.mark.parametrize("standing", ["paused", "expired", "error"])
def test_a_job_that_is_not_planned_is_filled(bench: Bench, standing: str) -> None:
    """Somebody asked for it by hand, so it does not matter that the job is not active."""
    hourly(bench)
    bench.set_job("job", status=standing, next_run_at=None)
    fill(bench, bench.client.backfill("job", FIRST, FIRST + HOUR))
    assert ["succeeded", "succeeded"] == bench.statuses()


def test_an_edited_schedule_counts_from_the_cursor_on(bench: Bench) -> None:
    """What is not dealt with yet is walked by the schedule as it is then; the total is what it came to."""
    hourly(bench)
    made = bench.client.backfill("job", FIRST, FIRST + 4 * HOUR)
    bench.scheduler.poll()
    work_off(bench)
    bench.client.edit("job", schedule="30 * * * *")
    order = fill(bench, made)
    half = timedelta(minutes=30)
    assert [FIRST + half + n * HOUR for n in range(4)] == instants(bench, order)
    done = bench.client.get_backfill(made.id)
    assert (5, 5, "done") == (done.total, done.finished, done.status)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"timezone": "Europe/Nowhere"}, "its job's schedule cannot be used"),
        ({"schedule": "after 5m"}, "its job's schedule is now 'after 5m'"),
    ],
)
def test_a_schedule_that_cannot_be_walked_any_more(bench: Bench, columns: dict[str, str], said: str) -> None:
    """The backfill ends with the reason; another one goes on."""
    hourly(bench)
    hourly(bench, "other")
    bad = bench.client.backfill("job", FIRST, FIRST + HOUR)
    good = bench.client.backfill("other", FIRST, FIRST + HOUR)
    bench.set_job("job", **columns)
    fill(bench, good)
    found = bench.client.get_backfill(bad.id)
    assert ("cancelled", True) == (found.status, said in str(found.reason)), found.reason
    assert 2 == bench.client.get_backfill(good.id).succeeded


def test_a_deleted_job_ends_its_backfill(bench: Bench) -> None:
    """Nothing is left of the job: the backfill ends, with the reason."""
    hourly(bench)
    made = bench.client.backfill("job", FIRST, FIRST + HOUR)
    bench.client.delete("job")
    bench.scheduler.poll()
    found = bench.client.get_backfill(made.id)
    assert ("cancelled", "its job was deleted", []) == (found.status, found.reason, bench.statuses())


def test_most_of_a_range_has_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is passed over a few hundred at a time, without waiting between; the counts add up."""
    monkeypatch.setattr(step, "LOOKED", 7)
    monkeypatch.setattr(step, "FIRST_LOOK", 2)
    hourly(bench)
    fill(bench, bench.client.backfill("job", FIRST, FIRST + 19 * HOUR))
    made = bench.client.backfill("job", FIRST, FIRST + 22 * HOUR)
    polls = [bench.scheduler.poll() for _ in range(4)]
    assert [True, True, False] == [
        polled.next_in is not None and polled.next_in < 0.1 for polled in polls[:3]
    ]
    fill(bench, made)
    done = bench.client.get_backfill(made.id)
    assert (23, 3, 0, 20) == (done.total, done.created, done.again, done.left)


def polls_soon(bench: Bench) -> bool:
    """Whether the next poll comes at once, as far as that goes: after no more than this one took."""
    began = time.monotonic()
    next_in = bench.scheduler.poll().next_in
    return next_in is not None and next_in <= max(0.2, time.monotonic() - began)


def test_it_polls_soon_only_while_runs_come(bench: Bench) -> None:
    """A backfill that makes runs is looked at again soon; one that waits for a long run costs nothing."""
    hourly(bench)
    bench.client.backfill("job", FIRST, FIRST + 3 * HOUR)
    assert polls_soon(bench)
    (key,) = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    bench.scheduler._poll._busy_until = 0.0
    assert 1 < (bench.scheduler.poll().next_in or 99)
    assert bench.finish(key).settled
    assert polls_soon(bench)


def test_a_run_that_is_pruned_meanwhile_is_made_new(bench: Bench) -> None:
    """An old run that retention deletes between the look and the lock is as one that never was."""
    hourly(bench)
    run_id = settled(bench, 0, RunStatus.FAILED)
    made = bench.client.backfill("job", FIRST, FIRST, reprocess="failed")
    stood, known = backfills.standing, []

    def standing(tx: Any, keys: Any) -> Any:
        known.append(stood(tx, keys))
        runs.prune(tx, bench.config.app, START + DAY, 10)
        return known[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfills, "standing", standing)
        bench.scheduler.poll()
    assert [{occurrence_key(bench.client.get("job").id, FIRST): ("failed", True)}] == known
    row = bench.row(run_id)
    assert (1, made.id, "backfill") == (row.attempt, row.backfill_id, row.trigger_kind)
