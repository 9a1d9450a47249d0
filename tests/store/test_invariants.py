"""The invariants themselves: each notices the row that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from celery_sched.store.tables import attempt, delivery
from tests import invariants
from tests.store.world import START, Bench


def _cap(bench: Bench) -> str:
    bench.claimed("other")
    bench.client.resize_pool("default", 1)
    return "runs hold [1, 1] of its 1 slots"


def _weights(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, weight=6)
    return "runs hold [6] of its 5 slots"


def _no_weight(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, weight=0)
    return "holds 0 slots"


def _two_of_a_key(bench: Bench) -> str:
    other = bench.claimed("other")
    for run_id in (bench.scheduler.runs("job")[0].id, other.key.id):
        bench.set_run(run_id, concurrency_key="k")
    return "key 'k': 2 runs are in flight, 1 may be"


def _lock_without_run(bench: Bench) -> str:
    bench.set_job("waiting", lock_token="t", locked_by="r")
    return "its lock is [('r', 't')], its holders are []"


def _run_without_lock(bench: Bench) -> str:
    bench.set_job("job", lock_token=None, locked_by=None)
    return "its lock is [], its holders are [("


def _holder_of_nothing(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, holds_job=None)
    return "does not hold it"


def _two_holders(bench: Bench) -> str:
    bench.claimed("two", overlap="concurrent")
    bench.again("two")
    bench.set_job("two", overlap="skip")
    return "has 2 held runs"


def _statistics(bench: Bench) -> str:
    bench.set_job("job", success_count=1, run_count=1)
    return "counts are (1, 1, 0, 0), the rows say (0, 0, 0, 0)"


def _sum(bench: Bench) -> str:
    bench.set_job("job", failure_count=-1)
    return "run, success, failure, skipped counts are (0, 0, -1, 0)"


def _same_fence(bench: Bench) -> str:
    bench.set_job("job", fence=0)
    return "fence 0, its runs have {1: 1}"


def _two_runs_of_an_occurrence(bench: Bench) -> str:
    bench.set_run(bench.client.run("waiting").id, trigger_kind="schedule", scheduled_for=START)
    bench.set_run(bench.client.run("waiting").id, trigger_kind="schedule", scheduled_for=START)
    return "2 runs for 2026-03-02 12:00:00"


def _mark(bench: Bench) -> str:
    bench.set_job("job", last_scheduled_for=START - timedelta(hours=1))
    return "a run for 2026-03-02 12:00:00+00:00, but its mark is 2026-03-02 11:00:00"


def _running_without_deadline(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, deadline_at=None)
    return "deadline None"


def _lease_past_deadline(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, deadline_at=START)
    return "its lease outlasts its deadline"


def _attempt(bench: Bench, **columns: Any) -> None:
    """A row of an attempt, made behind everybody's back."""
    run = bench.scheduler.runs("job")[0]
    row = {"run_id": run.id, "attempt": 1, "app": run.app, "status": "failed", "started_at": START} | columns
    bench.database.run(lambda tx, now: tx.execute(insert(attempt).values(ended_at=now, **row)) and None)


def _attempt_not_kept(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, attempt=2)
    return "attempts [] are kept"


def _attempt_of_the_row(bench: Bench) -> str:
    _attempt(bench)
    return "attempts [1] are kept"


def _attempt_of_nothing(bench: Bench) -> str:
    _attempt(bench, run_id="nothing")
    return "its run is gone"


def _attempt_without_end(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, attempt=2)
    _attempt(bench, status="running")
    return "attempt 1 ended as 'running'"


def _attempts_side_by_side(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, attempt=2)
    bench.clock.advance(10)
    _attempt(bench)
    return "before the one before it ended"


def _retried_without_attempts(bench: Bench) -> str:
    bench.set_run(bench.scheduler.runs("job")[0].id, retried=1)
    return "retried 1, requeued 0, 0 attempts are kept"


def _failures_in_a_row(bench: Bench) -> str:
    bench.set_job("job", failures_in_row=1)
    return "1 failures in a row, 0 in all"


def _deliveries(bench: Bench, **columns: Any) -> None:
    """One is on its way; then its row is written behind everybody's back."""
    bench.client.add("listening", task="t.ok", on="numbers")
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    bench.database.run(lambda tx, now: tx.execute(delivery.update().values(**columns)) and None)


def _run_that_carries_nothing(bench: Bench) -> str:
    _deliveries(bench, status="pending", run_id=None)
    return "carries nothing"


def _waits_with_a_run(bench: Bench) -> str:
    _deliveries(bench, status="pending")
    return "(pending): run "


def _taken_by_nobody(bench: Bench) -> str:
    _deliveries(bench, run_id="nobody")
    return "(taken): its run is None"


def _delivered_too_early(bench: Bench) -> str:
    _deliveries(bench, status="delivered", finished_at=START)
    return "(delivered): its run is dispatched"


def _delivered_and_open(bench: Bench) -> str:
    _deliveries(bench, status="dead")
    return "(dead): finished_at is None"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """SQLite: the point here is the check, not the database."""
    made = Bench(f"sqlite:///{tmp_path / 'sched.sqlite3'}", tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "damage",
    [
        _cap,
        _weights,
        _no_weight,
        _two_of_a_key,
        _lock_without_run,
        _run_without_lock,
        _holder_of_nothing,
        _two_holders,
        _statistics,
        _sum,
        _same_fence,
        _two_runs_of_an_occurrence,
        _mark,
        _running_without_deadline,
        _lease_past_deadline,
        _attempt_not_kept,
        _attempt_of_the_row,
        _attempt_of_nothing,
        _attempt_without_end,
        _attempts_side_by_side,
        _retried_without_attempts,
        _failures_in_a_row,
        _run_that_carries_nothing,
        _waits_with_a_run,
        _taken_by_nobody,
        _delivered_too_early,
        _delivered_and_open,
    ],
)
def test_damage_is_noticed(bench: Bench, damage: Callable[[Bench], str]) -> None:
    """A table that breaks an invariant is reported, and an undamaged one is not."""
    bench.running()
    bench.client.add("waiting", task="t.ok", schedule="every 1h", overlap="queue")
    invariants.check(bench.database)
    expected = damage(bench)
    found = list(invariants.violations(bench.database))
    assert [True] == [expected in text for text in found if expected in text], found
