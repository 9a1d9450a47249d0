"""Runs of one job side by side, each with a lease of its own; what a job learns of its lease; stops afar."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from celery_sched.client import Client
from celery_sched.model import JobDefinition, Overlap, RunId, Source
from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.steps.define import create
from celery_sched.steps.manual import manual
from celery_sched.store import jobs
from celery_sched.store.tables import run as run_table
from celery_sched.testing import holding
from tests.flow.worker_world import World
from tests.private_server import wait_until

MakeWorld = Callable[..., World]
RENEWAL = 20.0
"""Seconds between two renewals, of a lease of 60 s."""


def side_by_side(world: World, *calls: list[Any]) -> list[RunId]:
    """Published runs of one concurrent job, each with its own arguments."""
    definition = JobDefinition(f"job-{uuid.uuid4()}", "bodies.beats", "every 1h", overlap=Overlap.CONCURRENT)

    def work(tx: Any, now: datetime) -> Any:
        job_id = create(tx, now, world.config, definition, Source.OPERATOR)
        row = jobs.lock(tx, [job_id])[job_id]
        wanted = [Candidate(manual(tx, now, row, args, None), job_id) for args in calls]
        return wanted, claim(tx, now, world.config, {"default": wanted}, count_slots=True).dispatches

    wanted, dispatches = world.database.run(work)
    for dispatch in dispatches:
        world.publish(dispatch)
    return [one.run_id for one in wanted]


def test_each_run_of_a_concurrent_job_has_a_lease_of_its_own(make_world: MakeWorld) -> None:
    """One sends heartbeats and goes on, the other falls silent and is over: neither speaks for the other."""
    world = make_world(sched_lease=9, sched_max_runtime=3, sched_heartbeat_timeout=4)
    world.worker("-c", "2")
    going_on, silent = side_by_side(world, [12, 0.05], [1, 0.05, "hang"])
    done = world.wait(silent)
    assert ("timed_out", "no heartbeat for 4 s") == (done.status, done.error)
    assert "running" == world.status(going_on)
    assert "succeeded" == world.wait(going_on).status
    assert 0 == world.late_settlers()


def test_a_job_learns_that_its_lease_is_gone_and_that_it_is_back(make_world: MakeWorld) -> None:
    """The database is away for longer than the lease: the answers of heartbeats say so, and none raises."""
    world = make_world(sched_lease=6)
    worker = world.worker("-c", "1")
    run_id = world.run("bodies.beats", 15)
    wait_until(lambda: world.row(run_id).beat_at is not None, 20, "the first heartbeat to be written")
    with holding(world.database, run_table, run_id):
        worker.wait_for_log("leases cannot be renewed")
        over = world.row(run_id).lease_expires_at
        wait_until(
            lambda: world.database.read(lambda tx, now: now) > over + timedelta(seconds=1), 20, "its end"
        )
    done = world.wait(run_id)
    assert ("succeeded", [False, True]) == (done.status, json.loads(done.result or ""))


def test_a_stop_takes_effect_within_a_renewal_wherever_it_runs(make_world: MakeWorld) -> None:
    """Several workers, a run in each: all are cancelled soon, long before their leases are over."""
    world = make_world(sched_lease=3 * RENEWAL)
    workers = [world.worker("-c", "1") for _ in range(2)]
    runs = [world.run("sleeps", 600) for _ in workers]
    wait_until(lambda: len(world.pids()) == len(runs), 30, "the bodies to begin")
    client = Client(world.runtime)
    asked = [client.cancel(run_id, by="ada") for run_id in runs]
    assert len(runs) == len(asked)
    for run_id in runs:
        done = world.wait(run_id)
        assert "cancelled" == done.status
        row = world.row(run_id)
        assert row.finished_at - row.stop_requested_at < timedelta(seconds=RENEWAL)
    assert 2 == len({world.row(run_id).worker_name for run_id in runs})
