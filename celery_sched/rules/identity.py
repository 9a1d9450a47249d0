"""What an occurrence and its run are called: the same whoever makes them, so none has two runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime

from celery_sched.model import JobId, RunId

NAMESPACE = uuid.UUID("6f1c2f1e-0f5f-4b57-9d0c-6a5a3d7f7c11")


def occurrence_key(job_id: JobId, occurrence: datetime) -> str:
    """Unique in the database."""
    return f"{job_id}@{occurrence:%Y%m%dT%H%M%S.%fZ}"


def delivery_id(subscription_id: str, event_id: int) -> str:
    """The id of an event's delivery to a subscription."""
    return str(uuid.uuid5(NAMESPACE, f"delivery:{subscription_id}:{event_id}"))


def carrier_id(deliveries: Iterable[str]) -> RunId:
    """The id of the run that carries these deliveries."""
    return RunId(str(uuid.uuid5(NAMESPACE, f"carries:{','.join(deliveries)}")))


def run_id(app: str, created_at: datetime, key: str) -> RunId:
    """The id of an occurrence's run. ``created_at`` is the job's: one made anew has runs of its own."""
    return RunId(str(uuid.uuid5(NAMESPACE, f"{app}:{key}:{created_at.isoformat()}")))


def follower_id(kind: str, run_id: str, attempt: int, fence: int | None) -> RunId:
    """The id of the run that follows the end of a run's attempt.

    With its fencing number: a run that was pruned may be made anew (by a backfill) under the same id, and
    begins with attempt 1 again.
    """
    return RunId(str(uuid.uuid5(NAMESPACE, f"{kind}:{run_id}:{attempt}:{fence}")))
