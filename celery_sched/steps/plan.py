"""Plan: due jobs become queued runs; what does not run is recorded with its reason."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import JobDefinition, JobId, JobStatus, RunId, Trigger
from celery_sched.rules import misfire, overlap
from celery_sched.rules.schedules import latest_in
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.upcoming import schedule_of
from celery_sched.store import gaps, job_forms, jobs, runs
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


def plan(tx: Tx, now: datetime, config: Config) -> Planned:
    """Turn due occurrences into queued runs, whatever the cap.

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
            definition = job_forms.definition_of(row)
            due = _due(row, definition, now)
        except Exception as error:  # one job's bad schedule never stops another's
            reason = f"{type(error).__name__}: {error}"
            errors.append((row.name, reason))
            moves.append(
                jobs.Advance(
                    job_id, row.version, None, row.last_scheduled_for, status=JobStatus.ERROR, reason=reason
                )
            )
            continue
        made, skipped = _rows(row, definition, due, now, active.get(job_id))
        new += made
        if due.gap is not None:
            new_gaps.append(_gap_row(row, due.gap, now))
        decided.append((row, due))
        moves.append(_advance(row, due, skipped + _missed(due)))
    # a row edited by plain SQL may lead to an occurrence that has its run already
    known = runs.existing_keys(tx, [made["occurrence_key"] for made in new])
    new = [made for made in new if made["occurrence_key"] not in known]
    runs.add(tx, new)
    failpoint("plan:inserted")
    gaps.add(tx, new_gaps)
    matched = jobs.advance(tx, moves)
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


def _advance(row: Any, due: misfire.Due, not_run: int) -> jobs.Advance:
    done = due.next_run_at is None
    return jobs.Advance(
        JobId(row.id),
        row.version,
        due.next_run_at,
        due.mark,
        skipped=not_run,
        status=JobStatus.EXPIRED if done else JobStatus.ACTIVE,
        reason="the schedule has no further occurrence" if done else None,
    )


def _frequent(decided: Sequence[tuple[Any, misfire.Due]]) -> Iterator[tuple[str, float]]:
    for row, due in decided:
        if due.next_run_at is None or due.mark is None:
            continue
        pause = due.next_run_at - due.mark
        # an instant set by hand (run_immediately) says nothing about the schedule
        if pause < FREQUENT and latest_in(schedule_of(row), due.mark - INSTANT, due.mark) is not None:
            yield row.name, pause.total_seconds()


def _due(row: Any, definition: JobDefinition, now: datetime) -> misfire.Due:
    return misfire.decide(
        schedule_of(row),
        policy=definition.misfire,
        grace=definition.misfire_grace,
        catchup_window=definition.catchup_window,
        due_at=row.next_run_at,
        mark=row.last_scheduled_for,
        now=now,
        most=MOST_OF_ONE,
    )


def _rows(
    row: Any, definition: JobDefinition, due: misfire.Due, now: datetime, active: tuple[int, RunId] | None
) -> tuple[Sequence[dict[str, Any]], int]:
    """The run rows of one job's occurrences, and how many of them overlap skipped."""
    made = [_row(row, definition, occurrence, now, RunStatus.SKIPPED, "missed") for occurrence in due.missed]
    count, live = active or (0, None)
    skipped = 0
    for occurrence in due.run:
        decision = overlap.decide(definition.overlap, definition.misfire, count, definition.max_queued, live)
        status = RunStatus.QUEUED if decision.queue else RunStatus.SKIPPED
        made.append(_row(row, definition, occurrence, now, status, decision.reason))
        if decision.queue:
            count, live = count + 1, live or made[-1]["id"]
        else:
            skipped += 1
    return made, skipped


def occurrence_key(job_id: JobId, occurrence: datetime) -> str:
    """Unique in the database: no occurrence has two runs."""
    return f"{job_id}@{occurrence:%Y%m%dT%H%M%S.%fZ}"


def _row(
    row: Any,
    definition: JobDefinition,
    occurrence: datetime,
    now: datetime,
    status: RunStatus,
    reason: str | None,
) -> dict[str, Any]:
    key = occurrence_key(JobId(row.id), occurrence)
    return {
        **runs.from_job(row, now),
        "id": str(uuid.uuid5(NAMESPACE, f"{row.app}:{key}:{row.created_at.isoformat()}")),
        "trigger_kind": Trigger.SCHEDULE.value,
        "scheduled_for": occurrence,
        "occurrence_key": key,
        "status": status.value,
        "reason": reason,
        "expires_at": _expiry(occurrence, definition.expires),
        "finished_at": now if status is RunStatus.SKIPPED else None,
    }


def _expiry(occurrence: datetime, expires: timedelta | None) -> datetime | None:
    return None if expires is None else occurrence + expires


def _gap_row(row: Any, gap: misfire.Gap, now: datetime) -> Mapping[str, Any]:
    return {
        "app": row.app,
        "job_id": row.id,
        "job": row.name,
        "from_at": gap.first,
        "to_at": gap.last,
        "reason": gap.reason,
        "count": gap.count,
        "created_at": now,
    }
