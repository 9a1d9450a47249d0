"""What a queued run waits for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import case, select

from celery_sched.model import Overlap, RunId
from celery_sched.rules.fitting import fit
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store import pools, queue
from celery_sched.store.engine import Row, Tx
from celery_sched.store.tables import run

LOOKED = 500
"""Most candidates of a pool that are looked at."""


def of(tx: Tx, now: datetime, job: Any, run_id: RunId) -> tuple[str | None, RunId | None]:
    """What a queued run of a job (its row) waits for, in words, and the run of the job that goes first.

    ``None``: for nothing, the next poll claims it.
    """
    first = None if job.overlap == Overlap.CONCURRENT else _before(tx, now, job, run_id)
    if first is not None:
        return f"behind run {first.id}, which is {first.status}", RunId(first.id)
    row = tx.execute(select(run).where(run.c.id == run_id)).one()
    full = for_key(tx, job, row)
    if full is not None:
        return full, None
    known = pools.every(tx, job.app).get(row.pool)
    if known is None:
        # the first scheduler makes this one
        missing = None if row.pool == pools.DEFAULT else f"for pool {row.pool!r}, which does not exist"
        return missing, None
    if job.weight > known.slots:
        return too_heavy(row.pool, job.weight, known.slots), None
    held = queue.held_counts(tx, job.app, [row.pool]).get(row.pool, 0)
    free = known.slots - held
    waiting = queue.ready_in(tx, job.app, now, row.pool, LOOKED, free=free, slots=known.slots)
    if any(one.run_id == run_id for one in fit(waiting, free, known.slots)):
        return None, None
    needs = "a slot" if job.weight == 1 else f"{job.weight} slots"
    others = queue.ready_by_pool(tx, job.app, now)[row.pool].count - 1
    numbers = f"{held} of {known.slots} taken, {others} other run(s) waiting"
    return f"for {needs} of pool {row.pool!r} ({numbers})", None


def too_heavy(pool: str, weight: int, slots: int) -> str:
    """That a run can never start."""
    return f"for {weight} slots of pool {pool!r}, which has {slots}: it never starts"


def for_key(tx: Tx, job: Any, row: Row) -> str | None:
    """That as many runs of a queued run's concurrency key as may be are in flight; else ``None``."""
    key = row.concurrency_key
    if key is None or job.concurrency_key is None:
        return None
    held = queue.held_keys(tx, job.app, [key]).get(key, 0)
    if held < job.key_limit:
        return None
    return f"for key {key!r} ({held} in flight, key_limit is {job.key_limit})"


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
