"""Runs that shall end: overdue, stopped, taken over, revoked; and children that die by themselves."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched.model import RunId
from celery_sched.steps.stop import stop
from celery_sched.store.tables import run as run_table
from celery_sched.testing import holding
from tests.flow.worker_world import World
from tests.private_server import wait_until
from tests.reaper import gone

MakeWorld = Callable[..., World]
BROKERS = ["files", "redis"]


def grandchild(world: World) -> int:
    """What a body has started; 0 as long as it has not."""
    file = world.folder / "grandchild"
    return int(file.read_text() or 0) if file.exists() else 0


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: gone(pid), 20, f"process {pid} to be gone")


@pytest.mark.parametrize("child", ["group", "session"])
@pytest.mark.parametrize("broker", BROKERS)
def test_an_overdue_run_is_killed_with_all_it_started(make_world: MakeWorld, broker: str, child: str) -> None:
    """Soon after its deadline the run is timed out, its process and what that started are gone."""
    world = make_world(broker=broker, sched_max_runtime=2, sched_kill_grace=1.9)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 600, child)
    done = world.wait(run_id)
    assert ("timed_out", "ran longer than its max_runtime (2 s)") == (done.status, done.error)
    steps = r"ran longer than its max_runtime \(2 s\); SIGTERM, ended after [0-9]\.\d s"
    assert re.fullmatch(steps, done.reason or ""), done.reason
    assert done.deadline_at is not None and done.finished_at is not None
    assert done.finished_at - done.deadline_at < timedelta(seconds=5)
    wait_until_gone(world.pids()[0])
    wait_until_gone(grandchild(world))
    assert "succeeded" == world.wait(world.run("plain")).status  # the pool's slot came back
    assert worker.process.poll() is None
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_stopped_run_is_killed_and_cancelled(make_world: MakeWorld, broker: str) -> None:
    """A stop request ends the body within a renewal and the run is cancelled, saying by whom and why."""
    world = make_world(broker=broker, sched_kill_grace=1.9)
    world.worker("-c", "1")
    run_id = world.run("sleeps", 600)
    wait_until(lambda: world.pids(), 20, "the body to begin")
    world.database.run(lambda tx, now: stop(tx, now, run_id, "alice", "enough"))
    done = world.wait(run_id, timeout=10)
    assert "cancelled" == done.status
    steps = r"stopped by alice: enough; SIGTERM, ended after [0-9]\.\d s"
    assert re.fullmatch(steps, done.reason or ""), done.reason
    wait_until_gone(world.pids()[0])
    assert "succeeded" == world.wait(world.run("plain")).status


def test_a_run_that_was_taken_over_is_killed_and_settles_nothing(make_world: MakeWorld) -> None:
    """A child whose token is no longer current is killed; the row of its successor stays as it is."""
    world = make_world()
    world.worker("-c", "1")
    run_id = world.run("sleeps", 600)
    world.wait(run_id, "running")
    wait_until(lambda: world.pids(), 20, "the body to begin")
    world.update(run_id, token="successor", worker="another")
    wait_until_gone(world.pids()[0])
    assert "succeeded" == world.wait(world.run("plain")).status
    row = world.row(run_id)
    assert ("running", "successor", None) == (row.status, row.token, row.finished_at)
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_revoked_run_is_cancelled(make_world: MakeWorld, broker: str) -> None:
    """Flower's terminate kills the run, which is then cancelled."""
    world = make_world(broker=broker)
    world.worker("-c", "1")
    run_id = world.run("sleeps", 600)
    world.wait(run_id, "running")
    wait_until(lambda: world.pids(), 20, "the body to begin")
    world.app.control.revoke(run_id, terminate=True)
    reason = "terminated by Celery's remote control"
    assert ("cancelled", reason) == (world.wait(run_id).status, world.row(run_id).reason)
    wait_until_gone(world.pids()[0])
    assert "succeeded" == world.wait(world.run("plain")).status


def test_a_run_revoked_before_it_starts_is_cancelled(make_world: MakeWorld) -> None:
    """A revoke of a run that waits in the worker, or is still to come, cancels it; no body begins."""
    world = make_world(broker="redis", worker_prefetch_multiplier=2)
    world.worker("-c", "1")
    busy = world.run("bodies.until_file", "busy", "enough")
    world.wait(busy, "running")
    waiting = world.run("plain")
    wait_until(lambda: world.row(waiting).received_at is not None, 20, "the second to be received")
    coming = world.claim("plain")
    world.app.control.revoke([waiting, coming.key.id], reply=True)
    world.publish(coming)
    (world.folder / "enough").touch()
    for run_id in (waiting, coming.key.id):
        done = world.wait(run_id)
        assert ("cancelled", "revoked by Celery's remote control") == (done.status, done.reason)
    assert "succeeded" == world.wait(busy).status
    assert ["busy:begin", "busy:end"] == world.marks()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_time_limit_kills_and_times_out(make_world: MakeWorld, broker: str) -> None:
    """Celery's own hard limit settles the run as timed out, once."""
    world = make_world(broker=broker)
    world.worker("-c", "1")
    # the deadline in the row is later: Celery's limit must be what ends it
    dispatch = world.claim("sleeps", 600, options={"time_limit": 1})
    world.publish(dispatch)
    done = world.wait(dispatch.key.id)
    assert "timed_out" == done.status
    assert "ran longer than its time_limit (1 s)" == done.error
    assert "succeeded" == world.wait(world.run("plain")).status
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_time_limit_kills_all_that_was_started_while_the_database_is_away(
    make_world: MakeWorld, broker: str
) -> None:
    """The keeper waits for the database when Celery kills the child: what it had started is gone too."""
    world = make_world(broker=broker, sched_lease=60)
    world.worker("-c", "1")
    run_id = world.run("sleeps", 600, "session", options={"time_limit": 5})
    wait_until(lambda: grandchild(world), 20, "the body to start its child")
    with holding(world.database, run_table, run_id):
        wait_until_gone(world.pids()[0])
        wait_until_gone(grandchild(world))
    assert "timed_out" == world.wait(run_id).status


