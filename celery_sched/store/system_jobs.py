"""Jobs of the scheduler's own: what carries the runs that nobody's schedule asks for (`on_lost` tasks, say).

Such a run is an ordinary run of a system job with a task, arguments, pool and priority of its own, so claim,
lease, sweep, retries, cap and history are those of every run, and the job it is made for is left alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.exc import IntegrityError

from celery_sched.model import JobDefinition, JobStatus, Overlap, Source
from celery_sched.rules.readers import SYSTEM_PREFIX
from celery_sched.rules.schedules.none import NONE
from celery_sched.store import jobs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import job


def ensure(tx: Tx, now: datetime, app: str, name: str, *, task: str, **fields: Any) -> Row[Any]:
    """The row of a system job, not locked; made when it is first needed.

    One that is there stays as it is. Two transactions may do this at once: the later waits for the other.

    :param name: begins with ``sched:``, which no other job's does.
    :param task: the task of runs that name none; ``fields``: other fields of its definition.
    """
    if not name.startswith(SYSTEM_PREFIX):
        raise ValueError(f"{name!r} is no name of a system job")
    found = _find(tx, app, name)
    if found is not None:
        return found
    definition = JobDefinition(name=name, task=task, schedule=NONE, overlap=Overlap.CONCURRENT, **fields)
    try:
        with tx.begin_nested():
            jobs.add(
                tx,
                now,
                app,
                definition,
                source=Source.SYSTEM,
                status=JobStatus.ACTIVE,
                status_reason=None,
                next_run_at=None,
            )
    except IntegrityError:  # another process made it between the two statements
        found = _find(tx, app, name)
        if found is None:
            raise
        return found
    made = _find(tx, app, name)
    if made is None:
        raise RuntimeError(f"the system job {name!r} is gone in the transaction that made it")
    return made


def _find(tx: Tx, app: str, name: str) -> Row[Any] | None:
    return tx.execute(select(job).where(job.c.app == app, job.c.name == name)).first()
