"""Stop: a run is asked to end. A waiting one ends at once; a running one when its worker killed it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, RunId, RunKey, Token
from celery_sched.rules.transitions import TERMINAL, RunStatus
from celery_sched.store import jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, bounded, job_of, settle, settle_waiting
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Stopped:
    """``status`` the run had; ``settled`` now; or ``requested``, to be settled by its worker or the sweep."""

    status: str
    settled: bool = False
    requested: bool = False


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
    row = rows[0]
    if row.status in TERMINAL:
        return Stopped(row.status)
    asked = {
        "stop_requested_at": now,
        "stop_requested_by": bounded(by, 255),
        "stop_reason": bounded(reason, 1000),
    }
    text = f"stopped by {by}: {reason or 'no reason given'}"
    if row.status == RunStatus.QUEUED:
        settle_waiting(tx, now, [row], RunStatus.CANCELLED, text, **asked)
        return Stopped(row.status, settled=True)
    key = RunKey(run_id, Token(row.token), row.attempt)
    runs.request_stop(tx, key, asked)
    failpoint("stop:requested")
    if row.status == RunStatus.DISPATCHED:
        settle(
            tx,
            now,
            [Settlement(key, JobId(row.job_id), RunStatus.CANCELLED, reason=text)],
            sources={RunStatus.DISPATCHED},
        )
        return Stopped(row.status, settled=True)
    return Stopped(row.status, requested=True)
