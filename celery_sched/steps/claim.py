"""Claim: queued runs take a lease, a token, slots, room for their key and, without `concurrent`, the lock."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.failpoints import failpoint
from celery_sched.model import Dispatch, JobId, Overlap, RunId, RunKey, Token
from celery_sched.rules import keys
from celery_sched.rules.fitting import Candidate, Room
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.turn import overdue
from celery_sched.store import jobs, pools, queue, runs
from celery_sched.store.engine import Row, Tx
from celery_sched.store.settle import Settlement, settle
from celery_sched.store.tables import run

BATCH = 500
"""Most runs claimed in one transaction."""


@dataclass(frozen=True)
class Claimed:
    """``dispatches`` are ours; ``lost`` were taken, locked or finished by others meanwhile."""

    dispatches: tuple[Dispatch, ...] = ()
    lost: tuple[RunId, ...] = ()
    slots: Mapping[str, int] = field(default_factory=dict)
    """Pool -> the slots that they take."""
    failed: tuple[tuple[Dispatch, str], ...] = ()
    """Runs that can have no concurrency key, which their job demands: they are settled, with the reason."""


def claim(
    tx: Tx,
    now: datetime,
    config: Config,
    candidates: Mapping[str, Sequence[Candidate]],
    *,
    count_slots: bool,
) -> Claimed:
    """Claim candidates (pool -> runs, best first); the lease is ``sched_lease``.

    ``count_slots``: lock the pools' rows and count; else the slots were granted by Redis before, to each
    candidate as many as its ``weight`` says. Weight, key and limit are those of the job's row as it is now.

    Guard: status queued; under the job's row lock its lock is free and no other run of it is dispatched or
    running (``concurrent`` apart); unique ``holds_job``; free slots; fewer than ``key_limit`` runs of its key
    dispatched or running.
    Locks: jobs, runs (both skip locked), pools; where keys are counted, the pool ``default`` among them.
    If it dies here: nothing was written; after the commit, the lease expires and the sweep settles.
    """
    wanted = [candidate for chosen in candidates.values() for candidate in chosen]
    if not wanted:
        return Claimed()
    rows = jobs.lock(tx, [one.job_id for one in wanted], skip_locked=True)
    locked = {
        RunId(row.id): row
        for row in runs.lock(
            tx,
            run.c.id.in_([one.run_id for one in wanted if one.job_id in rows])
            & (run.c.status == RunStatus.QUEUED.value)
            & (run.c.ready_at <= now),
            skip_locked=True,
        )
    }
    if not locked:  # all taken by others: do not wait for their hold on the pools either
        return Claimed(lost=tuple(one.run_id for one in wanted))
    wishes = {run_id: _Wish.of(row, rows[JobId(row.job_id)], now) for run_id, row in locked.items()}
    busy = queue.held_jobs(tx, list(rows))
    rooms, in_flight = _count(tx, config, candidates, wishes.values(), count_slots)
    chosen: list[_Wish] = []
    lost: list[RunId] = []
    for pool, of_pool in candidates.items():
        room = rooms.get(pool)
        for one in of_pool:
            if room is not None and room.is_spent:
                break
            wish = wishes.get(one.run_id)
            granted = count_slots or (wish is not None and wish.weight <= one.weight)
            if wish is None or not granted or _is_held(wish.job, one.job_id in busy):
                lost.append(one.run_id)
                continue
            full = wish.key is not None and in_flight.get(wish.key, 0) >= wish.job.key_limit
            if full or not (room is None or room.takes(wish.weight, overdue=wish.overdue)):
                continue
            busy.add(one.job_id)
            if wish.key is not None:
                in_flight[wish.key] = in_flight.get(wish.key, 0) + 1
            chosen.append(wish)
    _note_keys(tx, set(wishes.values()).difference(chosen))
    dispatches = _write(tx, now, config, chosen)
    failed = _fail(tx, now, chosen, dispatches)
    gone = {dispatch.key.id for dispatch, _ in failed}
    kept = tuple(dispatch for dispatch in dispatches if dispatch.key.id not in gone)
    slots: dict[str, int] = {}
    for dispatch in kept:
        slots[dispatch.pool] = slots.get(dispatch.pool, 0) + wishes[dispatch.key.id].weight
    return Claimed(kept, tuple(lost), slots, failed)


@dataclass(frozen=True, eq=False)
class _Wish:
    """A locked run and its job's locked row, and what it takes to start it."""

    run: Row
    job: Row
    weight: int
    overdue: bool
    key: str | None
    unusable: str | None = None
    """Why it can have no key."""

    @classmethod
    def of(cls, run_row: Row, job_row: Row, now: datetime) -> _Wish:
        key, unusable = None, None
        try:
            key = _key(run_row, job_row)
        except InvalidValue as error:
            unusable = str(error)
        late = overdue(run_row.ready_at, run_row.start_by, now)
        return cls(run_row, job_row, job_row.weight, late, key, unusable)


