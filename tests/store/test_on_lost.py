"""`on_lost`: what a killed run has left behind is put right by a run of its own, made with its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.model import Dispatch, RunId, Trigger
from celery_sched.rules.transitions import RunStatus
from celery_sched.store.on_lost import JOB, PRIORITY, RETRIES
from celery_sched.store.tables import run as run_table
from tests import invariants
from tests.store.world import Bench

TASK = "shop.put_right"


def _made(bench: Bench) -> list[Any]:
    """The rows of all runs of on_lost tasks, in the order in which they were made."""
    found = [run for run in bench.scheduler.runs() if run.trigger is Trigger.ON_LOST]
    return sorted((bench.row(run.id) for run in found), key=lambda row: row.queued_at)


def _running(bench: Bench, **policies: Any) -> Dispatch:
    return bench.running(on_lost=TASK, args=[1], kwargs={"a": "b"}, **policies)


def _lose(bench: Bench) -> None:
    """Whatever is held is not renewed, until the sweep settles it."""
    bench.clock.advance(61)
    bench.sweep()


def test_a_lost_run_is_put_right(bench: Bench) -> None:
    """A run whose worker died gets one run of `on_lost`, with all that is known of it."""
    dispatch = _running(bench)
    _lose(bench)
    (made,) = _made(bench)
    lost = bench.row(dispatch.key.id)
    expected = {
        "run_id": dispatch.key.id,
        "job": "job",
        "task": "t.ok",
        "args": [1],
        "kwargs": {"a": "b"},
        "fence": dispatch.fence,
        "attempt": 1,
        "status": "lost",
        "reason": lost.reason,
        "scheduled_for": lost.scheduled_for.isoformat(),
    }
    assert (expected, [], "lost") == (made.kwargs, made.args, lost.status)
    assert lost.reason
    assert (TASK, JOB, "queued", PRIORITY, "default", dispatch.key.id) == (
        *(made.task, made.job, made.status, made.priority, made.pool, made.parent_id),
    )
    bench.sweep()
    assert 1 == len(_made(bench))
    invariants.check(bench.database)


def test_pausing_all_jobs_with_their_runs_leaves_it_to_its_work(bench: Bench) -> None:
    """Whoever stops everything stops people's jobs: what they leave behind is put right all the same."""
    _running(bench)
    _lose(bench)
    (made,) = _made(bench)
    other = bench.running("other")
    done = bench.client.pause_all(running="cancel")
    assert [other.key.id] == [one.run_id for one in done.stopped]
    assert "dispatched" == bench.status(made.id)


def test_it_is_seen_from_the_run_that_it_is_for(bench: Bench) -> None:
    """What a run left behind, and what puts it right, name each other."""
    key = _running(bench).key
    assert [] == bench.client.put_right_by(key.id)
    _lose(bench)
    (made,) = bench.client.put_right_by(key.id)
    assert (_made(bench)[0].id, "queued", key.id) == (made.id, made.status, made.parent_id)
    assert f"put right by run {made.id} ({TASK}): queued" in bench.client.why_run(key.id).text
    assert f"t puts right what run {key.id} left behind" in bench.client.why_run(made.id).text


def test_it_is_carried_out_as_any_other_run(make_bench: Callable[..., Bench]) -> None:
    """It goes first, to the queue and with the pool of the run that it is for, under a fence of its own."""
    bench = make_bench()
    bench.client.create_pool("reports", 1)
    bench.job(on_lost=TASK, options={"queue": "reports"}, pool="reports")
    bench.plan()
    (dispatch,) = bench.claim(pool="reports")
    bench.start(dispatch.key)
    bench.job("other", pool="reports", priority=8)
    bench.plan()
    _lose(bench)
    (made,) = bench.claim(pool="reports")  # of its one slot
    assert (JOB, TASK, {"queue": "reports"}, "reports") == (made.job, made.task, made.options, made.pool)
    bench.start(made.key)
    assert bench.finish(made.key).settled
    assert "succeeded" == bench.status(made.key.id)
    invariants.check(bench.database)


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (RunStatus.LOST, 1),
        (RunStatus.TIMED_OUT, 1),
        (RunStatus.CANCELLED, 1),
        (RunStatus.FAILED, 0),
        (RunStatus.SUCCEEDED, 0),
    ],
)
def test_the_ends_that_it_follows(bench: Bench, status: RunStatus, wanted: int) -> None:
    """Lost, timed out, cancelled: the task may not have seen its end. One that failed did, and cleaned up."""
    key = _running(bench).key
    assert bench.finish(key, status).settled
    assert [status.value] * wanted == [made.kwargs["status"] for made in _made(bench)]


