"""Abandon: processes that were seen to die give back at once what they held, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_sched import config as settings
from celery_sched.model import JobDefinition, JobStatus, Node, NodeId, NodeKind, Overlap, RunKey, Source
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.abandon import abandon
from celery_sched.steps.claim import claim
from celery_sched.steps.plan import plan
from celery_sched.steps.receive import receive
from celery_sched.steps.start import Verdict, start
from celery_sched.steps.stop import stop
from celery_sched.store import apps, jobs, nodes, pools, queue, runs
from celery_sched.store.engine import Database
from celery_sched.store.tables import metadata

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
REASON = "stopped by a test"


class World:
    """A database with claimed runs of one job each, and a clock that stands still."""

    def __init__(self, url: str, home: Path) -> None:
        self.config = settings.load({"sched_database_url": url, "sched_home": str(home)}, "app", {})
        self.database = Database(url, clock=lambda: NOW)
        metadata.create_all(self.database.engine)
        self.database.run(lambda tx, now: apps.ensure(tx, "app"))
        self.database.run(lambda tx, now: pools.ensure(tx, "app", "default", 10))

    def node(self, *, last_seen: datetime = NOW) -> NodeId:
        """A worker that has registered."""
        node_id = NodeId(str(uuid.uuid4()))
        node = Node(node_id, "app", NodeKind.WORKER, "host", 1, "w@host", "1", NOW, NOW, {}, None)
        self.database.run(lambda tx, now: nodes.register(tx, last_seen, node))
        return node_id

    def claimed(self, name: str, **policies: Any) -> RunKey:
        """A run of a new job of that name, claimed."""
        definition = JobDefinition(name, "task", "every 1h", overlap=Overlap.SKIP, **policies)

        def work(tx: Any, now: datetime) -> RunKey:
            jobs.add(
                tx,
                now,
                "app",
                definition,
                source=Source.OPERATOR,
                status=JobStatus.ACTIVE,
                status_reason=None,
                next_run_at=now,
            )
            plan(tx, now, self.config)
            candidates = {"default": queue.ready_in(tx, "app", now, "default", 10)}
            (dispatch,) = claim(tx, now, self.config, candidates, count_slots=True).dispatches
            return dispatch.key

        return self.database.run(work)

    def received(self, name: str, node: NodeId, **policies: Any) -> RunKey:
        """A run that this node has received."""
        key = self.claimed(name, **policies)
        self.database.run(lambda tx, now: receive(tx, now, self.config, [key], node))
        return key

    def running(self, name: str, node: NodeId, **policies: Any) -> RunKey:
        """A run that this node has started."""
        key = self.received(name, node, **policies)
        started = self.database.run(lambda tx, now: start(tx, now, self.config, key, node, "w@host"))
        assert Verdict.YOURS == started.verdict
        return key

    def abandon(self, *dead: NodeId, status: RunStatus = RunStatus.CANCELLED) -> Any:
        """What the step did."""
        return self.database.run(lambda tx, now: abandon(tx, now, self.config, dead, REASON, status))

    def status(self, key: RunKey) -> tuple[str, str | None]:
        """A run's status and its reason."""
        row = self.database.read(lambda tx, now: runs.find(tx, [key.id]))[key.id]
        return row.status, row.reason

    def lock(self, name: str) -> str | None:
        """The run that holds the job's lock."""
        row = self.database.read(lambda tx, now: jobs.get(tx, "app", name))
        assert row is not None
        return row.locked_by

    def in_flight(self) -> int:
        """Slots taken."""
        return self.database.read(lambda tx, now: len(queue.held_in_pools(tx, "app")))


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """Each kind of database."""
    made = World(database_url, tmp_path)
    yield made
    made.database.dispose()


def test_what_the_dead_were_running_is_cancelled(world: World) -> None:
    """A running run of a dead worker ends as cancelled and frees lock and slot; its node is forgotten."""
    dead = world.node()
    keys = [world.running(name, dead) for name in ("one", "two")]
    done = world.abandon(dead)
    assert {key.id for key in keys} == {run for _, run in done.ended}
    assert [("cancelled", REASON)] * 2 == [world.status(key) for key in keys]
    assert (None, 0) == (world.lock("one"), world.in_flight())
    assert () == tuple(world.database.read(lambda tx, now: nodes.every(tx, "app")))


def test_what_a_worker_that_died_was_running_is_lost(world: World) -> None:
    """The worker was not stopped, it died: its runs are lost, and tried again where their jobs say so."""
    dead = world.node()
    policies: dict[str, dict[str, Any]] = {"once": {}, "retried": {"retries": 1}, "queued": {"requeue": True}}
    keys = {name: world.running(name, dead, **fields) for name, fields in policies.items()}
    asked = world.running("asked", dead, retries=1)
    world.database.run(lambda tx, now: stop(tx, now, asked.id, "ada", "enough"))
    done = world.abandon(dead, status=RunStatus.LOST)
    assert {key.id for key in (*keys.values(), asked)} == {run for _, run in done.ended}
    assert 2 == done.again
    assert ("lost", REASON) == world.status(keys["once"])
    assert ["queued", "queued"] == [world.status(keys[name])[0] for name in ("retried", "queued")]
    assert "cancelled" == world.status(asked)[0]
    assert (None, 0) == (world.lock("retried"), world.in_flight())


def test_what_had_not_started_waits_again(world: World) -> None:
    """A run that was published or received, but not started, is queued, without lock and slot."""
    dead = world.node()
    keys = [world.received("received", dead), world.claimed("published")]
    done = world.abandon(dead)
    assert {key.id for key in keys} == {run for _, run in done.queued}
    assert [("queued", None)] * 2 == [world.status(key) for key in keys]
    assert (None, None, 0) == (world.lock("received"), world.lock("published"), world.in_flight())

    def again(tx: Any, now: datetime) -> int:
        candidates = {"default": queue.ready_in(tx, "app", now, "default", 10)}
        return len(claim(tx, now, world.config, candidates, count_slots=True).dispatches)

    assert 2 == world.database.run(again)


def test_a_message_of_an_abandoned_run_is_dropped(world: World) -> None:
    """The message that is still in the broker has an old token: no worker starts the body from it."""
    dead, other = world.node(), world.node(last_seen=NOW - timedelta(hours=1))
    key = world.received("job", dead)
    world.abandon(dead)
    started = world.database.run(lambda tx, now: start(tx, now, world.config, key, other, "w@host"))
    assert Verdict.DROP == started.verdict


def test_what_others_hold_stays(world: World) -> None:
    """While another worker is alive, its runs, and those that it may yet receive, are not touched."""
    dead, alive = world.node(), world.node()
    running, received = world.running("running", alive), world.received("received", alive)
    published = world.claimed("published")
    done = world.abandon(dead)
    assert ((), ()) == (done.ended, done.queued)
    statuses = [world.status(key)[0] for key in (running, received, published)]
    assert ["running", "dispatched", "dispatched"] == statuses
    assert (running.id, 3) == (world.lock("running"), world.in_flight())
