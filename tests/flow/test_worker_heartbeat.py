"""Heartbeats and soft limits, with real workers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from celery_sched.store.tables import run as run_table
from celery_sched.testing import holding
from tests.flow.worker_world import World
from tests.private_server import wait_until

MakeWorld = Callable[..., World]
BROKERS = ["files", "redis"]


def count_writes(folder: Path) -> Callable[[], int]:
    """From now on SQLite counts what is written to ``beat_at``."""
    file = folder / "sched.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "CREATE TABLE beat_writes (at TEXT);"
            "CREATE TRIGGER count_beats AFTER UPDATE OF beat_at ON sched_run WHEN NEW.beat_at IS NOT NULL "
            "BEGIN INSERT INTO beat_writes VALUES (NEW.beat_at); END;"
        )

    def count() -> int:
        with closing(sqlite3.connect(file)) as connection:
            return int(connection.execute("SELECT count(*) FROM beat_writes").fetchone()[0])

    return count


@pytest.mark.parametrize(
    "options", [("-c", "1"), ("-P", "threads", "-c", "2"), ("-P", "solo"), ("-P", "gevent", "-c", "2")]
)
def test_heartbeats_keep_a_run_beyond_max_runtime(make_world: MakeWorld, options: tuple[str, ...]) -> None:
    """In every pool a run that sends them goes on where a silent one would be over, and keeps its lease."""
    world = make_world(sched_lease=9, sched_max_runtime=4, sched_heartbeat_timeout=6)
    world.worker(*options)
    run_id = world.run("bodies.beats", 8)
    done = world.wait(run_id)
    assert ("succeeded", [True]) == (done.status, json.loads(done.result or ""))
    assert done.finished_at is not None and done.started_at is not None
    assert done.finished_at - done.started_at > timedelta(seconds=8)
    assert world.row(run_id).beat_at is not None


@pytest.mark.parametrize("broker", BROKERS)
def test_a_run_that_falls_silent_is_over_one_timeout_after_its_last_heartbeat(
    make_world: MakeWorld, broker: str
) -> None:
    """Hung after heartbeats: it ends long before max_runtime would end it, and the reason says why."""
    world = make_world(broker=broker, sched_lease=9, sched_heartbeat_timeout=3)
    world.worker("-c", "1")
    run_id = world.run("bodies.beats", 2, 0.05, "hang")
    done = world.wait(run_id)
    assert ("timed_out", "no heartbeat for 3 s") == (done.status, done.error)
    assert (done.reason or "").startswith("no heartbeat for 3 s; SIGTERM, ended after ")
    beat_at = world.row(run_id).beat_at
    assert done.deadline_at == beat_at + timedelta(seconds=3)
    # the last one written may be a third of the timeout older than the last one sent
    assert done.started_at is not None and beat_at > done.started_at + timedelta(seconds=0.5)
    assert done.finished_at is not None and done.finished_at - done.deadline_at < timedelta(seconds=4)
    assert "succeeded" == world.wait(world.run("plain")).status


def test_rapid_heartbeats_are_few_writes(make_world: MakeWorld) -> None:
    """50 in a row: the first is written at once, the last with the next write; then nothing is new."""
    world = make_world(sched_lease=6)
    writes = count_writes(world.folder)
    world.worker("-c", "1")
    run_id = world.run("bodies.rapid", 50)
    wait_until(lambda: world.row(run_id).beat_at is not None, 20, "the first heartbeat to be written")
    assert "succeeded" == world.wait(run_id).status
    # three seconds of a body and an interval of two: the first, and the last
    assert 1 <= writes() <= 2


def test_the_database_is_away_for_longer_than_the_timeout(make_world: MakeWorld) -> None:
    """Heartbeats go on into memory and never fail; when it is back the last one keeps the run."""
    world = make_world(sched_heartbeat_timeout=2, sched_lease=6)
    worker = world.worker("-c", "1")
    run_id = world.run("bodies.beats", 15)
    wait_until(lambda: world.row(run_id).beat_at is not None, 20, "the first heartbeat to be written")
    with holding(world.database, run_table, run_id):
        worker.wait_for_log("leases cannot be renewed")
        last = world.row(run_id)
        wait_until(
            lambda: world.database.read(lambda tx, now: now) > last.deadline_at + timedelta(seconds=2),
            20,
            "its deadline to pass",
        )
    done = world.wait(run_id)
    assert "succeeded" == done.status, done
    assert world.row(run_id).beat_at > last.deadline_at


def test_a_heartbeat_of_an_outage_counts_from_when_it_was_sent(make_world: MakeWorld) -> None:
    """The job hangs while the database is away: the heartbeat that is written later is no younger for it."""
    world = make_world(sched_heartbeat_timeout=20, sched_lease=6)
    worker = world.worker("-c", "1")
    run_id = world.run("bodies.beats", 3, 0.05, "hang")
    wait_until(lambda: world.row(run_id).beat_at is not None, 20, "the first heartbeat to be written")
    with holding(world.database, run_table, run_id):
        wait_until(lambda: "hangs" in world.marks(), 30, "the job to hang")
        hung = world.database.read(lambda tx, now: now)
        worker.wait_for_log("leases cannot be renewed")
        known = world.row(run_id).beat_at
        assert known < hung
        wait_until(
            lambda: world.database.read(lambda tx, now: now) > hung + timedelta(seconds=3), 20, "a while"
        )
    wait_until(lambda: world.row(run_id).beat_at > known, 20, "the last heartbeat to be written")
    assert world.row(run_id).beat_at <= hung


def test_a_soft_limit_of_the_job_reaches_its_task(make_world: MakeWorld) -> None:
    """What the task makes of it is the outcome: what it returns, what it raises, or the end by its limit."""
    world = make_world(broker="redis")
    world.worker("-c", "3")
    kinds = {then: world.run("bodies.soft", 20, then, soft_time_limit=3) for then in ("return", "raise")}
    hung = world.run("bodies.soft", 20, "hang", soft_time_limit=3, time_limit=6)
    done = world.wait(kinds["return"])
    assert ("succeeded", '"put right"') == (done.status, done.result)
    done = world.wait(kinds["raise"])
    assert "failed" == done.status and (done.error or "").startswith("SoftTimeLimitExceeded")
    done = world.wait(hung)
    assert ("timed_out", "ran longer than its time_limit (6 s)") == (done.status, done.error)
    assert 3 == world.marks().count("exceeded")


def test_celerys_own_soft_limit_stays(make_world: MakeWorld) -> None:
    """A job without one leaves its task's decorator alone; one with it goes before."""
    world = make_world(broker="redis")
    world.worker("-c", "2")
    own, later = world.run("bodies.decorated"), world.run("bodies.decorated", soft_time_limit=60)
    world.wait(later, "running")
    assert '"its own limit"' == world.wait(own).result
    assert "running" == world.status(later)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_soft_limit_around_the_body_harms_nothing(make_world: MakeWorld, broker: str) -> None:
    """It comes while the outcome is being written: the run is settled as it ended, the child goes on."""
    world = make_world(broker=broker, sched_lease=30)
    worker = world.worker("-c", "1")
    dispatch = world.claim("naps", "one", 1.5, soft_time_limit=4)
    world.publish(dispatch)
    wait_until(lambda: "one:begin" in world.marks(), 20, "the body to begin")
    (child,) = worker.children() if broker == "files" else (worker.children()[0],)
    with holding(world.database, run_table, dispatch.key.id):
        wait_until(lambda: "one:end" in world.marks(), 20, "the body to end")
        began = world.database.read(lambda tx, now: now)
        wait_until(
            lambda: world.database.read(lambda tx, now: now) > began + timedelta(seconds=4.5),
            20,
            "the soft limit to come",
        )
    done = world.wait(dispatch.key.id)
    assert ("succeeded", '"one"') == (done.status, done.result)
    assert "succeeded" == world.wait(world.run("plain")).status
    assert child.pid == world.pids()[-1]
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_a_pool_without_soft_limits_says_so_once(make_world: MakeWorld, pool: str) -> None:
    """A warning names the job and the limit, the first time it runs there."""
    world = make_world()
    worker = world.worker("-P", pool, "-c", "2")
    dispatch = world.claim("plain", name="limited", soft_time_limit=1.5)
    world.publish(dispatch)
    assert "succeeded" == world.wait(dispatch.key.id).status
    text = "job 'limited' has a soft time limit of 1.5 s; only prefork workers can raise one"
    assert 1 == worker.text().count(text)
