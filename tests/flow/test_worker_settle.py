"""Who may settle: only reports about the process that has the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import new_node_id
from celery_sched.steps.finish import Finished, Outcome, finish
from celery_sched.steps.receive import receive
from celery_sched.steps.start import start
from tests.flow.worker_world import World
from tests.private_server import wait_until
from tests.proxy import Proxy
from tests.servers import PostgresServer

MakeWorld = Callable[..., World]
LOST = Outcome(RunStatus.LOST, error="a child died")


@pytest.mark.parametrize("stage", ["received", "running"])
def test_a_dead_duplicate_does_not_end_the_run_elsewhere(make_world: MakeWorld, stage: str) -> None:
    """A worker whose child died over a duplicate of a message settles nothing that another worker has."""
    world = make_world()
    key = world.claim("plain").key
    here, there = new_node_id(), new_node_id()
    world.database.run(lambda tx, now: receive(tx, now, world.config, [key], here))
    if stage == "running":
        world.database.run(lambda tx, now: start(tx, now, world.config, key, here, "here"))

    def report(node: str) -> Finished:
        return world.database.run(
            lambda tx, now: finish(tx, now, world.config, key, LOST, node, unstarted=True, quiet=True)
        )

    before = world.row(key.id)
    assert not report(there).settled
    assert before == world.row(key.id)
    assert report(here).settled
    assert "lost" == world.status(key.id)


def test_a_duplicate_in_another_worker_keeps_nothing_alive_and_kills_nothing(make_world: MakeWorld) -> None:
    """The same message in two workers: one body, one outcome, and the other worker leaves it alone."""
    world = make_world(broker="redis")
    world.worker("-c", "1", "-Q", "celery")
    second = world.worker("-c", "1", "-Q", "other")
    dispatch = world.claim("sleeps", 4)
    world.publish(dispatch)
    world.wait(dispatch.key.id, "running")
    world.publish(replace(dispatch, options={"queue": "other"}), mark=False)
    second.wait_for_log("dropped:")
    assert "succeeded" == world.wait(dispatch.key.id).status
    assert ["sleeps"] == world.marks()
    assert 0 == world.late_settlers()


def test_a_late_settler_changes_nothing_but_one_audit_line(make_world: MakeWorld) -> None:
    """A body that ends after its run was taken over: the row stays, the audit and the count tell of it."""
    world = make_world()
    worker = world.worker("-P", "threads", "-c", "1")
    dispatch = world.claim("sleeps", 3)
    world.publish(dispatch)
    world.wait(dispatch.key.id, "running")
    world.update(dispatch.key.id, token="successor", worker="another")
    before = world.row(dispatch.key.id)
    worker.wait_for_log("ended as succeeded but was not settled")
    assert before == world.row(dispatch.key.id)
    assert 1 == world.late_settlers()


def test_an_outcome_waits_for_a_database_that_is_briefly_away(make_world: MakeWorld) -> None:
    """A body that ends while the database is locked by somebody else is settled when that is over."""
    world = make_world(sched_lease=9)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 1)
    world.wait(run_id, "running")
    with world.database.engine.connect() as blocker:
        blocker.exec_driver_sql("SELECT 1")  # the engine begins with the write lock
        worker.wait_for_log("succeeded in")
        worker.wait_for_log("leases cannot be renewed")
        blocker.rollback()
    assert "succeeded" == world.wait(run_id).status
    wait_until(lambda: "the database is back" in worker.text(), 20, "the worker to say so")
    assert ["sleeps"] == world.marks()


def test_a_run_outlives_a_black_holed_database(
    make_world: MakeWorld, proxy: Proxy, postgres: PostgresServer, postgresql_url: str
) -> None:
    """Renewals that hang are cut, the worker renews as soon as it can, and the run ends as if nothing was."""
    proxy.start(postgres.port)
    through = postgresql_url.replace(f":{postgres.port}/", f":{proxy.port}/")
    world = make_world(database=through, sched_lease=12)
    worker = world.worker("-c", "1")
    run_id = world.run("sleeps", 12)
    wait_until(lambda: world.pids(), 20, "the body to begin")
    proxy.blackhole()
    worker.wait_for_log("leases cannot be renewed")
    proxy.passing()
    worker.wait_for_log("the database is back")
    assert "succeeded" == world.wait(run_id).status
    assert ["sleeps"] == world.marks()


def test_a_body_is_not_run_when_the_start_cannot_be_asked_for(
    make_world: MakeWorld, proxy: Proxy, postgres: PostgresServer, postgresql_url: str
) -> None:
    """Without the database no body begins; afterwards the run is published again and runs once."""
    proxy.start(postgres.port)
    through = postgresql_url.replace(f":{postgres.port}/", f":{proxy.port}/")
    world = make_world(database=through)
    worker = world.worker("-c", "1")
    dispatch = world.claim("plain")
    proxy.refuse()
    world.publish(dispatch, mark=False)
    worker.wait_for_log(f"run {dispatch.key.id} was not started: the database")
    assert [] == world.marks()
    proxy.passing()
    wait_until(lambda: (world.sweep(), world.marks())[1], 30, "the run to be published again")
    assert "succeeded" == world.wait(dispatch.key.id).status
    assert ["plain"] == world.marks()
