"""Statements on the heartbeats of runs and on what bounds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, literal, or_, select, update

from celery_sched.model import RunId
from celery_sched.store.engine import Tx
from celery_sched.store.tables import job, run


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a run, and the deadline that follows from it."""

    at: datetime
    deadline_at: datetime


def with_limits(tx: Tx, ids: Collection[RunId]) -> dict[RunId, Row[Any]]:
    """The rows of runs, with what bounds their jobs' runs and whether these are exclusive; not locked."""
    rows = tx.execute(
        select(run, job.c.max_runtime, job.c.time_limit, job.c.heartbeat_timeout, job.c.exclusive)
        .outerjoin(job, job.c.id == run.c.job_id)
        .where(run.c.id.in_(list(ids)))
    )
    return {RunId(row.id): row for row in rows}


def record(
    tx: Tx, match: ColumnElement[bool], beats: Mapping[RunId, Beat], *, uncapped: Collection[RunId] = ()
) -> int:
    """Write the last heartbeats of the runs that match, and their deadlines; never an older one.

    :param uncapped: their leases may outlast their deadlines.
    """
    at = _per_run({run_id: beat.at for run_id, beat in beats.items()})
    deadline = _per_run({run_id: beat.deadline_at for run_id, beat in beats.items()})
    capped = run.c.lease_expires_at > deadline
    if uncapped:
        capped = and_(run.c.id.not_in(list(uncapped)), capped)
    statement = (
        update(run)
        .where(match, run.c.id.in_(list(beats)), or_(run.c.beat_at.is_(None), run.c.beat_at < at))
        .values(
            beat_at=at,
            deadline_at=deadline,
            # a lease does not outlast the deadline
            lease_expires_at=case((capped, deadline), else_=run.c.lease_expires_at),
        )
    )
    return tx.execute(statement).rowcount


def keep_while_killed(tx: Tx, match: ColumnElement[bool], until: datetime) -> int:
    """Let the leases of runs that match end at ``until``, past their deadlines; a second call: nothing."""
    once = run.c.lease_expires_at <= run.c.deadline_at
    return tx.execute(update(run).where(match, once).values(lease_expires_at=until)).rowcount


def _per_run(values: Mapping[RunId, datetime]) -> ColumnElement[Any]:
    column = run.c.beat_at.type
    return case(*((run.c.id == run_id, literal(value, column)) for run_id, value in values.items()))
