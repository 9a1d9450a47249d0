"""A run is carried out again as its next attempt: by its job's retries, or because somebody asked for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, null, true, tuple_

from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, RunId, Trigger
from celery_sched.rules import retry as retry_rule
from celery_sched.rules.transitions import FAILURES, HELD, TERMINAL, RunStatus
from celery_sched.store import attempts, deliveries, job_forms, jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, settle, stop_text
from celery_sched.store.tables import run

OVER = (
    *("reason", "error", "result", "finished_at", "expires_at", "at_capacity_at", "dispatched_at"),
    *("published_at", "received_by", "received_at", "worker", "worker_name", "started_at", "deadline_at"),
    *("beat_at", "eta", "stop_requested_at", "stop_requested_by", "stop_reason"),
)
"""What the last attempt left behind; the new one begins without it."""

GIVEN = (Trigger.MANUAL, Trigger.EVENT, Trigger.ON_LOST, Trigger.NOTIFY)
"""Runs that are given arguments when they are made."""


def _next_attempt() -> dict[str, Any]:
    """The columns of a run's next attempt.

    Celery's own retry may have stored arguments of its own; an occurrence is run with its job's, a run that
    was given its own keeps them.
    """
    given = run.c.trigger_kind.in_([trigger.value for trigger in GIVEN])
    return {
        **dict.fromkeys(OVER),
        "attempt": run.c.attempt + 1,
        "publish_count": 0,
        "retries": 0,
        "args": case((given, run.c.args), else_=null()),
        "kwargs": case((given, run.c.kwargs), else_=null()),
    }


def again(tx: Tx, now: datetime, rows: Sequence[Row[Any]], **columns: Any) -> int:
    """Queue these finished runs (rows and their jobs locked by the caller) as their next attempt.

    What the statistics counted for the last outcome is taken back: a run counts once, by how it ends.

    :param columns: more columns to write.
    :raises RuntimeError: one of them did not match: the caller did not lock it. Rolls back.
    """
    if not rows:
        return 0
    values = {**_next_attempt(), "queued_at": now, "ready_at": now, "retried": 0, "requeued": 0, **columns}
    matched = runs.transition(
        tx,
        RunStatus.QUEUED,
        sources=TERMINAL,
        match=tuple_(run.c.id, run.c.attempt).in_([(row.id, row.attempt) for row in rows]),
        values=values,
    )
    if matched != len(rows):
        raise RuntimeError(f"{matched} of {len(rows)} locked runs matched while they were queued again")
    failpoint("again:queued")
    attempts.keep(
        tx, [attempts.Ended(row, row.status, row.reason, row.error, row.finished_at) for row in rows]
    )
    deliveries.again(tx, [RunId(row.id) for row in rows])
    jobs.take_back_outcomes(tx, [(JobId(row.job_id), RunStatus(row.status)) for row in rows])
    return matched


@dataclass(frozen=True)
class Ended:
    """How an attempt ended; ``row`` is its run's, locked by the caller."""

    row: Any
    settlement: Settlement
    exceptions: Sequence[str] = ()
    """Full names of its exception's class and the bases of that."""


@dataclass(frozen=True)
class Ends:
    """What became of runs whose attempts ended: how many were settled, which are tried again, and when."""

    settled: int = 0
    again: Mapping[RunId, datetime] = field(default_factory=dict)


def end(
    tx: Tx,
    now: datetime,
    job_rows: Mapping[JobId, Any],
    ended: Sequence[Ended],
    *,
    sources: Collection[RunStatus] = HELD,
    guard: ColumnElement[bool] | None = None,
) -> Ends:
    """Settle held runs, or queue them again where their jobs' policies (``job_rows``, locked) say so.

    A run that was asked to stop is not tried again: one that failed then is cancelled.
    Token and attempt are checked as in :func:`~celery_sched.store.settle.settle`.
    """
    settlements: list[Settlement] = []
    retries: list[tuple[Ended, retry_rule.Again]] = []
    for one in ended:
        wanted = one.settlement
        if wanted.status in FAILURES and one.row.stop_requested_at is not None:
            settlements.append(replace(wanted, status=RunStatus.CANCELLED, reason=stop_text(one.row)))
            continue
        decided = _decide(one, job_rows.get(wanted.job_id))
        if isinstance(decided, retry_rule.Again):
            retries.append((one, decided))
        else:
            reason = "; ".join(text for text in (wanted.reason, decided.reason) if text)
            settlements.append(replace(wanted, reason=reason or None))
    alone = len(ended) == 1
    queued = _retry(tx, now, retries, sources, guard, alone)
    return Ends(settle(tx, now, settlements, sources=sources, guard=guard), queued)


def _decide(one: Ended, job_row: Any) -> retry_rule.Again | retry_rule.GiveUp:
    if job_row is None or one.settlement.status not in FAILURES:
        return retry_rule.GiveUp()
    try:
        job_forms.check_row(job_row)
        definition = job_forms.definition_of(job_row)
    except Exception as error:  # a row edited by plain SQL must not undo how a run ended
        return retry_rule.GiveUp(f"not tried again: its job cannot be read ({error})")
    if one.row.trigger_kind == Trigger.EVENT:  # delivered at least once, whatever the job says
        definition = replace(definition, requeue=True)
    return retry_rule.decide(
        definition,
        one.settlement.status,
        one.exceptions,
        run_id=RunId(one.row.id),
        attempt=one.row.attempt,
        retried=one.row.retried,
        requeued=one.row.requeued,
    )


def _retry(
    tx: Tx,
    now: datetime,
    retries: Sequence[tuple[Ended, retry_rule.Again]],
    sources: Collection[RunStatus],
    guard: ColumnElement[bool] | None,
    alone: bool,
) -> dict[RunId, datetime]:
    """Held runs wait for their next attempt: lock and slot are free, what the attempt came to is kept."""
    if not retries:
        return {}
    keys = {one.settlement.key.id: one.settlement.key for one, _ in retries}
    ready = {one.settlement.key.id: now + decided.after for one, decided in retries}
    matched = runs.transition(
        tx,
        RunStatus.QUEUED,
        sources=sources,
        match=and_(runs.held_by(list(keys.values())), true() if guard is None else guard),
        values={
            **_next_attempt(),
            **runs.CLEARED,
            "ready_at": runs.PerRun(ready),
            "retried": runs.PerRun({one.settlement.key.id: decided.retried for one, decided in retries}),
            "requeued": runs.PerRun({one.settlement.key.id: decided.requeued for one, decided in retries}),
        },
    )
    if matched != len(retries):
        if matched == 0 and alone:
            return {}
        raise RuntimeError(f"{matched} of {len(retries)} locked runs matched while they were queued again")
    failpoint("retry:queued")
    attempts.keep(
        tx,
        [
            attempts.Ended(one.row, one.settlement.status, one.settlement.reason, one.settlement.error, now)
            for one, _ in retries
        ],
    )
    jobs.unlock(tx, [(one.settlement.job_id, one.settlement.key.token) for one, _ in retries])
    return ready
