"""Schedulers die in the middle of a backfill; the next one goes on, and each occurrence runs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.model import Backfill
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import START, Bench

STEP = ("backfill:inserted", "backfill:again", "backfill:moved", "backfill:committed")
CANCEL = ("backfill:cancelled", "settle:moved")
HOUR = timedelta(hours=1)
FIRST = START - 12 * HOUR
HOURS = 6


@pytest.fixture
def filling(bench: Bench) -> Backfill:
    """A backfill in the middle: two of its occurrences have run, two had failed before and are run again."""
    bench.client.add("job", task="t.ok", schedule="0 * * * *", overlap="concurrent")
    bench.scheduler.poll()
    bench.client.backfill("job", FIRST + 2 * HOUR, FIRST + 3 * HOUR, max_concurrent=2)
    for _ in range(3):
        bench.scheduler.poll()
        _work(bench, RunStatus.FAILED)
    made = bench.client.backfill(
        "job", FIRST, FIRST + (HOURS - 1) * HOUR, max_concurrent=2, reprocess="failed"
    )
    bench.scheduler.poll()
    _work(bench, RunStatus.SUCCEEDED)
    assert ["failed", "failed", "succeeded", "succeeded"] == bench.statuses()
    return made


@pytest.fixture
def armed() -> Iterator[Callable[[str, int], list[str]]]:
    """Arms a failpoint of this process with an exception, at its n-th time."""
    reached: list[str] = []

    def arm(name: str, nth: int) -> list[str]:
        def act() -> None:
            reached.append(name)
            if len(reached) == nth:
                raise FailpointReached(name)

        failpoints.arm(name, act)
        return reached

    yield arm
    for name in (*STEP, *CANCEL):
        failpoints.disarm(name)


def _work(bench: Bench, status: RunStatus) -> Counter[str]:
    bodies: Counter[str] = Counter()
    for key in bench.messages():
        if bench.start(key).verdict is Verdict.YOURS:
            bodies[key.id] += 1
            assert bench.finish(key, status).settled
    return bodies


def _finish(bench: Bench, made: Backfill, bodies: Counter[str]) -> None:
    """Another scheduler goes on: in the end each occurrence has run once, what had failed a second time."""
    second = bench.another()
    for _ in range(40):
        invariants.check(bench.database)
        found = bench.client.get_backfill(made.id)
        assert found.queued + found.in_flight <= 2
        if found.status != "running":
            break
        second.poll()
        bodies += _work(bench, RunStatus.SUCCEEDED)
        bench.clock.advance(20)
    assert ("done", HOURS, HOURS, HOURS - 2, 2) == (
        *(found.status, found.total, found.finished, found.created, found.again),
    )
    runs = bench.scheduler.runs("job")
    assert [FIRST + n * HOUR for n in range(HOURS)] == [run.scheduled_for for run in runs]
    assert {"succeeded"} == {run.status for run in runs}
    assert [1, 1, 2, 2, 1, 1] == [run.attempt for run in runs]
    assert [0, 0, 1, 1, 1, 1] == [bodies[run.id] for run in runs]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("name", STEP)
def test_the_step_fails(
    bench: Bench, filling: Backfill, name: str, nth: int, armed: Callable[[str, int], list[str]]
) -> None:
    """An exception at any point: what was not committed is not there, and another scheduler goes on."""
    reached = armed(name, nth)
    failing = bench.another()
    before, bodies = filling, Counter[str]()
    while len(reached) < nth:
        before = bench.client.get_backfill(filling.id)
        failing.poll()
        bodies += _work(bench, RunStatus.SUCCEEDED)
    failpoints.disarm(name)
    if name != "backfill:committed":
        after = bench.client.get_backfill(filling.id)
        assert (before.at, before.created, before.again) == (after.at, after.created, after.again)
    _finish(bench, filling, bodies)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("name", STEP)
def test_a_scheduler_is_killed_in_the_step(bench: Bench, filling: Backfill, name: str, nth: int) -> None:
    """SIGKILL at any point, of new runs and of those that are run again: another scheduler goes on."""
    bodies: Counter[str] = Counter()
    poller = Poller(bench, failpoints=f"{name}=kill@{nth}")
    try:
        poller.ready()
        for _ in range(nth - 1):
            poller.poll()
            assert None is poller.wait()
            bodies += _work(bench, RunStatus.SUCCEEDED)
        poller.poll()
        assert -9 == poller.wait()
    finally:
        poller.end()
    _finish(bench, filling, bodies)


@pytest.mark.parametrize("death", ["raise", "kill"])
@pytest.mark.parametrize("name", CANCEL)
def test_a_cancellation_dies(
    bench: Bench, filling: Backfill, name: str, death: str, armed: Callable[[str, int], list[str]]
) -> None:
    """To cancel one, with what it has not started, is one transaction: all, or nothing and then again."""
    bench.scheduler.poll()
    before = bench.client.get_backfill(filling.id)
    assert ("running", 2) == (before.status, before.in_flight)
    if death == "kill":
        poller = Poller(bench, failpoints=f"{name}=kill")
        try:
            poller.ready()
            poller.do(f"cancel_backfill {filling.id}")
            assert -9 == poller.wait()
        finally:
            poller.end()
    else:
        armed(name, 1)
        with pytest.raises(FailpointReached):
            bench.client.cancel_backfill(filling.id)
        failpoints.disarm(name)
    assert before == bench.client.get_backfill(filling.id)
    done = bench.client.cancel_backfill(filling.id)
    assert ("cancelled", 0, 2) == (done.status, done.in_flight, done.cancelled)
    assert (0, []) == (bench.in_flight(), list(_work(bench, RunStatus.SUCCEEDED)))
    invariants.check(bench.database)
