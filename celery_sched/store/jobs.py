"""Statements on jobs. Nobody saves a whole row: each verb names only its own columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, case, delete, func, insert, literal, select, update

from celery_sched.model import (
    JobDefinition,
    JobId,
    JobStatus,
    RunId,
    Source,
    Token,
)
from celery_sched.rules.transitions import ACTIVE, FAILURES, FINISHED_RUNS, RunStatus
from celery_sched.rules.upcoming import OVER, schedule_of
from celery_sched.store.engine import Tx
from celery_sched.store.job_forms import to_columns
from celery_sched.store.tables import job, run


def _with_lease() -> Any:
    return select(job, run.c.lease_expires_at.label("held_until")).outerjoin(run, run.c.holds_job == job.c.id)


def get(tx: Tx, app: str, name: str) -> Row[Any] | None:
    """One job's row, with the end of its holder's lease."""
    return tx.execute(_with_lease().where(job.c.app == app, job.c.name == name)).first()


def every(tx: Tx, app: str, *, system: bool = False) -> Sequence[Row[Any]]:
    """All jobs of an app, by name; ``system``: the scheduler's own too."""
    statement = _with_lease().where(job.c.app == app).order_by(job.c.name)
    return tx.execute(statement if system else statement.where(job.c.source != Source.SYSTEM.value)).all()


def standing(tx: Tx, app: str) -> Sequence[Any]:
    """What `status` judges jobs by: few columns, of all jobs."""
    return tx.execute(
        select(
            *(job.c.name, job.c.status, job.c.status_reason, job.c.options, job.c.pool),
            *(job.c.overlap, job.c.weight),
            *(job.c.pause_on_failure, job.c.failures_in_row),
            *(job.c.must_succeed_by, job.c.overdue_since),
        )
        .where(job.c.app == app)
        .order_by(job.c.name)
    ).all()


def weights(tx: Tx, app: str) -> dict[str, dict[str, int]]:
    """Pool -> its jobs by name, with the slots that a run of them takes."""
    rows = tx.execute(
        select(job.c.pool, job.c.name, job.c.weight).where(job.c.app == app).order_by(job.c.name)
    )
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row.pool, {})[row.name] = row.weight
    return found


def names(tx: Tx, app: str, *, pool: str | None = None) -> list[str]:
    """The names of all jobs, or of those of one pool."""
    statement = select(job.c.name).where(job.c.app == app)
    if pool is not None:
        statement = statement.where(job.c.pool == pool).order_by(job.c.name)
    return list(tx.execute(statement).scalars())


def add(
    tx: Tx,
    now: datetime,
    app: str,
    definition: JobDefinition,
    *,
    source: Source,
    status: JobStatus,
    status_reason: str | None,
    next_run_at: datetime | None,
    code_definition: Mapping[str, Any] | None = None,
) -> JobId:
    """Insert a job. It counts from now (``anchor``)."""
    result = tx.execute(
        insert(job).values(
            app=app,
            **to_columns(definition),
            source=source.value,
            code_definition=code_definition,
            anchor=now,
            status=status.value,
            status_reason=status_reason,
            version=1,
            next_run_at=next_run_at,
            inactive_since=None if status is JobStatus.ACTIVE else now,
            created_at=now,
            updated_at=now,
        )
    )
    key: Any = result.inserted_primary_key
    return JobId(key[0])


def define(tx: Tx, now: datetime, job_id: JobId, version: int, columns: Mapping[str, Any]) -> bool:
    """Write some of a job's definition, ``status`` or ``next_run_at``; false when its version moved on."""
    result = tx.execute(
        update(job)
        .where(job.c.id == job_id, job.c.version == version)
        .values(version=job.c.version + 1, updated_at=now, **columns)
    )
    return result.rowcount == 1


def remove(tx: Tx, job_id: JobId) -> bool:
    return tx.execute(delete(job).where(job.c.id == job_id)).rowcount == 1


def lock(tx: Tx, ids: Collection[JobId], *, skip_locked: bool = False) -> dict[JobId, Row[Any]]:
    """These jobs' rows, locked until the transaction ends, in id order."""
    if not ids:
        return {}
    rows = tx.execute(
        select(job)
        .where(job.c.id.in_(sorted(set(ids))))
        .order_by(job.c.id)
        .with_for_update(skip_locked=skip_locked)
    )
    return {JobId(row.id): row for row in rows}


def lock_all(tx: Tx, app: str) -> Sequence[Row[Any]]:
    """All jobs of an app, locked, in id order."""
    return tx.execute(select(job).where(job.c.app == app).order_by(job.c.id).with_for_update()).all()


