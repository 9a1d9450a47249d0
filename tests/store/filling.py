"""Backfills on a bench: a job that is due at each full hour, and a backfill that is worked off."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery_sched.model import Backfill, RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.store.world import START, Bench

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIRST = START - DAY
"""Noon, as the bench's clock at its start."""


def hourly(bench: Bench, name: str = "job", **policies: Any) -> None:
    """A job that is due at each full hour, made long ago."""
    bench.client.add(name, task="t.ok", schedule="0 * * * *", **policies)
    bench.scheduler.poll()


def work_off(bench: Bench, status: RunStatus = RunStatus.SUCCEEDED) -> list[RunId]:
    """Carry out what is in the broker; return the runs."""
    done = []
    for key in bench.messages():
        if bench.start(key).verdict is Verdict.YOURS:
            assert bench.finish(key, status).settled
            done.append(key.id)
    return done


def fill(bench: Bench, found: Backfill, most: int = 500) -> list[RunId]:
    """Poll and work until a backfill has ended; return its runs in the order in which they ran."""
    order: list[RunId] = []
    for _ in range(most):
        bench.scheduler.poll()
        order += work_off(bench)
        invariants.check(bench.database)
        if bench.client.get_backfill(found.id).status != "running":
            return order
    raise AssertionError(f"after {most} polls: {bench.client.get_backfill(found.id)}")


def instants(bench: Bench, ids: list[RunId]) -> list[datetime]:
    return [bench.row(run_id).scheduled_for for run_id in ids]
