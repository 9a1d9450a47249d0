"""Finish: only the current holder writes; a stale one changes nothing but the audit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched.model import RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.start import Verdict
from celery_sched.store import audit
from tests import invariants
from tests.store.world import APP, Bench


def _audit(bench: Bench, action: str = "late_settle") -> list[tuple[str, str]]:
    lines = bench.database.read(lambda tx, now: audit.newest(tx, APP))
    return [(line.subject, line.detail["why"]) for line in lines if line.action == action]


def _retry(bench: Bench, key: RunKey, seconds: float = 30) -> bool:
    return bench.retry(key, bench.clock.now + timedelta(seconds=seconds))


@pytest.mark.parametrize("wrong", ["token", "attempt", "both"])
def test_finish_is_checked_by_token_and_attempt(bench: Bench, wrong: str) -> None:
    """token-checked finish: with another token or attempt it changes nothing; with the right ones, all."""
    dispatch = bench.running()
    before = bench.snapshot(dispatch.key.id)
    token = dispatch.key.token if wrong == "attempt" else Token("another")
    attempt = 1 if wrong == "token" else 2
    done = bench.finish(RunKey(dispatch.key.id, token, attempt))
    assert (False, "running") == (done.settled, done.status)
    assert before == bench.snapshot(dispatch.key.id)
    assert [(f"run:{dispatch.key.id}", "the run is running, attempt 1")] == _audit(bench)
    assert 1 == bench.totals().late_settlers
    bench.clock.advance(5)
    assert bench.finish(dispatch.key, result='"done"').settled
    row, job = bench.row(dispatch.key.id), bench.job_row()
    assert ("succeeded", '"done"', bench.clock.now) == (row.status, row.result, row.finished_at)
    assert (None, 1, 1, bench.clock.now) == (
        job.lock_token,
        job.run_count,
        job.success_count,
        job.last_run_at,
    )
    invariants.check(bench.database)


def test_a_run_is_finished_once(bench: Bench) -> None:
    """token-checked finish: a second outcome of the same attempt is late, whatever it says."""
    dispatch = bench.running()
    assert bench.finish(dispatch.key).settled
    before = bench.snapshot(dispatch.key.id)
    assert not bench.finish(dispatch.key, RunStatus.FAILED, error="no").settled
    assert before == bench.snapshot(dispatch.key.id)
    invariants.check(bench.database)


def test_a_run_that_did_not_start_is_not_finished(bench: Bench) -> None:
    """Without `unstarted`, the outcome of a run that never started is refused; with it, it is written."""
    key = bench.claimed().key
    assert not bench.finish(key).settled
    outcome = Outcome(RunStatus.FAILED, error="no such task")
    done = bench.database.run(
        lambda tx, now: finish(tx, now, bench.config, key, outcome, bench.node, unstarted=True)
    )
    assert (True, "failed", None) == (done.settled, bench.status(key.id), bench.job_row().lock_token)
    invariants.check(bench.database)


@pytest.mark.parametrize("status", [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.TIMED_OUT])
def test_a_late_settler_does_not_free_the_new_runs_slot(
    make_bench: Callable[..., Bench], status: RunStatus
) -> None:
    """a late settler does not free the new run's slot, nor its lock: one audit line, and nothing else."""
    bench = make_bench(max_concurrent_jobs=1)
    old = bench.running(overlap="queue")
    bench.clock.advance(61)
    bench.sweep()
    new = bench.again()
    assert Verdict.YOURS == bench.start(new.key).verdict
    third = bench.client.run("job")
    before = bench.snapshot(old.key.id), bench.snapshot(new.key.id)
    assert not bench.finish(old.key, status).settled
    assert before == (bench.snapshot(old.key.id), bench.snapshot(new.key.id))
    assert (new.key.id, new.key.token) == (bench.job_row().locked_by, bench.job_row().lock_token)
    assert ((), 1) == (bench.claim(), bench.in_flight())
    assert [(f"run:{old.key.id}", "the run is lost, attempt 1")] == _audit(bench)
    assert bench.finish(new.key).settled
    assert [third.id] == [dispatch.key.id for dispatch in bench.claim()]
    invariants.check(bench.database)


def test_a_late_settler_of_a_run_that_is_gone(bench: Bench) -> None:
    """The outcome of a run whose row was pruned meanwhile leaves an audit line."""
    key = RunKey(bench.running().key.id, Token("t"), 7)
    gone = RunKey(type(key.id)("gone"), key.token, key.attempt)
    assert "the run is gone" == bench.finish(gone).why
    assert [("run:gone", "the run is gone")] == _audit(bench)


