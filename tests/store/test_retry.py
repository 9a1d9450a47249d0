"""Retries: a run waits for its next attempt without lock and slot, and nobody's late word reaches it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from celery_sched.beat.prune import prune
from celery_sched.errors import NotFound, RunRefused
from celery_sched.model import Dispatch, RunId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import new_node_id
from celery_sched.steps.finish import Finished, Outcome, finish
from celery_sched.steps.start import Verdict
from celery_sched.store import audit
from celery_sched.store.tables import attempt as attempt_table
from celery_sched.store.tables import gap as gap_table
from celery_sched.store.tables import job as job_table
from celery_sched.testing import holding
from tests import invariants
from tests.store.world import APP, START, Bench, names, statements, together

FAILED, LOST, TIMED_OUT = RunStatus.FAILED, RunStatus.LOST, RunStatus.TIMED_OUT
POLICY: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10), "retry_jitter": False}


def _fail(bench: Bench, dispatch: Dispatch, **outcome: Any) -> Any:
    return bench.finish(dispatch.key, FAILED, error="ValueError: as asked", **outcome)


def _next(bench: Bench, seconds: float = 10) -> Dispatch:
    """The next attempt, started."""
    bench.clock.advance(seconds)
    (dispatch,) = bench.claim()
    assert Verdict.YOURS == bench.start(dispatch.key).verdict
    return dispatch


def _attempts(bench: Bench, run_id: RunId) -> list[tuple[int, str]]:
    return [(one.attempt, one.status) for one in bench.client.attempts(run_id)]


def test_a_failed_run_waits_for_its_next_attempt(make_bench: Callable[..., Bench]) -> None:
    """It is queued until its pause is over, holds neither lock nor slot, and its first attempt is kept."""
    bench = make_bench(max_concurrent_jobs=1)
    first = bench.running(**POLICY)
    bench.clock.advance(5)
    done = _fail(bench, first)
    assert (True, timedelta(seconds=10), "default") == (done.settled, done.again_in, done.pool)
    row, job = bench.row(first.key.id), bench.job_row()
    assert ("queued", 2, 1, 0) == (row.status, row.attempt, row.retried, row.requeued)
    assert START + timedelta(seconds=15) == row.ready_at
    cleared = (row.token, row.holds_job, row.lease_expires_at, row.started_at, row.worker_name, row.error)
    assert (None,) * 6 == cleared
    assert (None, None, 0) == (job.lock_token, job.locked_by, bench.in_flight())
    assert (0, 0, 0) == (job.run_count, job.failure_count, job.failures_in_row)
    (kept,) = bench.client.attempts(first.key.id)
    assert (1, "failed", "worker@test", START, START + timedelta(seconds=5), "ValueError: as asked") == (
        kept.attempt,
        kept.status,
        kept.worker,
        kept.started_at,
        kept.ended_at,
        kept.error,
    )
    bench.clock.advance(9.9)
    assert () == bench.claim()
    invariants.check(bench.database)
    second = _next(bench, 0.1)
    assert (first.key.id, 2, first.fence + 1) == (second.key.id, second.key.attempt, second.fence)
    assert bench.finish(second.key, result='"done"').settled
    row, job = bench.row(first.key.id), bench.job_row()
    assert ("succeeded", 2, '"done"', None) == (row.status, row.attempt, row.result, row.error)
    assert (1, 1, 0, 0) == (job.run_count, job.success_count, job.failure_count, job.failures_in_row)
    invariants.check(bench.database)


def test_the_last_failure_ends_the_run(bench: Bench) -> None:
    """After its retries it is failed, says after how many, and counts once; the pauses grow."""
    dispatch = bench.running(**POLICY)
    for pause in (10, 20):
        assert timedelta(seconds=pause) == _fail(bench, dispatch).again_in
        dispatch = _next(bench, pause)
    assert _fail(bench, dispatch).again_in is None
    row, job = bench.row(dispatch.key.id), bench.job_row()
    assert ("failed", 3, "given up after 2 retries") == (row.status, row.attempt, row.reason)
    assert (1, 1, 1) == (job.run_count, job.failure_count, job.failures_in_row)
    assert [(1, "failed"), (2, "failed")] == _attempts(bench, dispatch.key.id)
    invariants.check(bench.database)


@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [
        ({"retry_on": ["OSError"]}, "queued", None),
        ({"retry_on": ["ValueError"]}, "failed", "not tried again: retry_on names only ValueError"),
        ({"give_up_on": ["OSError"]}, "failed", "not tried again: give_up_on names OSError"),
    ],
)
def test_some_exceptions_are_tried_again(
    bench: Bench, policy: dict[str, Any], status: str, reason: str | None
) -> None:
    """The exception's class and its bases travel with the outcome, and the job's names decide."""
    dispatch = bench.running(**POLICY, **policy)
    _fail(bench, dispatch, exceptions=("net.Timeout", "OSError", "Exception"))
    row = bench.row(dispatch.key.id)
    assert (status, reason) == (row.status, row.reason)


def test_a_waiting_retry_is_the_jobs_active_run(bench: Bench) -> None:
    """Overlap sees it: with `skip` the next occurrence is skipped and a run by hand refused."""
    dispatch = bench.running(schedule="every 1m", **{**POLICY, "retry_delay": timedelta(minutes=5)})
    _fail(bench, dispatch)
    bench.clock.advance(61)
    bench.plan()
    assert ["queued", "skipped"] == bench.statuses()
    (skipped,) = (run for run in bench.scheduler.runs() if run.status == "skipped")
    assert f"overlap: run {dispatch.key.id} is active" == skipped.reason
    with pytest.raises(RunRefused) as refused:
        bench.client.run("job")
    assert dispatch.key.id == refused.value.live_run


@pytest.mark.parametrize("overlap", ["queue", "concurrent"])
def test_others_of_its_job_go_on_while_it_waits(make_bench: Callable[..., Bench], overlap: str) -> None:
    """Neither its lock nor its slot is in the way of the runs behind it, and it comes back in its turn."""
    bench = make_bench(max_concurrent_jobs=1)
    first = bench.running(overlap=overlap, **POLICY)
    bench.client.run("job")
    assert () == bench.claim()
    _fail(bench, first)
    (other,) = bench.claim()
    assert first.key.id != other.key.id
    bench.clock.advance(11)
    assert () == bench.claim()
    assert Verdict.YOURS == bench.start(other.key).verdict
    bench.finish(other.key)
    assert (first.key.id, 2) == (_next(bench, 0).key.id, bench.row(first.key.id).attempt)
    invariants.check(bench.database)


def test_a_late_settler_of_the_attempt_before_changes_nothing(bench: Bench) -> None:
    """While the run waits, and while its next attempt runs: outcome, renewal and start of the old fail."""
    old = bench.running(**POLICY)
    bench.clock.advance(61)
    bench.sweep()
    for again in (False, True):
        if again:
            _next(bench)
        before = bench.snapshot(old.key.id), bench.client.attempts(old.key.id)
        assert not bench.finish(old.key).settled
        assert not _fail(bench, old).settled
        assert not bench.retry(old.key, bench.clock.now)
        assert Verdict.DROP == bench.start(old.key).verdict
        assert ({}, {old.key.id}) == (bench.renew(old.key).leases, bench.renew(old.key).stale)
        assert before == (bench.snapshot(old.key.id), bench.client.attempts(old.key.id))
    invariants.check(bench.database)


def test_a_lost_run_is_tried_again_like_a_failed_one(bench: Bench) -> None:
    """The sweep asks for the retry of a run whose worker is gone, and says so."""
    dispatch = bench.running(**POLICY)
    bench.clock.advance(60.5)
    ((row, status, reason),) = bench.sweep().settled
    said = "its worker worker@test gave no sign of life: the lease ended 0.5 s ago"
    assert (dispatch.key.id, LOST, f"{said}; attempt 2 begins in 10.0 s") == (row.id, status, reason)
    (kept,) = bench.client.attempts(dispatch.key.id)
    assert ("lost", said, said) == (kept.status, kept.reason, kept.error)
    assert ("queued", 1) == (bench.status(dispatch.key.id), bench.row(dispatch.key.id).retried)
    assert (None, 0, 0) == (bench.job_row().lock_token, bench.in_flight(), bench.job_row().failure_count)
    invariants.check(bench.database)


def test_a_run_past_its_deadline_is_tried_again(make_bench: Callable[..., Bench]) -> None:
    """The deadline of the next attempt begins with that attempt."""
    bench = make_bench(max_runtime=90)
    dispatch = bench.running(**POLICY)
    for _ in range(2):
        bench.clock.advance(45)
        bench.renew(dispatch.key)
    bench.clock.advance(1)
    ((_, status, _),) = bench.sweep().settled
    assert TIMED_OUT == status
    second = _next(bench)
    assert bench.clock.now + timedelta(seconds=90) == bench.row(second.key.id).deadline_at
    assert [(1, "timed_out")] == _attempts(bench, second.key.id)


def test_a_run_that_nobody_started_is_tried_again(bench: Bench) -> None:
    """Lost after three publishes without a start: it is claimed and published anew."""
    dispatch = bench.claimed(**POLICY)
    for _ in range(3):
        bench.published(dispatch)
        bench.clock.advance(601)
        bench.sweep()
    (again,) = (_next(bench),)
    assert (2, 0) == (again.key.attempt, bench.row(again.key.id).publish_count)
    (kept,) = bench.client.attempts(again.key.id)
    assert ("lost", None, None) == (kept.status, kept.worker, kept.started_at)
    assert Verdict.DROP == bench.start(dispatch.key).verdict


def test_a_lost_run_of_an_idempotent_job_is_queued_at_once(bench: Bench) -> None:
    """`requeue`: no pause and no retry used, three times in a row; then it ends as lost, and says so."""
    dispatch = bench.running(requeue=True)
    for number in (1, 2, 3):
        bench.clock.advance(61)
        bench.sweep()
        row = bench.row(dispatch.key.id)
        assert ("queued", 0, number, bench.clock.now) == (row.status, row.retried, row.requeued, row.ready_at)
        dispatch = _next(bench, 0)
    bench.clock.advance(61)
    bench.sweep()
    row = bench.row(dispatch.key.id)
    assert ("lost", True) == (row.status, row.reason.endswith("; lost 4 times in a row"))
    assert [(number, "lost") for number in (1, 2, 3)] == _attempts(bench, dispatch.key.id)
    invariants.check(bench.database)


def test_an_attempt_that_was_not_lost_begins_the_row_anew(bench: Bench) -> None:
    """Three lost attempts in a row are three without another ending between: Celery's own retry is one."""
    dispatch = bench.running(requeue=True, **POLICY)
    bench.clock.advance(61)
    bench.sweep()
    second = _next(bench, 0)
    assert 1 == bench.row(second.key.id).requeued
    assert bench.retry(second.key, bench.clock.now)
    assert 0 == bench.row(second.key.id).requeued
    third = RunKey(second.key.id, second.key.token, 3)
    bench.start(third)
    bench.clock.advance(61)
    bench.sweep()
    fourth = _next(bench, 0)
    _fail(bench, fourth)
    assert (0, 1) == (bench.row(fourth.key.id).requeued, bench.row(fourth.key.id).retried)
    expected = [(1, "lost"), (2, "retry"), (3, "lost"), (4, "failed")]
    assert expected == _attempts(bench, dispatch.key.id)


