"""Define: jobs are added, edited, paused, resumed; those in code are brought into the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_sched.config import Config
from celery_sched.model import JobDefinition, JobId, JobStatus, Source
from celery_sched.rules.upcoming import next_run_at, parsed, schedule_of
from celery_sched.store import apps, gaps, job_forms, jobs
from celery_sched.store.engine import Tx

GONE = "gone from code"
GONE_PAUSED = "gone from code while it was paused"
OFF = "disabled in its definition"
TIMING = frozenset({"schedule", "timezone"})


@dataclass(frozen=True)
class Synced:
    """Names of jobs by what happened; ``kept`` are fields that an operator changed, by job."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    kept: tuple[tuple[str, tuple[str, ...]], ...] = ()
    taken: tuple[str, ...] = ()
    """Names in code that an operator's own job has already: left alone."""


def create(
    tx: Tx,
    now: datetime,
    config: Config,
    definition: JobDefinition,
    source: Source,
) -> JobId:
    """Insert a checked definition as a new job.

    Guard: unique (app, name).
    Locks: none.
    If it dies here: nothing was written.
    """
    schedule = parsed(definition.schedule, definition.timezone, definition.name, now)
    upcoming = next_run_at(
        schedule, now=now, mark=None, run_immediately=definition.run_immediately, never_ran=True
    )
    status, reason = _status(definition.enabled, upcoming)
    return jobs.add(
        tx,
        now,
        config.app,
        definition,
        source=source,
        status=status,
        status_reason=reason,
        next_run_at=upcoming if status is JobStatus.ACTIVE else None,
        code_definition=job_forms.to_columns(definition) if source is Source.CODE else None,
    )


def change(tx: Tx, now: datetime, row: Any, changes: Mapping[str, Any], **columns: Any) -> bool:
    """Write some checked definition fields of a job (``row``, locked by the caller).

    The next instant is computed again, from the later of now and the mark, when the times changed or the job
    becomes active; a paused job stays paused.

    Guard: version unchanged.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    if not changes and not columns:
        return True
    definition = replace(job_forms.definition_of(row), **changes)
    written: dict[str, Any] = {
        **{name: job_forms.to_column(getattr(definition, name)) for name in changes},
        **columns,
    }
    timing = any(name in changes for name in TIMING)
    if timing or "enabled" in changes:
        written |= _standing(row, definition, now, timing) | _give_up(tx, now, row, "changed")
    return jobs.define(tx, now, JobId(row.id), row.version, written)


def pause(tx: Tx, now: datetime, row: Any, reason: str | None) -> bool:
    """Stop planning a job (``row``, locked by the caller).

    Guard: version unchanged.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    columns = {
        "status": JobStatus.PAUSED.value,
        "status_reason": reason,
        "next_run_at": None,
        **_give_up(tx, now, row, "paused"),
    }
    return jobs.define(tx, now, JobId(row.id), row.version, columns)


