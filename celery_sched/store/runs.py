"""Statements on runs. :func:`transition` is the only place that writes ``status``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)

from celery_sched.errors import InvalidValue
from celery_sched.model import Dispatch, JobId, NodeId, Run, RunId, RunKey, Trigger
from celery_sched.rules import keys, transitions
from celery_sched.rules.transitions import ACTIVE, HELD, RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.tables import attempt, run

CHUNK = 500
"""Rows in one statement: below every driver's limit on parameters."""


@dataclass(frozen=True)
class PerRun:
    """A column's value that differs from run to run."""

    values: Mapping[RunId, Any]


CLEARED: Mapping[str, Any] = {"token": None, "lease_expires_at": None, "holds_job": None}
"""What a run gives back when it leaves ``dispatched`` and ``running``."""


def held_by(keys: Collection[RunKey]) -> ColumnElement[bool]:
    """The rows whose id, token and attempt are these."""
    return and_(
        run.c.id.in_([key.id for key in keys]),
        tuple_(run.c.id, run.c.token, run.c.attempt).in_([(key.id, key.token, key.attempt) for key in keys]),
    )


def not_elsewhere(node: NodeId) -> ColumnElement[bool]:
    """The rows that no other worker is running or has received."""
    return case(
        (run.c.worker.is_not(None), run.c.worker == node),
        else_=or_(run.c.received_by.is_(None), run.c.received_by == node),
    )


def transition(
    tx: Tx,
    to: RunStatus,
    *,
    sources: Collection[RunStatus],
    match: ColumnElement[bool],
    values: Mapping[str, Any],
) -> int:
    """Move the runs that ``match`` and whose status is one of ``sources``; return how many matched.

    The caller compares that number with what it asked for: 1 is yours, 0 is lost.
    """
    transitions.check(sources, to)
    statement = (
        update(run)
        .where(match, run.c.status.in_([source.value for source in sources]))
        .values(status=to.value, **{name: _value(name, value) for name, value in values.items()})
    )
    return tx.execute(statement).rowcount


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, PerRun):
        return value
    column = run.c[name]
    if len(set(map(repr, value.values.values()))) == 1:
        return next(iter(value.values.values()))
    return case(
        *((run.c.id == key, literal(item, column.type)) for key, item in value.values.items()), else_=column
    )


def add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert runs (``queued`` or ``skipped``)."""
    if rows:
        tx.execute(insert(run), list(rows))


def from_job(
    row: Any, now: datetime, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The columns that every new run takes from its job's row.

    :param args: the run's own arguments, which its concurrency key is made of; ``None``: the job's. What can
        have no key is queued without one: the claim, which makes it again, says what is wrong.
    """
    try:
        key = keys.key_of(
            row.concurrency_key, row.args if args is None else args, row.kwargs if kwargs is None else kwargs
        )
    except InvalidValue:
        key = None
    return {
        "app": row.app,
        "job_id": row.id,
        "job": row.name,
        "task": row.task,
        "pool": row.pool,
        "priority": row.priority,
        "concurrency_key": key,
        "attempt": 1,
        "queued_at": now,
        "ready_at": now,
    }


def set_keys(tx: Tx, keys: Mapping[RunId, str | None]) -> None:
    """Write the concurrency keys of queued runs (locked by the caller)."""
    for key in set(keys.values()):
        ids = [run_id for run_id, of_run in keys.items() if of_run == key]
        tx.execute(
            update(run)
            .where(run.c.id.in_(ids), run.c.status == RunStatus.QUEUED.value)
            .values(concurrency_key=key)
        )


def existing_keys(tx: Tx, keys: Collection[str]) -> set[str]:
    """Which occurrence keys have a run already."""
    if not keys:
        return set()
    return set(tx.execute(select(run.c.occurrence_key).where(run.c.occurrence_key.in_(keys))).scalars())


@dataclass(frozen=True)
class Active:
    """The active runs of a job: how many, and the first two; those of a backfill apart."""

    count: int = 0
    one: RunId | None = None
    """The one that is carried out; else the first in turn."""
    second: RunId | None = None
    backfill: int = 0
    """Runs of a backfill that are not finished."""
    backfill_run: RunId | None = None
    """One of them that is dispatched or running."""

    @property
    def behind_backfill(self) -> bool:
        """A run of a backfill holds the job."""
        return self.backfill_run is not None

    @property
    def waiting(self) -> RunId | None:
        """The first run that waits behind the one that is carried out."""
        return self.one if self.behind_backfill else self.second

    def with_one_more(self, run_id: RunId) -> Active:
        """After another run was queued behind them."""
        return replace(
            self, count=self.count + 1, one=self.one or run_id, second=self.second or (self.one and run_id)
        )


