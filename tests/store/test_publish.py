"""Publish, receive, start, renew: who keeps a run alive, and what late news changes (nothing)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from celery_sched.beat import poll
from celery_sched.model import Dispatch, RunKey, Token
from celery_sched.runtime import new_node_id
from celery_sched.steps.mark import mark_unsent
from celery_sched.steps.publish import Published, Publisher
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.store.world import Bench


def test_a_late_publish_mark_does_not_undo_a_receipt(bench: Bench) -> None:
    """a late publish mark does not undo a receipt: the lease stays the receipt's, not the queue wait's."""
    dispatch = bench.claimed()
    bench.clock.advance(1)
    assert (dispatch.key,) == bench.receive(dispatch.key).taken
    before = bench.snapshot(dispatch.key.id)
    assert 0 == bench.published(dispatch)
    assert before == bench.snapshot(dispatch.key.id)
    assert bench.clock.now + timedelta(seconds=60) == bench.row(dispatch.key.id).lease_expires_at


@pytest.mark.parametrize("after", ["start", "finish", "sweep"])
def test_a_late_publish_mark_does_not_touch_what_went_on(bench: Bench, after: str) -> None:
    """a late publish mark does not undo a receipt, nor a start, an outcome or the sweep's verdict."""
    dispatch = bench.running()
    if after == "finish":
        bench.finish(dispatch.key)
    elif after == "sweep":
        bench.clock.advance(61)
        bench.sweep()
    before = bench.snapshot(dispatch.key.id)
    assert 0 == bench.published(dispatch)
    bench.database.run(lambda tx, now: mark_unsent(tx, now, [dispatch]))
    assert before == bench.snapshot(dispatch.key.id)
    invariants.check(bench.database)


def test_a_failed_publish_waits_again(bench: Bench) -> None:
    """A publish that certainly failed: queued at once, lock and slot free; a new claim has a new token."""
    dispatch = bench.claimed()
    bench.database.run(lambda tx, now: mark_unsent(tx, now, [dispatch]))
    row = bench.row(dispatch.key.id)
    assert ("queued", 1, None, None) == (row.status, row.attempt, row.token, bench.job_row().lock_token)
    assert 0 == bench.in_flight()
    (again,) = bench.claim()
    assert (dispatch.key.id, 2, True) == (again.key.id, again.fence, again.key.token != dispatch.key.token)
    assert Verdict.DROP == bench.start(dispatch.key).verdict
    invariants.check(bench.database)


def unanswered(monkeypatch: pytest.MonkeyPatch, *, arrives: bool) -> None:
    """The next publish is one of which nobody knows whether it arrived."""
    publish = Publisher.publish

    def once(self: Publisher, dispatches: Sequence[Dispatch]) -> Published:
        monkeypatch.setattr(Publisher, "publish", publish)
        if arrives:
            publish(self, dispatches)
        return Published(uncertain=tuple(dispatches))

    monkeypatch.setattr(Publisher, "publish", once)


@pytest.mark.parametrize("arrives", [False, True])
def test_what_may_not_have_arrived_is_published_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Long before its lease ends, under the same token; where it had arrived, the start drops the second."""
    monkeypatch.setattr(poll, "AGAIN", 0.0)
    unanswered(monkeypatch, arrives=arrives)
    bench.job()
    bench.scheduler.poll()
    (run_id,) = (run.id for run in bench.client.runs("job"))
    assert ("dispatched", None) == (bench.status(run_id), bench.row(run_id).published_at)
    bench.scheduler.poll()
    assert bench.row(run_id).published_at is not None
    verdicts = [bench.start(key).verdict for key in bench.messages()]
    assert [Verdict.YOURS, *[Verdict.DROP] * arrives] == verdicts
    bench.scheduler.poll()
    assert [] == bench.messages()
    invariants.check(bench.database)


def test_a_broker_that_is_slow_to_answer_is_not_flooded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may have is not sent again before a pause is over; the sweep comes after the lease as ever."""
    monkeypatch.setattr(poll, "AGAIN", 3600.0)
    unanswered(monkeypatch, arrives=True)
    bench.job()
    for _ in range(3):
        bench.scheduler.poll()
    assert 1 == len(bench.messages())


