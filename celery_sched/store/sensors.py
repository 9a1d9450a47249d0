"""Statements of sensors: what a job has seen of the outside, and the events that it makes of the rest.

What was seen has a row of its own: a run's result is pruned, an event's ``dedupe_key`` too, and neither could
move together with the events that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update

from celery_sched.errors import SchedulerError
from celery_sched.model import JobId, RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import events
from celery_sched.store.engine import Conflict, Tx
from celery_sched.store.tables import run, sensor


class SeenElsewhere(SchedulerError):
    """Another run of the job has looked meanwhile, or this run has lost its lease: nothing was published."""


@dataclass(frozen=True)
class Holder:
    """One attempt of a run; ``fence`` is new with each claim, so it names the holder as a token does."""

    run_id: RunId
    attempt: int
    fence: int


@dataclass(frozen=True)
class Seen:
    """What a job has seen up to now. ``version`` 0: it has never looked."""

    job_id: JobId
    version: int
    value: Any


@dataclass(frozen=True)
class News:
    """What an event will say."""

    payload: Any
    key: str | None = None


def read(tx: Tx, holder: Holder) -> Seen:
    """What the job of this run has seen.

    :raises SeenElsewhere: the run is no longer this holder's.
    """
    job_id = JobId(_held(tx, holder, lock=False).job_id)
    row = tx.execute(select(sensor.c.version, sensor.c.seen).where(sensor.c.job_id == job_id)).first()
    return Seen(job_id, 0, None) if row is None else Seen(job_id, row.version, row.seen)


def move(
    tx: Tx, now: datetime, holder: Holder, before: Seen, value: Any, topic: str, news: Sequence[News]
) -> Seen:
    """Publish the news and write what was seen, both or neither.

    Guard: the run is this holder's and running; the version is the one that was read before the look.
    Locks: the run, then the sensor's row.
    If it dies here: all or nothing; the next run looks again from where the last one stood.

    :raises SeenElsewhere: nothing was written.
    """
    row = _held(tx, holder, lock=True)
    columns = {"seen": value, "version": before.version + 1, "updated_at": now}
    if before.version:
        match = (sensor.c.job_id == before.job_id, sensor.c.version == before.version)
        moved = tx.execute(update(sensor).where(*match).values(**columns)).rowcount
        if moved != 1:
            raise SeenElsewhere("another run of the job has looked meanwhile: nothing was published")
    else:
        try:
            tx.execute(insert(sensor).values(job_id=before.job_id, app=row.app, **columns))
        except Conflict as error:
            raise SeenElsewhere("another run of the job looked first: nothing was published") from error
    for one in news:
        events.add(tx, now, row.app, topic, one.payload, key=one.key, hops=row.hops + 1, run_id=holder.run_id)
    return Seen(before.job_id, before.version + 1, value)


def forget(tx: Tx, job_id: JobId) -> None:
    """The job is gone."""
    tx.execute(delete(sensor).where(sensor.c.job_id == job_id))


def _held(tx: Tx, holder: Holder, *, lock: bool) -> Any:
    statement = select(run.c.app, run.c.job_id, run.c.hops).where(
        run.c.id == holder.run_id,
        run.c.attempt == holder.attempt,
        run.c.fence == holder.fence,
        run.c.status == RunStatus.RUNNING.value,
    )
    row = tx.execute(statement.with_for_update() if lock else statement).first()
    if row is None:
        raise SeenElsewhere("the run is no longer this worker's: nothing was published")
    return row
