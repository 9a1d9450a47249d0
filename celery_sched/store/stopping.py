"""Runs are asked to stop: those that have not started end at once, a running one when it was killed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row

from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, RunId, RunKey, Token
from celery_sched.rules.transitions import ACTIVE, TERMINAL, RunStatus
from celery_sched.store import runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, bounded, settle, settle_waiting
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Stopped:
    """What became of a run that was asked to stop. Its worker, or the sweep, settles one that is running."""

    run_id: RunId
    job: str
    pool: str
    status: str
    """What it was."""

    @property
    def settled(self) -> bool:
        """It is over now."""
        return self.status in (RunStatus.QUEUED, RunStatus.DISPATCHED)

    @property
    def requested(self) -> bool:
        """It runs, and was asked to stop."""
        return self.status == RunStatus.RUNNING

    @property
    def freed(self) -> bool:
        """It gave back a slot."""
        return self.status == RunStatus.DISPATCHED


def unfinished(jobs: Collection[JobId], *, regular: bool = False) -> ColumnElement[bool]:
    """The runs of these jobs that are not finished; ``regular``: without those of backfills."""
    match = run.c.job_id.in_(jobs) & run.c.status.in_([status.value for status in ACTIVE])
    return match & run.c.backfill_id.is_(None) if regular else match


def stop_runs(
    tx: Tx, now: datetime, rows: Sequence[Row[Any]], by: str, reason: str | None
) -> tuple[Stopped, ...]:
    """Ask runs to stop (rows and their jobs locked by the caller). A finished one is left as it is.

    A running one keeps status, token, lock and slot until its worker killed it or its lease ran out, so that
    nothing new of its job starts before. Who asked first stays. The caller releases the slots of those that
    were ``freed`` once this is committed.
    """
    asked = {
        "stop_requested_at": now,
        "stop_requested_by": bounded(by, 255),
        "stop_reason": bounded(reason, 1000),
    }
    text = f"stopped by {by}: {reason or 'no reason given'}"
    for start in range(0, len(rows), runs.CHUNK):
        part = rows[start : start + runs.CHUNK]
        waiting = [row for row in part if row.status == RunStatus.QUEUED]
        settle_waiting(tx, now, waiting, RunStatus.CANCELLED, text, **asked)
        held = [row for row in part if row.status in (RunStatus.DISPATCHED, RunStatus.RUNNING)]
        for row in held:
            runs.request_stop(tx, _key(row), asked)
            failpoint("stop:requested")
        settle(
            tx,
            now,
            [
                Settlement(_key(row), JobId(row.job_id), RunStatus.CANCELLED, reason=text)
                for row in held
                if row.status == RunStatus.DISPATCHED
            ],
            sources={RunStatus.DISPATCHED},
        )
    return tuple(
        Stopped(RunId(row.id), row.job, row.pool, row.status) for row in rows if row.status not in TERMINAL
    )


def freed_slots(stopped: Iterable[Stopped]) -> dict[str, list[RunId]]:
    """Pool -> the runs that gave back a slot of it."""
    found: dict[str, list[RunId]] = {}
    for one in stopped:
        if one.freed:
            found.setdefault(one.pool, []).append(one.run_id)
    return found


def _key(row: Any) -> RunKey:
    return RunKey(RunId(row.id), Token(row.token), row.attempt)
