"""Schedulers, workers and clients die while a run is queued again: each attempt runs once, all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.model import RunId, RunKey
from celery_sched.rules.transitions import TERMINAL, RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store import attempts
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.flow.conftest import make_world
from tests.flow.worker_world import PATIENCE, World
from tests.private_server import wait_until
from tests.race.poller import Poller
from tests.store.world import Bench

__all__ = ["make_world"]

POLICY: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10), "retry_jitter": False}


@pytest.fixture
def arm() -> Iterator[Callable[[str], None]]:
    """Arms a failpoint of this process with an exception."""
    armed: list[str] = []

    def act_on(name: str) -> None:
        def act() -> None:
            raise FailpointReached(name)

        failpoints.arm(name, act)
        armed.append(name)

    yield act_on
    for name in armed:
        failpoints.disarm(name)


def _die(bench: Bench, name: str, what: str) -> None:
    poller = Poller(bench, failpoints=f"{name}=kill")
    try:
        poller.ready()
        poller.do(what)
        assert -9 == poller.wait()
    finally:
        poller.end()


def _tried(bench: Bench, run_id: RunId) -> list[tuple[int, str]]:
    return [(one.attempt, one.status) for one in bench.client.attempts(run_id)]


@pytest.mark.parametrize("death", ["raise", "kill"])
def test_a_sweep_dies_between_the_run_and_its_attempt(
    bench: Bench, death: str, arm: Callable[[str], None]
) -> None:
    """What it was about to write is not there; the next pass asks for the retry, once."""
    bench.scheduler.poll()
    key = bench.running(**POLICY).key
    for seconds in (30, 29, 2):
        bench.clock.advance(seconds)
        if seconds != 2:
            bench.scheduler.poll()
    before = bench.snapshot(key.id)
    if death == "kill":
        _die(bench, "retry:queued", "1")
    else:
        arm("retry:queued")
        bench.another().poll()
        failpoints.disarm("retry:queued")
    assert (before, []) == (bench.snapshot(key.id), _tried(bench, key.id))
    invariants.check(bench.database)
    _work_off(bench, key)


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.TIMED_OUT])
def test_a_finish_fails_between_the_run_and_its_attempt(
    bench: Bench, status: RunStatus, arm: Callable[[str], None]
) -> None:
    """Nothing was written; the lease runs out, and the sweep asks for the retry."""
    bench.scheduler.poll()
    key = bench.running(**POLICY).key
    before = bench.snapshot(key.id)
    arm("retry:queued")
    with pytest.raises(FailpointReached):
        bench.finish(key, status)
    failpoints.disarm("retry:queued")
    assert (before, []) == (bench.snapshot(key.id), _tried(bench, key.id))
    for _ in range(3):
        bench.clock.advance(20)
        bench.scheduler.poll()
    bench.clock.advance(1)
    _work_off(bench, key)


def _work_off(bench: Bench, key: RunKey) -> None:
    """The next scheduler, and a worker: the run is tried again, each attempt once."""
    second = bench.another()
    bodies: Counter[tuple[RunId, int]] = Counter({(key.id, 1): 1})
    for _ in range(20):
        second.poll()
        for found in bench.messages():
            if bench.start(found).verdict is Verdict.YOURS:
                bodies[found.id, found.attempt] += 1
                assert bench.finish(found).settled
        invariants.check(bench.database)
        if bench.status(key.id) in TERMINAL:
            break
        bench.clock.advance(10)
    assert {(key.id, 1): 1, (key.id, 2): 1} == bodies
    assert ("succeeded", [(1, "lost")], 0) == (
        bench.status(key.id),
        _tried(bench, key.id),
        bench.in_flight(),
    )


def test_celerys_retry_fails_between_the_run_and_its_attempt(
    bench: Bench, arm: Callable[[str], None]
) -> None:
    """Nothing was written: the attempt that asked is still the current one, and may say so again."""
    key = bench.running().key
    before = bench.snapshot(key.id)
    arm("retry:dispatched")
    with pytest.raises(FailpointReached):
        bench.retry(key, bench.clock.now)
    failpoints.disarm("retry:dispatched")
    assert (before, []) == (bench.snapshot(key.id), _tried(bench, key.id))
    assert bench.retry(key, bench.clock.now)
    assert [(1, "retry")] == _tried(bench, key.id)
    invariants.check(bench.database)


@pytest.mark.parametrize("death", ["raise", "kill"])
def test_a_retry_by_hand_dies(bench: Bench, death: str, arm: Callable[[str], None]) -> None:
    """It is queued with its attempt kept and its statistics taken back, or nothing is."""
    key = bench.running().key
    assert bench.finish(key, RunStatus.FAILED).settled
    before = bench.snapshot(key.id)
    if death == "kill":
        _die(bench, "again:queued", f"retry {key.id}")
    else:
        arm("again:queued")
        with pytest.raises(FailpointReached):
            bench.client.retry(key.id)
        failpoints.disarm("again:queued")
    assert (before, []) == (bench.snapshot(key.id), _tried(bench, key.id))
    bench.client.retry(key.id)
    assert ([(1, "failed")], 0) == (_tried(bench, key.id), bench.job_row().failure_count)
    invariants.check(bench.database)


@pytest.mark.parametrize(
    ("name", "task", "arguments"),
    [
        ("retry:queued", "retry.until", [2]),
        ("finish:begin", "retry.until", [2]),
        ("finish:committed", "retry.until", [2]),
        ("retry:dispatched", "retry.mixed", [10]),
        ("start:committed", "retry.until", [2]),
    ],
)
def test_a_worker_dies_around_a_retry(
    make_world: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    task: str,
    arguments: list[int],
) -> None:
    """A child (and the main process, where it comes there too) is killed: each attempt's body begins once.

    The run goes on in another worker, and ends as its job's policy says.
    """
    world = make_world(database="postgresql", broker="redis", include=["tests.flow.retry_bodies"])
    monkeypatch.setenv("CELERY_SCHED_FAILPOINTS", f"{name}=kill@1")
    doomed = world.worker("-c", "1")
    policy = {"retries": 5, "retry_delay": timedelta(seconds=0.2), "retry_jitter": False}
    run_id = world.run(task, *arguments, **policy)
    wait_until(
        lambda: world.row(run_id).attempt > 1 or doomed.process.poll() is not None,
        PATIENCE,
        "the first attempt to end",
    )
    doomed.end()  # its children would die again and again
    monkeypatch.setenv("CELERY_SCHED_FAILPOINTS", "")
    world.worker("-c", "1")
    scheduler = ManualScheduler(world.app, runtime=world.runtime)

    def over() -> bool:
        scheduler.poll()
        return world.status(run_id) in TERMINAL

    wait_until(over, 3 * PATIENCE, "the run to be over")
    invariants.check(world.database)
    row = world.row(run_id)
    kept = world.database.read(lambda tx, now: attempts.of_run(tx, run_id))
    assert "succeeded" == row.status
    begun = [int(line.split()[2]) for line in (world.folder / "marks").read_text().splitlines()]
    started = [one.attempt for one in kept if one.started_at is not None] + [row.attempt]
    # each attempt's body once; an attempt that died before its body has none
    assert (started[1:] if name == "start:committed" else started) == begun
