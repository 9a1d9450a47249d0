"""A finished run is run again: a new attempt of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, case, null, tuple_

from celery_sched.model import JobId, Trigger
from celery_sched.rules.transitions import TERMINAL, RunStatus
from celery_sched.store import jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

OVER = (
    *("reason", "error", "result", "finished_at", "expires_at", "at_capacity_at", "dispatched_at"),
    *("published_at", "received_by", "received_at", "worker", "worker_name", "started_at", "deadline_at"),
    *("eta", "stop_requested_at", "stop_requested_by", "stop_reason"),
)
"""What the last attempt left behind; the new one begins without it."""


def again(tx: Tx, now: datetime, rows: Sequence[Row[Any]], **columns: Any) -> int:
    """Queue these finished runs (rows and their jobs locked by the caller) as their next attempt.

    What the statistics counted for the last outcome is taken back: a run counts once, by how it ends.
    Celery's own retry may have stored arguments of its own; an occurrence is run with its job's, a run by
    hand keeps those it was given.

    :param columns: more columns to write.
    :raises RuntimeError: one of them did not match: the caller did not lock it. Rolls back.
    """
    if not rows:
        return 0
    by_hand = run.c.trigger_kind == Trigger.MANUAL.value
    matched = runs.transition(
        tx,
        RunStatus.QUEUED,
        sources=TERMINAL,
        match=tuple_(run.c.id, run.c.attempt).in_([(row.id, row.attempt) for row in rows]),
        values={
            **dict.fromkeys(OVER),
            "attempt": run.c.attempt + 1,
            "queued_at": now,
            "ready_at": now,
            "publish_count": 0,
            "retries": 0,
            "args": case((by_hand, run.c.args), else_=null()),
            "kwargs": case((by_hand, run.c.kwargs), else_=null()),
            **columns,
        },
    )
    if matched != len(rows):
        raise RuntimeError(f"{matched} of {len(rows)} locked runs matched while they were queued again")
    jobs.take_back_outcomes(tx, [(JobId(row.job_id), RunStatus(row.status)) for row in rows])
    return matched