def test_policies_are_read_when_the_decision_is_made(bench: Bench) -> None:
    """Retries that were given to a job while its run was under way count, and so does taking them away."""
    dispatch = bench.running()
    bench.client.edit("job", **POLICY)
    assert _fail(bench, dispatch).again_in is not None
    second = _next(bench)
    bench.client.edit("job", retries=0)
    assert _fail(bench, second).again_in is None
    assert "failed" == bench.status(second.key.id)


@pytest.mark.parametrize("status", [FAILED, LOST, TIMED_OUT])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_run_that_was_asked_to_stop_is_not_tried_again(
    bench: Bench, status: RunStatus, retries: int
) -> None:
    """However it fails after that, it is cancelled, its error is kept, and the job has not failed."""
    dispatch = bench.running(**{**POLICY, "retries": retries})
    bench.client.cancel(dispatch.key.id, by="somebody", reason="enough")
    done = bench.finish(dispatch.key, status, error="SystemExit: 1")
    row, job = bench.row(dispatch.key.id), bench.job_row()
    assert (True, None) == (done.settled, done.again_in)
    assert ("cancelled", "stopped by somebody: enough", "SystemExit: 1") == (
        row.status,
        row.reason,
        row.error,
    )
    assert (0, 0, None) == (job.failure_count, job.failures_in_row, job.lock_token)
    assert [] == bench.client.attempts(dispatch.key.id)
    invariants.check(bench.database)