def test_an_old_attempt_cannot_write_over_the_next_one(bench: Bench) -> None:
    """an old attempt cannot write over the next one: not finish it, not renew it, not retry it again."""
    first = bench.running().key
    assert _retry(bench, first)
    second = RunKey(first.id, first.token, 2)
    bench.clock.advance(31)
    assert Verdict.YOURS == bench.start(second).verdict
    bench.clock.advance(5)
    before = bench.snapshot(first.id)
    assert not bench.finish(first, RunStatus.FAILED).settled
    assert not _retry(bench, first)
    assert {} == bench.renew(first).leases
    assert Verdict.DROP == bench.start(first).verdict
    assert before == bench.snapshot(first.id)
    assert bench.finish(second).settled
    invariants.check(bench.database)


def test_celerys_retry_keeps_lock_and_slot(make_bench: Callable[..., Bench]) -> None:
    """A run in Celery's own retry keeps token, lock and slot; it is published again unchanged, after eta."""
    bench = make_bench(max_concurrent_jobs=1)
    key = bench.running(overlap="queue").key
    bench.client.run("job")
    assert _retry(bench, key, 30)
    row = bench.row(key.id)
    assert ("dispatched", 2, key.token, 1) == (row.status, row.attempt, row.token, bench.in_flight())
    assert (key.id, ()) == (bench.job_row().locked_by, bench.claim())
    bench.clock.advance(30 + 600)
    assert () == bench.sweep().republish
    bench.clock.advance(1)
    (again,) = bench.sweep().republish
    assert (RunKey(key.id, key.token, 2), [1], {"a": 2}, 1, row.eta) == (
        again.key,
        again.args,
        again.kwargs,
        again.retries,
        again.eta,
    )
    invariants.check(bench.database)


def test_a_message_ahead_of_its_attempt_waits(bench: Bench) -> None:
    """The message of the next attempt may arrive before this one is settled: early, not dropped."""
    key = bench.running().key
    ahead = RunKey(key.id, key.token, 2)
    assert Verdict.EARLY == bench.start(ahead).verdict
    assert Verdict.DROP == bench.start(RunKey(key.id, key.token, 3)).verdict
    assert _retry(bench, key)
    assert Verdict.YOURS == bench.start(ahead).verdict


def test_a_retry_of_a_stopped_run_is_cancelled(bench: Bench) -> None:
    """A run that was asked to stop is never retried: the retry settles it as cancelled."""
    key = bench.running().key
    bench.client.cancel(key.id, by="somebody", reason="enough")
    assert not _retry(bench, key)
    row = bench.row(key.id)
    assert ("cancelled", "stopped by somebody: enough") == (row.status, row.reason)
    assert (None, 0) == (bench.job_row().lock_token, bench.in_flight())
    invariants.check(bench.database)


def test_error_and_result_are_bounded(bench: Bench) -> None:
    """Error and result take 64 KiB of UTF-8 at most, on every database, and no NUL reaches it."""
    key = bench.running().key
    assert bench.finish(key, RunStatus.FAILED, error="é" * 70_000 + "\x00end", result="x" * 70_000).settled
    row = bench.row(key.id)
    assert len(row.error.encode()) <= 65_536 and len(row.result.encode()) <= 65_536
    assert row.error.endswith("\\x00end") and "... shortened ..." in row.error


def test_a_concurrent_run_does_not_free_the_lock_of_another(bench: Bench) -> None:
    """a late settler does not free the new run's slot, nor does a neighbour: the token frees the lock."""
    holder = bench.running(overlap="skip")
    bench.client.edit("job", overlap="concurrent")
    neighbour = bench.again()
    assert Verdict.YOURS == bench.start(neighbour.key).verdict
    assert bench.finish(neighbour.key).settled
    assert (holder.key.id, holder.key.token) == (bench.job_row().locked_by, bench.job_row().lock_token)
    invariants.check(bench.database)
    bench.client.edit("job", overlap="queue")
    bench.client.run("job")
    assert () == bench.claim()
    assert bench.finish(holder.key).settled
    assert 1 == len(bench.claim())
    invariants.check(bench.database)


def test_a_long_reason_to_stop_is_shortened(bench: Bench) -> None:
    """However much somebody wrote, the run is stopped, and the middle of the reason is left out."""
    running, waiting = bench.running("running").key, bench.claimed("waiting").key
    for key in (running, waiting):
        bench.client.cancel(key.id, by="x" * 300, reason="why " * 1000)
    assert (RunStatus.RUNNING, RunStatus.CANCELLED) == (bench.status(running.id), bench.status(waiting.id))
    row = bench.row(running.id)
    assert (True, True) == (row.stop_reason.startswith("why why"), row.stop_reason.endswith("why why "))
    assert (1000, 255) == (len(row.stop_reason), len(row.stop_requested_by))
