"""What the pages of one job and of one run show. Blocking: never call it on Flower's loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_sched.cli import next as next_command
from celery_sched.cli.preview import Shown
from celery_sched.client import Client
from celery_sched.dashboard.look import JobLine, lines, ready, refused
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Attempt, Backfill, Job, JobStatus, Run, RunId
from celery_sched.store import backfills, gaps, job_forms, jobs
from celery_sched.store.engine import SQLAlchemyError, Tx

HISTORY = 50
"""Runs and gaps that a job's page shows."""
OCCURRENCES = 5
BACKFILLS = 10


@dataclass(frozen=True)
class Coming:
    """A job's next occurrences with what lies between them; ``over``: why there are no more, or ""."""

    occurrences: Sequence[Shown]
    zone: ZoneInfo
    over: str = ""


@dataclass(frozen=True)
class Gap:
    """Occurrences in [from_at, to_at] that were not run; ``count`` 0: how many is not known."""

    from_at: datetime
    to_at: datetime
    count: int
    reason: str


@dataclass(frozen=True)
class JobView:
    """One job: where it stands, what comes, and what was."""

    now: datetime
    line: JobLine
    coming: Coming
    gaps: Sequence[Gap]
    """The newest first."""
    backfills: Sequence[Backfill]
    """The newest first."""


@dataclass(frozen=True)
class RunView:
    """One run with its earlier attempts."""

    now: datetime
    run: Run
    earlier: Sequence[Attempt]
    zone: str
    """Its job's; UTC where the job is gone."""
    has_job: bool
    put_right_by: Sequence[Run]
    """Runs of its job's ``on_lost`` task that were made for it."""
    waits: str | None
    """What it waits for, where it is queued and its time has come."""


def job(app: Any, name: str) -> JobView:
    """One job.

    :raises NotFound: no job of that name.
    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)

    def work(tx: Tx, now: datetime) -> JobView:
        row = jobs.get(tx, runtime.config.app, name)
        if row is None:
            raise NotFound("job", name)
        found = job_forms.from_row(row)
        return JobView(
            now,
            lines(tx, runtime, [found], HISTORY)[0],
            coming(found, now),
            [
                Gap(gap.from_at, gap.to_at, gap._mapping["count"], gap.reason)
                for gap in gaps.of_job(tx, found.id, HISTORY)
            ],
            backfills.newest(tx, runtime.config.app, None, BACKFILLS, job_id=found.id),
        )

    try:
        return runtime.database.read(work)
    except SQLAlchemyError as error:
        raise refused(error) from error


def coming(found: Job, now: datetime) -> Coming:
    """When a job is due next; of one that is paused, what its schedule says."""
    nothing = Coming((), ZoneInfo("UTC"))
    if found.status is JobStatus.EXPIRED:
        return nothing
    try:
        known = next_command.coming(found, now, OCCURRENCES)
        over = "" if len(known.occurrences) == OCCURRENCES else known.over
        return Coming(known.shown(), known.zone, over)
    except InvalidValue as error:  # broken since it was planned last: the rest of the page is needed more
        return Coming((), nothing.zone, str(error))


def run(app: Any, run_id: RunId) -> RunView:
    """One run.

    :raises NotFound: no run of that id.
    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)
    client = Client(runtime)
    try:
        earlier, found = client.attempts(run_id), client.get_run(run_id)
        put_right, waits = client.put_right_by(run_id), client.waits_for(run_id)
        now, row = runtime.database.read(lambda tx, now: (now, jobs.get(tx, runtime.config.app, found.job)))
    except SQLAlchemyError as error:
        raise refused(error) from error
    zone = "UTC" if row is None else row.timezone
    return RunView(now, found, earlier, zone, row is not None, put_right, waits)
