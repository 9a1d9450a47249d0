"""A small deployment on one real database: schedulers turned by hand, a broker of folders, simulated workers.

A worker here is a node id and the steps that a real one takes; real workers are tested elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from celery import Celery
from sqlalchemy import event, update

from celery_sched import runtime as runtimes
from celery_sched.config import load
from celery_sched.model import Dispatch, Job, JobId, NodeId, RunId, RunKey
from celery_sched.rules.fitting import Candidate
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.claim import claim
from celery_sched.steps.finish import Finished, Outcome, celery_retry, finish
from celery_sched.steps.mark import mark_published
from celery_sched.steps.plan import plan
from celery_sched.steps.receive import Received, receive
from celery_sched.steps.renew import Renewed, renew
from celery_sched.steps.start import Started, Verdict, start
from celery_sched.steps.sweep import Swept, sweep
from celery_sched.store import apps, pools, queue, schema
from celery_sched.store.engine import Clock, Database
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import metadata
from celery_sched.store.tables import run as run_table
from celery_sched.testing import START, FakeClock, ManualScheduler
from celery_sched.transport import embedded_broker, ensure_folders
from celery_sched.worker.message import key_of
from tests.patient import patient

T = TypeVar("T")
APP = "bench"
PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""
FULL = bool(os.environ.get("SCHED_FULL"))
"""All the rounds that the issue asks for; else a twentieth."""


class Bench:
    """One app on one database. ``clock=None``: the database's own clock, as in production."""

    def __init__(
        self, url: str, folder: Path, *, clock: FakeClock | None = None, real: bool = False, **settings: Any
    ) -> None:
        ensure_folders(folder)
        self.folder = folder
        self.settings = {
            **embedded_broker(folder),
            "sched_database_url": url,
            "sched_home": str(folder),
            "sched_max_concurrent_jobs": 5,
            "sched_lease": 60,
            **{f"sched_{name}": value for name, value in settings.items()},
        }
        self.clock = clock or FakeClock()
        self._clock: Clock | None = None if real else self.clock
        self._schedulers: list[ManualScheduler] = []
        self._databases: list[Database] = []
        self._reader = Celery(APP, set_as_current=False)
        self._reader.conf.update(self.settings)
        self.scheduler = self.another(patiently=real)
        self.config, self.client = self.scheduler.config, self.scheduler.client
        self.database = self.scheduler.database
        self.database.run(lambda tx, now: apps.ensure(tx, APP))
        self.database.run(lambda tx, now: pools.ensure(tx, APP, "default", self.config.max_concurrent_jobs))
        self.node = runtimes.new_node_id()

    def another(self, *, patiently: bool = False) -> ManualScheduler:
        """One more scheduler, with connections of its own."""
        app = Celery(APP, set_as_current=False)
        app.conf.update(self.settings)
        config = load(app.conf, app.main)
        runtime = patient(config) if patiently else runtimes.make(config, clock=self._clock)
        made = ManualScheduler(app, clock=self.clock, runtime=runtime)
        self._schedulers.append(made)
        return made

    def session(self, seconds: float = 10) -> Database:
        """One more client of the database, with the same clock."""
        timeout = timedelta(seconds=seconds)
        made = Database(self.config.database_url, session_timeout=timeout, clock=self._clock)
        self._databases.append(made)
        return made

    def close(self) -> None:
        for scheduler in self._schedulers:
            scheduler.close()
        for database in self._databases:
            database.dispose()

    # -- what a scheduler does, step by step -------------------------------------------------------

    def job(self, name: str = "job", *, schedule: str = "every 1h", **policies: Any) -> Job:
        """Add a job that is due now."""
        return self.client.add(name, task="t.ok", schedule=schedule, run_immediately=True, **policies)

    def plan(self) -> int:
        """How many runs were queued."""
        return self.database.run(lambda tx, now: plan(tx, now, self.config)).planned

    def claim(
        self, limit: int = 500, *, database: Database | None = None, pool: str = "default"
    ) -> tuple[Dispatch, ...]:
        """What is ready, claimed; the database counts the slots."""

        def work(tx: Any, now: datetime) -> tuple[Dispatch, ...]:
            return self.claiming(tx, now, queue.ready_in(tx, APP, now, pool, limit), pool)

        return (database or self.database).run(work)

    def claiming(
        self,
        tx: Any,
        now: datetime,
        wanted: Sequence[Candidate | tuple[RunId, JobId]] | None = None,
        pool: str = "default",
    ) -> tuple[Dispatch, ...]:
        """Claim these, or what is ready, in a transaction of the caller's."""
        wanted = queue.ready_in(tx, APP, now, pool, 500) if wanted is None else wanted
        candidates = [one if isinstance(one, Candidate) else Candidate(*one) for one in wanted]
        return claim(tx, now, self.config, {pool: candidates}, count_slots=True).dispatches

    def claimed(self, name: str = "job", **policies: Any) -> Dispatch:
        """A claimed run of a new job."""
        self.job(name, **policies)
        self.plan()
        (found,) = (dispatch for dispatch in self.claim() if dispatch.job == name)
        return found

    def again(self, name: str = "job") -> Dispatch:
        """The job's next run, by hand, claimed."""
        self.client.run(name)
        (found,) = (dispatch for dispatch in self.claim() if dispatch.job == name)
        return found

    def running(self, name: str = "job", **policies: Any) -> Dispatch:
        """A run of a new job that this bench's worker is carrying out."""
        dispatch = self.claimed(name, **policies)
        assert Verdict.YOURS == self.start(dispatch.key).verdict
        return dispatch

    def published(self, *dispatches: Dispatch, database: Database | None = None) -> int:
        """Mark them as confirmed by the broker; return how many matched."""
        return (database or self.database).run(lambda tx, now: self.mark(tx, now, *dispatches))

    def mark(self, tx: Any, now: datetime, *dispatches: Dispatch) -> int:
        """The same, in a transaction of the caller's."""
        return mark_published(tx, now, self.config, dispatches)

    def sweep(self, database: Database | None = None) -> Swept:
        return (database or self.database).run(lambda tx, now: sweep(tx, now, self.config))

    # -- what a worker does ------------------------------------------------------------------------

    def messages(self) -> list[RunKey]:
        """The keys of all messages that are in the broker, taken out of it."""
        keys = []
        with self._reader.connection_for_read() as connection:
            channel = connection.default_channel
            while (message := channel.basic_get("celery", no_ack=True)) is not None:
                key = key_of(message.headers)
                assert key is not None
                keys.append(key)
        return keys

    def receive(
        self, *keys: RunKey, node: NodeId | None = None, database: Database | None = None
    ) -> Received:
        return (database or self.database).run(
            lambda tx, now: receive(tx, now, self.config, keys, node or self.node)
        )

    def start(self, key: RunKey, node: NodeId | None = None, database: Database | None = None) -> Started:
        return (database or self.database).run(
            lambda tx, now: start(tx, now, self.config, key, node or self.node, "worker@test")
        )

    def renew(
        self,
        *keys: RunKey,
        node: NodeId | None = None,
        database: Database | None = None,
        beats: Mapping[RunId, timedelta] | None = None,
        killable: Collection[RunId] = (),
        exclusive: Collection[RunId] = (),
    ) -> Renewed:
        return (database or self.database).run(
            lambda tx, now: renew(
                *(tx, now, self.config, keys, node or self.node),
                beats=beats or {},
                killable=killable,
                exclusive=exclusive,
            )
        )

    def finish(
        self,
        key: RunKey,
        status: RunStatus = RunStatus.SUCCEEDED,
        *,
        database: Database | None = None,
        **outcome: Any,
    ) -> Finished:
        """What a worker does at the end of a body: the outcome, and the slot where Redis counts them."""
        finished = (database or self.database).run(
            lambda tx, now: finish(tx, now, self.config, key, Outcome(status, **outcome), self.node)
        )
        if finished.settled:
            self.scheduler.runtime.slots.release(finished.pool, [key.id])
        return finished

    def retry(self, key: RunKey, eta: datetime) -> bool:
        """The task asked Celery for a retry."""
        return self.database.run(
            lambda tx, now: celery_retry(
                tx, now, self.config, key, eta=eta, args=[1], kwargs={"a": 2}, retries=key.attempt
            )
        )

    def work_off(self) -> int:
        """Carry out every message that is in the broker, as workers would; return how many bodies ran."""
        bodies = 0
        for key in self.messages():
            if self.start(key).verdict is Verdict.YOURS:
                bodies += 1
                assert self.finish(key).settled
        return bodies

    # -- what a test looks at ----------------------------------------------------------------------

    def row(self, run_id: RunId) -> Any:
        return self.scheduler.row(run_id)

    def job_row(self, name: str = "job") -> Any:
        return self.scheduler.job_row(name)

    def status(self, run_id: RunId) -> str:
        return str(self.row(run_id).status)

    def statuses(self) -> list[str]:
        """Of all runs, sorted."""
        return sorted(run.status for run in self.scheduler.runs())

    def in_flight(self) -> int:
        return self.database.read(lambda tx, now: len(queue.held_in_pools(tx, APP)))

    def totals(self) -> Any:
        return self.database.read(lambda tx, now: apps.get(tx, APP))

    def set_run(self, run_id: RunId, **columns: Any) -> None:
        """Write columns of a run behind everybody's back."""
        statement = update(run_table).where(run_table.c.id == run_id).values(**columns)
        assert 1 == self.database.run(lambda tx, now: tx.execute(statement)).rowcount

    def set_job(self, name: str, **columns: Any) -> None:
        """Write columns of a job behind everybody's back."""
        statement = update(job_table).where(job_table.c.name == name).values(**columns)
        assert 1 == self.database.run(lambda tx, now: tx.execute(statement)).rowcount

    def snapshot(self, run_id: RunId, job: str = "job") -> tuple[Any, Any]:
        """The run's row and its job's, to see that nothing changed."""
        return tuple(self.row(run_id)), tuple(self.job_row(job))


