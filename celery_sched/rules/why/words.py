"""What is known about a job at an instant, the answer, and the words that both are put in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from celery_sched.durations import format_duration
from celery_sched.model import Job, JobDefinition, Run
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.why.asked import Asked


class Outcome(StrEnum):
    """What happened at an instant, or why nothing did."""

    RAN = "ran"
    RUNNING = "running"
    WAITING = "waiting"
    CAPPED = "capped"
    SKIPPED = "skipped"
    MISSED = "missed"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"
    PAUSED = "paused"
    DISABLED = "disabled"
    ERROR = "error"
    EXCLUDED = "excluded"
    OUTSIDE = "outside"
    NOT_AN_OCCURRENCE = "not_an_occurrence"
    FUTURE = "future"
    UNPLANNED = "unplanned"
    BEFORE_JOB = "before_job"
    BEFORE_EDIT = "before_edit"
    PRUNED = "pruned"
    DELETED = "deleted"
    UNRECORDED = "unrecorded"


@dataclass(frozen=True)
class GapSeen:
    """Occurrences that were not run: the first, the last, how many (0: they could not be counted)."""

    from_at: datetime
    to_at: datetime
    count: int
    reason: str


@dataclass(frozen=True)
class Recorded:
    """A run with what only its row says."""

    run: Run
    expires_at: datetime | None = None
    at_capacity_at: datetime | None = None
    """When it first found no slot."""
    backfill_id: str | None = None
    publish_count: int = 0
    eta: datetime | None = None


@dataclass(frozen=True)
class Act:
    """Something that somebody did to the job."""

    at: datetime
    actor: str
    action: str


@dataclass(frozen=True)
class Slots:
    """A pool: its slots (None: there is no such pool) and how many are taken."""

    name: str
    slots: int | None
    held: int


@dataclass(frozen=True)
class Facts:
    """All that the database says about a job at an instant."""

    name: str
    asked: Asked
    at: datetime
    """The instant that is answered for: an occurrence near the one that was asked for, where there is one."""
    now: datetime
    zone: ZoneInfo
    keep: timedelta
    """Age at which records are deleted."""
    job: Job | None = None
    times: Jitter | None = None
    unreadable: str | None = None
    """Why there are no ``times``."""
    remedy: str = ""
    """How they are repaired."""
    recorded: Recorded | None = None
    gap: GapSeen | None = None
    other: Run | None = None
    """The run that is, or was, in the way."""
    slots: Slots | None = None
    waits: str | None = None
    """What a queued run whose time has come waits for, in words."""
    last_pass_at: datetime | None = None
    down: bool = False
    """No scheduler has passed for so long that none is alive."""
    enabled: bool = True
    earlier: JobDefinition | None = None
    """The times that the job had at ``at``, where they were others and the audit still has them."""
    then: Jitter | None = None
    """The times that it had at ``at``, read; None: nobody knows them."""
    edited: Act | None = None
    """Who changed its times after that."""
    deleted: Act | None = None
    paused: Act | None = None
    """Who paused it last before ``at``."""
    active: Sequence[Run] = ()
    """Its runs that are not finished, those under way first; the first few of ``active_count``."""
    active_count: int = 0
    deliveries: Mapping[str, int] = field(default_factory=dict)
    """How many deliveries of events it has, by status, in answer to ``now``."""
    put_right_by: Sequence[Run] = ()
    """Runs of its `on_lost` task that were made for the run."""
    last_end: datetime | None = None
    """When its last run ended, from which `after` counts."""


@dataclass(frozen=True)
class Why:
    """The answer. ``text`` is one or a few sentences; ``notes`` say how the time asked for was read."""

    job: str
    at: datetime
    outcome: Outcome
    text: str
    about: str = ""
    """The instant that the answer is about: in the job's zone, and in UTC where that is another."""
    occurrence: datetime | None = None
    """The occurrence (or the run's instant) that the answer is about; None: there is none."""
    due_at: datetime | None = None
    """When it is or was due: later than the occurrence by the job's jitter."""
    run: Run | None = None
    gap: GapSeen | None = None
    occurrence_before: datetime | None = None
    occurrence_after: datetime | None = None
    notes: Sequence[str] = ()
    next_steps: Sequence[str] = ()
    """Commands that help from here, after ``celery -A APP``."""


def local(at: datetime, facts: Facts) -> str:
    """``2026-03-29 03:00:00 CEST``: in the job's zone; with six digits more where it has a fraction."""
    shown = at.astimezone(facts.zone)
    fraction = f"{shown:.%f}" if shown.microsecond else ""
    return f"{shown:%Y-%m-%d %H:%M:%S}{fraction} {shown:%Z}"


def moment(at: datetime, facts: Facts) -> str:
    """The same to the second: for what somebody did at some time."""
    return local(at.replace(microsecond=0), facts)


def both(at: datetime, facts: Facts) -> str:
    """``2026-03-29 03:00:00 CEST (2026-03-29T01:00:00Z)``; the second only where the zone is not UTC."""
    shown = local(at, facts)
    return shown if facts.zone.key == "UTC" else f"{shown} ({utc(at)})"


def length(span: timedelta) -> str:
    """``1h2m``, ``0.25s``: to the hundredth of a second, of longer ones to the second."""
    digits = 2 if abs(span) < timedelta(minutes=1) else None
    return format_duration(timedelta(seconds=round(span.total_seconds(), digits)))


def utc(at: datetime) -> str:
    """As commands take it: ``2026-01-31T09:00:00Z``."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def command(*words: str) -> str:
    """A command that can be pasted."""
    return shlex.join(("sched", *words))


def by(act: Act | None, facts: Facts) -> str:
    """`` by somebody at 10:00``, or nothing."""
    return "" if act is None else f" by {act.actor} at {moment(act.at, facts)}"


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!", ".)")) else ".")
