"""What the list of jobs shows, read from the database. Blocking: never call it on Flower's loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from celery_sched import runtime as runtimes
from celery_sched.client import Client
from celery_sched.errors import SchedulerError
from celery_sched.model import Job, RunId
from celery_sched.rules.transitions import TERMINAL
from celery_sched.runtime import Runtime
from celery_sched.status import Status
from celery_sched.store import job_forms, jobs, recent, schema
from celery_sched.store.engine import Database, SQLAlchemyError, Tx
from celery_sched.store.recent import Active, RunLine

PAGE = 50
"""Jobs on one page."""
SQUARES = 10
"""Runs of a job that the list shows."""
_checked: weakref.WeakSet[Database] = weakref.WeakSet()
"""Databases that have this release's tables."""


class Unavailable(SchedulerError):
    """There is no database, or it refused; the message says which, and what to do."""


class NotNow(SchedulerError):
    """What a button asks for cannot be done with what it is about, as that stands."""


@dataclass(frozen=True)
class JobLine:
    """A job with its newest runs and those that are not finished."""

    job: Job
    runs: Sequence[RunLine]
    active: Sequence[Active]


@dataclass(frozen=True)
class Overview:
    """One page of the list of jobs."""

    now: datetime
    status: Status
    lines: Sequence[JobLine]
    page: int
    """From 1."""
    pages: int
    matching: int
    total: int


def overview(app: Any, text: str, page: int) -> Overview:
    """The jobs whose name, task or description contains ``text``, one page of them.

    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)

    def work(tx: Tx, now: datetime) -> tuple[datetime, int, list[Job], int, int, list[JobLine]]:
        every = [job_forms.from_row(row) for row in jobs.every(tx, runtime.config.app)]
        matching = [job for job in every if matches(job, text)]
        pages = max(1, -(-len(matching) // PAGE))
        current = min(max(1, page), pages)
        shown = matching[(current - 1) * PAGE : current * PAGE]
        return now, len(every), matching, current, pages, lines(tx, runtime, shown, SQUARES)

    try:
        now, total, matching, current, pages, shown = runtime.database.read(work)
        status = Client(runtime).status()
    except SQLAlchemyError as error:
        raise refused(error) from error
    return Overview(now, status, shown, current, pages, len(matching), total)


def all_jobs(app: Any) -> list[Job]:
    """All jobs, by name.

    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)
    try:
        return Client(runtime).list()
    except SQLAlchemyError as error:
        raise refused(error) from error


def act(app: Any, name: str, action: str, by: str) -> str:
    """Do what a button says; return what was done, in words.

    :raises SchedulerError: it cannot be done: no such job, a run that is in the way, no database.
    """
    client = Client(ready(app))
    try:
        if action == "run":
            run = client.run(name, by=by)
            stopped = f"; stopped for it: {', '.join(run.replaces)}" if run.replaces else ""
            return f"{name}: run {run.id} is queued" + (f", {run.waits}" if run.waits else "") + stopped
        if action == "pause":
            client.pause(name, by=by)
            return f"{name} is paused"
        client.resume(name, by=by)
        return f"{name} is resumed"
    except SQLAlchemyError as error:
        raise refused(error) from error


def act_on_run(app: Any, run_id: RunId, action: str, by: str) -> str:
    """Cancel a run, or have it carried out again; return what was done, in words.

    :raises SchedulerError: it cannot be done: no such run, it is not over yet, no database.
    """
    client = Client(ready(app))
    try:
        if action == "retry":
            run = client.retry(run_id, by=by)
            return f"{run.job}: the run is queued again, as attempt {run.attempt}"
        run = client.cancel(run_id, by=by, reason="cancelled in Flower")
        if run.status in TERMINAL:
            return f"{run.job}: the run is {run.status}"
        return f"{run.job}: the run is asked to stop; its worker ends it within one renewal of its lease"
    except SQLAlchemyError as error:
        raise refused(error) from error


def lines(tx: Tx, runtime: Runtime, shown: Sequence[Job], runs: int) -> list[JobLine]:
    """These jobs with their runs."""
    newest = recent.newest_by_job(tx, runtime.config.app, [job.name for job in shown], runs)
    active = recent.active_by_job(tx, runtime.config.app)
    return [JobLine(job, newest.get(job.name, ()), active.get(job.name, ())) for job in shown]


def matches(job: Job, text: str) -> bool:
    """Whether a job is meant by what somebody typed."""
    wanted = text.strip().casefold()
    definition = job.definition
    return any(wanted in part.casefold() for part in (job.name, definition.task, definition.description))


def ready(app: Any) -> Runtime:
    """The app's runtime, with a database that has this release's tables.

    SQLite would create a file that it is asked to open, so that is looked for first.
    """
    runtime = runtimes.of(app)
    url = runtime.database.url
    if runtime.database.dialect.name == "sqlite" and not Path(str(url.database)).exists():
        shown = runtime.database.shown
        raise Unavailable(f"there is no database at {shown}. To make it: celery -A APP sched migrate")
    if runtime.database not in _checked:
        try:
            runtime.database.read(lambda tx, now: schema.check(tx, "APP"))
        except SQLAlchemyError as error:
            raise refused(error) from error
        _checked.add(runtime.database)
    return runtime


def refused(error: SQLAlchemyError) -> Unavailable:
    """What the database said, without the statement."""
    return Unavailable(f"the database refused: {getattr(error, 'orig', None) or error}")