def _key(run_row: Any, job_row: Any) -> str | None:
    """The key as the job's template and the run's arguments make it now: either may have been edited."""
    return keys.key_of(
        job_row.concurrency_key,
        job_row.args if run_row.args is None else run_row.args,
        job_row.kwargs if run_row.kwargs is None else run_row.kwargs,
    )


def _is_held(job_row: Row, busy: bool) -> bool:
    """Whether a job's lock, or another run of it, stands in the way."""
    return job_row.overlap != Overlap.CONCURRENT and (job_row.lock_token is not None or busy)


def _count(
    tx: Tx, config: Config, names: Collection[str], wishes: Collection[_Wish], count_slots: bool
) -> tuple[dict[str, Room], dict[str, int]]:
    """The room in each pool whose slots are not granted yet, and how many runs of each key are in flight.

    Nobody else counts meanwhile. A key may be that of jobs in several pools: whoever counts keys locks the
    row of the pool ``default``.
    """
    wanted = {wish.key for wish in wishes if wish.key is not None}
    counted = [*names] if count_slots else []
    slots = _lock(tx, config, {*counted, *([pools.DEFAULT] if wanted else [])})
    held = queue.held_counts(tx, config.app, counted) if counted else {}
    rooms = {name: Room(slots.get(name, 0) - held.get(name, 0), slots.get(name, 0)) for name in counted}
    return rooms, queue.held_keys(tx, config.app, wanted)


def _lock(tx: Tx, config: Config, names: Collection[str]) -> dict[str, int]:
    if not names:
        return {}
    slots = pools.lock(tx, config.app, names)
    if pools.DEFAULT in names and pools.DEFAULT not in slots:
        # without its row two schedulers would count keys at once
        pools.ensure(tx, config.app, pools.DEFAULT, config.max_concurrent_jobs)
        slots = pools.lock(tx, config.app, names)
    return slots


def _note_keys(tx: Tx, left: Collection[_Wish]) -> None:
    """Write the keys that have changed of runs that stay in the queue: it is read by them."""
    runs.set_keys(tx, {RunId(one.run.id): one.key for one in left if one.key != one.run.concurrency_key})


def _fail(
    tx: Tx, now: datetime, chosen: Collection[_Wish], dispatches: Sequence[Dispatch]
) -> tuple[tuple[Dispatch, str], ...]:
    """Settle the claimed runs that can have no key: they would run beside any number of others."""
    unusable = {RunId(one.run.id): one.unusable for one in chosen if one.unusable is not None}
    failed = [(one, unusable[one.key.id] or "") for one in dispatches if one.key.id in unusable]
    settlements = [
        Settlement(one.key, JobId(one.job_id), RunStatus.FAILED, error=f"it was not started: {why}")
        for one, why in failed
    ]
    settle(tx, now, settlements, sources={RunStatus.DISPATCHED})
    return tuple(failed)


def _write(tx: Tx, now: datetime, config: Config, chosen: Sequence[_Wish]) -> list[Dispatch]:
    if not chosen:
        return []
    fences: dict[JobId, int] = {}
    claims: dict[JobId, tuple[int, Token | None, RunId | None]] = {}
    dispatches: list[Dispatch] = []
    holds: dict[RunId, JobId | None] = {}
    wishes = {RunId(wish.run.id): wish for wish in chosen}
    for wish in chosen:
        run_row, job_row = wish.run, wish.job
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
                "weight": runs.PerRun({i: wishes[i].weight for i in ids}),
                "concurrency_key": runs.PerRun({i: wishes[i].key for i in ids}),
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
