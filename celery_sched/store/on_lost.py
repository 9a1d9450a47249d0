"""What a killed run has left behind is put right by its job's ``on_lost`` task: a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, select

from celery_sched.model import Run, RunId, Trigger
from celery_sched.rules import identity
from celery_sched.rules.transitions import FAILURES, RunStatus
from celery_sched.store import runs, system_jobs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import attempt, run

JOB = "sched:on_lost"
TASK = "celery_sched.on_lost"
"""The system job's; each of its runs names the ``on_lost`` task of the job that it is made for."""
PRIORITY = 9
RETRIES = 5
RETRY_DELAY = timedelta(seconds=10)
ENDS = frozenset({RunStatus.LOST, RunStatus.TIMED_OUT, RunStatus.CANCELLED})
"""Ends that the task itself may not have seen coming."""
TOLD = timedelta(days=1)
"""How long `status` tells of one that failed; history keeps it."""
MOST_TOLD = 100


def ended(tx: Tx, now: datetime, rows: Sequence[Row[Any]]) -> None:
    """Queue one run for each of these that was under way once and ended as :data:`ENDS` say.

    ``rows``: see :func:`celery_sched.store.ends.after`.
    """
    wanted = [row for row in rows if row.job_on_lost is not None and row.status in ENDS]
    if not wanted:
        return
    begun = _begun_before(tx, wanted)
    wanted = [row for row in wanted if row.started_at is not None or row.id in begun]
    if not wanted:
        return
    made = {
        app: system_jobs.ensure(
            tx,
            now,
            app,
            JOB,
            task=TASK,
            priority=PRIORITY,
            retries=RETRIES,
            retry_delay=RETRY_DELAY,
            description="Carries the on_lost tasks of jobs.",
        )
        for app in {row.app for row in wanted}
    }
    runs.add(tx, [_run(row, made[row.app], now) for row in wanted])


def _begun_before(tx: Tx, rows: Sequence[Row[Any]]) -> set[str]:
    """Ids of the runs of which an earlier attempt had started."""
    unstarted = [row.id for row in rows if row.started_at is None and row.attempt > 1]
    if not unstarted:
        return set()
    return set(
        tx.execute(
            select(attempt.c.run_id)
            .where(attempt.c.run_id.in_(unstarted), attempt.c.started_at.is_not(None))
            .distinct()
        ).scalars()
    )


def _run(row: Any, job_row: Any, now: datetime) -> dict[str, Any]:
    return {
        **runs.from_job(job_row, now),
        "id": identity.follower_id("on_lost", row.id, row.attempt, row.fence),
        "trigger_kind": Trigger.ON_LOST.value,
        "parent_id": row.id,
        "scheduled_for": now,
        "status": RunStatus.QUEUED.value,
        "task": row.job_on_lost,
        "pool": row.pool,
        "args": [],
        "kwargs": {
            "run_id": row.id,
            "job": row.job,
            "task": row.task,
            "args": row.job_args if row.args is None else row.args,
            "kwargs": row.job_kwargs if row.kwargs is None else row.kwargs,
            "fence": row.fence,
            "attempt": row.attempt,
            "status": row.status,
            "reason": row.reason,
            "scheduled_for": row.scheduled_for.astimezone(UTC).isoformat(),
        },
        "options": row.job_options,
    }


def of_run(tx: Tx, app: str, run_id: RunId) -> list[Run]:
    """The runs that put right what a run left behind, one for each time that it ended so; in order."""
    queued_at = tx.execute(select(run.c.queued_at).where(run.c.id == run_id)).scalar()
    if queued_at is None:
        return []
    rows = tx.execute(
        # the name and the time are what an index finds them by
        select(run)
        .where(run.c.app == app, run.c.job == JOB, run.c.queued_at >= queued_at, run.c.parent_id == run_id)
        .order_by(run.c.queued_at, run.c.id)
    )
    return [runs.from_row(row) for row in rows]


def failed(tx: Tx, now: datetime, app: str) -> Sequence[Any]:
    """Those that failed for good lately: ``id``, ``task``; ``job`` and ``parent_id`` say what it was for."""
    parent = run.alias("parent")
    return tx.execute(
        select(run.c.id, run.c.task, run.c.parent_id, parent.c.job)
        .join(parent, parent.c.id == run.c.parent_id)
        .where(
            run.c.app == app,
            run.c.job == JOB,
            run.c.queued_at > now - TOLD,
            run.c.status.in_([status.value for status in FAILURES]),
            # not where it is carried out again, or was since
            parent.c.status.in_([status.value for status in ENDS]),
        )
        .order_by(run.c.queued_at.desc())
        .limit(MOST_TOLD)
    ).all()