def test_a_waiting_retry_is_cancelled_at_once(bench: Bench) -> None:
    """A run that waits for its next attempt has nothing to be killed."""
    dispatch = bench.running(**POLICY)
    _fail(bench, dispatch)
    assert "cancelled" == bench.client.cancel(dispatch.key.id).status
    bench.clock.advance(60)
    assert () == bench.claim()
    invariants.check(bench.database)


def test_a_run_by_hand_keeps_its_arguments(bench: Bench) -> None:
    """Its next attempt has the arguments that it was given; an occurrence's those of its job."""
    bench.job("job", args=[1], **POLICY)
    bench.scheduler.client.run("job", args=[7], kwargs={"a": 1})
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    _fail(bench, dispatch)
    second = _next(bench)
    assert ([7], {"a": 1}) == (list(second.args), dict(second.kwargs))


def test_celerys_own_retry_is_kept_as_an_attempt(bench: Bench) -> None:
    """Its arguments and its count end with the job's retry, which begins with the job's own again."""
    first = bench.running(args=[5], **POLICY)
    assert bench.retry(first.key, bench.clock.now)
    (kept,) = bench.client.attempts(first.key.id)
    assert (1, "retry", "worker@test", START) == (kept.attempt, kept.status, kept.worker, kept.started_at)
    second = RunKey(first.key.id, first.key.token, 2)
    bench.start(second)
    assert bench.finish(second, FAILED).again_in is not None
    third = _next(bench)
    assert ([5], 0, 3) == (list(third.args), third.retries, third.key.attempt)
    assert [(1, "retry"), (2, "failed")] == _attempts(bench, first.key.id)
    invariants.check(bench.database)


