"""What an occurrence and its run are called: the same whoever makes them, so none has two runs."""

from __future__ import annotations

import uuid
from datetime import datetime

from celery_sched.model import JobId, RunId

NAMESPACE = uuid.UUID("6f1c2f1e-0f5f-4b57-9d0c-6a5a3d7f7c11")


def occurrence_key(job_id: JobId, occurrence: datetime) -> str:
    """Unique in the database."""
    return f"{job_id}@{occurrence:%Y%m%dT%H%M%S.%fZ}"


def run_id(app: str, created_at: datetime, key: str) -> RunId:
    """The id of an occurrence's run. ``created_at`` is the job's: one made anew has runs of its own."""
    return RunId(str(uuid.uuid5(NAMESPACE, f"{app}:{key}:{created_at.isoformat()}")))
