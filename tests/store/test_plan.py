"""Plan: occurrences become runs once, whoever looks when, and whatever plain SQL wrote."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from celery_sched.beat import prune as prune_module
from celery_sched.beat.prune import prune
from celery_sched.model import JobId
from celery_sched.steps import plan as plan_step
from celery_sched.store import audit, gaps
from celery_sched.store.tables import job as job_table
from celery_sched.testing import holding
from tests import invariants
from tests.store.world import START, Bench


def _execute(bench: Bench, statement: str, **values: Any) -> None:
    done = bench.database.run(lambda tx, now: tx.execute(text(statement), values))
    assert 1 == done.rowcount


def test_a_late_scheduler_finds_the_high_water_mark(make_bench: Callable[..., Bench]) -> None:
    """A33: the run of an occurrence is over and pruned; a scheduler that is behind does not plan it again."""
    bench = make_bench(keep_runs=0.001)
    late = bench.another()
    bench.job("quick", schedule="every 1h")
    bench.scheduler.poll()
    assert 1 == bench.work_off()
    bench.clock.advance(0.9)
    assert 1 == prune(bench.scheduler.runtime)
    assert [] == bench.scheduler.runs()
    # what the late one believes, written as it would be: the job is due at the occurrence that was
    bench.set_job("quick", next_run_at=START)
    polled = late.poll()
    assert (0, 0) == (polled.counts.planned, polled.counts.dispatched)
    assert ([], 0) == (bench.scheduler.runs(), bench.work_off())
    assert START + timedelta(hours=1) == bench.scheduler.job("quick").next_run_at
    bench.clock.advance(3600)
    assert 1 == late.poll().counts.planned
    invariants.check(bench.database, pruned=True)


def test_an_occurrence_that_has_its_run_is_not_planned_again(bench: Bench) -> None:
    """A33: with the mark lost too (plain SQL), the unique occurrence still has one run, and nothing fails."""
    bench.job("job")
    bench.scheduler.poll()
    bench.set_job("job", next_run_at=START, last_scheduled_for=None)
    polled = bench.scheduler.poll()
    assert (0, 1) == (polled.counts.planned, len(bench.scheduler.runs()))
    job = bench.scheduler.job("job")
    assert (START, "active") == (job.last_scheduled_for, job.status)


def test_microseconds_are_not_rounded(bench: Bench) -> None:
    """A34: a next_run_at of .999999 written by plain SQL is due at that microsecond and kept exact."""
    bench.client.add("job", task="t.ok", schedule="every 1h")
    due = datetime(2026, 3, 2, 12, 30, 0, 999999, tzinfo=UTC)
    zone = "+00" if bench.database.dialect.name == "postgresql" else ""
    _execute(bench, f"UPDATE sched_job SET next_run_at = '2026-03-02 12:30:00.999999{zone}'")
    bench.clock.now = due - timedelta(microseconds=1)
    assert 0 == bench.scheduler.poll().counts.planned
    bench.clock.now = due
    polled = bench.scheduler.poll()
    assert (1, 1) == (polled.counts.planned, polled.counts.dispatched)
    ((run,), job) = bench.scheduler.runs(), bench.scheduler.job("job")
    assert (due, due, due) == (run.scheduled_for, run.dispatched_at, job.last_scheduled_for)
    assert datetime(2026, 3, 2, 13, 0, tzinfo=UTC) == job.next_run_at
    assert 1 == bench.work_off()
    invariants.check(bench.database)


def test_whole_seconds_written_by_plain_sql(bench: Bench) -> None:
    """A34: digits without microseconds are the same instant as with them."""
    bench.client.add("job", task="t.ok", schedule="every 1h")
    zone = "+00" if bench.database.dialect.name == "postgresql" else ""
    _execute(bench, f"UPDATE sched_job SET next_run_at = '2026-03-02 12:30:00{zone}'")
    bench.clock.now = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)
    assert 1 == bench.scheduler.poll().counts.dispatched
    assert [bench.clock.now] == [run.scheduled_for for run in bench.scheduler.runs()]


def test_job_changes_are_seen_without_a_refresh_call(bench: Bench) -> None:
    """job changes are seen without a refresh call: on the next poll of every scheduler."""
    other = bench.another()
    bench.scheduler.poll()
    other.poll()
    bench.client.add("job", task="t.ok", schedule="every 10s", overlap="concurrent")
    bench.clock.advance(10)
    assert 1 == other.poll().counts.dispatched
    bench.client.edit("job", schedule="every 7s", args=[1])
    bench.clock.advance(7)
    assert 0 < (other.poll().next_in or 0) <= 7
    assert [10, 14] == [(run.scheduled_for - START).total_seconds() for run in bench.scheduler.runs()]
    bench.client.pause("job", "a pause")
    bench.clock.advance(60)
    assert 0 == bench.scheduler.poll().counts.planned + other.poll().counts.planned
    bench.client.resume("job")
    bench.clock.advance(7)
    assert 1 == other.poll().counts.planned
    bench.work_off()
    bench.client.delete("job")
    bench.clock.advance(60)
    assert 0 == bench.scheduler.poll().counts.planned + other.poll().counts.planned


def test_a_plan_of_a_changed_definition_is_not_written(bench: Bench) -> None:
    """The plan reads the job again under its row lock: a change of the last moment decides."""
    bench.job("job")
    if bench.database.dialect.row_locks:
        other = bench.session()
        with holding(other, job_table, bench.scheduler.job("job").id):
            assert 0 == bench.plan()  # left to whoever holds it
    bench.client.pause("job")
    assert (0, []) == (bench.plan(), bench.scheduler.runs())


def test_locked_jobs_hide_no_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due jobs that a hung scheduler has locked do not fill the batch: the next ones are planned."""
    if not bench.database.dialect.row_locks:
        pytest.skip("SQLite has no row locks: a writer waits for the writer before it")
    monkeypatch.setattr(plan_step, "BATCH", 1)
    bench.job("first")
    bench.clock.advance(1)
    bench.job("second")
    with holding(bench.session(), job_table, bench.scheduler.job("first").id):
        assert 1 == bench.plan()
    assert ["second"] == [run.job for run in bench.scheduler.runs()]
    assert 1 == bench.plan()


