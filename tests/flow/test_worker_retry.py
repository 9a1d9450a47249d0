"""Retries with real workers: what an attempt came to decides, whoever noticed its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_sched.client import Client
from celery_sched.model import Attempt, Run, RunId
from celery_sched.rules.transitions import TERMINAL
from celery_sched.store import attempts
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.flow.worker_world import PATIENCE, World
from tests.private_server import wait_until

MakeWorld = Callable[..., World]
SOON: dict[str, Any] = {"retry_delay": timedelta(seconds=0.2), "retry_jitter": False}


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Redis and PostgreSQL, as in production; a lease of three seconds."""
    return make_world(broker="redis", database="postgresql", include=["tests.flow.retry_bodies"])


def _carry_on(world: World, run_id: RunId, timeout: float = 2 * PATIENCE) -> Run:
    """Poll, as a scheduler would, until the run is over."""
    scheduler = ManualScheduler(world.app, runtime=world.runtime)

    def over() -> bool:
        scheduler.poll()
        return world.status(run_id) in TERMINAL

    try:
        wait_until(over, timeout, f"run {run_id} to be over")
    except TimeoutError as error:
        logs = "\n".join(worker.text()[-3000:] for worker in world.workers)
        raise TimeoutError(f"{error}, it is {world.status(run_id)}\n{logs}") from None
    invariants.check(world.database)
    return world.wait(run_id)


def _attempts(world: World, run_id: RunId) -> list[Attempt]:
    return world.database.read(lambda tx, now: attempts.of_run(tx, run_id))


def _tried(world: World, run_id: RunId) -> list[tuple[int, str]]:
    return [(one.attempt, one.status) for one in _attempts(world, run_id)]


def test_a_task_succeeds_at_its_third_attempt(world: World) -> None:
    """Two failures are kept with worker, times and traceback; each attempt has its own fencing number."""
    worker = world.worker("-c", "1")
    run_id = world.run("retry.until", 3, retries=3, **SOON)
    done = _carry_on(world, run_id)
    assert ("succeeded", 3, "3", 3) == (done.status, done.attempt, done.result, done.fence)
    assert ["until"] * 3 == world.marks()
    first, second = _attempts(world, run_id)
    assert ("failed", worker.name, "failed") == (first.status, first.worker, second.status)
    assert first.error is not None and first.error.startswith("Refused: attempt 1\nTraceback")
    assert first.started_at is not None and second.started_at is not None and done.started_at is not None
    assert first.started_at < first.ended_at < second.started_at < second.ended_at < done.started_at
    assert 0 == world.late_settlers()


@pytest.mark.parametrize(
    ("policy", "status", "reason"),
    [
        ({"retry_on": ["OSError"]}, "succeeded", None),
        ({"retry_on": ["tests.flow.retry_bodies.Refused"]}, "succeeded", None),
        ({"retry_on": ["ValueError"]}, "failed", "not tried again: retry_on names only ValueError"),
        ({"give_up_on": ["ConnectionError"]}, "failed", "not tried again: give_up_on names ConnectionError"),
    ],
)
def test_bases_of_an_exception_count(
    world: World, policy: dict[str, Any], status: str, reason: str | None
) -> None:
    """A subclass of what a job names is tried again, or given up, as the job says."""
    world.worker("-c", "1")
    run_id = world.run("retry.until", 2, retries=3, **policy, **SOON)
    done = _carry_on(world, run_id)
    assert (status, reason) == (done.status, done.reason)
    assert (2 if status == "succeeded" else 1) == done.attempt


@pytest.mark.parametrize(
    ("how", "status", "policy"),
    [
        ("exit", "lost", {"retries": 1}),
        ("exit", "lost", {"requeue": True}),
        ("memory", "failed", {"retries": 1, "retry_on": ["MemoryError"]}),
        ("hang", "timed_out", {"retries": 1}),
    ],
)
def test_attempts_that_are_ended_from_outside(
    world: World, how: str, status: str, policy: dict[str, Any]
) -> None:
    """A dead child, one out of memory, one killed at its time limit: the main process asks for the retry."""
    worker = world.worker("-c", "1")
    limit = {"time_limit": timedelta(seconds=3)} if how == "hang" else {}
    run_id = world.run("retry.ends", how, **policy, **limit, **SOON)
    done = _carry_on(world, run_id)
    assert ("succeeded", 2) == (done.status, done.attempt)
    assert [(1, status)] == _tried(world, run_id)
    assert ["ends"] * 2 == world.marks()
    assert worker.process.poll() is None


@pytest.mark.parametrize("policy", [{"retries": 1}, {"requeue": True}])
def test_a_worker_is_killed(world: World, policy: dict[str, Any]) -> None:
    """`kill -9` of the whole worker: after its lease the next attempt of the run is made by another one."""
    first = world.worker("-c", "1")
    run_id = world.run("retry.ends", "kill worker", **policy, **SOON)
    assert -9 == first.process.wait(PATIENCE)
    second = world.worker("-c", "1")
    done = _carry_on(world, run_id)
    assert ("succeeded", 2, second.name) == (done.status, done.attempt, done.worker)
    (kept,) = _attempts(world, run_id)
    assert ("lost", first.name) == (kept.status, kept.worker)
    assert (kept.reason or "").startswith(f"its worker {first.name} gave no sign of life")
    assert ["ends"] * 2 == world.marks()


def test_a_worker_is_killed_and_nobody_asked_for_retries(world: World) -> None:
    """Without a policy the run is lost, as before."""
    first = world.worker("-c", "1")
    run_id = world.run("retry.ends", "kill worker")
    assert -9 == first.process.wait(PATIENCE)
    done = _carry_on(world, run_id)
    assert ("lost", 1, []) == (done.status, done.attempt, _attempts(world, run_id))


def test_celerys_retries_within_the_jobs(world: World) -> None:
    """`self.retry()` keeps its run; the job's retry counts Celery's from zero again, and not as its own.

    A run by hand keeps the arguments that it had last, which are those of its own retry.
    """
    world.worker("-c", "1")
    run_id = world.run("retry.mixed", 10, retries=1, **SOON)
    done = _carry_on(world, run_id)
    assert ("succeeded", 4, "[12, 4, 1]") == (done.status, done.attempt, done.result)
    assert [(1, "retry"), (2, "failed"), (3, "retry")] == _tried(world, run_id)
    assert "its task asked Celery for a retry" == _attempts(world, run_id)[0].reason
    assert 1 == world.row(run_id).retried


def test_celerys_retries_are_used_up(world: World) -> None:
    """What autoretry raises at its end is a failure like any other, and the job's own retries follow."""
    world.worker("-c", "1")
    run_id = world.run("retry.mixed", 10, retries=0)
    done = _carry_on(world, run_id)
    assert ("failed", 2) == (done.status, done.attempt)
    assert (done.error or "").startswith("ValueError: in between")


def test_a_run_that_was_stopped_is_not_tried_again(world: World) -> None:
    """The killed attempt was asked to stop: the run is cancelled, whatever its retries."""
    world.worker("-c", "1")
    run_id = world.run("retry.ends", "hang", retries=3, requeue=True, **SOON)
    world.wait(run_id, "running")
    Client(world.runtime).cancel(run_id, by="somebody", reason="enough")
    done = _carry_on(world, run_id)
    assert ("cancelled", 1, []) == (done.status, done.attempt, _attempts(world, run_id))
