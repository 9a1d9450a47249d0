"""The sweep: what becomes of runs whose lease is over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched.model import JobDefinition, RunKey, Source
from celery_sched.rules.fitting import Candidate
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import sweep as sweep_step
from celery_sched.steps.claim import claim
from celery_sched.steps.define import create
from celery_sched.steps.start import Verdict, start
from celery_sched.steps.stop import stop
from celery_sched.store import runs
from tests import invariants
from tests.store.world import APP, START, Bench, names, statements


def test_sweep_settles_a_run_whose_worker_is_gone(bench: Bench) -> None:
    """sweep settles: a running run without proof of life is lost after its lease; lock and slot are free."""
    dispatch = bench.running()
    bench.clock.advance(60)
    assert () == bench.sweep().settled  # a lease that ends now is not over yet
    bench.clock.advance(0.5)
    ((row, status, reason),) = bench.sweep().settled
    assert (dispatch.key.id, RunStatus.LOST) == (row.id, status)
    assert "its worker worker@test gave no sign of life: the lease ended 0.5 s ago" == reason
    after, job = bench.row(dispatch.key.id), bench.job_row()
    assert ("lost", reason, reason, bench.clock.now) == (
        after.status,
        after.reason,
        after.error,
        after.finished_at,
    )
    assert (None, None, 1, 1, "lost") == (
        job.lock_token,
        job.locked_by,
        job.run_count,
        job.failure_count,
        job.last_status,
    )
    assert 0 == bench.in_flight()
    assert ["job"] == names([bench.again()])
    invariants.check(bench.database)


def test_sweep_settles_a_run_past_its_deadline(make_bench: Callable[..., Bench]) -> None:
    """sweep settles: a run that is renewed but runs for too long ends as timed_out, not lost."""
    bench = make_bench(max_runtime=90)
    dispatch = bench.running()
    bench.clock.advance(50)
    assert START + timedelta(seconds=90) == bench.renew(dispatch.key).leases[dispatch.key.id]
    bench.clock.advance(41)
    ((_, status, reason),) = bench.sweep().settled
    assert (RunStatus.TIMED_OUT, "ran longer than its max_runtime (90 s) on worker@test") == (status, reason)
    invariants.check(bench.database)


def test_sweep_settles_a_stopped_run_as_cancelled(bench: Bench) -> None:
    """sweep settles: a run that was asked to stop, whose worker never answered, is cancelled."""
    dispatch = bench.running()
    bench.client.cancel(dispatch.key.id, by="somebody", reason="enough")
    bench.clock.advance(1)
    renewed = bench.renew(dispatch.key)
    assert {dispatch.key.id: "somebody: enough"} == renewed.stopped
    bench.clock.advance(60)
    ((_, status, reason),) = bench.sweep().settled
    assert (RunStatus.CANCELLED, "stopped by somebody: enough") == (status, reason)
    job = bench.job_row()
    assert (0, 0, "cancelled") == (job.run_count, job.failure_count, job.last_status)
    invariants.check(bench.database)


def test_unstarted_runs_are_published_again_under_the_same_token(bench: Bench) -> None:
    """sweep settles: what never started is published again, same token, three times; then it is lost."""
    dispatch = bench.claimed()
    for publish in (1, 2, 3):
        assert 1 == bench.published(dispatch)
        bench.clock.advance(599)
        assert (0, 0) == _counts(bench)
        bench.clock.advance(2)
        if publish < 3:
            (again,) = bench.sweep().republish
            assert dispatch == again
    ((_, status, reason),) = bench.sweep().settled
    assert RunStatus.LOST == status
    assert "never started: published 3 times, and no worker started it" == reason
    assert Verdict.DROP == bench.start(dispatch.key).verdict
    invariants.check(bench.database)


def test_publishes_that_failed_are_not_counted(bench: Bench) -> None:
    """A run whose publishes nobody confirmed is published again for as long as it takes."""
    dispatch = bench.claimed()
    for _ in range(10):
        bench.clock.advance(61)
        assert (dispatch,) == bench.sweep().republish
    assert "dispatched" == bench.status(dispatch.key.id)


def _counts(bench: Bench) -> tuple[int, int]:
    done = bench.sweep()
    return len(done.settled), len(done.republish)


def test_sweep_frees_a_saturated_cap(bench: Bench) -> None:
    """sweep frees a saturated cap: five hung runs give their slots to the five that waited."""
    for number in range(5):
        bench.running(f"hung-{number}")
    for number in range(5):
        bench.job(f"waiting-{number}")
    bench.plan()
    assert () == bench.claim()
    bench.clock.advance(61)
    polled = bench.scheduler.poll()
    assert (5, 5, "5/5") == (polled.counts.swept, polled.counts.dispatched, polled.counts.in_flight)
    assert ["dispatched"] * 5 + ["lost"] * 5 == bench.statuses()
    invariants.check(bench.database)


def test_a_constant_number_of_statements_per_sweep(make_bench: Callable[..., Bench]) -> None:
    """a constant number of statements per sweep: 1, 10 and 100 expired runs take the same."""
    bench = make_bench(max_concurrent_jobs=400)
    counted: dict[int, tuple[int, int, int]] = {}
    for size in (1, 10, 100):
        names = [f"{what}-{size}-{number}" for what in ("running", "unstarted") for number in range(size)]
        _add(bench, names)
        bench.plan()
        keys = [dispatch.key for dispatch in bench.claim() if dispatch.job.startswith("running")]
        _start(bench, keys)
        bench.clock.advance(61)
        with statements(bench.database) as seen:
            done = bench.sweep()
        counted[size] = (len(seen), len(done.settled), len(done.republish))
        _stop(bench, [dispatch.key for dispatch in done.republish])
    sent = counted[1][0]
    assert {1: (sent, 1, 1), 10: (sent, 10, 10), 100: (sent, 100, 100)} == counted
    invariants.check(bench.database)


def _add(bench: Bench, names: list[str]) -> None:
    """All in one transaction, else a hundred take long."""
    definitions = [JobDefinition(name, "t.ok", "every 1h", run_immediately=True) for name in names]
    bench.database.run(
        lambda tx, now: [create(tx, now, bench.config, one, Source.OPERATOR) for one in definitions]
    )


def _start(bench: Bench, keys: list[RunKey]) -> None:
    bench.database.run(
        lambda tx, now: [start(tx, now, bench.config, key, bench.node, "worker@test") for key in keys]
    )


def _stop(bench: Bench, keys: list[RunKey]) -> None:
    bench.database.run(lambda tx, now: [stop(tx, now, key.id, "somebody", None) for key in keys])


def test_a_sweep_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that hangs as a whole is settled in several passes, and the poll comes back soon."""
    monkeypatch.setattr(sweep_step, "BATCH", 3)
    for number in range(5):
        bench.running(f"hung-{number}")
    bench.clock.advance(61)
    first, second = bench.scheduler.poll(), bench.scheduler.poll()
    assert (3, 2) == (first.counts.swept, second.counts.swept)
    assert first.next_in is not None and first.next_in < 0.1
    assert ["lost"] * 5 == bench.statuses()