def test_a_failed_publish_that_was_received_after_all(bench: Bench) -> None:
    """A message that arrived although its publish looked failed keeps its run."""
    dispatch = bench.claimed()
    bench.receive(dispatch.key)
    bench.database.run(lambda tx, now: mark_unsent(tx, now, [dispatch]))
    assert "dispatched" == bench.status(dispatch.key.id)
    assert Verdict.YOURS == bench.start(dispatch.key).verdict


def test_a_duplicate_in_another_worker_keeps_nothing_alive(bench: Bench) -> None:
    """a duplicate in another worker keeps nothing alive: its receipt and renewals are refused."""
    dispatch = bench.claimed()
    bench.published(dispatch)
    first, second = bench.node, new_node_id()
    assert (dispatch.key,) == bench.receive(dispatch.key).taken
    lease = bench.row(dispatch.key.id).lease_expires_at
    bench.clock.advance(30)
    assert (dispatch.key,) == bench.receive(dispatch.key, node=second).refused
    assert {} == bench.renew(dispatch.key, node=second).leases
    assert (first, lease) == (
        bench.row(dispatch.key.id).received_by,
        bench.row(dispatch.key.id).lease_expires_at,
    )
    assert Verdict.YOURS == bench.start(dispatch.key).verdict
    bench.clock.advance(10)
    renewed = bench.renew(dispatch.key, node=second)
    assert ({}, frozenset({dispatch.key.id})) == (renewed.leases, renewed.stale)
    assert Verdict.DROP == bench.start(dispatch.key, node=second).verdict
    bench.clock.advance(51)
    assert [dispatch.key.id] == [row.id for row, _, _ in bench.sweep().settled]
    invariants.check(bench.database)


def test_a_receipt_is_kept_alive_for_the_queue_wait_at_most(make_bench: Callable[..., Bench]) -> None:
    """A worker full of hung jobs renews what it has received until published + sched_start_timeout only."""
    bench = make_bench(start_timeout=100)
    dispatch = bench.claimed()
    bench.published(dispatch)
    bench.receive(dispatch.key)
    for _ in range(3):
        bench.clock.advance(30)
        assert [dispatch.key.id] == list(bench.renew(dispatch.key).leases)
    lease = bench.row(dispatch.key.id).lease_expires_at
    bench.clock.advance(11)
    bench.renew(dispatch.key)
    assert lease == bench.row(dispatch.key.id).lease_expires_at
    bench.clock.now = lease + timedelta(seconds=1)
    assert (dispatch,) == bench.sweep().republish
    assert None is bench.row(dispatch.key.id).received_by


def test_a_body_starts_once(bench: Bench) -> None:
    """Redelivery, a second publish, another token: of all messages of an attempt one starts the body."""
    dispatch = bench.claimed()
    wrong = RunKey(dispatch.key.id, Token("another"), 1)
    keys = [wrong, dispatch.key, dispatch.key, RunKey(dispatch.key.id, dispatch.key.token, 2), dispatch.key]
    verdicts = [bench.start(key, node=new_node_id()).verdict for key in keys]
    assert [Verdict.DROP, Verdict.YOURS, Verdict.DROP, Verdict.EARLY, Verdict.DROP] == verdicts
    bench.finish(dispatch.key)
    assert Verdict.DROP == bench.start(dispatch.key).verdict


def test_a_stopped_run_is_not_started_and_not_renewed(bench: Bench) -> None:
    """A published run that is cancelled ends at once; its message is dropped."""
    dispatch = bench.claimed()
    bench.client.cancel(dispatch.key.id)
    assert ("cancelled", 0) == (bench.status(dispatch.key.id), bench.in_flight())
    assert Verdict.DROP == bench.start(dispatch.key).verdict
    assert (dispatch.key,) == bench.receive(dispatch.key).refused
    invariants.check(bench.database)


