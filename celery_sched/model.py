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
BackfillId = NewType("BackfillId", str)
EventId = NewType("EventId", int)


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
    QUEUE_ONE = "queue_one"
    REPLACE = "replace"
    CONCURRENT = "concurrent"


class Backoff(StrEnum):
    """How the pause before a retry grows: not at all, by ``retry_delay`` each time, twofold each time."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Misfire(StrEnum):
    """What happens to occurrences found late: one catch-up run, all of them, none."""

    ONCE = "once"
    ALL = "all"
    SKIP = "skip"


class Dst(StrEnum):
    """What a schedule does when the clocks change: as Debian's cron, or each time of the clock once."""

    VIXIE = "vixie"
    LITERAL = "literal"


class DayMode(StrEnum):
    """Cron's day of the month and day of the week, both given: one is enough (cron), or both must match."""

    OR = "or"
    AND = "and"


class OnExcluded(StrEnum):
    """What happens to an occurrence that a calendar excludes."""

    SKIP = "skip"
    NEXT_BUSINESS_DAY = "next_business_day"


class Trigger(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"
    ON_LOST = "on_lost"
    EVENT = "event"
    NOTIFY = "notify"


class Reprocess(StrEnum):
    """Which past occurrences that have run already a backfill runs again."""

    NONE = "none"
    FAILED = "failed"
    ALL = "all"


class BackfillStatus(StrEnum):
    """Where a backfill stands."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class Source(StrEnum):
    """Where a job's definition came from; only jobs from code are disabled when code loses them."""

    CODE = "code"
    OPERATOR = "operator"
    SYSTEM = "system"
    """The scheduler's own, made when it is first needed: what carries ``on_lost`` tasks, say."""


class NoticeKind(StrEnum):
    """What people are told of."""

    SUCCESS = "success"
    FAILURE = "failure"
    """Failed, or timed out."""
    LOST = "lost"
    RECOVERY = "recovery"
    """The first success after a failure that was told."""
    SKIPPED = "skipped"
    """Too many occurrences in a row were skipped."""
    DEADLINE = "deadline"
    """No run succeeded by ``must_succeed_by``."""
    PAUSED = "paused"
    """It failed too often (``pause_on_failure``)."""


class NoticeStatus(StrEnum):
    """Where a notification stands; ``listed``: it goes nowhere but into the list."""

    NEW = "new"
    SENDING = "sending"
    SENT = "sent"
    FAILED = "failed"
    LISTED = "listed"
    SUPPRESSED = "suppressed"
    """People have been told of it just before."""


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    """It waits for a run that carries it."""
    TAKEN = "taken"
    """A run carries it, which is not over."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Its run failed as often as it may: somebody has to look."""
    DROPPED = "dropped"
    """It was given up for a reason: a later event, a cancelled run, somebody's wish."""


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
class Event:
    """Something that was published on a topic."""

    id: EventId
    app: str
    topic: str
    payload: Any
    key: str | None
    dedupe_key: str | None
    hops: int
    """How many jobs published and were run for events on the way to it."""
    run_id: RunId | None
    """The run that published it."""
    published_at: datetime | None
    fanned_out_at: datetime | None
    """When the jobs that subscribe to it got their deliveries; None: not yet."""
    deliveries: Mapping[str, int]
    """How many it has, by status."""


@dataclass(frozen=True)
class Delivery:
    """One event's way to one job."""

    id: str
    app: str
    job: str | None
    """None: it was deleted."""
    event_id: EventId
    topic: str
    status: DeliveryStatus
    reason: str | None
    run_id: RunId | None
    """The run that carries it, with others when batched."""
    created_at: datetime
    finished_at: datetime | None


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


@dataclass(frozen=True)
class Notification:
    """Something that people are told, and where that stands."""

    id: int
    app: str
    kind: NoticeKind
    job: str | None
    about_run: RunId | None
    title: str
    text: str
    targets: Mapping[str, Mapping[str, Any]]
    """Where it goes -> ``status`` and, once it is sent, the ``run`` that does it; else ``reason``."""
    status: NoticeStatus
    reason: str | None
    created_at: datetime
    seen_at: datetime | None


@dataclass(frozen=True)
class Pool:
    """A named set of slots; the row is the truth, the setting only creates it."""

    app: str
    name: str
    slots: int