def active_by_job(tx: Tx, jobs: Collection[JobId]) -> dict[JobId, Active]:
    """The active runs of these jobs; a job that has none is left out."""
    if not jobs:
        return {}
    regular = case((run.c.backfill_id.is_(None), 1), else_=0)
    held = case((run.c.status.in_([status.value for status in HELD]), 1), else_=0)
    turn = (held.desc(), run.c.priority.desc(), run.c.ready_at, run.c.scheduled_for, run.c.id)
    one = (
        select(
            run.c.job_id,
            run.c.id,
            regular.label("regular"),
            held.label("held"),
            func.row_number().over(partition_by=(run.c.job_id, regular), order_by=turn).label("place"),
        )
        .where(run.c.job_id.in_(jobs), run.c.status.in_([status.value for status in ACTIVE]))
        .subquery("one")
    )

    def named(*conditions: ColumnElement[bool]) -> Any:
        return func.max(case((and_(*conditions), one.c.id)))

    rows = tx.execute(
        select(
            one.c.job_id,
            func.sum(one.c.regular),
            named(one.c.regular == 1, one.c.place == 1),
            named(one.c.regular == 1, one.c.place == 2),
            func.sum(1 - one.c.regular),
            named(one.c.regular == 0, one.c.place == 1, one.c.held == 1),
        ).group_by(one.c.job_id)
    )
    return {JobId(row[0]): Active(int(row[1]), row[2], row[3], int(row[4]), row[5]) for row in rows}


def lock(tx: Tx, match: ColumnElement[bool], *, skip_locked: bool = False) -> Sequence[Row[Any]]:
    """The rows that match, locked until the transaction ends, in id order."""
    return tx.execute(
        select(run).where(match).order_by(run.c.id).with_for_update(skip_locked=skip_locked)
    ).all()


def find(tx: Tx, ids: Iterable[RunId]) -> dict[RunId, Row[Any]]:
    """Rows by id, not locked."""
    rows = tx.execute(select(run).where(run.c.id.in_(list(ids))))
    return {RunId(row.id): row for row in rows}


def beginning(tx: Tx, app: str, text: str, limit: int) -> list[Run]:
    """Runs of the app whose id begins so, some of them: read by the primary key."""
    # ids are UUIDs: no letter of theirs comes after "f", in any database's order of letters
    match = (run.c.id >= text) & (run.c.id < f"{text}g") & run.c.id.startswith(text, autoescape=True)
    return newest(tx, app, job_name=None, status=None, limit=limit, match=match)


def pool_of(tx: Tx, run_id: RunId) -> str | None:
    """The pool of a run."""
    return tx.execute(select(run.c.pool).where(run.c.id == run_id)).scalar()


def ids(tx: Tx, match: ColumnElement[bool]) -> list[RunId]:
    """Ids of the runs that match."""
    return [RunId(run_id) for run_id in tx.execute(select(run.c.id).where(match)).scalars()]


def jobs_of(tx: Tx, match: ColumnElement[bool]) -> list[JobId]:
    """The jobs of the runs that match."""
    return [JobId(job_id) for job_id in tx.execute(select(run.c.job_id).where(match).distinct()).scalars()]


def extend_leases(
    tx: Tx, match: ColumnElement[bool], until: datetime, *, uncapped: Collection[RunId] = ()
) -> int:
    """Leases of the runs that match end at ``until``, or at their deadline where that is earlier.

    :param uncapped: of these at ``until``.
    """
    capped = run.c.deadline_at < until
    if uncapped:
        capped = and_(run.c.id.not_in(list(uncapped)), capped)
    earlier = case(
        (capped, run.c.deadline_at),
        else_=literal(until, run.c.lease_expires_at.type),
    )
    return tx.execute(update(run).where(match).values(lease_expires_at=earlier)).rowcount


def request_stop(tx: Tx, key: RunKey, asked: Mapping[str, Any]) -> bool:
    """Write who asked a run to stop, when and why; the first who asked stays."""
    statement = update(run).where(held_by([key]), run.c.stop_requested_at.is_(None)).values(**asked)
    return tx.execute(statement).rowcount == 1


def stopping_on(app: str, node: NodeId) -> ColumnElement[bool]:
    """Running on that worker, and asked to stop."""
    return and_(
        run.c.app == app,
        run.c.status == RunStatus.RUNNING.value,
        run.c.worker == node,
        run.c.stop_requested_at.is_not(None),
    )


def expired(app: str, now: datetime) -> ColumnElement[bool]:
    """A lease that is over."""
    return and_(
        run.c.app == app,
        run.c.status.in_([status.value for status in HELD]),
        run.c.lease_expires_at < now,
    )


