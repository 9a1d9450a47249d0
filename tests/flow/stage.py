"""A scheduler turned by hand, on a real database and the embedded broker; its bodies are steps of a test."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, select, text

from celery_sched import runtime
from celery_sched.model import Run, RunId, RunKey, Token
from celery_sched.rules.transitions import ACTIVE, RunStatus
from celery_sched.steps.finish import Finished, Outcome, finish
from celery_sched.steps.receive import receive
from celery_sched.steps.renew import Renewed, renew
from celery_sched.steps.start import Started, Verdict, start
from celery_sched.store import audit, gaps
from celery_sched.store.tables import metadata
from celery_sched.testing import FakeClock, ManualScheduler
from celery_sched.transport import embedded_broker, ensure_folders

MANY = 1000


class Stage:
    """One app: its clock, its schedulers, and a worker that does what the test says."""

    def __init__(self, folder: Path, url: str, now: datetime, *, app: str = "proj", **settings: Any) -> None:
        self.folder = folder / f"broker-{app}"
        self._url, self._app = url, app
        self._settings = {"sched_max_concurrent_jobs": MANY, **settings}
        self.clock = FakeClock(now)
        self.worker = runtime.new_node_id()
        self._schedulers: list[ManualScheduler] = []
        self.scheduler = self.new_scheduler()
        self.client = self.scheduler.client
        self.config, self.database = self.scheduler.config, self.scheduler.database

    def new_scheduler(self) -> ManualScheduler:
        """Another scheduler of the app, in a process of its own so to speak."""
        ensure_folders(self.folder)
        app = Celery(self._app, set_as_current=False)
        app.conf.update(embedded_broker(self.folder), sched_home=str(self.folder))
        app.conf.update(sched_database_url=self._url, **self._settings)
        self._schedulers.append(ManualScheduler(app, clock=self.clock))
        return self._schedulers[-1]

    def poll_at(self, *instants: datetime) -> None:
        """Move the clock there and poll, once each."""
        for instant in instants:
            self.clock.now = instant
            self.scheduler.poll()

    # -- the worker ----------------------------------------------------------------------------------

    def key(self, run_id: RunId) -> RunKey:
        """What the message of a run has."""
        row = self.scheduler.row(run_id)
        return RunKey(run_id, Token(row.token or "none"), row.attempt)

    def receive(self, key: RunKey) -> None:
        self.database.run(lambda tx, now: receive(tx, now, self.config, [key], self.worker))

    def start(self, key: RunKey) -> Started:
        return self.database.run(lambda tx, now: start(tx, now, self.config, key, self.worker, "w@host"))

    def renew(self, *keys: RunKey) -> Renewed:
        return self.database.run(lambda tx, now: renew(tx, now, self.config, keys, self.worker))

    def finish(self, key: RunKey, status: RunStatus = RunStatus.SUCCEEDED) -> Finished:
        outcome = Outcome(status, result="null")
        return self.database.run(lambda tx, now: finish(tx, now, self.config, key, outcome, self.worker))

    def work(self) -> list[Run]:
        """Run every dispatched run's body, which takes no time; return the runs, oldest occurrence first."""
        waiting = [run for run in self.active() if run.status == RunStatus.DISPATCHED]
        for run in waiting:
            key = self.key(run.id)
            assert Verdict.YOURS == self.start(key).verdict
            assert self.finish(key).settled
        return waiting

    def work_off(self) -> list[Run]:
        """Poll and work until nothing is dispatched any more; return the runs in that order."""
        done: list[Run] = []
        while True:
            self.scheduler.poll()
            ran = self.work()
            if not ran:
                return done
            done += ran

    # -- what the database says ------------------------------------------------------------------------

    def active(self) -> list[Run]:
        """Runs that are not finished, oldest occurrence first."""
        return [run for run in self.scheduler.runs() if run.status in ACTIVE]

    def by_status(self, job: str | None = None) -> dict[str, list[str]]:
        """Status (with the kind of reason, for skipped ones) -> occurrences, as times of the day."""
        found: dict[str, list[str]] = {}
        for run in self.scheduler.runs(job):
            kind = (
                f"{run.status}: {(run.reason or '').split(':')[0]}" if run.status == "skipped" else run.status
            )
            found.setdefault(kind, []).append(f"{run.scheduled_for:%H:%M:%S}".removesuffix(":00"))
        return found

    def occurrences(self, job: str, *statuses: str) -> list[datetime]:
        """Occurrences of a job's runs (of these statuses), oldest first."""
        runs = self.scheduler.runs(job)
        return [run.scheduled_for for run in runs if not statuses or run.status in statuses]

    def gaps(self, job: str) -> list[tuple[datetime, datetime, int, str]]:
        """Ranges of a job's occurrences that were not run, newest first."""
        job_id = self.client.get(job).id
        rows = self.database.read(lambda tx, now: gaps.of_job(tx, job_id))
        return [(row.from_at, row.to_at, row.count, row.reason) for row in rows]

    def audit(self, action: str | None = None) -> list[tuple[str, str, str, Any]]:
        """Audit lines (actor, action, subject, detail), oldest first."""
        rows = self.database.read(lambda tx, now: audit.newest(tx, self.config.app))
        lines = [(row.actor, row.action, row.subject, row.detail) for row in reversed(rows)]
        return [line for line in lines if action in (None, line[1])]

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that the database holds: equal before and after what wrote nothing."""
        return self.database.read(
            lambda tx, now: {
                table.name: sorted((tuple(row) for row in tx.execute(select(table))), key=repr)
                for table in metadata.sorted_tables
            }
        )

    def close(self) -> None:
        for scheduler in self._schedulers:
            scheduler.close()


def somebody_waits(url: str) -> bool:
    """Whether a session of this PostgreSQL database waits for another one's lock."""
    asked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    engine = create_engine(url)
    try:
        with engine.connect() as looking:
            return bool(looking.execute(text(asked)).scalar())
    finally:
        engine.dispose()