def test_attempts_without_end_are_not_all_kept(bench: Bench) -> None:
    """A task that asks Celery for one retry after the other keeps its newest hundred attempts."""
    key = bench.running().key
    for number in range(1, 104):
        key = RunKey(key.id, key.token, number)
        if number > 1:
            assert Verdict.YOURS == bench.start(key).verdict
        assert bench.retry(key, bench.clock.now)
    assert list(range(4, 104)) == [one.attempt for one in bench.client.attempts(key.id)]
    invariants.check(bench.database)


def test_expires_is_for_the_first_attempt(bench: Bench) -> None:
    """A run that has started in time is not outdated while it waits for its retry."""
    dispatch = bench.running(expires=timedelta(seconds=5), **POLICY)
    _fail(bench, dispatch)
    bench.clock.advance(11)
    assert 1 == bench.scheduler.poll().counts.dispatched
    assert "dispatched" == bench.status(dispatch.key.id)


def test_a_fixed_delay_counts_from_the_end_of_the_run(bench: Bench) -> None:
    """A job with `after` has its next instant when its run is over, not when an attempt of it is."""
    dispatch = bench.running(schedule="after 1m", **{**POLICY, "retries": 1})
    _fail(bench, dispatch)
    assert bench.job_row().next_run_at is None
    _fail(bench, _next(bench))
    assert bench.clock.now + timedelta(minutes=1) == bench.job_row().next_run_at


def test_two_schedulers_sweep_one_run_once(bench: Bench) -> None:
    """Two sweeps at the same time make one next attempt."""
    dispatch = bench.running(**POLICY)
    bench.clock.advance(61)
    others = [bench.session(), bench.session()]
    swept = together(*(lambda database=database: bench.sweep(database) for database in others))  # type: ignore[misc]
    assert 1 == sum(len(done.settled) for done in swept)
    assert [(1, "lost")] == _attempts(bench, dispatch.key.id)
    assert (2, 1) == (bench.row(dispatch.key.id).attempt, bench.row(dispatch.key.id).retried)
    invariants.check(bench.database)