@pytest.mark.parametrize("broker", BROKERS)
def test_a_cold_shutdown_kills_all_that_was_started(make_world: MakeWorld, broker: str) -> None:
    """SIGQUIT: the run is settled as lost at once; its child and what that started are gone."""
    world = make_world(broker=broker, sched_lease=60)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 600, "session")
    wait_until(lambda: grandchild(world), 20, "the body to start its child")
    worker.stop(signal.SIGQUIT)
    wait_until_gone(world.pids()[0])
    wait_until_gone(grandchild(world))
    assert "lost" == world.wait(run_id, timeout=10).status


@pytest.mark.parametrize(
    ("how", "status", "why"),
    [
        ("exit", "lost", "the child process died"),
        ("kill", "lost", "the child process died"),
        ("terminate", "lost", "the child process died"),
        ("memory", "failed", "MemoryError"),
        ("sysexit", "failed", "the task raised SystemExit: 4"),
    ],
)
@pytest.mark.parametrize("broker", BROKERS)
def test_a_child_that_dies_is_settled_at_once(
    make_world: MakeWorld, broker: str, how: str, status: str, why: str
) -> None:
    """A lost child settles its run long before the lease ends; what a body raised ends no child."""
    world = make_world(broker=broker, sched_lease=60)
    worker = world.worker("-c", "1")
    # 10 s is what Celery's pool without an event loop takes to notice it; a child that unwinds on a signal
    # has left its body when it dies, and only the pool knows of it
    done = world.wait(world.run("dies", how), timeout=25 if how == "terminate" else 8)
    assert status == done.status
    assert why in (done.error or "")
    assert "succeeded" == world.wait(world.run("plain")).status
    assert worker.process.poll() is None
    assert ["dies", "plain"] == world.marks()
    assert 0 == world.late_settlers()


def test_a_task_class_with_a_request_of_its_own_is_settled_too(make_world: MakeWorld) -> None:
    """A task that names Celery's request class gets what settles lost children all the same."""
    world = make_world(sched_lease=60)
    world.worker("-c", "1")
    assert "lost" == world.wait(world.run("own_request", "exit"), timeout=20).status


@pytest.mark.parametrize("how", ["memory", "sysexit"])
@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_threads_and_solo_survive_such_bodies(make_world: MakeWorld, pool: str, how: str) -> None:
    """Out of memory or sys.exit() in a body fails its run and nothing else."""
    world = make_world(sched_lease=60)
    worker = world.worker("-P", pool, "-c", "2")
    assert "failed" == world.wait(world.run("dies", how), timeout=20).status
    assert "succeeded" == world.wait(world.run("plain")).status
    assert worker.process.poll() is None


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_threads_and_solo_cannot_be_killed_but_are_told(make_world: MakeWorld, pool: str) -> None:
    """An overdue body in a thread sees ``ctx.lost``; a warning names the run; the sweep settles it."""
    world = make_world(sched_max_runtime=2)
    worker = world.worker("-P", pool, "-c", "2")
    run_id = world.run("until_lost", 90, "enough")
    worker.wait_for_log(f"run {run_id} shall end (ran longer than its max_runtime (2 s))")
    assert "running" == world.status(run_id)
    world.sweep()
    done = world.wait(run_id)
    assert "timed_out" == done.status
    (world.folder / "enough").touch()
    saw = world.folder / "saw"
    wait_until(lambda: saw.exists() and saw.read_text(), 20, "the body to end")
    assert "True" == saw.read_text()
    assert "succeeded" == world.wait(world.run("plain")).status
    assert "timed_out" == world.status(run_id)


def test_a_run_whose_worker_is_killed_outright_is_swept(make_world: MakeWorld) -> None:
    """kill -9 of main process and children: the lease runs out and the sweep settles the run as lost."""
    world = make_world()
    worker = world.worker("-c", "1")
    run_id: RunId = world.run("sleeps", 600)
    wait_until(lambda: world.pids(), 20, "the body to begin")
    os.kill(worker.process.pid, signal.SIGKILL)
    wait_until(lambda: (world.sweep(), world.status(run_id) == "lost")[1], 20, "the sweep to settle it")
    wait_until_gone(world.pids()[0])
