"""Manual: somebody runs a job by hand."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_sched.model import RunId, Trigger
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import runs
from celery_sched.store.engine import Tx


def manual(
    tx: Tx, now: datetime, row: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> RunId:
    """Queue a run of a job (``row``, locked by the caller, who asked the overlap rule).

    Guard: none; a run by hand is no occurrence and leaves the schedule and the mark alone.
    Locks: the job (by the caller).
    If it dies here: nothing was written.
    """
    run_id = RunId(str(uuid.uuid4()))
    runs.add(
        tx,
        [
            {
                **runs.from_job(row, now, args, kwargs),
                "id": run_id,
                "trigger_kind": Trigger.MANUAL.value,
                "scheduled_for": now,
                "status": RunStatus.QUEUED.value,
                "expires_at": None if row.expires is None else now + timedelta(seconds=row.expires),
                "args": None if args is None else list(args),
                "kwargs": None if kwargs is None else dict(kwargs),
            }
        ],
    )
    return run_id
