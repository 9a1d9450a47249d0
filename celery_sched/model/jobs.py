"""Jobs, and the pools that their runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery_sched.model.kinds import (
    Backoff,
    DayMode,
    Dst,
    JobId,
    JobStatus,
    Misfire,
    OnExcluded,
    Overlap,
    RunId,
    Source,
)


@dataclass(frozen=True)
class JobDefinition:
    """What people decide about a job. Durations are timedelta; ``None`` means the setting's default."""

    name: str
    task: str
    schedule: str
    timezone: str = "UTC"
    dst: Dst = Dst.VIXIE
    day_mode: DayMode = DayMode.OR
    start_at: datetime | None = None
    """The first instant at which it may be due; ``every`` counts from it."""
    end_at: datetime | None = None
    """The last instant at which it may be due; then the job is ``expired``."""
    max_runs: int | None = None
    """Occurrences that become runs, no others; then the job is ``expired``."""
    jitter: timedelta | None = None
    """Each run is planned up to this much after its occurrence, and before the next one: by how much is made
    from the job's name and the occurrence, so it is the same on every node."""
    exclude: Sequence[str | Mapping[str, Any]] = ()
    """Calendars that exclude occurrences."""
    on_excluded: OnExcluded = OnExcluded.SKIP
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
    """Absolute, whatever the job's heartbeats say: then its process is killed."""
    soft_time_limit: timedelta | None = None
    """When ``SoftTimeLimitExceeded`` is raised in the task, which may then clean up."""
    heartbeat_timeout: timedelta | None = None
    """Once a run has sent a heartbeat, how long it may go without another one."""
    retries: int = 0
    """How often a run that failed, timed out or was lost is tried again."""
    backoff: Backoff = Backoff.EXPONENTIAL
    retry_delay: timedelta = timedelta(seconds=10)
    """The pause before the first retry."""
    retry_max_delay: timedelta = timedelta(hours=1)
    retry_jitter: bool = True
    """Whether each pause is shortened by up to half, made from the run's id and the attempt."""
    retry_on: Sequence[str] = ()
    """Names of exceptions (with or without their module; subclasses count) to retry on; empty: on all."""
    give_up_on: Sequence[str] = ()
    """Names of exceptions never to retry on."""
    requeue: bool = False
    """For idempotent jobs: a lost run is queued again at once, without counting as a retry."""
    pause_on_failure: int | None = None
    """So many failed runs in a row pause the job."""
    exclusive: bool = False
    """A worker that cannot renew the lease of a run ends it before anybody else may claim the next one."""
    on_lost: str | None = None
    """The task that puts right what a run that was lost, timed out or cancelled half-way has left behind."""
    must_succeed_by: str | None = None
    """``"06:00"`` in the job's zone, or an age (``"25h"``): an alert when no run has succeeded by then."""
    on: Mapping[str, Any] | None = None
    """The events that it subscribes to: topics, and how they are delivered (docs/events.md)."""
    publishes: str | None = None
    """The topic on which each of its runs that succeeds publishes its result."""
    priority: int = 5
    """0 (last) to 9 (first)."""
    pool: str = "default"
    weight: int = 1
    """How many slots of its pool a run takes."""
    concurrency_key: str | None = None
    """A template over the arguments (``"customer:{customer_id}"``): at most ``key_limit`` runs of one key are
    in flight, whatever their job."""
    key_limit: int = 1
    notify: Mapping[str, Any] | None = None
    """Who is told of what: ``on`` (kinds), ``to`` (names of targets), ``skips`` (how many in a row are too
    many); what is left out is as ``sched_notify`` says."""
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
    planned_count: int = 0
    """Occurrences that became runs: what ``max_runs`` looks at."""
    inactive_since: datetime | None = None
    timing_since: datetime | None = None
    """When its times were last changed; None: they are as they were when it was made."""
    last_success_at: datetime | None = None
    overdue_since: datetime | None = None
    """The deadline (``must_succeed_by``) that passed without a success; None: it has missed none."""
    failures_in_row: int = 0
    """Failed runs since the last one that succeeded: what ``pause_on_failure`` looks at."""
    operator_fields: tuple[str, ...] = ()
    """Definition fields changed by hand, which a sync from code leaves alone."""

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True)
class Pool:
    """A named set of slots; the row is the truth, the setting only creates it."""

    app: str
    name: str
    slots: int