def test_the_worker_and_the_sweep_end_one_attempt_once(bench: Bench) -> None:
    """An outcome that comes at the same time as the sweep: one of the two writes, whoever it is."""
    dispatch = bench.running(**POLICY)
    bench.clock.advance(61)
    worker, scheduler = bench.session(), bench.session()
    together(
        lambda: bench.finish(dispatch.key, FAILED, database=worker).settled,
        lambda: bool(bench.sweep(scheduler).settled),
    )
    if "running" == bench.status(dispatch.key.id):
        raise AssertionError("neither of them ended it")
    assert 1 == len(_attempts(bench, dispatch.key.id))
    assert 2 == bench.row(dispatch.key.id).attempt
    invariants.check(bench.database)


@pytest.mark.parametrize("running", [False, True])
def test_a_dead_duplicate_asks_for_no_retry(bench: Bench, running: bool) -> None:
    """A child that died over a duplicate of the message says nothing about the run of another worker."""
    key = bench.claimed(**POLICY).key
    bench.receive(key)
    if running:
        bench.start(key)
    before = bench.snapshot(key.id)
    outcome = Outcome(LOST, error="the child process died")

    def report(node: Any) -> Finished:
        return bench.database.run(
            lambda tx, now: finish(tx, now, bench.config, key, outcome, node, unstarted=True, quiet=True)
        )

    assert not report(new_node_id()).settled
    assert before == bench.snapshot(key.id)
    assert report(bench.node).again_in is not None
    assert [(1, "lost")] == _attempts(bench, key.id)
    invariants.check(bench.database)


def test_a_constant_number_of_statements_for_many_retries(make_bench: Callable[..., Bench]) -> None:
    """1, 10 and 50 lost runs are queued again with the same number of statements."""
    bench = make_bench(max_concurrent_jobs=100)
    counted: dict[int, tuple[int, int]] = {}
    for size in (1, 10, 50):
        for number in range(size):
            bench.running(f"job-{size}-{number}", **{**POLICY, "retry_delay": timedelta(hours=1)})
        bench.clock.advance(61)
        with statements(bench.database) as seen:
            done = bench.sweep()
        counted[size] = (len(seen), len(done.settled))
    sent = counted[1][0]
    assert {1: (sent, 1), 10: (sent, 10), 50: (sent, 50)} == counted
    assert ["queued"] * 61 == bench.statuses()
    invariants.check(bench.database)


def test_a_job_that_cannot_be_read_ends_its_run_all_the_same(bench: Bench) -> None:
    """A policy that plain SQL made unreadable: the run ends as it did, and says why it is not tried again."""
    dispatch = bench.running(**POLICY)
    bench.set_job("job", backoff="sideways")
    assert _fail(bench, dispatch).settled
    row = bench.row(dispatch.key.id)
    assert ("failed", True) == (row.status, row.reason.startswith("not tried again: its job cannot be read"))
    assert "sideways" in row.reason


def test_a_run_whose_job_was_deleted_ends(bench: Bench) -> None:
    """By plain SQL, as the client refuses that: nobody could claim its next attempt."""
    dispatch = bench.running(**POLICY)
    bench.database.run(lambda tx, now: tx.execute(job_table.delete()) and None)
    assert _fail(bench, dispatch).settled
    assert "failed" == bench.status(dispatch.key.id)


# Failures in a row


def _run_once(bench: Bench, status: RunStatus) -> None:
    bench.client.run("job")
    dispatch = _next(bench, 1)
    bench.finish(dispatch.key, status)