_migrated: dict[str, str] = {}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def bench_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with empty tables, once for each kind.

    The tables are made once a session: migrations take longer than most of these tests.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sched.sqlite3'}"
    server = request.getfixturevalue({"postgresql": "postgres", "mariadb": "mariadb"}[request.param])
    if request.param not in _migrated:
        url = server.fresh_database()
        schema.upgrade(url)
        _migrated[request.param] = url
    database = Database(_migrated[request.param])
    database.run(lambda tx, now: [tx.execute(table.delete()) for table in metadata.sorted_tables] and None)
    database.dispose()
    return _migrated[request.param]


@pytest.fixture
def make_bench(bench_url: str, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench, once for each kind of database; the arguments are settings, without ``sched_``."""
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(bench_url, tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A bench with the defaults: cap 5, lease 60 s, a clock that stands still."""
    return make_bench()


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Every statement that this client of the database sends within the block."""
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def together(*works: Callable[[], T]) -> list[T]:
    """Do these at the same time, in threads; return what they returned, in order."""
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], T]) -> T:
        barrier.wait(PATIENCE)
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result(PATIENCE * 4) for future in [threads.submit(begin, work) for work in works]]


def names(dispatches: Sequence[Dispatch]) -> list[str]:
    return [dispatch.job for dispatch in dispatches]


__all__ = [
    "APP",
    "PATIENCE",
    "START",
    "Bench",
    "bench",
    "bench_url",
    "make_bench",
    "names",
    "statements",
    "together",
]
