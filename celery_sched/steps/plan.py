"""Plan: due jobs become queued runs; what does not run is recorded with its reason."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import JobDefinition, JobId, JobStatus, Trigger
from celery_sched.rules import misfire, overlap
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import latest_in
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.upcoming import jitter_of, over, schedule_of
from celery_sched.store import gaps, job_forms, jobs, runs
from celery_sched.store.apps import Downtime
from celery_sched.store.engine import Tx

BATCH = 200
"""Jobs planned in one transaction."""
MOST_OF_ONE = 50
"""Occurrences of one job planned in one tick: a burst of one job does not hold up the others."""
FREQUENT = timedelta(seconds=10)
INSTANT = timedelta(microseconds=1)
NAMESPACE = uuid.UUID("6f1c2f1e-0f5f-4b57-9d0c-6a5a3d7f7c11")


@dataclass(frozen=True)
class Planned:
    """``planned`` runs queued, ``skipped`` occurrences recorded, ``errors`` (job, reason), ``more`` due."""

    planned: int = 0
    skipped: int = 0
    missed: int = 0
    errors: tuple[tuple[str, str], ...] = ()
    frequent: tuple[tuple[str, float], ...] = ()
    """Jobs that fire more often than every 10 s, and how often."""
    more: bool = False


def plan(tx: Tx, now: datetime, config: Config, downtime: Downtime | None = None) -> Planned:
    """Turn due occurrences into queued runs, whatever the cap.

    ``downtime`` is the last one of all schedulers, for the reasons.

    Guard: job active, next_run_at <= now and version unchanged; unique occurrence_key; high-water mark.
    Locks: due jobs (skip locked), then the new runs.
    If it dies here: nothing was written; the next pass of any scheduler plans the same.
    """
    rows = jobs.lock_due(tx, config.app, now, BATCH)
    if not rows:
        return Planned()
    active = runs.active_by_job(tx, [JobId(row.id) for row in rows])
    new: list[dict[str, Any]] = []
    new_gaps: list[Mapping[str, Any]] = []
    moves: list[jobs.Advance] = []
    decided: list[tuple[Any, misfire.Due]] = []
    errors: list[tuple[str, str]] = []
    for row in rows:
        job_id = JobId(row.id)
        try:
            job_forms.check_row(row)
            definition = job_forms.definition_of(row)
            times = jitter_of(row)
            running = active.get(job_id, runs.Active())
            due = _due(row, definition, times, now, running)
            made, queued, skipped = _rows(row, definition, times, due, now, running, downtime)
            move = _advance(row, definition, due, queued, skipped + _missed(due))
        except Exception as error:  # one job's bad schedule never stops another's
            reason = f"{type(error).__name__}: {error}"
            errors.append((row.name, reason))
            new_gaps.append(_gap_in_error(row, now, reason))
            moves.append(
                jobs.Advance(
                    job_id, row.version, None, row.last_scheduled_for, status=JobStatus.ERROR, reason=reason
                )
            )
            continue
        new += made
        if due.gap is not None:
            new_gaps.append(_gap_row(row, due.gap, now, downtime))
        if move.status is JobStatus.EXPIRED:
            new_gaps += _gap_beyond(row, times, due, now, move.reason)
        decided.append((row, due))
        moves.append(move)
    # a row edited by plain SQL may lead to an occurrence that has its run already
    known = runs.existing_keys(tx, [made["occurrence_key"] for made in new])
    new = [made for made in new if made["occurrence_key"] not in known]
    runs.add(tx, new)
    failpoint("plan:inserted")
    gaps.add(tx, new_gaps)
    matched = jobs.advance(tx, now, moves)
    if matched != len(moves):
        raise RuntimeError(f"{matched} of {len(moves)} locked jobs matched while planning")
    queued = sum(made["status"] == RunStatus.QUEUED.value for made in new)
    return Planned(
        planned=queued,
        skipped=len(new) - queued,
        missed=sum(_missed(due) for _, due in decided),
        errors=tuple(errors),
        frequent=tuple(_frequent(decided)),
        more=len(rows) == BATCH
        or any(due.next_run_at is not None and due.next_run_at <= now for _, due in decided),
    )


def _missed(due: misfire.Due) -> int:
    return len(due.missed) + (due.gap.count if due.gap else 0)


def _advance(
    row: Any, definition: JobDefinition, due: misfire.Due, queued: int, not_run: int
) -> jobs.Advance:
    move = jobs.Advance(
        JobId(row.id), row.version, due.next_run_at, due.mark, planned=queued, skipped=not_run
    )
    reason = over(definition, row.planned_count + queued, due.next_run_at is None and not due.waits)
    return (
        move if reason is None else replace(move, next_run_at=None, status=JobStatus.EXPIRED, reason=reason)
    )


def _frequent(decided: Sequence[tuple[Any, misfire.Due]]) -> Iterator[tuple[str, float]]:
    for row, due in decided:
        if due.next_run_at is None or due.mark is None:
            continue
        pause = due.next_run_at - due.mark
        # an instant set by hand (run_immediately) says nothing about the schedule
        if pause < FREQUENT and latest_in(schedule_of(row), due.mark - INSTANT, due.mark) is not None:
            yield row.name, pause.total_seconds()


def _due(
    row: Any, definition: JobDefinition, times: Jitter, now: datetime, active: runs.Active
) -> misfire.Due:
    policies: dict[str, Any] = {
        "policy": definition.misfire,
        "grace": definition.misfire_grace,
        "catchup_window": definition.catchup_window,
        "due_at": row.next_run_at,
        "mark": row.last_scheduled_for,
        "now": now,
    }
    if times.schedule.kind == "after":
        return misfire.decide_after(times.schedule, **policies, active=active.count + active.backfill)
    most = MOST_OF_ONE
    if definition.max_runs is not None:
        most = max(min(most, definition.max_runs - row.planned_count), 1)
    return misfire.decide(times.schedule, **policies, most=most, jitter=times)


def _rows(
    row: Any,
    definition: JobDefinition,
    times: Jitter,
    due: misfire.Due,
    now: datetime,
    active: runs.Active,
    downtime: Downtime | None,
) -> tuple[Sequence[dict[str, Any]], int, int]:
    """The run rows of one job's occurrences; how many of them are queued, and how many overlap skipped."""
    made = [
        _row(row, occurrence, None, now, RunStatus.SKIPPED, _why_missed(occurrence, times, now, downtime))
        for occurrence in due.missed
    ]
    count, live = active.count, active.one
    queued = 0
    for occurrence in due.run:
        decision = overlap.decide(
            definition.overlap,
            definition.misfire,
            count,
            definition.max_queued,
            live,
            behind_backfill=active.behind_backfill,
        )
        status = RunStatus.QUEUED if decision.queue else RunStatus.SKIPPED
        expiry = None if definition.expires is None else times.due(occurrence) + definition.expires
        made.append(_row(row, occurrence, expiry, now, status, decision.reason))
        if decision.queue:
            count, queued, live = count + 1, queued + 1, live or made[-1]["id"]
    return made, queued, len(due.run) - queued


