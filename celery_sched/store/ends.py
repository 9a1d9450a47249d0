"""What follows the end of a run, in the transaction in which it ends."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select

from celery_sched.failpoints import failpoint
from celery_sched.model import RunId
from celery_sched.store import deadlines, deliveries, notices, on_lost
from celery_sched.store.engine import Tx
from celery_sched.store.runs import CHUNK
from celery_sched.store.tables import job, run

FROM_JOB = (
    *("source", "args", "kwargs", "options", "on_lost", "on", "publishes", "notify", "description"),
    "overdue_since",
)
"""Columns of a run's job that followers look at, called ``job_...`` in their rows; NULL: it was deleted."""


def after(tx: Tx, now: datetime, ids: Collection[RunId]) -> None:
    """These runs are over, in this transaction (their jobs and they are locked by the caller).

    A run that is tried again has not ended and does not come here. A follower gets the runs' rows as they
    are now, in id order, with :data:`FROM_JOB`.
    """
    wanted = sorted(set(ids))
    for start in range(0, len(wanted), CHUNK):
        rows = tx.execute(
            select(
                run,
                *(job.c[name].label(f"job_{name}") for name in FROM_JOB),
                notices.told().label("told"),
            )
            .outerjoin(job, job.c.id == run.c.job_id)
            .where(run.c.id.in_(wanted[start : start + CHUNK]))
            .order_by(run.c.id)
        ).all()
        notices.ended(tx, now, rows)
        on_lost.ended(tx, now, rows)
        deliveries.ended(tx, now, rows)
        deadlines.ended(tx, now, rows)
    failpoint("ends:after")
