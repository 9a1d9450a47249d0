"""Plan: due jobs become queued runs; what does not run is recorded with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import JobDefinition, JobId, JobStatus, Overlap, RunId, Trigger
from celery_sched.rules import misfire, overlap
from celery_sched.rules.identity import occurrence_key, run_id
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import latest_in
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.turn import start_by
from celery_sched.rules.upcoming import jitter_of, over, schedule_of
from celery_sched.store import gaps, job_forms, jobs, notices, recent, runs, stopping
from celery_sched.store.apps import Downtime
from celery_sched.store.engine import Row, Tx

BATCH = 200
"""Jobs planned in one transaction."""
MOST_OF_ONE = 50
"""Occurrences of one job planned in one tick: a burst of one job does not hold up the others."""
FREQUENT = timedelta(seconds=10)
INSTANT = timedelta(microseconds=1)
SCHEDULER = "the scheduler"
"""Who asks a run to stop that is replaced."""


@dataclass(frozen=True)
class Planned:
    """``planned`` runs queued, ``skipped`` occurrences recorded, ``errors`` (job, reason), ``more`` due."""

    planned: int = 0
    skipped: int = 0
    missed: int = 0
    errors: tuple[tuple[str, str], ...] = ()
    frequent: tuple[tuple[str, float], ...] = ()
    """Jobs that fire more often than every 10 s, and how often."""
    full: tuple[tuple[str, str], ...] = ()
    """Jobs whose occurrences were skipped because as many wait as may, and the reason."""
    replaced: tuple[stopping.Stopped, ...] = ()
    """Runs that were asked to stop for a later one; the caller releases the slots of those `freed`."""
    never_ending: tuple[str, ...] = ()
    """Jobs whose last runs were all replaced."""
    more: bool = False


@dataclass(frozen=True)
class _Made:
    """One job's new rows: how many are queued, how many overlap skipped, and for which run others stop."""

    rows: Sequence[dict[str, Any]]
    queued: int
    skipped: int
    full: str | None = None
    replacing: Mapping[str, Any] | None = None


def plan(
    tx: Tx, now: datetime, config: Config, downtime: Downtime | None = None, *, latest_first: bool = False
) -> Planned:
    """Turn due occurrences into queued runs, whatever the cap.

    ``downtime`` is the last one of all schedulers, for the reasons. ``latest_first`` takes the jobs that came
    due last, so that a herd that is late delays none that is on time.

    A job that replaces, one of whose active runs somebody has locked just now, is left to the next pass: a
    silent worker then delays this job and no other.

    Guard: job active, next_run_at <= now and version unchanged; unique occurrence_key; high-water mark.
    Locks: due jobs, then the active runs of those that replace (both skip locked), then the new runs.
    If it dies here: nothing was written; the next pass of any scheduler plans the same.
    """
    rows = jobs.lock_due(tx, config.app, now, BATCH, latest_first=latest_first)
    if not rows:
        return Planned()
    replacing = [JobId(row.id) for row in rows if row.overlap == Overlap.REPLACE]
    replaceable = _lock_active(tx, replacing)
    active = runs.active_by_job(tx, [JobId(row.id) for row in rows])
    new: list[dict[str, Any]] = []
    new_gaps: list[Mapping[str, Any]] = []
    moves: list[jobs.Advance] = []
    decided: list[tuple[Any, misfire.Due]] = []
    errors: list[tuple[str, str]] = []
    full: list[tuple[str, str]] = []
    stops: list[tuple[Mapping[str, Any], Sequence[Row]]] = []
    for row in rows:
        job_id = JobId(row.id)
        running = active.get(job_id, runs.Active())
        if job_id in replacing and len(replaceable.get(job_id, ())) < running.count:
            continue
        try:
            job_forms.check_row(row)
            definition = job_forms.definition_of(row)
            times = jitter_of(row)
            due = _due(row, definition, times, now, running)
            made = _rows(row, definition, times, due, now, running, downtime)
            move = _advance(row, definition, due, made.queued, made.skipped + _missed(due))
        except Exception as error:  # one job's bad schedule never stops another's
            reason = f"{type(error).__name__}: {error}"
            errors.append((row.name, reason))
            new_gaps.append(gaps.in_error(row, now, reason))
            moves.append(
                jobs.Advance(
                    job_id, row.version, None, row.last_scheduled_for, status=JobStatus.ERROR, reason=reason
                )
            )
            continue
        new += made.rows
        if made.full is not None:
            full.append((row.name, made.full))
        if made.replacing is not None:
            stops.append((made.replacing, replaceable.get(job_id, ())))
        if due.gap is not None:
            new_gaps.append(gaps.of_missed(row, due.gap, now, downtime))
        if move.status is JobStatus.EXPIRED:
            new_gaps += gaps.beyond(row, times, due, now, move.reason)
        decided.append((row, due))
        moves.append(move)
    # a row edited by plain SQL may lead to an occurrence that has its run already
    known = runs.existing_keys(tx, [made["occurrence_key"] for made in new])
    new = [made for made in new if made["occurrence_key"] not in known]
    runs.add(tx, new)
    failpoint("plan:inserted")
    # those that have their run already replace nothing
    replaced = [
        one
        for made_for, others in stops
        if made_for["occurrence_key"] not in known
        for one in stopping.stop_runs(tx, now, others, SCHEDULER, replaced_by(made_for))
    ]
    gaps.add(tx, new_gaps)
    notices.note_skipped(tx, now, _skips(rows, new))
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
        full=tuple(full),
        replaced=tuple(replaced),
        never_ending=tuple(recent.always_replaced(tx, config.app, sorted({one.job for one in replaced}))),
        more=len(rows) == BATCH
        or any(due.next_run_at is not None and due.next_run_at <= now for _, due in decided),
    )


