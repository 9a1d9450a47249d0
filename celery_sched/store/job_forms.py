"""A job's forms: definition, columns, JSON, and what people see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.model import (
    Backoff,
    DayMode,
    Dst,
    Job,
    JobDefinition,
    JobId,
    JobStatus,
    Misfire,
    OnExcluded,
    Overlap,
    Source,
)

DEFINITION = tuple(field.name for field in fields(JobDefinition))
_DURATIONS = (
    *("misfire_grace", "catchup_window", "expires", "max_runtime", "time_limit", "soft_time_limit"),
    *("heartbeat_timeout", "retry_delay", "retry_max_delay", "jitter"),
)
_CHOICES = {
    "overlap": Overlap,
    "backoff": Backoff,
    "misfire": Misfire,
    "dst": Dst,
    "day_mode": DayMode,
    "on_excluded": OnExcluded,
}
_SHAPES: dict[str, type] = {"args": list, "kwargs": dict, "options": dict, "exclude": list}


def to_columns(definition: JobDefinition) -> dict[str, Any]:
    """A definition as column values (durations in seconds)."""
    return {name: to_column(getattr(definition, name)) for name in DEFINITION}


def to_column(value: Any) -> Any:
    """One definition field as a column value."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def to_json(definition: JobDefinition) -> dict[str, Any]:
    """A definition as JSON."""
    return {name: json_value(getattr(definition, name)) for name in DEFINITION}


def json_value(value: Any) -> Any:
    """One definition field, or its column value, as JSON."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return to_column(value)


def definition_of(row: Any) -> JobDefinition:
    """The definition in a row, a choice that does not exist as it is: :func:`check_row`."""
    values = {name: getattr(row, name) for name in DEFINITION}
    for name in _DURATIONS:
        if values[name] is not None:
            values[name] = timedelta(seconds=values[name])
    for name, kind in _CHOICES.items():
        if values[name] in list(kind):
            values[name] = kind(values[name])
    return JobDefinition(**values)


def check_row(row: Any) -> None:
    """Refuse what only plain SQL can write; such a row is shown and repaired all the same.

    :raises InvalidValue: names the field, its value and what is allowed.
    """
    for name, kind in _CHOICES.items():
        value = getattr(row, name)
        if value not in list(kind):
            raise InvalidValue(name, value, f"one of {', '.join(kind)}")
    for name, shape in _SHAPES.items():
        value = getattr(row, name)
        if not isinstance(value, shape):
            raise InvalidValue(name, value, f"JSON of {'a list' if shape is list else 'an object'}")


def from_row(row: Any) -> Job:
    """A job as people see it (never the lock's token)."""
    return Job(
        id=JobId(row.id),
        app=row.app,
        definition=definition_of(row),
        source=Source(row.source),
        status=JobStatus(row.status),
        status_reason=row.status_reason,
        version=row.version,
        next_run_at=row.next_run_at,
        last_scheduled_for=row.last_scheduled_for,
        locked_by=row.locked_by,
        locked_at=row.locked_at,
        lease_expires_at=getattr(row, "held_until", None),
        fence=row.fence,
        run_count=row.run_count,
        success_count=row.success_count,
        failure_count=row.failure_count,
        skipped_count=row.skipped_count,
        last_run_at=row.last_run_at,
        last_status=row.last_status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        anchor=row.anchor,
        planned_count=row.planned_count,
        last_success_at=row.last_success_at,
        overdue_since=row.overdue_since,
        failures_in_row=row.failures_in_row,
        inactive_since=row.inactive_since,
        timing_since=row.timing_since,
        operator_fields=operator_fields(row),
    )


def operator_fields(row: Any) -> tuple[str, ...]:
    """Fields of a job from code that were changed by hand since."""
    if row.code_definition is None:
        return ()
    return tuple(
        name
        for name in DEFINITION
        if name in row.code_definition and row.code_definition[name] != json_value(getattr(row, name))
    )