def lock_due(
    tx: Tx, app: str, now: datetime, limit: int, *, latest_first: bool = False
) -> Sequence[Row[Any]]:
    """Due jobs, the longest due first, locked; those that another scheduler has locked are left to it.

    One statement, so that locked ones do not fill the batch and hide the others; as it waits for no lock, it
    need not take them in id order.
    """
    due_at = job.c.next_run_at.desc() if latest_first else job.c.next_run_at
    return tx.execute(
        select(job)
        .where(job.c.app == app, job.c.status == JobStatus.ACTIVE.value, job.c.next_run_at <= now)
        .order_by(due_at, job.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()


def next_due(tx: Tx, app: str) -> datetime | None:
    """The earliest instant at which a job of the app is due."""
    return tx.execute(
        select(func.min(job.c.next_run_at)).where(job.c.app == app, job.c.status == JobStatus.ACTIVE.value)
    ).scalar()


def count_due(tx: Tx, app: str, now: datetime) -> int:
    return tx.execute(
        select(func.count()).where(
            job.c.app == app, job.c.status == JobStatus.ACTIVE.value, job.c.next_run_at <= now
        )
    ).scalar_one()


@dataclass(frozen=True)
class Advance:
    """Where a planned job goes on: its next instant, its mark, how many of its occurrences run or do not."""

    job_id: JobId
    version: int
    next_run_at: datetime | None
    mark: datetime | None
    planned: int = 0
    skipped: int = 0
    status: JobStatus = JobStatus.ACTIVE
    reason: str | None = None


def advance(tx: Tx, now: datetime, moves: Sequence[Advance]) -> int:
    """Move planned jobs on; return how many matched. One whose definition changed (its version) does not."""
    if not moves:
        return 0
    statement = (
        update(job)
        .where(job.c.id == bindparam("its_id"), job.c.version == bindparam("its_version"))
        .values(
            next_run_at=bindparam("its_next"),
            last_scheduled_for=bindparam("its_mark"),
            planned_count=job.c.planned_count + bindparam("its_planned"),
            skipped_count=job.c.skipped_count + bindparam("its_skipped"),
            inactive_since=bindparam("its_end"),
            status=bindparam("its_status"),
            status_reason=bindparam("its_reason"),
            version=job.c.version + 1,
        )
    )
    rows = [
        {
            "its_id": move.job_id,
            "its_version": move.version,
            "its_next": move.next_run_at,
            "its_mark": move.mark,
            "its_planned": move.planned,
            "its_skipped": move.skipped,
            "its_end": None if move.status is JobStatus.ACTIVE else now,
            "its_status": move.status.value,
            "its_reason": move.reason,
        }
        for move in moves
    ]
    return tx.execute(statement, rows).rowcount


def rearm(tx: Tx, now: datetime, ids: Collection[JobId]) -> None:
    """Runs of these jobs (locked by the caller) have ended: those with an ``after`` schedule go on from now.

    One that has another active run waits for the end of that.
    """
    rows = tx.execute(
        select(job).where(
            job.c.id.in_(set(ids)),
            job.c.status == JobStatus.ACTIVE.value,
            func.lower(job.c.schedule).like("after %"),
            ~select(1)
            .where(run.c.job_id == job.c.id, run.c.status.in_([status.value for status in ACTIVE]))
            .exists(),
        )
    ).all()
    moves = []
    for row in rows:
        status, reason, upcoming = JobStatus.ACTIVE, None, None
        try:
            upcoming = schedule_of(row).next_after(now)
            if upcoming is None:
                status, reason = JobStatus.EXPIRED, OVER
        except Exception as error:  # a job's bad schedule must not undo how its run ended
            status, reason = JobStatus.ERROR, f"{type(error).__name__}: {error}"
        moves.append(
            Advance(
                JobId(row.id), row.version, upcoming, row.last_scheduled_for, status=status, reason=reason
            )
        )
    if advance(tx, now, moves) != len(moves):
        raise RuntimeError("a job was not locked while its run ended")


def take(tx: Tx, now: datetime, claims: Mapping[JobId, tuple[int, Token | None, RunId | None]]) -> int:
    """Raise each job's fence to the given number and, with a token, lock it; return the rows matched."""
    ids = list(claims)
    taken = 0
    for start in range(0, len(ids), 200):
        part = ids[start : start + 200]
        tokens = {job_id: claims[job_id][1] for job_id in part if claims[job_id][1] is not None}
        values: dict[str, Any] = {
            "fence": case(*((job.c.id == i, claims[i][0]) for i in part), else_=job.c.fence)
        }
        if tokens:
            mine = list(tokens)
            values["lock_token"] = case(
                *((job.c.id == i, literal(claims[i][1])) for i in mine), else_=job.c.lock_token
            )
            values["locked_by"] = case(
                *((job.c.id == i, literal(claims[i][2])) for i in mine), else_=job.c.locked_by
            )
            values["locked_at"] = case(
                (job.c.id.in_(mine), literal(now, job.c.locked_at.type)), else_=job.c.locked_at
            )
        free = job.c.id.in_([i for i in part if i not in tokens]) | job.c.lock_token.is_(None)
        taken += tx.execute(update(job).where(job.c.id.in_(part), free).values(**values)).rowcount
    return taken


def unlock(tx: Tx, holders: Collection[tuple[JobId, Token]]) -> None:
    """Free these jobs' locks where these tokens hold them (a successor's has another token and stays)."""
    if holders:
        tx.execute(
            update(job)
            .where(
                job.c.id.in_({i for i, _ in holders}), job.c.lock_token.in_({token for _, token in holders})
            )
            .values(lock_token=None, locked_by=None, locked_at=None)
        )


def count_outcomes(tx: Tx, now: datetime, outcomes: Sequence[tuple[JobId, RunStatus]]) -> None:
    """Add finished runs to their jobs' statistics."""
    by_job: dict[JobId, list[RunStatus]] = {}
    for job_id, status in outcomes:
        by_job.setdefault(job_id, []).append(status)
    if not by_job:
        return

    def plus(column: Any, counted: Collection[RunStatus]) -> Any:
        counts = {i: sum(s in counted for s in statuses) for i, statuses in by_job.items()}
        return column + case(*((job.c.id == i, n) for i, n in counts.items()), else_=0)

    # failures in a row: how many there are after the last success among these, and whether there is one
    tails = {i: _failures_at_the_end(statuses) for i, statuses in by_job.items()}
    succeeded = [i for i, statuses in by_job.items() if RunStatus.SUCCEEDED in statuses]
    ran = [job_id for job_id, statuses in by_job.items() if any(s in FINISHED_RUNS for s in statuses)]
    tx.execute(
        update(job)
        .where(job.c.id.in_(list(by_job)))
        .values(
            run_count=plus(job.c.run_count, FINISHED_RUNS),
            success_count=plus(job.c.success_count, {RunStatus.SUCCEEDED}),
            failure_count=plus(job.c.failure_count, FAILURES),
            skipped_count=plus(job.c.skipped_count, {RunStatus.SKIPPED}),
            failures_in_row=case((job.c.id.in_(succeeded), 0), else_=job.c.failures_in_row)
            + case(*((job.c.id == i, n) for i, n in tails.items()), else_=0),
            last_status=case(
                *((job.c.id == i, literal(statuses[-1].value)) for i, statuses in by_job.items()),
                else_=job.c.last_status,
            ),
            last_run_at=case(
                (job.c.id.in_(ran), literal(now, job.c.last_run_at.type)), else_=job.c.last_run_at
            ),
            last_success_at=case(
                (job.c.id.in_(succeeded), literal(now, job.c.last_success_at.type)),
                else_=job.c.last_success_at,
            ),
        )
    )


def _failures_at_the_end(statuses: Sequence[RunStatus]) -> int:
    """How many failures come after the last success."""
    count = 0
    for status in statuses:
        count = 0 if status is RunStatus.SUCCEEDED else count + (status in FAILURES)
    return count


def failing(tx: Tx, ids: Collection[JobId]) -> Sequence[Row[Any]]:
    """Those of these jobs (locked by the caller) that are active and failed ``pause_on_failure`` times."""
    return tx.execute(
        select(job).where(
            job.c.id.in_(ids),
            job.c.status == JobStatus.ACTIVE.value,
            job.c.failures_in_row >= job.c.pause_on_failure,
        )
    ).all()


def take_back_outcomes(tx: Tx, outcomes: Sequence[tuple[JobId, RunStatus]]) -> None:
    """Finished runs are run again: their jobs' statistics count how they end then, not how they had ended."""
    by_job: dict[JobId, list[RunStatus]] = {}
    for job_id, status in outcomes:
        by_job.setdefault(job_id, []).append(status)
    for job_id, statuses in by_job.items():
        failed = sum(s in FAILURES for s in statuses)
        tx.execute(
            update(job)
            .where(job.c.id == job_id)
            .values(
                run_count=job.c.run_count - sum(s in FINISHED_RUNS for s in statuses),
                success_count=job.c.success_count - statuses.count(RunStatus.SUCCEEDED),
                failure_count=job.c.failure_count - failed,
                skipped_count=job.c.skipped_count - statuses.count(RunStatus.SKIPPED),
                failures_in_row=case(
                    (job.c.failures_in_row > failed, job.c.failures_in_row - failed), else_=0
                ),
            )
        )
