"""How a worker begins and ends: its node, warm and cold stops, a request to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from celery_sched.store import nodes
from tests.flow.test_worker_kill import grandchild, wait_until_gone
from tests.flow.worker_world import World
from tests.private_server import wait_until

MakeWorld = Callable[..., World]


def test_a_worker_tells_what_it_consumes(make_world: MakeWorld) -> None:
    """The node's row says queues, prefetch, pool, concurrency and that the gate is there; it is refreshed."""
    world = make_world()
    worker = world.worker("-c", "2", "-Q", "one,two")
    (node,) = world.database.read(lambda tx, now: nodes.every(tx, "flow"))
    facts = dict(node.facts)
    assert "5." == facts.pop("celery")[:2]
    assert {
        "queues": ["one", "two"],
        "prefetch": 1,
        "acks_late": True,
        "pool": "celery.concurrency.prefork:TaskPool",
        "concurrency": 2,
        "gate": True,
        "kills": True,
    } == facts
    assert (worker.name, worker.process.pid) == (node.name, node.pid)
    read = lambda: world.database.read(lambda tx, now: nodes.every(tx, "flow"))  # noqa: E731
    wait_until(lambda: read()[0].last_seen > node.last_seen, 20, "a sign of life")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
@pytest.mark.parametrize("broker", ["files", "redis"])
def test_a_warm_stop_keeps_leases_until_the_tasks_have_ended(
    make_world: MakeWorld, broker: str, pool: str
) -> None:
    """SIGTERM: a run longer than its lease is renewed while the worker waits for it, then succeeds."""
    world = make_world(broker=broker, sched_lease=6)
    worker = world.worker("-P", pool, "-c", "1")
    run_id = world.run("sleeps", 8)
    world.wait(run_id, "running")
    worker.process.send_signal(signal.SIGTERM)

    def ended() -> bool:
        world.sweep()  # nothing is to be found
        return worker.process.poll() is not None

    wait_until(ended, 30, "the worker to end")
    assert 0 == worker.process.returncode
    assert "succeeded" == world.status(run_id)
    assert [] == world.node_names()


@pytest.mark.parametrize("broker", ["files", "redis"])
def test_a_cold_stop_settles_what_it_cuts_off(make_world: MakeWorld, broker: str) -> None:
    """SIGQUIT: the running child is gone with what it started, its run is lost at once, the node leaves."""
    world = make_world(broker=broker, sched_lease=60)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 600, "group")
    wait_until(lambda: grandchild(world), 20, "the body to begin")
    worker.stop(signal.SIGQUIT)
    done = world.wait(run_id, timeout=1)
    assert "lost" == done.status, done
    wait_until_gone(world.pids()[0])
    wait_until_gone(grandchild(world))
    assert [] == world.node_names()


@pytest.mark.parametrize("broker", ["files", "redis"])
def test_a_request_to_stop_is_a_warm_stop(make_world: MakeWorld, broker: str) -> None:
    """A worker whose node was asked to stop finishes what it runs and exits 0."""
    world = make_world(broker=broker, sched_lease=60)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 3)
    world.wait(run_id, "running")
    (node,) = world.database.read(lambda tx, now: nodes.every(tx, "flow"))
    world.database.run(lambda tx, now: nodes.request_stop(tx, now, node.id))
    assert 0 == worker.process.wait(30)
    assert "succeeded" == world.status(run_id)
    assert [] == world.node_names()


def test_spawned_children_are_refused(make_world: MakeWorld) -> None:
    """A worker that would not fork says at its start why it does not."""
    world = make_world(worker_pool_start_method="spawn")
    with pytest.raises(AssertionError, match="worker_pool_start_method 'spawn' is refused"):
        world.worker("-c", "1")
