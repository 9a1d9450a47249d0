"""How instants, runs and statuses look on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_sched.cli.output import distance, plain, short
from celery_sched.durations import format_duration
from celery_sched.model import Job, JobDefinition, JobStatus
from celery_sched.rules.transitions import RunStatus
from celery_sched.store.recent import Active, RunLine


@dataclass(frozen=True)
class Look:
    """A status as people see it: colour and sign, so that neither stands alone."""

    colour: str
    """A Bootstrap colour."""
    sign: str


LOOKS: Mapping[str, Look] = {
    RunStatus.QUEUED: Look("secondary", "…"),
    RunStatus.DISPATCHED: Look("info", "›"),
    RunStatus.RUNNING: Look("info", "▶"),
    RunStatus.SUCCEEDED: Look("success", "✓"),
    RunStatus.FAILED: Look("danger", "✕"),
    RunStatus.TIMED_OUT: Look("danger", "T"),
    RunStatus.LOST: Look("danger", "?"),
    RunStatus.CANCELLED: Look("warning", "■"),
    RunStatus.SKIPPED: Look("warning", "–"),
    JobStatus.ACTIVE: Look("success", "✓"),
    JobStatus.PAUSED: Look("warning", "‖"),
    JobStatus.DISABLED: Look("secondary", "–"),
    JobStatus.EXPIRED: Look("secondary", "–"),
    JobStatus.ERROR: Look("danger", "!"),
}
SHOWN_REASON = 120
FIRST_JOB = """\
from celery_sched import job


@job("*/5 * * * *")
def say_hello():
    return "hello"
"""
"""Here, as templates lose their line ends and indentation."""


def look(status: str) -> Look:
    """The look of a run's or a job's status; one that is not known is grey."""
    return LOOKS.get(status, Look("secondary", "?"))


def words(status: str) -> str:
    """``timed_out`` as ``timed out``."""
    return status.replace("_", " ")


def exact(value: datetime | None, zone: str = "UTC") -> str:
    """An instant to the second, in the job's zone and in UTC."""
    if value is None:
        return ""
    utc = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if zone == "UTC":
        return utc
    try:
        return f"{value.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z} ({utc})"
    except (ZoneInfoNotFoundError, ValueError):
        return utc  # a zone that this machine does not know


def ago(value: datetime | None, now: datetime) -> str:
    """``in 3m``, ``2h5m ago``."""
    return "" if value is None else distance(value, now)


def due(value: datetime, now: datetime) -> str:
    """``in 3m``, or ``due for 12s`` when no scheduler has planned it yet."""
    if value > now or distance(value, now) == "now":
        return distance(value, now)
    return f"due for {distance(value, now).removesuffix(' ago')}"


def took(line: RunLine, now: datetime) -> str:
    """How long a run has lasted: ``40 ms``, ``1.5 s``, ``2m5s``; empty when it has not started."""
    if line.started_at is None:
        return ""
    lasted = max(timedelta(0), (line.finished_at or now) - line.started_at)
    seconds = lasted.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    return format_duration(timedelta(seconds=round(seconds)))


def summary(line: RunLine, now: datetime) -> str:
    """A run in a sentence, for the square's title."""
    when = line.finished_at or line.started_at or line.queued_at
    parts = [words(line.status) + (f": {line.reason}" if line.reason else ""), ago(when, now)]
    lasted = took(line, now)
    if lasted:
        parts.append(f"took {lasted}" if line.finished_at else f"for {lasted}")
    if line.worker:
        parts.append(line.worker)
    if line.error:
        parts.append(short(line.error.strip().rpartition("\n")[2], SHOWN_REASON))
    return ", ".join(parts)


def lease(active: Active, now: datetime) -> str:
    """``lease: 45s left``: of the first that ends unless it is renewed; what is over awaits the sweep."""
    if active.lease_expires_at is None:
        return ""
    if active.lease_expires_at <= now:
        return "lease: over"
    return f"lease: {distance(active.lease_expires_at, now).removeprefix('in ')} left"


def last_line(text: str | None) -> str:
    """The last line of an error, which names it."""
    return short((text or "").strip().rpartition("\n")[2], SHOWN_REASON)


def definition(job: Job) -> list[tuple[str, str]]:
    """A job's definition as rows; what has no value is left out."""
    rows = []
    for field in fields(JobDefinition):
        value = getattr(job.definition, field.name)
        if field.name == "name" or value is None or value == {} or value in ("", (), []):
            continue
        text = format_duration(value) if isinstance(value, timedelta) else plain_text(plain(value))
        if field.name in job.operator_fields:
            text += " (changed by hand)"
        rows.append((words(field.name), text))
    return [*rows, ("from", "code" if job.source == "code" else "an operator")]


def plain_text(value: Any) -> str:
    """A value as text: JSON where it is not text already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