def _skips(rows: Sequence[Row], new: Sequence[Mapping[str, Any]]) -> list[tuple[Row, str]]:
    """The jobs of which something was skipped, with the last reason."""
    skipped = {made["job_id"]: made["reason"] for made in new if made["status"] == RunStatus.SKIPPED.value}
    return [(row, skipped[row.id]) for row in rows if row.id in skipped]


def _lock_active(tx: Tx, replacing: Sequence[JobId]) -> Mapping[JobId, Sequence[Row]]:
    """The active runs of jobs that replace, locked; what others have locked is left out."""
    found: dict[JobId, list[Row]] = {}
    if replacing:
        for row in runs.lock(tx, stopping.unfinished(replacing, regular=True), skip_locked=True):
            found.setdefault(JobId(row.job_id), []).append(row)
    return found


def replaced_by(made: Mapping[str, Any]) -> str:
    """Why a run stops for this new one."""
    occurrence = f"{made['scheduled_for']:%Y-%m-%dT%H:%M:%SZ}"
    return f"{overlap.REPLACED} the occurrence of {occurrence} (run {made['id']})"


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
) -> _Made:
    """The run rows of one job's occurrences."""
    made = [
        _row(row, occurrence, None, now, RunStatus.SKIPPED, _why_missed(occurrence, times, now, downtime))
        for occurrence in due.missed
    ]
    full, replacing = None, None
    queued = 0
    following = times.schedule.next_after(now) if due.waits else due.next_run_at
    first = start_by(due, following, now, behind=active.count > 0)
    for occurrence in due.run:
        decision = overlap.decide(
            definition.overlap,
            definition.misfire,
            active.count,
            definition.max_queued,
            active.one,
            waiting_run=active.waiting,
            behind_backfill=active.behind_backfill,
        )
        status = RunStatus.QUEUED if decision.queue else RunStatus.SKIPPED
        expiry = None if definition.expires is None else times.due(occurrence) + definition.expires
        made.append({**_row(row, occurrence, expiry, now, status, decision.reason), "start_by": first})
        if decision.queue:
            queued += 1
            active = active.with_one_more(RunId(made[-1]["id"]))
        elif (decision.reason or "").startswith(overlap.FULL):
            full = decision.reason
        if decision.replace:
            replacing = made[-1]
    return _Made(made, queued, len(due.run) - queued, full, replacing)


def _why_missed(occurrence: datetime, times: Jitter, now: datetime, downtime: Downtime | None) -> str:
    due_at = times.due(occurrence)
    if downtime is not None and downtime.covers(due_at):
        return f"{misfire.MISSED}: {downtime}"
    late = f"{(now - due_at).total_seconds():.1f}"
    return f"{misfire.MISSED}: found {late} s late"


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
        "id": run_id(row.app, row.created_at, key),
        "trigger_kind": Trigger.SCHEDULE.value,
        "scheduled_for": occurrence,
        "occurrence_key": key,
        "status": status.value,
        "reason": reason,
        "start_by": None,
        "expires_at": expires_at,
        "finished_at": now if status is RunStatus.SKIPPED else None,
    }
