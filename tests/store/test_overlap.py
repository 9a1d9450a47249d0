"""What an occurrence does to the runs that are active: waits, is skipped, replaces them; on each database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_sched.model import RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store.tables import run as run_table
from celery_sched.testing import holding
from tests import invariants
from tests.store.world import START, Bench

HOUR = 3600


def _next(bench: Bench, hours: int = 1) -> Any:
    """An hour passes, and a poll; the run of the occurrence that has come."""
    bench.clock.advance(hours * HOUR)
    # nobody works here: what runs renews all the time, so that the sweep leaves it alone
    for found in bench.scheduler.runs():
        if found.lease_expires_at is not None:
            later = bench.clock.now + timedelta(seconds=60)
            bench.set_run(found.id, lease_expires_at=later, deadline_at=found.deadline_at and later)
    bench.scheduler.poll()
    (made,) = (found for found in bench.scheduler.runs() if found.queued_at == bench.clock.now)
    return made


def _stops(bench: Bench, run_id: RunId) -> tuple[str, str | None, str | None]:
    row = bench.row(run_id)
    return row.status, row.stop_requested_by, row.stop_reason


def test_queue_one(bench: Bench) -> None:
    """One waits behind the one that runs and is kept; later ones are skipped, naming it."""
    key = bench.running(overlap="queue_one").key
    first = _next(bench)
    skipped = [_next(bench), _next(bench)]
    reason = f"queue_one: run {first.id} waits already"
    assert [("skipped", reason)] * 2 == [(made.status, made.reason) for made in skipped]
    assert bench.finish(key).settled
    bench.scheduler.poll()
    assert ("dispatched", 1) == (bench.status(first.id), bench.in_flight())
    assert "queued" == _next(bench).status  # there is room for one again
    invariants.check(bench.database)


def test_replace_stops_what_runs_and_waits_until_it_is_gone(bench: Bench) -> None:
    """The run is asked to stop and keeps lock and slot; the new one is claimed once it is settled."""
    key = bench.running(overlap="replace").key
    made = _next(bench)
    reason = f"replaced by the occurrence of {made.scheduled_for:%Y-%m-%dT%H:%M:%SZ} (run {made.id})"
    assert ("running", "the scheduler", reason) == _stops(bench, key.id)
    assert ("queued", key.id, 1) == (bench.status(made.id), bench.job_row().locked_by, bench.in_flight())
    assert 0 == bench.scheduler.poll().counts.dispatched
    assert {key.id: f"the scheduler: {reason}"} == bench.renew(key).stopped
    assert bench.finish(key, RunStatus.CANCELLED, reason=f"stopped by the scheduler: {reason}").settled
    assert 1 == bench.scheduler.poll().counts.dispatched
    assert (made.id, "dispatched") == (bench.job_row().locked_by, bench.status(made.id))
    assert "cancelled" == bench.job_row().last_status
    invariants.check(bench.database)


def test_replace_settles_what_has_not_started(bench: Bench) -> None:
    """A claimed run that has not started is cancelled at once, and its message starts nothing."""
    bench.job(overlap="replace")
    bench.scheduler.poll()
    (old,) = bench.scheduler.runs()
    made = _next(bench)
    assert ("cancelled", "dispatched") == (bench.status(old.id), bench.status(made.id))
    stopped = (
        f"stopped by the scheduler: replaced by the occurrence of {made.scheduled_for:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert bench.row(old.id).reason.startswith(stopped)
    verdicts = {key.id: bench.start(key).verdict for key in bench.messages()}
    assert {old.id: Verdict.DROP, made.id: Verdict.YOURS} == verdicts
    assert 1 == bench.in_flight()
    invariants.check(bench.database)


def test_replace_cancels_what_waits(bench: Bench) -> None:
    """Of many occurrences that come while one hangs only the last waits; who asked first stays."""
    key = bench.running(overlap="replace").key
    made = [_next(bench) for _ in range(3)]
    assert ["cancelled", "cancelled", "queued"] == [bench.status(one.id) for one in made]
    assert made[0].id in (_stops(bench, key.id)[2] or "")
    assert made[2].id in (bench.row(made[1].id).reason or "")
    invariants.check(bench.database)


def test_replace_frees_the_slot_in_redis(make_bench: Callable[..., Bench], redis_url: str) -> None:
    """A run that is replaced before it started gives back its slot at once, also where Redis counts."""
    bench = make_bench(redis_url=redis_url, max_concurrent_jobs=1)
    bench.scheduler.poll()  # the marker
    bench.job(overlap="replace")
    bench.scheduler.poll()
    assert 1 == bench.scheduler.runtime.slots.members("default")
    bench.clock.advance(HOUR)
    bench.set_run(bench.scheduler.runs()[0].id, lease_expires_at=bench.clock.now + timedelta(seconds=60))
    polled = bench.scheduler.poll().counts
    assert (1, 1, 0) == (polled.replaced, polled.dispatched, polled.drift), "given back, not corrected"
    assert 1 == bench.scheduler.runtime.slots.members("default")
    invariants.check(bench.database, redis_url=redis_url)


def test_a_full_pool_does_not_keep_a_run_from_being_replaced(make_bench: Callable[..., Bench]) -> None:
    """The stop needs no slot: a hung run that has the only one is replaced all the same."""
    bench = make_bench(max_concurrent_jobs=1)
    key = bench.running(overlap="replace").key
    made = _next(bench)
    assert ("queued", "the scheduler") == (made.status, _stops(bench, key.id)[1])


def test_a_run_that_somebody_has_locked_delays_its_job_only(bench: Bench) -> None:
    """A worker silent inside its transaction: its job is not replaced yet, all others are planned on time."""
    if not bench.database.dialect.row_locks:
        pytest.skip("one writer at a time: nobody writes beside it")
    key = bench.running(overlap="replace").key
    bench.job("other", overlap="queue")
    assert 1 == bench.plan()
    bench.clock.advance(HOUR)
    bench.set_run(key.id, lease_expires_at=bench.clock.now + timedelta(seconds=60))
    with holding(bench.database, run_table, key.id):
        assert 1 == bench.plan()
        assert ["job"] == [run.job for run in bench.scheduler.runs("job")]
    assert 1 == bench.plan()
    assert ("the scheduler", 2) == (_stops(bench, key.id)[1], len(bench.scheduler.runs("job")))


@pytest.mark.parametrize(
    ("policy", "stays", "decided"),
    [
        ("skip", 4, "skipped: overlap"),
        ("queue_one", 4, "skipped: queue_one"),
        ("concurrent", 4, "dispatched"),
        ("replace", 0, "queued"),
    ],
)
def test_an_edit_acts_on_what_is_decided_next(
    make_bench: Callable[..., Bench], policy: str, stays: int, decided: str
) -> None:
    """Four wait when `queue` becomes another policy: they stay; the next one is judged by the new policy."""
    bench = make_bench(max_concurrent_jobs=10)
    key = bench.running(overlap="queue").key
    waiting = [_next(bench).id for _ in range(4)]
    bench.client.edit("job", overlap=policy)
    assert ["queued"] * 4 == [bench.status(run_id) for run_id in waiting]
    made = bench.scheduler.client.get_run(_next(bench).id)
    reason = f": {(made.reason or '').split(':')[0]}" if made.status == "skipped" else ""
    assert decided == made.status + reason
    # with `concurrent` they need not wait any more; with `replace` the new one takes their place
    unfinished = {"queued", "dispatched"} if policy == "concurrent" else {"queued"}
    assert stays == sum(bench.status(run_id) in unfinished for run_id in waiting)
    assert (policy == "replace") is (bench.row(key.id).stop_requested_at is not None)
    invariants.check(bench.database)


def test_a_backfill_is_not_replaced(bench: Bench) -> None:
    """The run of a backfill that holds the job goes on; the occurrence's run waits behind it."""
    bench.client.add("job", task="t.ok", schedule="every 1h", overlap="replace")
    bench.clock.advance(10 * HOUR)
    bench.client.edit("job", schedule="every 2h")  # what came is on record; nothing is due
    past = START + timedelta(hours=1)
    bench.client.backfill("job", past, past + timedelta(hours=4))
    bench.scheduler.poll()
    (filling,) = (key for key in bench.messages() if bench.start(key).verdict is Verdict.YOURS)
    made = _next(bench, 2)
    assert ("running", None) == (bench.status(filling.id), bench.row(filling.id).stop_requested_at)
    assert ("queued", filling.id) == (bench.status(made.id), bench.job_row().locked_by)
    later = _next(bench, 2)
    assert ("cancelled", "queued") == (bench.status(made.id), bench.status(later.id))
    assert ("running", None) == (bench.status(filling.id), bench.row(filling.id).stop_requested_at)
    assert bench.finish(filling).settled
    bench.scheduler.poll()
    assert later.id == bench.job_row().locked_by
    invariants.check(bench.database)


