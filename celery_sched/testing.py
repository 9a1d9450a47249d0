"""For tests, yours and ours: a clock that stands still, a scheduler turned by hand, a row held by another.

The database is a real one; only its clock is replaced, so that a day passes in a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Table, create_engine, select

from celery_sched import runtime as runtimes
from celery_sched.beat.notices import tell_all
from celery_sched.beat.poll import Poll, Polled
from celery_sched.client import Client
from celery_sched.config import load
from celery_sched.model import Job, NodeKind, Run, RunId
from celery_sched.runtime import Runtime
from celery_sched.steps.tell import Told
from celery_sched.store import jobs, runs, schema
from celery_sched.store.engine import Database

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class FakeClock:
    """A clock that moves when it is told to; stands where the database's would."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> datetime:
        """Move on by a timedelta, or seconds; return the new time."""
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self.now


class ManualScheduler:
    """A scheduler of a Celery app, turned by hand: its polls are the real ones, without threads.

    The app's broker is used for publishing. Several on one database are several schedulers.
    """

    def __init__(self, app: Any, *, clock: FakeClock | None = None, runtime: Runtime | None = None) -> None:
        """Make the tables, where they are missing. The clock is shared by those given the same one."""
        self.clock = clock or FakeClock()
        self.runtime = runtime or runtimes.make(load(app.conf, app.main), clock=self.clock)
        self.config, self.database = self.runtime.config, self.runtime.database
        schema.upgrade(self.config.database_url)
        self.client = Client(self.runtime)
        self.node_id = runtimes.new_node_id()
        node = runtimes.this_process(
            self.node_id, self.config.app, NodeKind.SCHEDULER, "manual", self.clock(), {}
        )
        self._poll = Poll(self.runtime, app, node)
        self._hello = timedelta(seconds=self.config.lease.total_seconds() / 6)
        self._greeted: datetime | None = None

    def poll(self) -> Polled:
        """One poll: sweep, plan, claim, publish."""
        now = self.clock()
        if self._greeted is None or abs(now - self._greeted) >= self._hello:
            # what real time does in a real scheduler: it says hello once per sixth of the lease
            self._poll.presence.forget()
            self._greeted = now
        return self._poll(time.monotonic() + 60)

    def tell(self) -> list[Told]:
        """What a scheduler does beside its polls: notifications become messages, whose runs a poll claims."""
        return tell_all(self.runtime)

    def advance(self, by: timedelta | float, step: timedelta | float = 1.0) -> list[Polled]:
        """Let time pass in steps, with a poll after each."""
        by = by if isinstance(by, timedelta) else timedelta(seconds=by)
        step = step if isinstance(step, timedelta) else timedelta(seconds=step)
        end, polled = self.clock() + by, []
        while self.clock() < end:
            self.clock.advance(min(step, end - self.clock()))
            polled.append(self.poll())
        return polled

    def job(self, name: str) -> Job:
        """A job as it stands."""
        return self.client.get(name)

    def runs(self, job: str | None = None, limit: int = 10_000) -> list[Run]:
        """Runs, oldest first by occurrence."""
        return sorted(self.client.runs(job, limit=limit), key=lambda run: (run.scheduled_for, run.queued_at))

    def row(self, run_id: RunId) -> Any:
        """A run's whole row, its token too."""
        return self.database.read(lambda tx, now: runs.find(tx, [run_id]))[run_id]

    def job_row(self, name: str) -> Any:
        """A job's whole row, its lock's token too."""
        return self.database.read(lambda tx, now: jobs.get(tx, self.config.app, name))

    def close(self) -> None:
        """Close connections."""
        self._poll.close()
        self.runtime.close()


@contextmanager
def holding(database: Database, table: Table, key: Any) -> Iterator[None]:
    """Hold a row's lock in a connection of its own, as another scheduler or worker would."""
    engine = create_engine(database.url)
    column = next(iter(table.primary_key.columns))
    try:
        with engine.connect() as connection, connection.begin():
            if database.dialect.row_locks:
                connection.execute(select(table).where(column == key).with_for_update()).one()
            else:
                connection.exec_driver_sql("PRAGMA busy_timeout=5000")
                connection.execute(table.update().where(column == key).values({column: key}))
            yield
    finally:
        engine.dispose()
