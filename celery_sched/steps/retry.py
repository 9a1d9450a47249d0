"""Retry: somebody has a finished run carried out again, as a new attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_sched.model import RunId
from celery_sched.rules.transitions import TERMINAL
from celery_sched.store import jobs, runs
from celery_sched.store.again import again
from celery_sched.store.engine import Tx
from celery_sched.store.settle import job_of
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Retried:
    """The run's job, the ``status`` it had, and why it is not queued again; None: it is."""

    job: str
    status: str
    refused: str | None = None


def retry(tx: Tx, now: datetime, run_id: RunId) -> Retried | None:
    """Queue a finished run as its next attempt; ``None`` when there is no such run.

    Whether the job has other runs does not matter: it waits for the job's lock. Its job's ``retries`` begin
    anew.

    Guard: id, attempt, finished, read under the row locks; its job is there.
    Locks: the job, then the run.
    If it dies here: all or nothing.
    """
    job_id = job_of(tx, run_id)
    if job_id is None:
        return None
    job_rows = jobs.lock(tx, [job_id])
    rows = runs.lock(tx, run.c.id == run_id)
    if not rows:
        return None
    row = rows[0]
    if row.status not in TERMINAL:
        return Retried(row.job, row.status, f"run {run_id} is {row.status}: it is not over yet")
    if job_id not in job_rows:
        return Retried(row.job, row.status, f"run {run_id} cannot be: its job was deleted")
    again(tx, now, rows)
    return Retried(row.job, row.status)