def resume(tx: Tx, now: datetime, row: Any) -> bool:
    """Plan a job again from the later of now and its mark: time spent paused is not missed.

    Guard: version unchanged.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    definition = replace(job_forms.definition_of(row), enabled=True)
    columns = {"enabled": True, **_standing(row, definition, now, True, resumed=True)}
    return jobs.define(tx, now, JobId(row.id), row.version, columns)


def sync(tx: Tx, now: datetime, config: Config, definitions: Sequence[JobDefinition]) -> Synced:
    """Bring the jobs in code into the database; other apps' jobs and operators' own jobs stay untouched.

    Guard: version unchanged, per job.
    Locks: the app's row (one scheduler syncs at a time), then its jobs.
    If it dies here: nothing was written; the next scheduler that starts does it.
    """
    apps.ensure(tx, config.app)
    apps.lock(tx, config.app)
    known = {row.name: row for row in jobs.lock_all(tx, config.app)}
    added, changed, disabled, taken = [], [], [], []
    kept: list[tuple[str, tuple[str, ...]]] = []
    for definition in definitions:
        row = known.get(definition.name)
        if row is None:
            create(tx, now, config, definition, Source.CODE)
            added.append(definition.name)
        elif row.source != Source.CODE:
            taken.append(definition.name)
        else:
            by_hand = job_forms.operator_fields(row)
            if _update(tx, now, row, definition, by_hand):
                changed.append(definition.name)
            if by_hand:
                kept.append((definition.name, by_hand))
    in_code = {definition.name for definition in definitions}
    for row in known.values():
        gone = row.source == Source.CODE and row.name not in in_code
        if gone and row.status_reason not in (GONE, GONE_PAUSED):
            reason = GONE_PAUSED if row.status == JobStatus.PAUSED else GONE
            columns = {
                "status": JobStatus.DISABLED.value,
                "status_reason": reason,
                "next_run_at": None,
                **_give_up(tx, now, row, GONE),
            }
            jobs.define(tx, now, JobId(row.id), row.version, columns)
            disabled.append(row.name)
    return Synced(tuple(added), tuple(changed), tuple(disabled), tuple(kept), tuple(taken))


def _update(tx: Tx, now: datetime, row: Any, definition: JobDefinition, by_hand: Sequence[str]) -> bool:
    """Write what code changed since it was last synced, except the fields that an operator changed."""
    columns = job_forms.to_columns(definition)
    was = row.code_definition or {}
    paused = row.status_reason == GONE_PAUSED
    returned = row.status == JobStatus.DISABLED and (paused or row.status_reason == GONE)
    if columns == was and not returned:
        return False
    changes = {
        name: getattr(definition, name)
        for name in job_forms.DEFINITION
        if name not in by_hand and job_forms.to_column(getattr(row, name)) != columns[name]
    }
    if returned:  # computes where it stands again; switched off by hand, it stays off
        changes["enabled"] = row.enabled if "enabled" in by_hand else definition.enabled
    change(tx, now, row, changes, code_definition=columns)
    if paused:  # a deploy that lacked the job for a while does not resume it
        current = jobs.lock(tx, [JobId(row.id)])[JobId(row.id)]
        pause(tx, now, current, "paused before it was gone from code")
    return True


def _give_up(tx: Tx, now: datetime, row: Any, what: str) -> dict[str, Any]:
    """Record what came due and is not planned yet: from now on nobody would plan it, and none may vanish."""
    due = row.next_run_at
    if row.status != JobStatus.ACTIVE or due is None or due > now:
        return {}
    schedule = schedule_of(row)
    # `due` counts even where it is no occurrence (run_immediately), as in the misfire rule
    last = schedule.latest_in(due, now) or due
    count = 1 + schedule.count_in(due, now)
    gaps.add(
        tx,
        [
            {
                "app": row.app,
                "job_id": row.id,
                "job": row.name,
                "from_at": due,
                "to_at": last,
                "reason": f"missed: late when the job was {what}",
                "count": count,
                "created_at": now,
            }
        ],
    )
    return {"last_scheduled_for": last, "skipped_count": row.skipped_count + count}


def _standing(
    row: Any, definition: JobDefinition, now: datetime, timing: bool, *, resumed: bool = False
) -> dict[str, Any]:
    """``status`` and ``next_run_at`` after an edit or a resume."""
    if row.status == JobStatus.PAUSED and definition.enabled and not resumed:
        return {}  # an edit never resumes; the resume computes the next instant
    schedule = parsed(definition.schedule, definition.timezone, definition.name, row.anchor)
    upcoming = next_run_at(
        schedule,
        now=now,
        mark=row.last_scheduled_for,
        run_immediately=definition.run_immediately,
        never_ran=row.last_scheduled_for is None and not timing,
    )
    status, reason = _status(definition.enabled, upcoming)
    return {
        "status": status.value,
        "status_reason": reason,
        "next_run_at": upcoming if status is JobStatus.ACTIVE else None,
    }


def _status(enabled: bool, upcoming: datetime | None) -> tuple[JobStatus, str | None]:
    if not enabled:
        return JobStatus.DISABLED, OFF
    if upcoming is None:
        return JobStatus.EXPIRED, "the schedule has no further occurrence"
    return JobStatus.ACTIVE, None
