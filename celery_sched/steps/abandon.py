"""Abandon: processes are known to be dead, so nobody waits for the leases of what they held."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, NodeId, RunId, RunKey, Token
from celery_sched.rules.transitions import FAILURES, RunStatus
from celery_sched.store import jobs, nodes, runs
from celery_sched.store.again import Ended, end
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Abandoned:
    """``ended``: they were running. ``queued``: they had not started, and wait. Each: pool and id."""

    ended: tuple[tuple[str, RunId], ...] = ()
    queued: tuple[tuple[str, RunId], ...] = ()
    again: int = 0
    """So many of ``ended`` are tried again."""


def abandon(
    tx: Tx,
    now: datetime,
    config: Config,
    dead: Collection[NodeId],
    reason: str,
    status: RunStatus = RunStatus.CANCELLED,
) -> Abandoned:
    """Settle what dead processes were running as ``status``; what they had not started waits again.

    ``cancelled``: they were stopped by whoever calls. ``lost``: they died, and the jobs' policies say what is
    tried again.

    The caller has seen these processes end. When no other process of the app is alive, nobody has the
    messages of the remaining dispatched runs either, and these wait again too: a message that turns up
    later has an old token, and its start drops it.

    Guard: id, token, attempt, status, read again under the row locks.
    Locks: jobs, then runs.
    If it dies here: all or nothing; the leases expire and the sweep settles.
    """
    for node in dead:
        nodes.leave(tx, node)
    alone = not any(node.last_seen > now - config.lease for node in nodes.every(tx, config.app))
    unstarted = run.c.status == RunStatus.DISPATCHED.value
    running_there = (run.c.status == RunStatus.RUNNING.value) & run.c.worker.in_(dead)
    waiting_there = unstarted if alone else unstarted & run.c.received_by.in_(dead)
    left = (run.c.app == config.app) & (running_there | waiting_there)
    job_rows = jobs.lock(tx, runs.jobs_of(tx, left))
    rows = runs.lock(tx, left)
    keys = {row.id: RunKey(RunId(row.id), Token(row.token), row.attempt) for row in rows}
    running = [row for row in rows if row.status == RunStatus.RUNNING]
    waiting = [row for row in rows if row.status == RunStatus.DISPATCHED]
    error = reason if status in FAILURES else None
    ended = [
        Ended(row, Settlement(keys[row.id], JobId(row.job_id), status, reason, error)) for row in running
    ]
    ends = end(tx, now, job_rows, ended, sources={RunStatus.RUNNING})
    failpoint("abandon:settled")
    for row in waiting:
        matched = runs.transition(
            tx,
            RunStatus.QUEUED,
            sources={RunStatus.DISPATCHED},
            match=runs.held_by([keys[row.id]]),
            values={
                **runs.CLEARED,
                "ready_at": max(
                    row.ready_at, row.eta or row.ready_at
                ),  # Celery's own retry: not before its eta
                "dispatched_at": None,
                "published_at": None,
                "publish_count": 0,
                "received_by": None,
                "received_at": None,
            },
        )
        if matched != 1:
            raise RuntimeError(f"{matched} rows matched the locked run {row.id} while it was abandoned")
    jobs.unlock(tx, [(JobId(row.job_id), Token(row.token)) for row in waiting])
    return Abandoned(
        tuple((row.pool, RunId(row.id)) for row in running),
        tuple((row.pool, RunId(row.id)) for row in waiting),
        len(ends.again),
    )