def _why_missed(occurrence: datetime, times: Jitter, now: datetime, downtime: Downtime | None) -> str:
    due_at = times.due(occurrence)
    if downtime is not None and downtime.covers(due_at):
        return f"{misfire.MISSED}: {downtime}"
    late = f"{(now - due_at).total_seconds():.1f}"
    return f"{misfire.MISSED}: found {late} s late"


def occurrence_key(job_id: JobId, occurrence: datetime) -> str:
    """Unique in the database: no occurrence has two runs."""
    return f"{job_id}@{occurrence:%Y%m%dT%H%M%S.%fZ}"


def run_id_of(row: Any, key: str) -> str:
    """The id of an occurrence's run: the same whoever makes it."""
    return str(uuid.uuid5(NAMESPACE, f"{row.app}:{key}:{row.created_at.isoformat()}"))


def _row(
    row: Any,
    occurrence: datetime,
    expires_at: datetime | None,
    now: datetime,
    status: RunStatus,
    reason: str | None,
) -> dict[str, Any]:
    key = occurrence_key(JobId(row.id), occurrence)
    return {
        **runs.from_job(row, now),
        "id": run_id_of(row, key),
        "trigger_kind": Trigger.SCHEDULE.value,
        "scheduled_for": occurrence,
        "occurrence_key": key,
        "status": status.value,
        "reason": reason,
        "expires_at": expires_at,
        "finished_at": now if status is RunStatus.SKIPPED else None,
    }


def _gap_row(row: Any, gap: misfire.Gap, now: datetime, downtime: Downtime | None) -> Mapping[str, Any]:
    reason = gap.reason
    if downtime is not None and downtime.covers(gap.last):
        reason = f"{reason}: {downtime}" if reason == misfire.MISSED else f"{reason}; {downtime}"
    return gaps.row_of(row, now, gap.first, gap.last, gap.count, reason)


def _gap_in_error(row: Any, now: datetime, reason: str) -> Mapping[str, Any]:
    """What was due when the job could not be planned: how many occurrences that are nobody can say."""
    first = row.next_run_at - timedelta(seconds=row.jitter or 0)
    if row.last_scheduled_for is not None:
        first = max(first, row.last_scheduled_for + INSTANT)
    return gaps.row_of(row, now, first, now, 0, f"{JobStatus.ERROR}: {reason}")


def _gap_beyond(
    row: Any, times: Jitter, due: misfire.Due, now: datetime, reason: str | None
) -> list[Mapping[str, Any]]:
    """What was due too when ``max_runs`` was reached."""
    schedule = times.schedule
    if schedule.kind == "after" or due.mark is None:
        return []
    first, last = schedule.next_after(due.mark), schedule.latest_in(due.mark, now)
    if first is None or last is None:
        return []
    count = schedule.count_in(due.mark, now)
    return [gaps.row_of(row, now, first, last, count, f"{JobStatus.EXPIRED}: {reason}")]
