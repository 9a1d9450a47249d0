"""Real workers carry out events: one that is killed leaves one further delivery; a body publishes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_sched.client import Client
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.flow.conftest import make_world
from tests.flow.worker_world import PATIENCE, World
from tests.private_server import wait_until

__all__ = ["make_world"]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """PostgreSQL and Redis."""
    return make_world(database="postgresql", broker="redis", include=["tests.flow.event_bodies"])


@pytest.fixture
def scheduler(world: World) -> Iterator[ManualScheduler]:
    """Turned by hand, on the database's own clock."""
    made = ManualScheduler(world.app, runtime=world.runtime)
    yield made
    made._poll.close()


def statuses(client: Client) -> list[str]:
    return sorted(one.status.value for one in client.deliveries())


def test_a_worker_is_killed_in_the_middle(world: World, scheduler: ManualScheduler) -> None:
    """`kill -9` between claim and completion: a new attempt of the same run, and never two at a time."""
    worker = world.worker("-c", "1")
    client = scheduler.client
    client.add("job", task="events.waits", on="numbers", retries=0)
    client.publish("numbers", 7)
    scheduler.poll()
    wait_until(lambda: ["begins:7"] == world.marks(), PATIENCE, "the body to begin")
    [first] = client.deliveries()
    children = worker.children()
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait(PATIENCE)
    wait_until(lambda: not any(child.is_running() for child in children), PATIENCE, "its child to be gone")
    assert ["taken"] == statuses(client)
    world.worker("-c", "1")

    def again() -> bool:
        scheduler.poll()
        return ["begins:7", "begins:7"] == world.marks()

    wait_until(again, PATIENCE, "the body to begin again")
    for _ in range(3):
        scheduler.poll()
    (world.folder / "go").touch()
    assert first.run_id is not None
    run = world.wait(first.run_id)
    assert ("succeeded", 2, '"7"') == (run.status, run.attempt, run.result)
    assert ["begins:7", "begins:7", "ends:7"] == world.marks()
    [second] = client.deliveries()
    assert (first.id, first.run_id, "delivered") == (second.id, second.run_id, second.status.value)
    invariants.check(world.database)


def test_a_body_publishes(world: World, scheduler: ManualScheduler) -> None:
    """By its context or by the public function: the events know the run, and how many came before."""
    world.worker("-c", "1")
    client = scheduler.client
    client.add("job", task="tests.flow.event_bodies.publishes", on="first")
    client.publish("first", {"n": 1})
    scheduler.poll()
    [delivery] = client.deliveries()
    assert delivery.run_id is not None
    run = world.wait(delivery.run_id)
    assert "succeeded" == run.status, run.error
    third, second, first = client.events()
    assert f"[{second.id}, {third.id}]" == run.result
    expected: list[tuple[Any, ...]] = [
        ("first", {"n": 1}, None, 0, None),
        ("second", {"n": 1}, None, 1, run.id),
        ("third", {"from": run.id}, "k", 1, run.id),
    ]
    assert expected == [
        (event.topic, event.payload, event.key, event.hops, event.run_id) for event in (first, second, third)
    ]


def test_a_task_that_does_not_ask_which_event(world: World, scheduler: ManualScheduler) -> None:
    """It is run without it, at Celery's own retry too; so is a task that the type ``task`` calls."""
    world.worker("-c", "1")
    client = scheduler.client
    client.add("plain", task="events.asks_nothing", on="numbers", kwargs={"n": 3})
    configured = {"task": "celery_sched.ping", "kwargs": {}}
    client.add("typed", task="celery_sched.task", on=["numbers"], kwargs=configured)
    client.publish("numbers", 7)

    def delivered() -> bool:
        scheduler.poll()
        found = statuses(client)
        assert "dead" not in found, [run.error for run in client.runs()]
        return found == ["delivered", "delivered"]

    wait_until(delivered, PATIENCE, "both to succeed")
    assert {"plain": "3"}.items() <= {run.job: run.result for run in client.runs()}.items()
