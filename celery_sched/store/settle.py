"""Runs reach a terminal status: outcome, statistics, the job's lock and the slot, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, select, true

from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, NoticeKind, RunId, RunKey, Token
from celery_sched.rules.transitions import FAILURES, HELD, TERMINAL, RunStatus
from celery_sched.store import audit, ends, jobs, leaving, notices, runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

TEXT_LIMIT = 64 * 1024
"""Longest error or result kept, in bytes of UTF-8."""


@dataclass(frozen=True)
class Settlement:
    """How one held run ends."""

    key: RunKey
    job_id: JobId
    status: RunStatus
    reason: str | None = None
    error: str | None = None
    result: str | None = None


def settle(
    tx: Tx,
    now: datetime,
    settlements: Sequence[Settlement],
    *,
    sources: Collection[RunStatus] = HELD,
    guard: ColumnElement[bool] | None = None,
) -> int:
    """Settle held runs whose token and attempt still match (and ``guard``); return how many did.

    The caller holds the jobs' rows (and, for more than one run, the runs' rows), so either all match or,
    for a single one whose token is gone, none does and nothing is written.

    :raises RuntimeError: only some of several matched: the caller did not lock them. Rolls back.
    """
    if not settlements:
        return 0
    matched = 0
    for status in sorted({settlement.status for settlement in settlements}):
        if status not in TERMINAL:
            raise ValueError(f"{status} is not a way for a run to end")
        group = [s for s in settlements if s.status is status]
        count = runs.transition(
            tx,
            status,
            sources=sources,
            match=and_(runs.held_by([s.key for s in group]), true() if guard is None else guard),
            values={
                **runs.CLEARED,
                "finished_at": now,
                "reason": runs.PerRun({s.key.id: bounded(s.reason, 1000) for s in group}),
                "error": runs.PerRun({s.key.id: bounded(s.error) for s in group}),
                "result": runs.PerRun({s.key.id: bounded(s.result) for s in group}),
            },
        )
        if count not in (0, len(group)) or (count == 0 and len(settlements) > 1):
            raise RuntimeError(f"{count} of {len(group)} locked runs matched while settling")
        if count:
            failpoint("settle:moved")
            matched += count
            jobs.count_outcomes(tx, now, [(s.job_id, s.status) for s in group])
            jobs.unlock(tx, [(s.job_id, s.key.token) for s in group])
    if matched:
        _pause_failing(tx, now, {s.job_id for s in settlements if s.status in FAILURES})
        jobs.rearm(tx, now, {s.job_id for s in settlements})
        ends.after(tx, now, {s.key.id for s in settlements})
    return matched


def _pause_failing(tx: Tx, now: datetime, ids: Collection[JobId]) -> None:
    """Pause those of these jobs (locked by the caller) that failed ``pause_on_failure`` times in a row."""
    for row in jobs.failing(tx, ids) if ids else ():
        reason = f"{row.failures_in_row} failed runs in a row (pause_on_failure)"
        if not leaving.pause(tx, now, row, reason):
            raise RuntimeError("a job was not locked while its run ended")
        audit.add(tx, now, row.app, "pause_on_failure", "pause", row.name, {"reason": reason})
        notices.note_job(tx, now, row, NoticeKind.PAUSED, reason)


def settle_waiting(
    tx: Tx, now: datetime, rows: Sequence[Row[Any]], status: RunStatus, reason: str, **values: Any
) -> int:
    """Settle queued runs (rows and their jobs locked by the caller), which hold neither lock nor slot."""
    if not rows:
        return 0
    count = runs.transition(
        tx,
        status,
        sources={RunStatus.QUEUED},
        match=run.c.id.in_([row.id for row in rows]),
        values={"finished_at": now, "reason": bounded(reason, 1000), **values},
    )
    if count != len(rows):
        raise RuntimeError(f"{count} of {len(rows)} locked queued runs matched while settling")
    jobs.count_outcomes(tx, now, [(JobId(row.job_id), status) for row in rows])
    jobs.rearm(tx, now, {JobId(row.job_id) for row in rows})
    ends.after(tx, now, {RunId(row.id) for row in rows})
    return count


def put_back(tx: Tx, holders: Sequence[tuple[JobId, RunKey]]) -> int:
    """Dispatched runs that certainly never reached the broker wait again; return how many did.

    Lock and slot are freed, the attempt is kept. A run that a worker has received after all stays.
    The caller holds the jobs' rows.
    """
    moved: list[tuple[JobId, Token]] = []
    for job_id, key in sorted(holders, key=lambda holder: holder[1].id):
        count = runs.transition(
            tx,
            RunStatus.QUEUED,
            sources={RunStatus.DISPATCHED},
            match=and_(runs.held_by([key]), run.c.received_at.is_(None), run.c.published_at.is_(None)),
            values={**runs.CLEARED, "dispatched_at": None},
        )
        if count:
            moved.append((job_id, key.token))
    jobs.unlock(tx, moved)
    return len(moved)


def stop_text(row: Any) -> str:
    """Who asked a run to stop, and why: the reason of its end."""
    return f"stopped by {row.stop_requested_by}: {row.stop_reason or 'no reason given'}"


def job_of(tx: Tx, run_id: RunId) -> JobId | None:
    """Which job a run belongs to (it never changes, so it needs no lock)."""
    found = tx.execute(select(run.c.job_id).where(run.c.id == run_id)).scalar()
    return None if found is None else JobId(found)


def bounded(text: str | None, limit: int = TEXT_LIMIT) -> str | None:
    """``text``, shortened in the middle to at most ``limit`` bytes of UTF-8, and without NUL characters.

    The end of a traceback says more than its beginning, so a third of the room goes to the beginning.
    """
    if text is None:
        return None
    text = text.replace("\x00", "\\x00")
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    mark = b"\n... shortened ...\n" if limit > 100 else b"..."
    head = (limit - len(mark)) // 3
    tail = limit - len(mark) - head
    return raw[:head].decode(errors="ignore") + mark.decode() + raw[-tail:].decode(errors="ignore")