def test_a_run_that_never_started_left_nothing(bench: Bench) -> None:
    """Cancelled before its start, or published three times without one: there is nothing to put right."""
    queued = bench.client.run(bench.job("queued", on_lost=TASK).name).id
    claimed = bench.claimed("claimed", on_lost=TASK).key.id
    for run_id in (queued, claimed):
        assert "cancelled" == bench.client.cancel(run_id).status
    assert [] == _made(bench)


def test_a_cancelled_run_is_put_right_when_it_is_gone(bench: Bench) -> None:
    """The request alone makes nothing: the process may still write."""
    key = _running(bench).key
    bench.client.cancel(key.id)
    assert [] == _made(bench)
    _lose(bench)
    assert ["cancelled"] == [made.kwargs["status"] for made in _made(bench)]


def test_only_the_last_attempt_is_put_right(bench: Bench) -> None:
    """A run that is tried again has not ended; when it ends, by then cancelled in the queue, it has begun."""
    key = _running(bench, retries=1).key
    _lose(bench)
    assert ("queued", []) == (bench.status(key.id), _made(bench))
    bench.client.cancel(key.id)
    (made,) = _made(bench)
    assert ("cancelled", 2) == (made.kwargs["status"], made.kwargs["attempt"])


def test_a_retry_that_never_began_before_is_nothing(bench: Bench) -> None:
    """An attempt that was lost before its start left nothing either."""
    dispatch = bench.claimed(on_lost=TASK, retries=1)
    key = dispatch.key
    for _ in range(3):  # publishes that no worker takes
        bench.published(dispatch)
        bench.clock.advance(601)
        bench.sweep()
    assert ("queued", 2) == (bench.status(key.id), bench.row(key.id).attempt)
    bench.client.cancel(key.id)
    assert ("cancelled", []) == (bench.status(key.id), _made(bench))


def test_a_run_that_is_lost_again_is_put_right_again(bench: Bench) -> None:
    """`sched retry` carries a lost run out again; lost once more, it has another one."""
    key = _running(bench).key
    _lose(bench)
    bench.client.retry(key.id)
    again = next(dispatch for dispatch in bench.claim() if dispatch.key.id == key.id)
    bench.start(again.key)
    _lose(bench)
    lost = [made for made in _made(bench) if made.parent_id == key.id]
    assert [1, 2] == [made.kwargs["attempt"] for made in lost]
    assert 2 == len({made.id for made in lost})


def test_a_run_made_anew_after_pruning_is_put_right(bench: Bench) -> None:
    """A run of the same id and attempt may come back (a backfill, after it was pruned): it is another one."""
    dispatch = _running(bench)
    _lose(bench)
    gone = dict(bench.row(dispatch.key.id)._mapping)
    bench.database.run(lambda tx, now: tx.execute(delete(run_table).where(run_table.c.id == gone["id"])))
    fresh = {"status": "queued", "finished_at": None, "reason": None, "error": None, "started_at": None}
    columns = {**gone, **fresh, "ready_at": bench.clock.now}
    bench.database.run(lambda tx, now: tx.execute(run_table.insert().values(**columns)))
    again = next(one for one in bench.claim() if one.key.id == dispatch.key.id)
    assert 1 == again.key.attempt
    bench.start(again.key)
    _lose(bench)
    assert 2 == len([made for made in _made(bench) if made.parent_id == dispatch.key.id])


