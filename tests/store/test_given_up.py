"""What came due and was not planned when its job was paused, changed or gone: recorded, never run later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched.model import JobDefinition, Source
from celery_sched.steps import define
from celery_sched.store import gaps
from tests import invariants
from tests.store.world import START, Bench

MINUTE = timedelta(minutes=1)
WAYS: dict[str, Callable[[Bench], object]] = {
    "paused": lambda bench: bench.client.pause("job"),
    "changed": lambda bench: bench.client.edit("job", schedule="every 10m"),
    "gone from code": lambda bench: bench.database.run(
        lambda tx, now: define.sync(tx, now, bench.config, [])
    ),
}


def _in_code(bench: Bench) -> None:
    definition = JobDefinition("job", "t.ok", "every 1m")
    bench.database.run(lambda tx, now: define.create(tx, now, bench.config, definition, Source.CODE))


@pytest.mark.parametrize("what", WAYS)
def test_what_was_late_is_recorded(bench: Bench, what: str) -> None:
    """Nobody planned for five minutes, then the job was paused, edited or gone: one gap of the five."""
    _in_code(bench)
    bench.clock.advance(timedelta(minutes=5, seconds=30))
    WAYS[what](bench)
    row = bench.job_row()
    (gap,) = bench.database.read(lambda tx, now: gaps.of_job(tx, row.id))
    assert (START + MINUTE, START + 5 * MINUTE, 5) == (gap.from_at, gap.to_at, gap.count)
    assert f"missed: late when the job was {what}" == gap.reason
    assert (START + 5 * MINUTE, 5) == (row.last_scheduled_for, row.skipped_count)
    bench.scheduler.poll()
    assert [] == bench.statuses()
    invariants.check(bench.database)


@pytest.mark.parametrize("what", WAYS)
def test_what_is_not_due_is_not_recorded(bench: Bench, what: str) -> None:
    """Before its first occurrence, and after a plan, nothing was late."""
    _in_code(bench)
    bench.clock.advance(timedelta(minutes=1, seconds=30))
    bench.scheduler.poll()
    WAYS[what](bench)
    row = bench.job_row()
    assert [] == bench.database.read(lambda tx, now: gaps.of_job(tx, row.id))
    assert (START + MINUTE, 0) == (row.last_scheduled_for, row.skipped_count)


def test_an_instant_set_by_hand_is_recorded_too(bench: Bench) -> None:
    """A job that was to run immediately and is paused before that has missed that one."""
    bench.job()
    bench.clock.advance(1)
    bench.client.pause("job")
    row = bench.job_row()
    (gap,) = bench.database.read(lambda tx, now: gaps.of_job(tx, row.id))
    assert (START, START, 1) == (gap.from_at, gap.to_at, gap.count)
    bench.client.resume("job")
    bench.scheduler.poll()
    assert [] == bench.statuses()
