"""What a page shows of runs, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from celery_sched import config, runtime
from celery_sched.client import Client
from celery_sched.model import RunId
from celery_sched.runtime import Runtime
from celery_sched.store import recent, schema
from celery_sched.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def made(database_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[Runtime]:
    """A migrated database at a clock of the test's own."""
    schema.upgrade(database_url)
    settings = {"sched_database_url": database_url, "sched_home": str(tmp_path)}
    found = runtime.make(config.load(settings, "shown"), clock=clock)
    yield found
    found.close()


def queue(client: Client, clock: FakeClock, name: str, count: int) -> list[RunId]:
    """Queue runs of a new job, a second apart; their ids, newest first."""
    client.add(name, task="t", schedule="0 0 1 1 *", overlap="concurrent")
    ids = []
    for _ in range(count):
        clock.advance(timedelta(seconds=1))
        ids.insert(0, client.run(name).id)
    return ids


def test_each_job_has_its_own_newest_runs(made: Runtime, clock: FakeClock) -> None:
    """A busy job takes no place from a rare one, and a job without runs is absent."""
    client = Client(made)
    rare = queue(client, clock, "rare", 2)
    busy = queue(client, clock, "busy", 12)
    queue(client, clock, "idle", 0)
    found = made.database.read(
        lambda tx, now: recent.newest_by_job(tx, "shown", ["rare", "busy", "idle", "unknown"], 10)
    )
    assert {"rare": rare, "busy": busy[:10]} == {
        name: [line.id for line in lines] for name, lines in found.items()
    }


def test_one_job_and_none(made: Runtime, clock: FakeClock) -> None:
    """One job needs no union, and no job no statement."""
    ids = queue(Client(made), clock, "one", 1)
    one, none, other = made.database.read(
        lambda tx, now: (
            recent.newest_by_job(tx, "shown", ["one"], 10),
            recent.newest_by_job(tx, "shown", [], 10),
            recent.newest_by_job(tx, "another app", ["one"], 10),
        )
    )
    assert ({"one": ids}, {}, {}) == (
        {name: [line.id for line in lines] for name, lines in one.items()},
        none,
        other,
    )


def test_active_runs_are_counted_by_status(made: Runtime, clock: FakeClock) -> None:
    """What is not finished counts; what was cancelled does not."""
    client = Client(made)
    queue(client, clock, "a", 3)
    client.cancel(queue(client, clock, "b", 2)[0])
    client.cancel(queue(client, clock, "c", 1)[0])
    found = made.database.read(lambda tx, now: recent.active_by_job(tx, "shown"))
    assert {"a": [("queued", 3)], "b": [("queued", 1)]} == {
        name: [(active.status, active.count) for active in lines] for name, lines in found.items()
    }