def test_renewal_ends_at_the_deadline(make_bench: Callable[..., Bench]) -> None:
    """Renewal extends a lease to min(now + lease, deadline), and tells the worker when that has passed."""
    bench = make_bench(max_runtime=100)
    dispatch = bench.running()
    deadline = bench.clock.now + timedelta(seconds=100)
    bench.clock.advance(20)
    renewed = bench.renew(dispatch.key)
    assert {dispatch.key.id: bench.clock.now + timedelta(seconds=60)} == renewed.leases
    assert {dispatch.key.id: deadline} == renewed.deadlines
    bench.clock.advance(50)
    assert {dispatch.key.id: deadline} == bench.renew(dispatch.key).leases
    bench.clock.advance(30)
    assert {dispatch.key.id: "ran longer than its max_runtime (100 s)"} == bench.renew(dispatch.key).overdue


def test_a_receipt_proves_a_publish(bench: Bench) -> None:
    """A message received before its publish is marked counts as published, once; after three it is lost."""
    dispatch = bench.claimed()
    for received in (1, 2, 3):
        for _ in range(2):
            assert (dispatch.key,) == bench.receive(dispatch.key).taken
            assert 0 == bench.published(dispatch)
        row = bench.row(dispatch.key.id)
        assert (received, bench.clock.now) == (row.publish_count, row.published_at)
        bench.clock.advance(61)
        assert (received == 3) == bool(bench.sweep().settled)
    assert "lost" == bench.status(dispatch.key.id)


@pytest.mark.parametrize("marked", [True, False])
def test_the_queue_wait_ends_whether_the_mark_came_or_not(
    make_bench: Callable[..., Bench], marked: bool
) -> None:
    """A receipt that came before the publish's mark is not kept alive for ever either."""
    bench = make_bench(start_timeout=100)
    dispatch = bench.claimed()
    if marked:
        bench.published(dispatch)
    bench.receive(dispatch.key)
    for _ in range(6):
        bench.clock.advance(30)
        bench.renew(dispatch.key)
    assert (dispatch,) == bench.sweep().republish


def test_a_retry_that_waits_in_a_worker_for_its_eta_is_kept_alive(bench: Bench) -> None:
    """Celery's own retry in an hour: held by its worker and renewed until eta and the queue wait."""
    key = bench.running().key
    eta = bench.clock.now + timedelta(hours=1)
    assert bench.retry(key, eta)
    second = RunKey(key.id, key.token, 2)
    bench.receive(second)
    while bench.clock.now < eta + timedelta(seconds=500):
        bench.clock.advance(50)
        assert [key.id] == list(bench.renew(second).leases)
        assert ((), ()) == (bench.sweep().settled, bench.sweep().republish)
    bench.clock.advance(200)
    bench.renew(second)
    assert [second] == [dispatch.key for dispatch in bench.sweep().republish]


def test_a_stop_request_in_the_row_is_enough(bench: Bench) -> None:
    """A dispatched run whose row has a stop request is neither received, nor renewed, nor started."""
    dispatch = bench.claimed()
    bench.receive(dispatch.key)
    bench.set_run(dispatch.key.id, stop_requested_at=bench.clock.now, stop_requested_by="somebody")
    bench.clock.advance(10)
    lease = bench.row(dispatch.key.id).lease_expires_at
    bench.receive(dispatch.key)
    bench.renew(dispatch.key)
    assert lease == bench.row(dispatch.key.id).lease_expires_at
    started = bench.start(dispatch.key)
    assert (Verdict.DROP, "it was stopped by somebody") == (started.verdict, started.why)
    bench.clock.advance(51)
    assert ["cancelled"] == [status.value for _, status, _ in bench.sweep().settled]
    invariants.check(bench.database)