def test_overlap_skips_are_recorded(bench: Bench) -> None:
    """An occurrence that comes while a run is active is a skipped run with the reason, and is counted."""
    bench.job("job", schedule="every 10s")
    bench.scheduler.poll()
    bench.clock.advance(10)
    polled = bench.scheduler.poll()
    assert (0, 1) == (polled.counts.planned, polled.counts.skipped)
    first, second = bench.scheduler.runs()
    assert ("skipped", f"overlap: run {first.id} is active") == (second.status, second.reason)
    assert 1 == bench.scheduler.job("job").skipped_count
    invariants.check(bench.database)


def test_none_vanishes_after_a_long_outage(bench: Bench) -> None:
    """Every occurrence of an outage is run, or recorded as missed: in rows, the oldest in a gap."""
    job = bench.client.add("job", task="t.ok", schedule="every 1m")
    bench.clock.advance(timedelta(hours=10))
    polled = bench.scheduler.poll()
    assert (1, 599) == (polled.counts.planned, polled.counts.missed)
    (gap,) = bench.database.read(lambda tx, now: gaps.of_job(tx, job.id))
    shown = bench.scheduler.runs()
    assert 600 == gap.count + len(shown)
    assert START + timedelta(minutes=1) == gap.from_at
    assert gap.to_at + timedelta(minutes=1) == shown[0].scheduled_for
    assert 599 == bench.scheduler.job("job").skipped_count
    invariants.check(bench.database)


def test_a_job_whose_schedule_is_broken_stops_no_other(bench: Bench) -> None:
    """A row that plain SQL broke is set aside with status error and the reason; the others are planned."""
    bench.job("broken")
    bench.job("good")
    bench.set_job("broken", schedule="every never")
    assert 1 == bench.scheduler.poll().counts.dispatched
    job = bench.scheduler.job("broken")
    assert "error" == job.status
    assert "never" in (job.status_reason or "")
    assert 1 == bench.work_off()


def test_gaps_and_the_audit_are_pruned_in_batches(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older than `sched_keep_runs` goes, however much it is, and nothing that is younger."""
    monkeypatch.setattr(prune_module, "BATCH", 2)
    bench = make_bench(keep_runs="1h")
    names = [f"job-{number}" for number in range(5)]

    def note(tx: Any, now: datetime) -> None:
        for name in names:
            audit.add(tx, now, "bench", "test", "note", name, {})
        gap = {"app": "bench", "job_id": 1, "job": "j", "reason": "r", "count": 1, "created_at": now}
        gaps.add(tx, [{**gap, "from_at": now, "to_at": now} for _ in names])

    bench.database.run(note)
    bench.clock.advance(3500)
    bench.database.run(note)
    bench.clock.advance(200)
    assert 0 == prune(bench.scheduler.runtime)
    left = bench.database.read(lambda tx, now: (audit.newest(tx, "bench"), gaps.of_job(tx, JobId(1))))
    assert (5, 5) == (len([line for line in left[0] if line.action == "note"]), len(left[1]))
    assert {START + timedelta(seconds=3500)} == {line.created_at for line in left[1]}
