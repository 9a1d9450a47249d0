"""Finish: an attempt's outcome or retry, statistics, lock and slot, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import NodeId, RunKey
from celery_sched.rules.transitions import FAILURES, HELD, RunStatus
from celery_sched.store import apps, attempts, audit, jobs, runs
from celery_sched.store.again import Ended, end
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, job_of, settle, stop_text
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. ``result`` is JSON text; error and result are bounded at 64 KiB."""

    status: RunStatus
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    exceptions: tuple[str, ...] = ()
    """Full names of its exception's class and the bases of that: what ``retry_on`` looks at."""


@dataclass(frozen=True)
class Finished:
    """``settled``: the outcome was written; else the token no longer matched and only the audit has it."""

    settled: bool
    status: str
    why: str = ""
    pool: str | None = None
    """The pool whose slot it gave back."""
    again_in: timedelta | None = None
    """The run is tried again, after this pause."""


def finish(
    tx: Tx,
    now: datetime,
    config: Config,
    key: RunKey,
    outcome: Outcome,
    node: NodeId,
    *,
    unstarted: bool = False,
    quiet: bool = False,
) -> Finished:
    """Write an attempt's outcome, or queue the run again; a stale holder changes nothing, the audit apart.

    ``unstarted`` also settles a dispatched run (its child died before the start, its task is unknown);
    ``quiet`` leaves the audit line out: several reports of one death are usual.

    Guard: id, token, attempt, running (with ``unstarted``: running here, or dispatched and not received by
    another worker).
    Locks: the job, then the run.
    If it dies here: all or nothing; the lease expires and the sweep does it.
    """
    job_id = job_of(tx, key.id)
    if job_id is not None:
        job_rows = jobs.lock(tx, [job_id])
        settlement = Settlement(key, job_id, outcome.status, outcome.reason, outcome.error, outcome.result)
        # a duplicate of the message that ended badly elsewhere says nothing about the run that goes on here
        guard = runs.not_elsewhere(node) if unstarted else None
        sources = HELD if unstarted else {RunStatus.RUNNING}
        if outcome.status in FAILURES:
            ended = [Ended(row, settlement, outcome.exceptions) for row in runs.lock(tx, run.c.id == key.id)]
            ends = end(tx, now, job_rows, ended, sources=sources, guard=guard)
            if key.id in ends.again:
                pause = ends.again[key.id] - now
                return Finished(True, outcome.status, pool=runs.pool_of(tx, key.id), again_in=pause)
            written = ends.settled
        else:
            written = settle(tx, now, [settlement], sources=sources, guard=guard)
        if written:
            return Finished(True, outcome.status, pool=runs.pool_of(tx, key.id))
    row = runs.find(tx, [key.id]).get(key.id)
    why = "the run is gone" if row is None else f"the run is {row.status}, attempt {row.attempt}"
    if not quiet:
        audit.add(
            tx,
            now,
            config.app,
            f"worker:{node}",
            "late_settle",
            f"run:{key.id}",
            {"attempt": key.attempt, "outcome": outcome.status.value, "why": why},
        )
        apps.count(tx, config.app, late_settlers=1)
    return Finished(False, "" if row is None else row.status, why)


def celery_retry(
    tx: Tx,
    now: datetime,
    config: Config,
    key: RunKey,
    *,
    eta: datetime | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    retries: int,
    reason: str | None = None,
    error: str | None = None,
) -> bool:
    """The task asked Celery for a retry: the run keeps token, lock and slot and waits for its next attempt.

    What is needed to publish it again unchanged is stored, and what this attempt came to is kept. A run that
    was asked to stop is cancelled. The job's own ``retries`` are not touched.

    :param reason: what the task said; ``error``: with its traceback.

    Guard: id, token, attempt, running, no stop request.
    Locks: the job, then the run.
    If it dies here: the lease expires and the sweep settles; the retry's message is dropped by its start.
    """
    job_id = job_of(tx, key.id)
    if job_id is None:
        return False
    jobs.lock(tx, [job_id])
    rows = runs.lock(tx, run.c.id == key.id)
    start = now if eta is None else max(now, eta)
    moved = runs.transition(
        tx,
        RunStatus.DISPATCHED,
        sources={RunStatus.RUNNING},
        match=runs.held_by([key]) & run.c.stop_requested_at.is_(None),
        values={
            "attempt": key.attempt + 1,
            "eta": eta,
            "args": list(args),
            "kwargs": dict(kwargs),
            "retries": retries,
            "requeued": 0,
            "beat_at": None,
            "published_at": now,
            "publish_count": 1,
            "received_by": None,
            "received_at": None,
            "started_at": None,
            "worker": None,
            "worker_name": None,
            "deadline_at": None,
            "lease_expires_at": start + config.start_timeout,
        },
    )
    if moved:
        failpoint("retry:dispatched")
        attempts.keep(tx, [attempts.Ended(row, attempts.RETRY, reason, error, now) for row in rows])
        attempts.forget(tx, key.id, key.attempt - attempts.MOST_KEPT + 1)
        return True
    for row in rows:
        if row.token == key.token and row.stop_requested_at is not None:
            cancelled = Settlement(key, job_id, RunStatus.CANCELLED, stop_text(row))
            settle(tx, now, [cancelled], sources={RunStatus.RUNNING})
    return False
