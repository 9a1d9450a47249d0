"""How instants, runs and statuses look on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_sched.cli.events import told
from celery_sched.cli.jobs import calendars, when
from celery_sched.cli.output import distance, plain, short
from celery_sched.cli.preview import Shown, local_text
from celery_sched.cli.preview import remark as remark_on
from celery_sched.durations import format_duration
from celery_sched.model import (
    Attempt,
    Backfill,
    BackfillStatus,
    DeliveryStatus,
    Event,
    Job,
    JobDefinition,
    JobStatus,
    NoticeStatus,
    Run,
)
from celery_sched.rules.schedules.none import NONE
from celery_sched.rules.transitions import RunStatus
from celery_sched.store.attempts import RETRY as ATTEMPT_RETRY
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
    BackfillStatus.DONE: Look("success", "✓"),
    NoticeStatus.SENT: Look("success", "✓"),
    NoticeStatus.SENDING: Look("info", "▶"),
    DeliveryStatus.PENDING: Look("secondary", "…"),
    DeliveryStatus.TAKEN: Look("info", "▶"),
    DeliveryStatus.DELIVERED: Look("success", "✓"),
    DeliveryStatus.DEAD: Look("danger", "✕"),
    DeliveryStatus.DROPPED: Look("warning", "–"),
    ATTEMPT_RETRY: Look("warning", "↻"),
}
SHOWN_REASON = 120
SHOWN_TEXT = 60
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


def timing(definition: JobDefinition) -> str:
    """When a job runs: its schedule, the topics of its events, or both."""
    return when(definition)


def has_times(definition: JobDefinition) -> bool:
    """Whether it has a schedule, so that its time zone means something."""
    return definition.schedule != NONE


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
    return "" if line.started_at is None else lasted(line.started_at, line.finished_at or now)


def lasted(begin: datetime, end: datetime) -> str:
    """How long it is from one instant to another."""
    seconds = max(0.0, (end - begin).total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    return format_duration(timedelta(seconds=round(seconds)))


def summary(line: RunLine, now: datetime) -> str:
    """A run in a sentence, for the square's title."""
    at = line.finished_at or line.started_at or line.queued_at
    parts = [words(line.status) + (f": {line.reason}" if line.reason else ""), ago(at, now)]
    while_for = took(line, now)
    if while_for:
        parts.append(f"took {while_for}" if line.finished_at else f"for {while_for}")
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


DEFAULTS = {
    field.name: field.default_factory() if field.default_factory is not MISSING else field.default
    for field in fields(JobDefinition)
}
TELLING = ("schedule", "timezone", "overlap", "misfire", "pool", "priority")
"""Fields of a definition that are shown where nobody set them too."""
OF_RETRIES = ("backoff", "retry_delay", "retry_max_delay", "retry_jitter")
"""Those that mean something once there are retries; then all of them are shown."""


def definition(job: Job) -> list[tuple[str, str]]:
    """A job's definition as rows: what was set, and what people ask for first."""
    rows = []
    for field in fields(JobDefinition):
        name, value = field.name, getattr(job.definition, field.name)
        wanted = name in TELLING or (bool(job.definition.retries) and name in OF_RETRIES)
        unset = value == DEFAULTS[name] or (isinstance(value, list) and not value)
        if name == "name" or (unset and not wanted and name not in job.operator_fields):
            continue
        text = setting(job.definition, name, value)
        if name in job.operator_fields:
            text = f"{text or 'none'} (changed by hand)"
        rows.append((words(name), text))
    return [*rows, ("from", "code" if job.source == "code" else "an operator")]


def setting(definition: JobDefinition, name: str, value: Any) -> str:
    """A field of a definition as people read it."""
    if value is None:
        return ""
    if name == "exclude":
        return calendars(definition)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return exact(value, definition.timezone)
    return format_duration(value) if isinstance(value, timedelta) else plain_text(plain(value))


def run_facts(run: Run, now: datetime, zone: str) -> list[tuple[str, str]]:
    """A run as rows; what has no value, is large or is shown elsewhere is left out."""
    rows = []
    for field in fields(Run):
        name, value = field.name, getattr(run, field.name)
        if value is None or name in ("id", "app", "job_id", "job", "status", "reason", "error", "result"):
            continue
        text = f"{exact(value, zone)}, {ago(value, now)}" if isinstance(value, datetime) else str(value)
        rows.append((words(name), text))
        if name == "finished_at" and run.started_at is not None:
            rows.append(("took", lasted(run.started_at, value)))
    return rows


@dataclass(frozen=True)
class Tried:
    """An attempt, over or not."""

    attempt: int
    status: str
    reason: str | None
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None


def attempts(run: Run, earlier: Sequence[Attempt]) -> list[Tried]:
    """All attempts of a run, the newest first: the run's own row tells of that one."""
    before = [
        Tried(one.attempt, one.status, one.reason, one.worker, one.started_at, one.ended_at, one.error)
        for one in reversed(earlier)
    ]
    latest = (run.status, run.reason, run.worker, run.started_at, run.finished_at, run.error)
    return [Tried(run.attempt, *latest), *before]


def clipped(text: str | None) -> str:
    """What anybody may have written, at its beginning."""
    return short(text or "", SHOWN_TEXT)


def came_of(event: Event) -> str:
    """What came of an event: ``2 delivered, 1 dead``."""
    if event.fanned_out_at is None:
        return "waits to be handed out"
    return told(event.deliveries) if event.deliveries else "no job wanted it"


def percent(finished: int, total: int) -> int:
    """How much of a backfill is done, in whole percent."""
    return 100 if total <= 0 else max(0, min(100, 100 * finished // total))


def outcomes(backfill: Backfill) -> str:
    """``40 succeeded, 2 failed, 1 in flight``."""
    counts = {
        "succeeded": backfill.succeeded,
        "failed": backfill.failed,
        "cancelled": backfill.cancelled,
        "in flight": backfill.in_flight,
        "queued": backfill.queued,
        "left as they were": backfill.left,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def remark(one: Shown, zone: ZoneInfo) -> str:
    """Why an occurrence is where it is, and when its run is due by the job's jitter."""
    return remark_on(one, zone)


def clock(value: datetime, zone: ZoneInfo) -> str:
    """An occurrence by the clock of its job's zone, with the day of the week."""
    return local_text(value, zone)


def plain_text(value: Any) -> str:
    """A value as text: JSON where it is not text already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
