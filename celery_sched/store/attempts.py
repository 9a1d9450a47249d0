"""Statements on attempts that were over before their run was: what its row no longer tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select

from celery_sched.model import Attempt, RunId
from celery_sched.store.engine import Tx
from celery_sched.store.settle import bounded
from celery_sched.store.tables import attempt

RETRY = "retry"
"""The status of an attempt whose task asked Celery for a retry."""
MOST_KEPT = 100
"""Attempts kept of a run whose task asks Celery for one retry after the other, for days maybe."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended; ``row`` is its run's as it was, locked by the caller."""

    row: Any
    status: str
    reason: str | None
    error: str | None
    at: datetime


def keep(tx: Tx, ended: Sequence[Ended]) -> None:
    """Keep what is known of attempts that are over; their runs have moved on in this transaction."""
    if not ended:
        return
    rows = [
        {
            "run_id": one.row.id,
            "attempt": one.row.attempt,
            "app": one.row.app,
            "status": one.status,
            "reason": bounded(one.reason, 1000),
            "worker_name": one.row.worker_name,
            "started_at": one.row.started_at,
            "ended_at": one.at,
            "error": bounded(one.error),
        }
        for one in ended
    ]
    tx.execute(insert(attempt), rows)


def forget(tx: Tx, run_id: RunId, before: int) -> None:
    """Delete the attempts of a run below that number."""
    if before > 1:
        tx.execute(delete(attempt).where(attempt.c.run_id == run_id, attempt.c.attempt < before))


def of_run(tx: Tx, run_id: RunId) -> list[Attempt]:
    """The attempts of a run before its current one, in order."""
    rows = tx.execute(select(attempt).where(attempt.c.run_id == run_id).order_by(attempt.c.attempt))
    return [
        Attempt(
            run_id=RunId(row.run_id),
            attempt=row.attempt,
            status=row.status,
            reason=row.reason,
            worker=row.worker_name,
            started_at=row.started_at,
            ended_at=row.ended_at,
            error=row.error,
        )
        for row in rows
    ]
