"""Define: jobs are added, edited, paused, resumed; those in code are brought into the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition, JobId, JobStatus, Source
from celery_sched.rules.upcoming import TIMES, jitter_for, next_occurrence, over
from celery_sched.store import apps, job_forms, jobs, leaving, subscriptions
from celery_sched.store.engine import Tx

GONE = "gone from code"
GONE_PAUSED = "gone from code while it was paused"
OFF = "disabled in its definition"


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
    upcoming = None
    try:
        upcoming = _next_run_at(definition, now, anchor=now, mark=None, never_ran=True)
        status, reason = _status(definition, upcoming, planned=0)
    except InvalidValue as error:  # a rule that only the job's anchor leaves empty
        if source is not Source.CODE:
            raise
        # one job's bad schedule never keeps a scheduler from starting
        status, reason = JobStatus.ERROR, f"{type(error).__name__}: {error}"
    job_id = jobs.add(
        tx,
        now,
        config.app,
        definition,
        source=source,
        status=status,
        status_reason=reason,
        next_run_at=upcoming if status is JobStatus.ACTIVE else None,
        code_definition=job_forms.to_json(definition) if source is Source.CODE else None,
    )
    if definition.on is not None:
        subscriptions.follow(tx, now, config.app, job_id, definition.on)
    return job_id


def change(
    tx: Tx, now: datetime, row: Any, changes: Mapping[str, Any], *, synced: bool = False, **columns: Any
) -> bool:
    """Write some checked definition fields of a job (``row``, locked by the caller).

    The next instant is computed again, from the later of now and the mark, when the times changed or the job
    becomes active; a paused job stays paused.

    :param synced: the change comes from code: if it cannot be planned, the job is in error.
    :raises InvalidValue: times that have no occurrence with this job's anchor (else).

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
    if "must_succeed_by" in changes:
        written |= {"watched_since": now, "overdue_since": None}
    timing = any(name in changes for name in TIMES)
    if timing or "enabled" in changes:
        standing = _standing(row, definition, now, timing, synced=synced)
        written |= standing | leaving.leave(
            tx, now, row, JobStatus(standing.get("status", row.status)), "changed", timing
        )
    if "on" in changes:
        subscriptions.follow(tx, now, row.app, JobId(row.id), definition.on)
    return jobs.define(tx, now, JobId(row.id), row.version, written)


def pause(tx: Tx, now: datetime, row: Any, reason: str | None) -> bool:
    """Stop planning a job (``row``, locked by the caller).

    Guard: version unchanged.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    return leaving.pause(tx, now, row, reason)


def resume(tx: Tx, now: datetime, row: Any) -> bool:
    """Plan a job again from the later of now and its mark: time spent paused is not missed.

    Guard: version unchanged.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    definition = replace(job_forms.definition_of(row), enabled=True)
    standing = _standing(row, definition, now, True, resumed=True)
    columns = {
        "enabled": True,
        "failures_in_row": 0,  # else the next failure would pause it again
        **standing,
        **leaving.leave(tx, now, row, JobStatus(standing["status"]), "resumed"),
    }
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
                **leaving.leave(tx, now, row, JobStatus.DISABLED, GONE),
            }
            jobs.define(tx, now, JobId(row.id), row.version, columns)
            disabled.append(row.name)
    return Synced(tuple(added), tuple(changed), tuple(disabled), tuple(kept), tuple(taken))


def _update(tx: Tx, now: datetime, row: Any, definition: JobDefinition, by_hand: Sequence[str]) -> bool:
    """Write what code changed since it was last synced, except the fields that an operator changed."""
    columns = job_forms.to_json(definition)
    was = row.code_definition or {}
    paused = row.status_reason == GONE_PAUSED
    returned = row.status == JobStatus.DISABLED and (paused or row.status_reason == GONE)
    if columns == was and not returned:
        return False
    changes = {
        name: getattr(definition, name)
        for name in job_forms.DEFINITION
        if name not in by_hand and job_forms.json_value(getattr(row, name)) != columns[name]
    }
    if returned:  # computes where it stands again; switched off by hand, it stays off
        changes["enabled"] = row.enabled if "enabled" in by_hand else definition.enabled
    change(tx, now, row, changes, synced=True, code_definition=columns)
    if paused:  # a deploy that lacked the job for a while does not resume it
        current = jobs.lock(tx, [JobId(row.id)])[JobId(row.id)]
        pause(tx, now, current, "paused before it was gone from code")
    return True


def _standing(
    row: Any,
    definition: JobDefinition,
    now: datetime,
    timing: bool,
    *,
    resumed: bool = False,
    synced: bool = False,
) -> dict[str, Any]:
    """``status`` and ``next_run_at`` after an edit or a resume.

    What fails in a sync from code (beside a field that somebody changed, a zone that has vanished, say) puts
    that job in error, and the scheduler starts; people are told at once.
    """
    if row.status == JobStatus.PAUSED and definition.enabled and not resumed:
        return {}  # an edit never resumes; the resume computes the next instant
    try:
        upcoming = _next_run_at(
            definition,
            now,
            anchor=row.anchor,
            mark=row.last_scheduled_for,
            never_ran=row.last_scheduled_for is None and not timing,
        )
    except InvalidValue as error:
        if not synced:
            raise
        why = f"{type(error).__name__}: {error}"
        return {"status": JobStatus.ERROR.value, "status_reason": why, "next_run_at": None}
    status, reason = _status(definition, upcoming, row.planned_count)
    return {
        "status": status.value,
        "status_reason": reason,
        "next_run_at": upcoming if status is JobStatus.ACTIVE else None,
    }


def _next_run_at(
    definition: JobDefinition, now: datetime, *, anchor: datetime, mark: datetime | None, never_ran: bool
) -> datetime | None:
    times = jitter_for(definition, anchor)
    occurrence = next_occurrence(
        times.schedule,
        now=now,
        mark=mark,
        run_immediately=definition.run_immediately,
        never_ran=never_ran,
    )
    return occurrence if occurrence is None or occurrence <= now else times.due(occurrence)


def _status(
    definition: JobDefinition, upcoming: datetime | None, planned: int
) -> tuple[JobStatus, str | None]:
    if not definition.enabled:
        return JobStatus.DISABLED, OFF
    reason = over(definition, planned, upcoming is None)
    return (JobStatus.ACTIVE, None) if reason is None else (JobStatus.EXPIRED, reason)
