"""Backfill: past occurrences become queued runs, a few at a time, behind everything else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import BackfillId, BackfillStatus, JobId, JobStatus, Reprocess, Trigger
from celery_sched.rules.backfill import PRIORITY, Choice, choose
from celery_sched.rules.identity import occurrence_key, run_id
from celery_sched.rules.schedules import between
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.upcoming import jitter_of, schedule_of
from celery_sched.store import audit, backfills, jobs, runs
from celery_sched.store.again import again
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

LOOKED = 500
"""Most occurrences looked at in one transaction: most of a range may have run already."""
FIRST_LOOK = 20
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Backfilled:
    """``created`` runs, ``again`` (new attempts), occurrences ``left``; whether it has ended, and why."""

    job: str = ""
    created: int = 0
    again: int = 0
    left: int = 0
    ended: BackfillStatus | None = None
    reason: str | None = None
    more: bool = False
    """There is more to look at, at once."""


def backfill(tx: Tx, now: datetime, config: Config, backfill_id: BackfillId) -> Backfilled:
    """Go on with a backfill: have up to ``max_concurrent`` unfinished runs of occurrences after its cursor.

    The mark is neither used nor moved; what an active job is still to plan is left to the plan, which is on
    time. A job that is paused, disabled or expired is filled all the same: somebody asked for it by hand.

    Guard: status running; unique occurrence_key; runs to be run again: id, attempt, terminal.
    Locks: the job and the backfill (skip locked), then the runs that are run again.
    If it dies here: nothing was written; the cursor says where any scheduler goes on.
    """
    known = backfills.get(tx, config.app, backfill_id)
    if known is None:
        return Backfilled()
    locked = jobs.lock(tx, [JobId(known.job_id)], skip_locked=True)
    if known.has_job and not locked:
        return Backfilled()  # somebody has it locked: the next pass
    row = backfills.lock(tx, backfill_id, skip_locked=True)
    if row is None or row.status != BackfillStatus.RUNNING:
        return Backfilled()
    if not locked:
        return _end(tx, now, row, BackfillStatus.CANCELLED, "its job was deleted")
    job_row = locked[JobId(known.job_id)]
    unfinished = backfills.unfinished(tx, backfill_id)
    try:
        walk = _walk(tx, job_row, row, row.max_concurrent - unfinished)
    except _Unusable as error:
        return _end(tx, now, row, BackfillStatus.CANCELLED, str(error))
    rerun = runs.lock(tx, run.c.occurrence_key.in_(walk.again)) if walk.again else ()
    # one that was pruned since it was looked at is as if it never was; the job's lock keeps the others away
    pruned = set(walk.again) - {found.occurrence_key for found in rerun}
    new = [occurrence for occurrence, key in walk.chosen if key not in walk.again or key in pruned]
    runs.add(tx, [_row(job_row, backfill_id, occurrence, now) for occurrence in new])
    failpoint("backfill:inserted")
    again(tx, now, rerun, backfill_id=backfill_id, priority=PRIORITY)
    failpoint("backfill:again")
    if walk.at != row.at:
        counts = {"created": len(new), "again": len(rerun), "left": walk.left}
        if backfills.advance(tx, backfill_id, walk.at, **counts) != 1:
            raise RuntimeError(f"backfill {backfill_id} ended while its row was locked")
        failpoint("backfill:moved")
    if walk.at >= row.to_at and not (unfinished or walk.chosen):
        return replace(_end(tx, now, row, BackfillStatus.DONE, None), left=walk.left)
    return Backfilled(row.job, len(new), len(rerun), walk.left, more=walk.more)


class _Unusable(Exception):
    """A schedule that cannot be walked (any more); the text says why."""


@dataclass
class _Walk:
    """What the next occurrences of a range come to."""

    at: datetime
    """Everything up to here is dealt with."""
    chosen: list[tuple[datetime, str]] = field(default_factory=list)
    """To be run: occurrence and its key."""
    again: set[str] = field(default_factory=set)
    """The keys of those that have a run."""
    left: int = 0
    more: bool = False
    """There is more to look at, and room for it."""


def _walk(tx: Tx, job_row: Any, row: Any, room: int) -> _Walk:
    """Look at the occurrences after the cursor until ``room`` of them are to be run."""
    reprocess = Reprocess(row.reprocess)
    walk = _Walk(row.at)
    until = _until(job_row, row.to_at)
    size, looked = max(FIRST_LOOK, room), 0
    while room > 0:
        found = _occurrences(job_row, walk.at, until, min(size, LOOKED - looked))
        keys = [occurrence_key(JobId(job_row.id), occurrence) for occurrence in found]
        known = backfills.standing(tx, keys)
        for occurrence, key in zip(found, keys, strict=True):
            status, started = known.get(key, (None, False))
            choice = choose(status, started, reprocess)
            walk.at = occurrence
            if choice is Choice.LEFT:
                walk.left += 1
                continue
            walk.chosen.append((occurrence, key))
            if choice is Choice.AGAIN:
                walk.again.add(key)
            room -= 1
            if room <= 0:
                return walk
        if len(found) < min(size, LOOKED - looked):
            if until >= row.to_at:
                walk.at = row.to_at
            return walk
        looked += len(found)
        if looked >= LOOKED:
            walk.more = True
            return walk
        size *= 2
    return walk


def _occurrences(job_row: Any, after: datetime, until: datetime, limit: int) -> list[datetime]:
    try:
        schedule = schedule_of(job_row)
        if schedule.kind == "after":
            raise _Unusable(
                f"its job's schedule is now {schedule.text!r}, which has no occurrences to be filled"
            )
        return between(schedule, after, until, limit)
    except Exception as error:  # its zone vanished, say: no reason to stop the other backfills
        if isinstance(error, _Unusable):
            raise
        raise _Unusable(f"its job's schedule cannot be used: {error}") from error


def _until(job_row: Any, to_at: datetime) -> datetime:
    """How far to go: what an active job is still to plan is left to the plan, which makes it in time."""
    if job_row.status != JobStatus.ACTIVE or job_row.next_run_at is None:
        return to_at
    try:
        undecided = jitter_of(job_row).occurrence_of(job_row.next_run_at)
    except Exception as error:  # as above: whatever a calendar or a zone raises ends this backfill alone
        raise _Unusable(f"its job's schedule cannot be used: {error}") from error
    return min(to_at, undecided - INSTANT)


def _row(job_row: Any, backfill_id: BackfillId, occurrence: datetime, now: datetime) -> dict[str, Any]:
    key = occurrence_key(JobId(job_row.id), occurrence)
    return {
        **runs.from_job(job_row, now),
        "id": run_id(job_row.app, job_row.created_at, key),
        "trigger_kind": Trigger.BACKFILL.value,
        "scheduled_for": occurrence,
        "occurrence_key": key,
        "backfill_id": backfill_id,
        "priority": PRIORITY,
        "status": RunStatus.QUEUED.value,
        "expires_at": None,
    }


def _end(tx: Tx, now: datetime, row: Any, status: BackfillStatus, reason: str | None) -> Backfilled:
    """The scheduler ends a backfill, and leaves a line in the audit."""
    backfills.end(tx, now, BackfillId(row.id), status, reason)
    detail = {"backfill": row.id, "status": status.value, "reason": reason}
    audit.add(tx, now, row.app, "scheduler", "backfill_end", row.job, detail)
    return Backfilled(row.job, ended=status, reason=reason)
