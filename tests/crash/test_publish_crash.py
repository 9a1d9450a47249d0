"""A40: a scheduler dies between the claim and the publish, and between the publish and its mark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import Bench


def _fall(bench: Bench, name: str, death: str) -> None:
    """A scheduler polls once and dies, or fails, at this point."""
    if death == "kill":
        poller = Poller(bench, failpoints=f"{name}=kill")
        try:
            poller.ready()
            poller.poll()
            assert -9 == poller.wait()
        finally:
            poller.end()
        return

    def fail() -> None:
        raise FailpointReached(name)

    failpoints.arm(name, fail)
    try:
        bench.another().poll()
    finally:
        failpoints.disarm(name)


@pytest.fixture
def due(make_bench: Callable[..., Bench]) -> Bench:
    """One job is due; schedulers have passed all along."""
    bench = make_bench()
    bench.scheduler.poll()
    bench.job()
    return bench


@pytest.mark.parametrize("death", ["raise", "kill"])
def test_between_claim_and_publish(due: Bench, death: str) -> None:
    """A40 (a): the run is claimed, no message was sent; after its lease it is published, and runs once."""
    _fall(due, "claim:committed", death)
    assert (["dispatched"], []) == (due.statuses(), due.messages())
    invariants.check(due.database)
    lease_over = due.clock.now + timedelta(seconds=60)
    polled = due.scheduler.advance(60, step=20)
    assert [0, 0, 0] == [one.counts.republished for one in polled]
    assert due.clock.now == lease_over
    assert [1] == [one.counts.republished for one in due.scheduler.advance(0.5)]
    assert 1 == due.work_off()
    _at_rest(due)


@pytest.mark.parametrize("death", ["raise", "kill"])
@pytest.mark.parametrize("name", ["publish:sent", "publish:unmarked"])
def test_between_publish_and_mark(due: Bench, name: str, death: str) -> None:
    """A40 (b): the message was sent, nobody noted it: it is sent again, one of the two starts."""
    _fall(due, name, death)
    assert ["dispatched"] == due.statuses()
    (first,) = due.messages()
    due.scheduler.advance(61, step=20)
    (second,) = due.messages()
    assert first == second  # the same token: either may start it, once
    assert [Verdict.YOURS, Verdict.DROP] == [due.start(key).verdict for key in (second, first)]
    assert due.finish(second).settled
    assert not due.finish(first).settled
    _at_rest(due)


@pytest.mark.parametrize("name", ["publish:sent", "publish:unmarked"])
def test_the_first_message_may_be_worked_off_before(due: Bench, name: str) -> None:
    """A40 (b): a worker that takes the first message finishes the run; nothing is published again."""
    _fall(due, name, "kill")
    assert 1 == due.work_off()
    polled = due.scheduler.advance(120, step=20)
    assert 0 == sum(one.counts.republished + one.counts.swept for one in polled)
    assert [] == due.messages()
    _at_rest(due)


def _at_rest(bench: Bench) -> None:
    assert (["succeeded"], 0) == (bench.statuses(), bench.in_flight())
    job = bench.job_row()
    assert (1, 1, None) == (job.run_count, job.success_count, job.lock_token)
    invariants.check(bench.database)
