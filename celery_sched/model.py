"""The things the scheduler speaks of, as frozen values. No I/O, no Celery, no SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NewType

JobId = NewType("JobId", int)
RunId = NewType("RunId", str)
Token = NewType("Token", str)
NodeId = NewType("NodeId", str)


class JobStatus(StrEnum):
    """Whether a job is planned. ``error``, ``disabled`` and ``expired`` have a ``status_reason``."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    EXPIRED = "expired"
    ERROR = "error"


class Overlap(StrEnum):
    """What happens when an occurrence comes while the job has an active run."""

    SKIP = "skip"
    QUEUE = "queue"
    CONCURRENT = "concurrent"


class Misfire(StrEnum):
    """What happens to occurrences found late: one catch-up run, all of them, none."""

    ONCE = "once"
    ALL = "all"
    SKIP = "skip"


class Trigger(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    MANUAL = "manual"


class Source(StrEnum):
    """Where a job's definition came from; only jobs from code are disabled when code loses them."""

    CODE = "code"
    OPERATOR = "operator"


class NodeKind(StrEnum):
    SCHEDULER = "scheduler"
    WORKER = "worker"


@dataclass(frozen=True)
class JobDefinition:
    """What people decide about a job. Durations are timedelta; ``None`` means the setting's default."""

    name: str
    task: str
    schedule: str
    timezone: str = "UTC"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Celery message options: queue, exchange, routing_key, priority, headers."""
    overlap: Overlap = Overlap.SKIP
    max_queued: int = 1000
    """Most runs that may wait when ``overlap`` is ``queue``; more are skipped (``queue_full``)."""
    misfire: Misfire = Misfire.ONCE
    misfire_grace: timedelta | None = None
    catchup_window: timedelta = timedelta(days=365)
    expires: timedelta | None = None
    """A run that could not start within this time of its occurrence is skipped (``expired``)."""
    max_runtime: timedelta | None = None
    time_limit: timedelta | None = None
    priority: int = 5
    """0 (last) to 9 (first)."""
    pool: str = "default"
    run_immediately: bool = False
    enabled: bool = True
    description: str = ""


@dataclass(frozen=True)
class Job:
    """A job's row: its definition and where it stands. Never holds the lock's token."""

    id: JobId
    app: str
    definition: JobDefinition
    source: Source
    status: JobStatus
    status_reason: str | None
    version: int
    next_run_at: datetime | None
    last_scheduled_for: datetime | None
    locked_by: RunId | None
    locked_at: datetime | None
    lease_expires_at: datetime | None
    fence: int
    run_count: int
    success_count: int
    failure_count: int
    skipped_count: int
    last_run_at: datetime | None
    last_status: str | None
    created_at: datetime
    updated_at: datetime
    anchor: datetime
    """What ``every`` counts from; a restart or an edit never moves it."""
    operator_fields: tuple[str, ...] = ()
    """Definition fields changed by hand, which a sync from code leaves alone."""

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True)
class RunKey:
    """The right to write to a run: its id, the token of its claim, its attempt."""

    id: RunId
    token: Token
    attempt: int


@dataclass(frozen=True)
class Dispatch:
    """A claimed run with all that its message needs."""

    key: RunKey
    app: str
    job_id: JobId
    job: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    scheduled_for: datetime
    fence: int
    pool: str
    time_limit: timedelta | None = None
    eta: datetime | None = None
    """Celery's own retry: never delivered before this instant."""
    retries: int = 0


@dataclass(frozen=True)
class Run:
    """A run's row as people see it."""

    id: RunId
    app: str
    job_id: JobId
    job: str
    task: str
    trigger: Trigger
    scheduled_for: datetime
    status: str
    reason: str | None
    attempt: int
    fence: int | None
    pool: str
    priority: int
    queued_at: datetime
    ready_at: datetime
    dispatched_at: datetime | None
    published_at: datetime | None
    received_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lease_expires_at: datetime | None
    deadline_at: datetime | None
    worker: str | None
    """The worker's Celery node name."""
    stop_requested_at: datetime | None
    stop_requested_by: str | None
    stop_reason: str | None
    error: str | None
    result: str | None
    """JSON text, at most 64 KiB."""


@dataclass(frozen=True)
class Node:
    """A scheduler or worker process: a UUID a process, never a host name."""

    id: NodeId
    app: str
    kind: NodeKind
    host: str
    pid: int
    name: str
    version: str
    started_at: datetime
    last_seen: datetime
    facts: Mapping[str, Any]
    """Workers: queues, prefetch, acks_late, pool, concurrency, gate. Schedulers: ready."""
    stop_requested_at: datetime | None


@dataclass(frozen=True)
class Pool:
    """A named set of slots; the row is the truth, the setting only creates it."""

    app: str
    name: str
    slots: int