def test_a_run_that_could_not_start_in_time_is_skipped(bench: Bench) -> None:
    """Past `expires`, a waiting and a published run end as skipped; the message is dropped."""
    published = bench.claimed("published", expires=timedelta(seconds=30))
    bench.client.resize_pool("default", 1)
    bench.job("waiting", expires=timedelta(seconds=30))
    bench.plan()
    bench.clock.advance(30)
    assert "dispatched" == bench.status(published.key.id)
    started = bench.start(published.key)
    assert (Verdict.DROP, "it expired before it could start") == (started.verdict, started.why)
    polled = bench.scheduler.poll()
    assert (1, ["skipped", "skipped"]) == (polled.counts.swept, bench.statuses())
    reasons = {run.reason for run in bench.scheduler.runs()}
    assert {"expired: it could not start in time"} == reasons
    invariants.check(bench.database)


def test_a_claim_between_lease_expiry_and_sweep_gets_nothing(bench: Bench) -> None:
    """a claim between lease expiry and sweep gets nothing, even one that did not look at the queue first."""
    old = bench.running(overlap="queue")
    waiting = bench.client.run("job")
    bench.clock.advance(1000)
    assert () == bench.claim()
    candidates = {"default": [Candidate(waiting.id, old.job_id)]}
    lost = bench.database.run(lambda tx, now: claim(tx, now, bench.config, candidates, count_slots=True))
    assert ((), (waiting.id,)) == (lost.dispatches, lost.lost)
    assert (old.key.id, "queued") == (bench.job_row().locked_by, bench.status(waiting.id))
    bench.sweep()
    (dispatch,) = bench.claim()
    assert (waiting.id, old.fence + 1) == (dispatch.key.id, dispatch.fence)
    invariants.check(bench.database)


def test_other_apps_runs_are_left_alone(bench: Bench) -> None:
    """A sweep settles its own app's runs only."""
    dispatch = bench.running()
    bench.set_run(dispatch.key.id, app="another")
    bench.clock.advance(61)
    assert () == bench.sweep().settled
    bench.set_run(dispatch.key.id, app=APP)
    assert 1 == len(bench.sweep().settled)
    assert not bench.database.read(lambda tx, now: runs.exists(tx, runs.expired(APP, now)))