def test_the_arguments_are_those_of_the_run(bench: Bench) -> None:
    """Of a run by hand its own, not its job's; of one that Celery retried with others, those."""
    bench.job(on_lost=TASK, args=[1])
    bench.client.run("job", args=[7], kwargs={"x": 1})
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    _lose(bench)
    (made,) = _made(bench)
    assert ([7], {"x": 1}) == (made.kwargs["args"], made.kwargs["kwargs"])


def test_the_job_itself_is_left_alone(bench: Bench) -> None:
    """Its statistics, its lock and its overlap do not know of the run that puts it right."""
    _running(bench)
    _lose(bench)
    row = bench.job_row()
    assert (1, 0, 1, None, "lost") == (
        *(row.run_count, row.success_count, row.failure_count, row.lock_token, row.last_status),
    )
    assert "job" == bench.again().job  # nothing is in its way


def test_one_that_fails_is_tried_again_and_then_told(bench: Bench) -> None:
    """A failing `on_lost` keeps its arguments over its retries; when it gives up, `status` says so."""
    key = _running(bench).key
    _lose(bench)
    given = _made(bench)[0].kwargs
    for attempt in range(1, RETRIES + 2):
        (found,) = bench.claim()
        assert (attempt, given) == (found.key.attempt, found.kwargs)
        bench.start(found.key)
        bench.finish(found.key, RunStatus.FAILED, error="the other database is away")
        bench.clock.advance(3600)
    (made,) = _made(bench)
    assert "failed" == made.status
    told = [text for text in bench.client.status().problems if "on_lost" in text]
    assert 1 == len(told)
    assert all(part in told[0] for part in (key.id, "'job'", TASK, made.id, "sched retry"))
    bench.client.retry(RunId(made.id))
    (found,) = bench.claim()
    assert given == found.kwargs
    bench.start(found.key)
    bench.finish(found.key)
    assert [] == [text for text in bench.client.status().problems if "on_lost" in text]


def test_an_old_failure_is_not_told_for_ever(bench: Bench) -> None:
    """After a day a failed `on_lost` is history: it stays failed there."""
    _running(bench)
    _lose(bench)
    (found,) = bench.claim()
    bench.set_job(JOB, retries=0)
    bench.start(found.key)
    bench.finish(found.key, RunStatus.FAILED)
    assert 1 == len([text for text in bench.client.status().problems if "on_lost" in text])
    bench.clock.advance(timedelta(days=1, minutes=1))
    assert [] == [text for text in bench.client.status().problems if "on_lost" in text]
    assert "failed" == _made(bench)[0].status


@pytest.fixture
def failing() -> Iterator[None]:
    """The transaction in which a run ends fails when all is written."""

    def act() -> None:
        raise FailpointReached("ends:after")

    failpoints.arm("ends:after", act)
    yield
    failpoints.disarm("ends:after")


@pytest.mark.usefixtures("failing")
def test_the_end_and_what_follows_are_one(bench: Bench) -> None:
    """A sweep that dies before its commit has neither settled the run nor made the other."""
    key = _running(bench).key
    bench.clock.advance(61)
    with pytest.raises(FailpointReached):
        bench.sweep()
    assert ("running", []) == (bench.status(key.id), _made(bench))
    failpoints.disarm("ends:after")
    bench.sweep()
    assert ("lost", 1) == (bench.status(key.id), len(_made(bench)))


def test_many_at_once(bench: Bench) -> None:
    """A fleet that dies leaves one run each, whatever their jobs; those of jobs without it leave none."""
    keys = [bench.running(f"job-{number}", on_lost=TASK if number else None).key for number in range(4)]
    _lose(bench)
    assert sorted(key.id for key in keys[1:]) == sorted(made.parent_id for made in _made(bench))
    invariants.check(bench.database)
