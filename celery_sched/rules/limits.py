"""How long a body may run: from its start, or, once it has sent a heartbeat, from its last one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config


@dataclass(frozen=True)
class Limits:
    """What bounds the runs of a job. ``time_limit`` is absolute, whatever the heartbeats say."""

    max_runtime: timedelta
    heartbeat_timeout: timedelta
    time_limit: timedelta | None

    def deadline(self, started_at: datetime, beat_at: datetime | None = None) -> datetime:
        """When the body is overdue. A run that never sent a heartbeat is judged from its start."""
        found = started_at + self.max_runtime if beat_at is None else beat_at + self.heartbeat_timeout
        return found if self.time_limit is None else min(found, started_at + self.time_limit)

    def why_over(self, started_at: datetime, deadline_at: datetime, beat_at: datetime | None) -> str:
        """What the body exceeded when that deadline passed."""
        ran = _seconds(deadline_at - started_at)
        if self.time_limit is not None and deadline_at >= started_at + self.time_limit:
            return f"ran longer than its time_limit ({ran})"
        if beat_at is not None:
            return f"no heartbeat for {_seconds(deadline_at - beat_at)}"
        return f"ran longer than its max_runtime ({ran})"


def of(config: Config, row: Any) -> Limits:
    """The limits of a job's row: ``max_runtime`` only extends the setting.

    :param row: any row with the job's columns, also where the job is gone and they are NULL.
    """
    beat, limit = row.heartbeat_timeout, row.time_limit
    return Limits(
        max(config.max_runtime, timedelta(seconds=row.max_runtime or 0)),
        config.heartbeat_timeout if beat is None else timedelta(seconds=beat),
        None if limit is None else timedelta(seconds=limit),
    )


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
