"""What a queued run waits for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import case, select

from celery_sched.model import Overlap, Pool, RunId
from celery_sched.rules.fitting import Room
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store import pools, queue
from celery_sched.store.engine import Row, Tx
from celery_sched.store.tables import run

LOOKED = 500
"""Most candidates of a pool that are looked at."""


def of(tx: Tx, now: datetime, job: Any, run_id: RunId) -> tuple[str | None, RunId | None]:
    """What a queued run of a job (its row) waits for, in words, and the run of the job that goes first.

    Its time has come. ``None``: it waits for nothing, the next poll claims it.
    """
    first = None if job.overlap == Overlap.CONCURRENT else _before(tx, now, job, run_id)
    row = tx.execute(select(run).where(run.c.id == run_id)).one()
    if first is None or first.status == RunStatus.QUEUED:
        full = _for_key(tx, job, row)
        if full is not None:
            return full, None
        pool = pools.every(tx, job.app).get(row.pool)
        # one that waits behind others, whose keys are full, may be next all the same
        waits = _for_slots(tx, now, job, row, pool)
        if first is None or (waits is None and pool is not None):
            return waits, None
    return f"behind run {first.id}, which is {first.status}", RunId(first.id)


def _for_key(tx: Tx, job: Any, row: Row) -> str | None:
    """That as many runs of its concurrency key as may be are in flight."""
    key = row.concurrency_key
    if key is None or job.concurrency_key is None:
        return None
    held = queue.held_keys(tx, job.app, [key]).get(key, 0)
    return None if held < job.key_limit else f"for key {key} ({held} in flight, key_limit is {job.key_limit})"


def _for_slots(tx: Tx, now: datetime, job: Any, row: Row, pool: Pool | None) -> str | None:
    """That its pool has too few slots for it."""
    if pool is None:
        # the first scheduler makes this one
        return None if row.pool == pools.DEFAULT else f"for pool {row.pool!r}, which does not exist"
    if job.weight > pool.slots > 0:
        return f"for {job.weight} slots of pool {pool.name!r}, which has {pool.slots}: it never starts"
    taken = queue.held_counts(tx, job.app, [pool.name]).get(pool.name, 0)
    free = pool.slots - taken
    room = Room(free, pool.slots)
    for one in queue.ready_in(tx, job.app, now, pool.name, LOOKED, free=free, slots=pool.slots):
        if room.takes(one.weight, overdue=one.overdue) and one.run_id == row.id:
            return None
        if room.closed and one.run_id != row.id:
            of_pool = f"of pool {pool.name!r} ({taken} of {pool.slots} taken)"
            return f"for slots {of_pool}, which are kept for run {one.run_id}, which takes {one.weight}"
        if room.closed:
            break
    if job.concurrency_key is not None and not queue.is_ready(tx, job.app, now, RunId(row.id)):
        return f"for key {row.concurrency_key}: other runs of it are waiting and go first"
    needs = "a slot" if job.weight == 1 else f"{job.weight} slots"
    waiting = queue.ready_by_pool(tx, job.app, now).get(pool.name)
    others = 0 if waiting is None else waiting.count - 1
    return f"for {needs} of pool {pool.name!r} ({taken} of {pool.slots} taken, {others} other run(s) waiting)"


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
