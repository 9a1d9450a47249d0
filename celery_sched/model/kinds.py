"""Ids, and the values of which a field has one."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

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
