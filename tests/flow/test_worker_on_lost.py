"""A real worker's child dies in the middle of its body: the half-done record elsewhere is put right."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

from sqlalchemy import select

from celery_sched.model import JobId, RunId
from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.store.tables import run as run_table
from tests.flow.worker_world import World
from tests.private_server import wait_until


def test_what_a_killed_body_left_is_put_right(make_world: Callable[..., World]) -> None:
    """SIGKILL hits the child: its run is lost, and the worker carries out its job's `on_lost` task."""
    world = make_world(include=["tests.flow.on_lost_bodies"])
    world.worker("-c", "1")
    run_id = world.run("books.import_order", "order-7", on_lost="books.put_right")
    wait_until(lambda: world.pids(), 20, "the body to begin")
    record = world.folder / "order-7.json"
    assert "Running" == json.loads(record.read_text())["status"]
    os.kill(world.pids()[0], signal.SIGKILL)
    assert "lost" == world.wait(run_id).status
    found = select(run_table).where(run_table.c.parent_id == run_id)
    (row,) = world.database.read(lambda tx, now: tx.execute(found).all())
    wanted = {"default": [Candidate(RunId(row.id), JobId(row.job_id))]}
    (made,) = world.database.run(
        lambda tx, now: claim(tx, now, world.config, wanted, count_slots=True)
    ).dispatches
    world.publish(made)
    done = world.wait(made.key.id)
    assert ("succeeded", '"put right"') == (done.status, done.result)
    assert {"status": "Given up (lost)", "of": run_id} == json.loads(record.read_text())
    assert 0 == world.late_settlers()