def test_failures_in_a_row_pause_a_job(bench: Bench) -> None:
    """So many failed runs without a success between: paused, with the reason, in the audit, and no later."""
    bench.client.add("job", task="t.ok", schedule="every 1h", pause_on_failure=3)
    for status in (FAILED, TIMED_OUT, RunStatus.SUCCEEDED, FAILED, LOST):
        _run_once(bench, status)
    assert (2, "active") == (bench.job_row().failures_in_row, bench.job_row().status)
    bench.clock.advance(timedelta(hours=2))
    _run_once(bench, FAILED)
    row = bench.job_row()
    reason = "3 failed runs in a row (pause_on_failure)"
    assert ("paused", reason, None) == (row.status, row.status_reason, row.next_run_at)
    assert bench.clock.now == row.inactive_since
    lines = bench.database.read(lambda tx, now: audit.newest(tx, APP))
    assert [("pause_on_failure", "job", {"reason": reason})] == [
        (line.actor, line.subject, line.detail) for line in lines if line.action == "pause"
    ]
    # what had come and was not planned yet is on record
    counted = bench.database.read(
        lambda tx, now: tx.execute(select(func.sum(gap_table.c.count)).where(gap_table.c.job == "job"))
    )
    assert 2 == counted.scalar()
    invariants.check(bench.database)
    bench.client.resume("job")
    _run_once(bench, FAILED)
    assert ("active", 1) == (bench.job_row().status, bench.job_row().failures_in_row)


def test_a_run_that_succeeds_at_last_is_no_failure(bench: Bench) -> None:
    """Attempts do not count, runs do: with `pause_on_failure=1` a retry that succeeds pauses nothing."""
    dispatch = bench.running(pause_on_failure=1, **POLICY)
    _fail(bench, dispatch)
    assert "active" == bench.job_row().status
    bench.finish(_next(bench).key)
    assert ("active", 0) == (bench.job_row().status, bench.job_row().failures_in_row)


def test_the_sweep_pauses_too(bench: Bench) -> None:
    """A run that is lost counts as failed, whoever settles it."""
    bench.running(pause_on_failure=1)
    bench.clock.advance(61)
    bench.sweep()
    assert ("paused", "1 failed runs in a row (pause_on_failure)") == (
        bench.job_row().status,
        bench.job_row().status_reason,
    )
    invariants.check(bench.database)


# By hand


@pytest.mark.parametrize("status", [FAILED, LOST, TIMED_OUT, RunStatus.SUCCEEDED, RunStatus.CANCELLED])
def test_a_finished_run_is_retried_by_hand(bench: Bench, status: RunStatus) -> None:
    """However it ended: a new attempt of the same run; it counts once, by how it ends then."""
    dispatch = bench.running(pause_on_failure=5)
    bench.finish(dispatch.key, status, error="first")
    bench.clock.advance(3)
    again = bench.client.retry(dispatch.key.id, by="somebody")
    assert ("queued", 2, bench.clock.now) == (again.status, again.attempt, again.ready_at)
    (kept,) = bench.client.attempts(dispatch.key.id)
    assert (status.value, "first", START) == (kept.status, kept.error, kept.ended_at)
    job = bench.job_row()
    assert (0, 0, 0, 0) == (job.run_count, job.success_count, job.failure_count, job.failures_in_row)
    lines = bench.database.read(lambda tx, now: audit.newest(tx, APP))
    assert [("somebody", f"run:{dispatch.key.id}", {"was": status.value})] == [
        (line.actor, line.subject, line.detail) for line in lines if line.action == "retry"
    ]
    bench.finish(_next(bench, 0).key)
    assert ("succeeded", 1) == (bench.status(dispatch.key.id), bench.job_row().run_count)
    invariants.check(bench.database)


def test_a_retry_by_hand_has_the_jobs_retries_again(bench: Bench) -> None:
    """What its retries had come to before does not count against it."""
    dispatch = bench.running(**{**POLICY, "retries": 1})
    _fail(bench, dispatch)
    _fail(bench, _next(bench))
    assert "failed" == bench.status(dispatch.key.id)
    bench.client.retry(dispatch.key.id)
    assert _fail(bench, _next(bench, 0)).again_in is not None
    assert [(1, "failed"), (2, "failed"), (3, "failed")] == _attempts(bench, dispatch.key.id)


@pytest.mark.parametrize("status", ["queued", "dispatched", "running"])
def test_an_active_run_is_not_retried(bench: Bench, status: str) -> None:
    """The caller is told that it is not over yet, and nothing changes."""
    bench.job()
    bench.plan()
    if status != "queued":
        (dispatch,) = bench.claim()
        if status == "running":
            bench.start(dispatch.key)
    (run,) = bench.scheduler.runs()
    before = bench.snapshot(run.id)
    with pytest.raises(RunRefused, match=f"run {run.id} is {status}: it is not over yet"):
        bench.client.retry(run.id)
    assert before == bench.snapshot(run.id)


