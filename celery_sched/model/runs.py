"""Runs, their attempts and messages, backfills, and the processes that carry them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.model.kinds import (
    BackfillId,
    BackfillStatus,
    JobId,
    NodeId,
    NodeKind,
    Reprocess,
    RunId,
    Token,
    Trigger,
)


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
    soft_time_limit: timedelta | None = None
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
    parent_id: RunId | None = None
    """The run that it was made for: what it puts right, say."""
    weight: int | None = 1
    """Slots of its pool that it takes, or took; its job's weight when it was claimed: None before that."""
    concurrency_key: str | None = None
    """What its job's template made of its arguments."""


@dataclass(frozen=True)
class ManualRun(Run):
    """A run that somebody has just asked for, and whether it starts at once."""

    waits: str | None = None
    """What it waits for, in words; None: for nothing, it starts at the next poll."""
    waits_for: RunId | None = None
    """The run of the same job that goes first."""
    replaces: tuple[RunId, ...] = ()
    """Runs that were stopped for it."""


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run that is over, before the one that the run's own row tells of."""

    run_id: RunId
    attempt: int
    status: str
    """A run's, or ``retry``: its task asked Celery for a retry."""
    reason: str | None
    worker: str | None
    started_at: datetime | None
    """None: it never started."""
    ended_at: datetime
    error: str | None


@dataclass(frozen=True)
class Backfill:
    """Occurrences in [from_at, to_at] of a job that somebody has run, and how far that is."""

    id: BackfillId
    app: str
    job: str
    from_at: datetime
    to_at: datetime
    at: datetime
    """Everything up to here is dealt with."""
    max_concurrent: int
    reprocess: Reprocess
    status: BackfillStatus
    reason: str | None
    total: int
    """Occurrences in the range, counted when it was asked for."""
    created: int
    """Occurrences that had no run and got one."""
    again: int
    """Runs that are carried out again, as a new attempt."""
    left: int
    """Occurrences whose run was left as it is."""
    queued: int
    in_flight: int
    succeeded: int
    failed: int
    cancelled: int
    created_at: datetime
    created_by: str
    finished_at: datetime | None

    @property
    def finished(self) -> int:
        """Occurrences that it is through with."""
        return self.created + self.again + self.left - self.queued - self.in_flight


@dataclass(frozen=True)
class BackfillPreview:
    """What a backfill would have to do."""

    job: str
    total: int
    first: datetime
    last: datetime
    by_status: Mapping[str, int]
    """Runs that its occurrences have already."""
    timezone: str
    """The job's."""
    new: int
    """Occurrences that would get a run."""
    again: int
    """Runs that would be carried out again, as a new attempt."""
    left: Mapping[str, int]
    """The runs that would be left as they are, by status; ``unplanned``: what the schedule is to plan yet."""


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
    """Workers: queues, prefetch, acks_late, pool, concurrency, kills, gate. Schedulers: ready."""
    stop_requested_at: datetime | None
