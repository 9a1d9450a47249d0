"""Claim: queued runs take a lease, a token, a slot and, without `concurrent`, the job's lock."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import Dispatch, JobId, Overlap, RunId, RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import jobs, pools, queue, runs
from celery_sched.store.engine import Row, Tx
from celery_sched.store.tables import run

BATCH = 500
"""Most runs claimed in one transaction."""


@dataclass(frozen=True)
class Claimed:
    """``dispatches`` are ours; ``lost`` were taken, locked or finished by others meanwhile."""

    dispatches: tuple[Dispatch, ...] = ()
    lost: tuple[RunId, ...] = ()


def claim(
    tx: Tx,
    now: datetime,
    config: Config,
    candidates: Mapping[str, Sequence[tuple[RunId, JobId]]],
    *,
    count_slots: bool,
) -> Claimed:
    """Claim candidates (pool -> runs, best first); the lease is ``sched_lease``.

    ``count_slots``: lock the pools' rows and count; else the slots were granted by Redis before.

    Guard: status queued; under the job's row lock its lock is free and no other run of it is dispatched or
    running (``concurrent`` apart); unique ``holds_job``; a free slot.
    Locks: jobs, runs (both skip locked), pools.
    If it dies here: nothing was written; after the commit, the lease expires and the sweep settles.
    """
    wanted = [candidate for chosen in candidates.values() for candidate in chosen]
    if not wanted:
        return Claimed()
    rows = jobs.lock(tx, [job_id for _, job_id in wanted], skip_locked=True)
    locked = {
        RunId(row.id): row
        for row in runs.lock(
            tx,
            run.c.id.in_([run_id for run_id, job_id in wanted if job_id in rows])
            & (run.c.status == RunStatus.QUEUED.value)
            & (run.c.ready_at <= now),
            skip_locked=True,
        )
    }
    if not locked:  # all taken by others: do not wait for their hold on the pools either
        return Claimed(lost=tuple(run_id for run_id, _ in wanted))
    busy = queue.held_jobs(tx, list(rows))
    free = _free_slots(tx, config, candidates) if count_slots else None
    chosen: list[tuple[Row, Row]] = []
    lost: list[RunId] = []
    for pool, of_pool in candidates.items():
        left = len(of_pool) if free is None else free.get(pool, 0)
        for run_id, job_id in of_pool:
            if left <= 0:
                break
            if job_id not in rows or run_id not in locked or _is_held(rows[job_id], job_id in busy):
                lost.append(run_id)
                continue
            busy.add(job_id)
            chosen.append((locked[run_id], rows[job_id]))
            left -= 1
    return Claimed(tuple(_write(tx, now, config, chosen)), tuple(lost))


def _is_held(job_row: Row, busy: bool) -> bool:
    """Whether a job's lock, or another run of it, stands in the way."""
    return job_row.overlap != Overlap.CONCURRENT and (job_row.lock_token is not None or busy)


def _free_slots(tx: Tx, config: Config, names: Collection[str]) -> dict[str, int]:
    slots = pools.lock(tx, config.app, names)
    held = queue.held_counts(tx, config.app, names)
    return {name: count - held.get(name, 0) for name, count in slots.items()}


def _write(tx: Tx, now: datetime, config: Config, chosen: Sequence[tuple[Row, Row]]) -> list[Dispatch]:
    if not chosen:
        return []
    fences: dict[JobId, int] = {}
    claims: dict[JobId, tuple[int, Token | None, RunId | None]] = {}
    dispatches: list[Dispatch] = []
    holds: dict[RunId, JobId | None] = {}
    for run_row, job_row in chosen:
        job_id = JobId(job_row.id)
        fence = fences[job_id] = fences.get(job_id, job_row.fence) + 1
        key = RunKey(RunId(run_row.id), Token(str(uuid.uuid4())), run_row.attempt)
        dispatch = runs.dispatch_of(run_row, job_row, key, fence)
        alone = job_row.overlap != Overlap.CONCURRENT
        claims[job_id] = (fence, dispatch.key.token if alone else None, dispatch.key.id if alone else None)
        holds[dispatch.key.id] = job_id if alone else None
        dispatches.append(dispatch)
    if jobs.take(tx, now, claims) != len(claims):
        raise RuntimeError("a job's lock was taken while its row was locked")
    failpoint("claim:locked")
    for start in range(0, len(dispatches), 200):
        part = dispatches[start : start + 200]
        ids = [dispatch.key.id for dispatch in part]
        matched = runs.transition(
            tx,
            RunStatus.DISPATCHED,
            sources={RunStatus.QUEUED},
            match=run.c.id.in_(ids),
            values={
                "token": runs.PerRun({d.key.id: d.key.token for d in part}),
                "fence": runs.PerRun({d.key.id: d.fence for d in part}),
                "holds_job": runs.PerRun({i: holds[i] for i in ids}),
                "lease_expires_at": now + config.lease,
                "dispatched_at": now,
                "published_at": None,
                "publish_count": 0,
                "received_by": None,
                "received_at": None,
                "worker": None,
                "worker_name": None,
                "started_at": None,
                "deadline_at": None,
            },
        )
        if matched != len(part):
            raise RuntimeError(f"{matched} of {len(part)} locked runs matched while claiming")
    return dispatches
