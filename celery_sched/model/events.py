"""Events and their deliveries, and what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_sched.model.kinds import (
    DeliveryStatus,
    EventId,
    NoticeKind,
    NoticeStatus,
    RunId,
)


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