def outdated(app: str, now: datetime) -> ColumnElement[bool]:
    """Not started, and past its ``expires``: it never will be."""
    return and_(
        run.c.app == app,
        run.c.status.in_([RunStatus.QUEUED.value, RunStatus.DISPATCHED.value]),
        run.c.expires_at <= now,
    )


def first_ids(tx: Tx, match: ColumnElement[bool], limit: int) -> list[tuple[RunId, JobId]]:
    """Some runs that match, those whose lease ended first in front."""
    rows = tx.execute(
        select(run.c.id, run.c.job_id).where(match).order_by(run.c.lease_expires_at, run.c.id).limit(limit)
    )
    return [(RunId(run_id), JobId(job_id)) for run_id, job_id in rows]


def exists(tx: Tx, match: ColumnElement[bool]) -> bool:
    return tx.execute(select(1).select_from(run).where(match).limit(1)).first() is not None


def count_by_status(tx: Tx, app: str) -> dict[str, int]:
    """How many active runs there are, by status."""
    rows = tx.execute(
        select(run.c.status, func.count())
        .where(run.c.app == app, run.c.status.in_([status.value for status in ACTIVE]))
        .group_by(run.c.status)
    )
    return {status: int(count) for status, count in rows}


def newest(
    tx: Tx, app: str, *, job_name: str | None, status: str | None, limit: int, match: Any = None
) -> list[Run]:
    """Runs, newest first."""
    statement = select(run).where(run.c.app == app, true() if match is None else match)
    if job_name is not None:
        statement = statement.where(run.c.job == job_name)
    if status is not None:
        statement = statement.where(run.c.status == status)
    rows = tx.execute(
        statement.order_by(run.c.queued_at.desc(), run.c.scheduled_for.desc(), run.c.id.desc()).limit(limit)
    )
    return [from_row(row) for row in rows]


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some finished runs older than ``before``, and their attempts; return how many runs."""
    ids = list(
        tx.execute(
            select(run.c.id)
            .where(run.c.app == app, run.c.finished_at < before)
            .order_by(run.c.finished_at)
            .limit(limit)
        ).scalars()
    )
    if not ids:
        return 0
    # the predicate again: a run may have been put back to `queued` since it was looked at
    deleted = tx.execute(delete(run).where(run.c.id.in_(ids), run.c.finished_at < before)).rowcount
    # at once: a run of the same occurrence may be made anew, by a backfill, and begins with attempt 1
    left = select(run.c.id).where(run.c.id == attempt.c.run_id).exists()
    tx.execute(delete(attempt).where(attempt.c.run_id.in_(ids), ~left))
    return deleted


def dispatch_of(run_row: Any, job_row: Any, key: RunKey, fence: int) -> Dispatch:
    """All that the message of a run needs, from its row and its job's."""
    return Dispatch(
        key=key,
        app=run_row.app,
        job_id=JobId(run_row.job_id),
        job=run_row.job,
        task=run_row.task,
        args=job_row.args if run_row.args is None else run_row.args,
        kwargs=job_row.kwargs if run_row.kwargs is None else run_row.kwargs,
        options=job_row.options if run_row.options is None else run_row.options,
        scheduled_for=run_row.scheduled_for,
        fence=fence,
        pool=run_row.pool,
        time_limit=_duration(job_row.time_limit),
        soft_time_limit=_duration(job_row.soft_time_limit),
        eta=run_row.eta,
        retries=run_row.retries,
    )


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def from_row(row: Any) -> Run:
    """A run as people see it (never its token)."""
    return Run(
        id=RunId(row.id),
        app=row.app,
        job_id=JobId(row.job_id),
        job=row.job,
        task=row.task,
        trigger=Trigger(row.trigger_kind),
        scheduled_for=row.scheduled_for,
        status=row.status,
        reason=row.reason,
        attempt=row.attempt,
        fence=row.fence,
        pool=row.pool,
        priority=row.priority,
        queued_at=row.queued_at,
        ready_at=row.ready_at,
        dispatched_at=row.dispatched_at,
        published_at=row.published_at,
        received_at=row.received_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        lease_expires_at=row.lease_expires_at,
        deadline_at=row.deadline_at,
        worker=row.worker_name,
        stop_requested_at=row.stop_requested_at,
        stop_requested_by=row.stop_requested_by,
        stop_reason=row.stop_reason,
        error=row.error,
        result=row.result,
        parent_id=None if row.parent_id is None else RunId(row.parent_id),
        weight=None if row.dispatched_at is None else row.weight,
        concurrency_key=row.concurrency_key,
    )
