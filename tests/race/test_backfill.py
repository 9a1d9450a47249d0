"""Races around backfills, staged: one side has its rows, uncommitted, while the other comes; both orders."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from celery_sched.client import Client
from celery_sched.model import Backfill, BackfillStatus
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import backfill as steps
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.plan import plan
from celery_sched.steps.start import Verdict
from celery_sched.store import backfills, jobs
from celery_sched.store.engine import Database
from tests import invariants
from tests.race.test_staged import Step, during
from tests.store.world import PATIENCE, START, Bench

HOUR = timedelta(hours=1)
FIRST = START - 12 * HOUR


@pytest.fixture
def made(bench: Bench) -> Backfill:
    """A backfill that nobody has come to yet, of a job that is planned at each full hour."""
    bench.client.add("job", task="t.ok", schedule="0 * * * *", overlap="concurrent")
    return bench.client.backfill("job", FIRST, FIRST + 5 * HOUR, max_concurrent=2)


def going_on(bench: Bench, made: Backfill) -> Step:
    return lambda tx, now: steps.backfill(tx, now, bench.config, made.id)


def cancelling(bench: Bench, made: Backfill) -> Step:
    """What the client does first, in its order."""

    def work(tx: Any, now: Any) -> int:
        jobs.lock(tx, [bench.client.get("job").id])
        backfills.lock(tx, made.id)
        return backfills.end(tx, now, made.id, BackfillStatus.CANCELLED, "enough")

    return work


def test_two_schedulers(bench: Bench, made: Backfill) -> None:
    """While one scheduler is at it another one leaves it alone: two runs, not four."""
    with during(bench, going_on(bench, made), lambda session: session.run(going_on(bench, made))) as (
        first,
        second,
    ):
        assert 2 == first.created
        assert 0 == second.result(PATIENCE).created
    assert ["queued", "queued"] == bench.statuses()


def test_a_step_then_a_cancellation(bench: Bench, made: Backfill) -> None:
    """A cancellation that comes meanwhile waits, and takes the new runs along."""

    def cancel(session: Database) -> Backfill:
        return Client(replace(bench.scheduler.runtime, database=session)).cancel_backfill(made.id)

    with during(bench, going_on(bench, made), cancel) as (first, second):
        assert 2 == first.created
        assert ("cancelled", 2) == (second.result(PATIENCE).status, second.result(PATIENCE).cancelled)
    assert ["cancelled", "cancelled"] == bench.statuses()
    invariants.check(bench.database)


def test_a_cancellation_then_a_step(bench: Bench, made: Backfill) -> None:
    """A step that comes while it is being cancelled makes nothing, then and later."""
    with during(bench, cancelling(bench, made), lambda session: session.run(going_on(bench, made))) as (
        ended,
        second,
    ):
        assert 1 == ended
        assert 0 == second.result(PATIENCE).created
    bench.scheduler.poll()
    assert [] == bench.statuses()


def test_a_step_while_its_run_ends(bench: Bench, made: Backfill) -> None:
    """A run that is just ending still counts: there are never too many; the next step makes up for it."""
    bench.scheduler.poll()
    key, _ = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    outcome = Outcome(RunStatus.SUCCEEDED)
    with during(
        bench,
        lambda tx, now: finish(tx, now, bench.config, key, outcome, bench.node),
        lambda session: session.run(going_on(bench, made)),
    ) as (finished, second):
        assert finished.settled
        late = second.result(PATIENCE).created
    # SQLite's writers wait for each other: this one came after the end
    assert (0 if bench.database.dialect.row_locks else 1) == late
    bench.scheduler.poll()
    found = bench.client.get_backfill(made.id)
    assert (3, 2) == (found.created, found.queued + found.in_flight)
    invariants.check(bench.database)


def test_a_step_while_the_job_is_planned(bench: Bench, made: Backfill) -> None:
    """The plan and the step pass each other by: both happen, the plan first."""
    bench.clock.now = START + HOUR
    with during(
        bench,
        lambda tx, now: plan(tx, now, bench.config),
        lambda session: session.run(going_on(bench, made)),
    ) as (planned, second):
        assert 1 == planned.planned
        assert (0 if bench.database.dialect.row_locks else 2) == second.result(PATIENCE).created
    bench.scheduler.poll()
    assert 2 == bench.client.get_backfill(made.id).created
    invariants.check(bench.database)
