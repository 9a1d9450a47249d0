"""Stop: a run is asked to end. A waiting one ends at once; a running one when its worker killed it."""

from __future__ import annotations

from datetime import datetime

from celery_sched.model import RunId
from celery_sched.rules.transitions import TERMINAL
from celery_sched.store import jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import job_of
from celery_sched.store.stopping import Stopped, stop_runs
from celery_sched.store.tables import run


def stop(tx: Tx, now: datetime, run_id: RunId, by: str, reason: str | None) -> Stopped | None:
    """Ask a run to stop; ``None`` when there is no such run. A finished run is left as it is.

    Guard: id and status (and token and attempt, where it has them), read under the row locks.
    Locks: the job, then the run.
    If it dies here: all or nothing.
    """
    job_id = job_of(tx, run_id)
    if job_id is None:
        return None
    jobs.lock(tx, [job_id])
    rows = runs.lock(tx, run.c.id == run_id)
    if not rows:
        return None
    if rows[0].status in TERMINAL:
        return Stopped(run_id, rows[0].job, rows[0].pool, rows[0].status)
    (stopped,) = stop_runs(tx, now, rows, by, reason)
    return stopped
