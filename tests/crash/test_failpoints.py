"""Schedulers die, or fail, at every placed point; what they left, the next one finishes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import celery_sched
from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.model import RunId, RunKey
from celery_sched.steps.abandon import abandon
from celery_sched.steps.start import Verdict
from celery_sched.store import on_lost
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import Bench

POLL = (
    "hello:judged",
    "settle:moved",
    "ends:after",
    "sweep:settled",
    "sweep:committed",
    "plan:inserted",
    "plan:committed",
    "claim:locked",
    "claim:committed",
    "publish:sent",
    "publish:unmarked",
)
CANCEL = ("stop:requested", "settle:moved", "ends:after")
ABANDON = ("settle:moved", "ends:after", "abandon:settled")
BACKFILL = (
    *("backfill:inserted", "backfill:again", "backfill:moved", "backfill:committed", "backfill:cancelled"),
)  # in test_backfill.py
RETRY = ("retry:queued", "retry:dispatched", "again:queued")  # in test_retry.py
EVENTS = (
    *("deliver:inserted", "replay:inserted", "deliver:committed", "gather:inserted", "gather:committed"),
)  # in test_events.py
TELL = ("tell:decided", "tell:committed")  # in test_notices.py
WORKER = ("start:committed", "finish:begin", "finish:committed")  # in test_worker.py


def test_every_failpoint_is_tested() -> None:
    """The points in the code are the points in these tests."""
    package = Path(celery_sched.__file__).parent
    found = {
        name
        for file in package.rglob("*.py")
        if file.name != "failpoints.py"
        for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())
    }
    assert {*POLL, *CANCEL, *ABANDON, *BACKFILL, *EVENTS, *RETRY, *TELL, *WORKER} == found


@pytest.fixture
def scene(make_bench: Callable[..., Bench]) -> Bench:
    """A poll that has everything to do: a hung run, one that never started, jobs that are due."""
    bench = make_bench(max_concurrent_jobs=4)
    bench.scheduler.poll()
    bench.running("hung", overlap="queue", on_lost="t.put_right")
    bench.claimed("unstarted")
    for seconds in (30, 29):
        bench.clock.advance(seconds)
        bench.scheduler.poll()
    for number in range(6):
        bench.job(f"due-{number}", overlap="queue" if number % 2 else "concurrent")
    bench.clock.advance(2)
    return bench


@pytest.fixture
def arm() -> Iterator[Callable[[str], list[str]]]:
    """Arms a failpoint of this process with an exception; the list says how often it was reached."""
    reached: list[str] = []

    def armed(name: str) -> list[str]:
        def act() -> None:
            reached.append(name)
            raise FailpointReached(name)

        failpoints.arm(name, act)
        return reached

    yield armed
    for name in (*POLL, *CANCEL, *ABANDON):
        failpoints.disarm(name)


def _finish_the_work(bench: Bench) -> None:
    """The next scheduler, and a worker: nothing is lost, nothing runs twice, nothing is left."""
    invariants.check(bench.database)
    second = bench.another()
    bodies: list[RunId] = []
    for _ in range(40):
        second.poll()
        for key in bench.messages():
            if bench.start(key).verdict is Verdict.YOURS:
                bodies.append(key.id)
                assert bench.finish(key).settled
        invariants.check(bench.database)
        if not set(bench.statuses()) & {"queued", "dispatched", "running"}:
            break
        bench.clock.advance(20)
    assert len(set(bodies)) == len(bodies)
    by_job = {run.job: run.status for run in bench.scheduler.runs()}
    expected = {f"due-{number}": "succeeded" for number in range(6)}
    # what the hung one left behind was put right, once
    expected |= {"hung": "lost", "unstarted": "succeeded", on_lost.JOB: "succeeded"}
    assert expected == by_job
    assert (9, 0) == (len(bench.scheduler.runs()), bench.in_flight())


@pytest.mark.parametrize("name", POLL)
def test_a_poll_fails(scene: Bench, name: str, arm: Callable[[str], list[str]]) -> None:
    """An exception at any point of a poll: what was not committed is not there, the next poll goes on."""
    failing = scene.another()
    reached = arm(name)
    try:
        failing.poll()
    except FailpointReached:
        assert name == "hello:judged"  # before the first step there is nothing else that could be done
    assert [name] == reached[:1]
    failpoints.disarm(name)
    _finish_the_work(scene)


@pytest.mark.parametrize("name", POLL)
def test_a_scheduler_is_killed(scene: Bench, name: str) -> None:
    """SIGKILL at any point of a poll: what was not committed is not there, another scheduler goes on."""
    poller = Poller(scene, failpoints=f"{name}=kill")
    try:
        poller.ready()
        poller.poll()
        assert -9 == poller.wait()
    finally:
        poller.end()
    _finish_the_work(scene)


@pytest.mark.parametrize("status", ["dispatched", "running"])
@pytest.mark.parametrize("name", CANCEL)
def test_a_cancellation_fails(bench: Bench, name: str, status: str, arm: Callable[[str], list[str]]) -> None:
    """A cancellation that fails half way has changed nothing; done again, it is done."""
    key = (bench.running() if status == "running" else bench.claimed()).key
    before = bench.snapshot(key.id)
    reached = arm(name)
    if status == "running" and name != "stop:requested":
        bench.client.cancel(key.id)  # a request only: there is nothing to settle
        assert [] == reached
        return
    with pytest.raises(FailpointReached):
        bench.client.cancel(key.id)
    assert before == bench.snapshot(key.id)
    failpoints.disarm(name)
    bench.client.cancel(key.id)
    _cancelled(bench, key)


@pytest.mark.parametrize("name", CANCEL)
def test_a_cancelling_process_is_killed(bench: Bench, name: str) -> None:
    """SIGKILL in the middle of a cancellation: nothing was changed, and nothing stays locked."""
    key = bench.claimed().key
    before = bench.snapshot(key.id)
    _die(bench, name, f"cancel {key.id}")
    assert before == bench.snapshot(key.id)
    bench.client.cancel(key.id)
    _cancelled(bench, key)


def _cancelled(bench: Bench, key: RunKey) -> None:
    if bench.status(key.id) == "running":
        assert [key.id] == list(bench.renew(key).stopped)
        bench.clock.advance(61)
        bench.sweep()
    assert ("cancelled", 0, None) == (bench.status(key.id), bench.in_flight(), bench.job_row().lock_token)
    invariants.check(bench.database)


@pytest.mark.parametrize("death", ["raise", "kill"])
@pytest.mark.parametrize("name", ABANDON)
def test_abandoning_dies(bench: Bench, name: str, death: str, arm: Callable[[str], list[str]]) -> None:
    """Giving up what dead processes held is one transaction: all, or nothing and then again."""
    running, waiting = bench.running("running").key, bench.claimed("waiting").key
    dead = [bench.node]
    before = bench.snapshot(running.id, "running"), bench.snapshot(waiting.id, "waiting")

    def give_up() -> None:
        bench.database.run(lambda tx, now: abandon(tx, now, bench.config, dead, "a test"))

    if death == "kill":
        _die(bench, name, f"abandon {bench.node}")
    else:
        arm(name)
        with pytest.raises(FailpointReached):
            give_up()
        failpoints.disarm(name)
    assert before == (bench.snapshot(running.id, "running"), bench.snapshot(waiting.id, "waiting"))
    give_up()
    assert ("cancelled", "queued") == (bench.status(running.id), bench.status(waiting.id))
    invariants.check(bench.database)


def _die(bench: Bench, name: str, what: str) -> None:
    poller = Poller(bench, failpoints=f"{name}=kill")
    try:
        poller.ready()
        poller.do(what)
        assert -9 == poller.wait()
    finally:
        poller.end()