def test_what_cannot_be_retried_is_said(bench: Bench) -> None:
    """A run that is not there, and one whose job was deleted."""
    with pytest.raises(NotFound, match="there is no run 'nothing'"):
        bench.client.retry(RunId("nothing"))
    dispatch = bench.running()
    bench.finish(dispatch.key)
    bench.client.delete("job")
    with pytest.raises(RunRefused, match="its job was deleted"):
        bench.client.retry(dispatch.key.id)


def test_a_retry_by_hand_waits_for_the_jobs_lock(bench: Bench) -> None:
    """`overlap="skip"` does not refuse it: it begins when the run that is under way is over."""
    old = bench.running()
    bench.finish(old.key, FAILED)
    live = bench.again()
    assert "queued" == bench.client.retry(old.key.id).status
    assert () == bench.claim()
    bench.start(live.key)
    bench.finish(live.key)
    assert [old.key.id] == [dispatch.key.id for dispatch in bench.claim()]
    invariants.check(bench.database)


def test_two_people_retry_one_run_once(bench: Bench) -> None:
    """The second one is told that it is queued already."""
    dispatch = bench.running()
    bench.finish(dispatch.key, FAILED)
    other = bench.another()

    def ask(client: Any) -> str:
        try:
            return str(client.retry(dispatch.key.id).status)
        except RunRefused as refused:
            return refused.why

    answers = sorted(together(lambda: ask(bench.client), lambda: ask(other.client)))
    assert ["queued", f"run {dispatch.key.id} is queued: it is not over yet"] == answers
    assert [(1, "failed")] == _attempts(bench, dispatch.key.id)
    invariants.check(bench.database)


def test_attempts_are_pruned_with_their_run(bench: Bench) -> None:
    """As long as the run is kept its attempts are, however old; then all are gone."""
    dispatch = bench.running(**POLICY)
    _fail(bench, dispatch)
    bench.clock.advance(bench.config.keep_runs)
    (second,) = bench.claim()
    bench.start(second.key)
    bench.finish(second.key)
    bench.clock.advance(10)
    assert 0 == prune(bench.scheduler.runtime)
    assert 1 == len(_attempts(bench, dispatch.key.id))
    bench.clock.advance(bench.config.keep_runs)
    assert 1 == prune(bench.scheduler.runtime)
    left = bench.database.read(lambda tx, now: tx.execute(select(func.count()).select_from(attempt_table)))
    assert 0 == left.scalar()


def test_a_retry_waits_for_a_row_that_is_locked(bench: Bench) -> None:
    """A job whose row somebody holds is left to the next sweep: its run keeps lock and slot until then."""
    dispatch = bench.running(**POLICY)
    bench.clock.advance(61)
    if not bench.database.dialect.row_locks:
        pytest.skip("SQLite has one writer at a time: there is no row that somebody holds")
    with holding(bench.database, job_table, bench.job_row().id):
        assert () == bench.sweep().settled
        assert "running" == bench.status(dispatch.key.id)
    assert 1 == len(bench.sweep().settled)
    assert ["job"] == names([_next(bench)])


def test_a_backfill_knows_that_a_cancelled_retry_has_run(bench: Bench) -> None:
    """Cancelled while it waited for its second attempt: it ran, so a backfill leaves it alone."""
    bench.client.add("job", task="t.ok", schedule="0 * * * *", **POLICY)
    bench.clock.advance(timedelta(hours=1))
    bench.plan()
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    _fail(bench, dispatch)
    bench.client.cancel(dispatch.key.id)
    asked = bench.client.backfill("job", bench.clock.now, bench.clock.now)
    bench.scheduler.poll()
    assert (0, 0, 1) == (
        bench.client.get_backfill(asked.id).created,
        bench.client.get_backfill(asked.id).again,
        bench.client.get_backfill(asked.id).left,
    )
    assert "cancelled" == bench.status(dispatch.key.id)
