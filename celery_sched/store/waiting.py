"""What a queued run waits for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import case, select

from celery_sched.model import Overlap, RunId
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store import pools, queue
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run


def of(tx: Tx, now: datetime, job: Any, run_id: RunId) -> tuple[str | None, RunId | None]:
    """What a queued run of a job (its row) waits for, in words, and the run of the job that goes first.

    ``None``: for nothing, the next poll claims it.
    """
    first = None if job.overlap == Overlap.CONCURRENT else _before(tx, now, job, run_id)
    if first is not None:
        return f"behind run {first.id}, which is {first.status}", RunId(first.id)
    known = pools.every(tx, job.app).get(job.pool)
    if known is None:
        # the first scheduler makes this one
        missing = None if job.pool == pools.DEFAULT else f"for pool {job.pool!r}, which does not exist"
        return missing, None
    held = queue.held_counts(tx, job.app, [job.pool]).get(job.pool, 0)
    ready, _ = queue.ready_by_pool(tx, job.app, now).get(job.pool, (0, 0))
    if held + ready <= known.slots:
        return None, None
    numbers = f"{held} of {known.slots} taken, {ready - 1} other run(s) waiting"
    return f"for a slot of pool {job.pool!r} ({numbers})", None


def _before(tx: Tx, now: datetime, job: Any, run_id: RunId) -> Any:
    """The run of the job that is carried out; else the first that is claimed before this one."""
    held = case((run.c.status.in_([status.value for status in HELD]), 0), else_=1)
    turn = (held, run.c.priority.desc(), run.c.ready_at, run.c.scheduled_for, run.c.id)
    ready = (run.c.status != RunStatus.QUEUED.value) | (run.c.ready_at <= now)
    first = tx.execute(
        select(run.c.id, run.c.status)
        .where(run.c.job_id == job.id, run.c.status.in_([status.value for status in ACTIVE]), ready)
        .order_by(*turn)
        .limit(1)
    ).one()
    return None if first.id == run_id else first