def test_an_occurrence_that_has_its_run_replaces_nothing(bench: Bench) -> None:
    """Plain SQL leads a job to an occurrence that ran already: nothing new comes, so nothing is stopped."""
    key = bench.running(overlap="replace").key
    bench.set_job("job", next_run_at=START, last_scheduled_for=None)
    assert 0 == bench.plan()
    assert ("running", None, None) == _stops(bench, key.id)


def test_a_full_queue_is_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A45: what finds no room is recorded, the log warns once, `status` says so until there is room."""
    key = bench.running(overlap="queue", max_queued=2).key
    for _ in range(4):
        bench.clock.advance(HOUR)
        bench.set_run(key.id, lease_expires_at=bench.clock.now + timedelta(seconds=60))
        bench.scheduler.poll()
    assert ["queued", "queued", "running", "skipped", "skipped"] == bench.statuses()
    full = "queue_full: 3 runs of the job are active, max_queued is 2"
    told = [record.message for record in caplog.records if "queue_full" in record.message]
    assert [f"job 'job': an occurrence is skipped, {full}"] == told
    said = "job 'job' has 3 runs that are not finished, max_queued is 2"
    assert 1 == sum(problem.startswith(said) for problem in bench.client.status().problems)
    assert bench.finish(key).settled
    assert 0 == sum(said in problem for problem in bench.client.status().problems)


def test_a_job_that_never_ends_is_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A45: each run is replaced by the next: the log and `status` say so, until one ends by itself."""
    key = bench.running(overlap="replace").key
    told = "job 'job' never ends: its last 5 runs were replaced by later ones"
    for number in range(1, 6):
        # the first, asked to stop, never goes; the later ones wait for it, and are cancelled by the next
        _next(bench)
        assert 0 == sum(problem.startswith(told) for problem in bench.client.status().problems), number
    _next(bench)
    assert 1 == sum(problem.startswith(told) for problem in bench.client.status().problems)
    assert [told] == [record.message for record in caplog.records if "never ends" in record.message]
    assert bench.finish(key).settled
    bench.scheduler.poll()
    (last,) = bench.messages()[-1:]
    assert Verdict.YOURS == bench.start(last).verdict
    assert bench.finish(last).settled
    assert 0 == sum("never ends" in problem for problem in bench.client.status().problems)
