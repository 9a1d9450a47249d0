"""A scheduler fails in the middle of replacing runs; nothing of it is there, the next one does it whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.rules.transitions import RunStatus
from tests import invariants
from tests.store.world import Bench

POINTS = ("plan:inserted", "stop:requested", "settle:moved", "plan:committed")


@pytest.fixture
def point(request: pytest.FixtureRequest) -> Iterator[str]:
    """One of the points, to be armed by the test."""
    yield request.param
    failpoints.disarm(request.param)


@pytest.mark.parametrize("point", POINTS, indirect=True)
def test_a_plan_fails_while_it_replaces(bench: Bench, point: str) -> None:
    """One job's run is running, another's is on its way: all is stopped and queued together, or nothing."""
    running = bench.running("running", overlap="replace").key
    sent = bench.claimed("sent", overlap="replace").key
    later = bench.clock.advance(3600) + timedelta(seconds=60)
    for key in (running, sent):
        bench.set_run(key.id, lease_expires_at=later)
    bench.set_run(running.id, deadline_at=later)
    before = [tuple(bench.row(key.id)) for key in (running, sent)]
    reached: list[str] = []

    def act() -> None:
        reached.append(point)
        raise FailpointReached(point)

    failing = bench.another()
    failpoints.arm(point, act)
    failing.poll()
    failpoints.disarm(point)
    assert [point] == reached[:1]
    if point == "plan:committed":  # the other steps of the poll go on
        assert ["cancelled", "dispatched", "queued", "running"] == bench.statuses()
    else:
        assert before == [tuple(bench.row(key.id)) for key in (running, sent)]
        assert ["dispatched", "running"] == bench.statuses()
    invariants.check(bench.database)
    second = bench.another()
    second.poll()
    assert "the scheduler" == bench.row(running.id).stop_requested_by
    assert ("cancelled", 4) == (bench.status(sent.id), len(bench.scheduler.runs()))
    assert bench.finish(running, RunStatus.CANCELLED).settled
    second.poll()
    bench.work_off()
    assert ["cancelled", "cancelled", "succeeded", "succeeded"] == bench.statuses()
    assert 0 == bench.in_flight()
    invariants.check(bench.database)
