"""Every occurrence of a job is a run, a skipped run, or lies in a counted gap: exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_sched.client import Client
from celery_sched.model import Run, Trigger
from celery_sched.runtime import Runtime
from celery_sched.store import gaps

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def runs_of(runtime: Runtime, job: str) -> list[Run]:
    """All runs that the job's schedule made, skipped ones too, oldest occurrence first."""
    found = Client(runtime).runs(job, limit=100_000)
    assert all(Trigger.SCHEDULE == run.trigger for run in found)
    return sorted(found, key=lambda run: run.scheduled_for)


def gaps_of(runtime: Runtime, job: str) -> list[Any]:
    """All gaps of a job, oldest first."""
    job_id = Client(runtime).get(job).id
    found = runtime.database.read(lambda tx, now: gaps.of_job(tx, job_id, limit=100_000))
    return sorted(found, key=lambda gap: gap.from_at)


def each_once(runtime: Runtime, job: str, period: timedelta, phase: datetime = EPOCH) -> Sequence[datetime]:
    """Fails unless every occurrence between the first and the last that is known has one record.

    ``period`` and ``phase``: the job's grid; a record that lies beside it fails too. Returns the occurrences.
    """
    recorded = [run.scheduled_for for run in runs_of(runtime, job)]
    for gap in gaps_of(runtime, job):
        inside = _grid(gap.from_at, gap.to_at, period, phase)
        assert gap.count == len(inside), (job, gap)
        recorded += inside
    recorded.sort()
    assert _grid(recorded[0], recorded[-1], period, phase) == recorded, job
    return recorded


def _grid(first: datetime, last: datetime, period: timedelta, phase: datetime) -> list[datetime]:
    """The instants of the grid in [first, last]."""
    at = phase - (phase - first) // period * period
    found = []
    while at <= last:
        found.append(at)
        at += period
    return found
