"""A thousand occurrences that are late at once, planned beside a job that is punctual: on each database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from celery_sched.beat.poll import PLANS
from celery_sched.model import Source
from celery_sched.rules.definition import checked
from celery_sched.steps import define
from celery_sched.steps import plan as plan_step
from celery_sched.store import pools
from celery_sched.store.tables import job as job_table
from celery_sched.testing import START
from tests import invariants
from tests.store.world import Bench

MANY = 1000
HOUR = timedelta(hours=1)


@pytest.fixture
def small(bench: Bench) -> Bench:
    """A bench with a job every 5 s that has a slot of its own."""
    bench.database.run(lambda tx, now: pools.ensure(tx, "bench", "own", 1))
    bench.client.add("small", task="t.ok", schedule="every 5s", pool="own")
    return bench


def _punctual(bench: Bench) -> None:
    """The small job's runs so far: one for each 5 s, claimed in the poll in which it was due."""
    runs = bench.scheduler.runs("small")
    assert [START + timedelta(seconds=5 * (n + 1)) for n in range(len(runs))] == [
        run.scheduled_for for run in runs
    ]
    assert {"succeeded"} == {run.status for run in runs}
    assert {timedelta(0)} == {run.dispatched_at - run.scheduled_for for run in runs if run.dispatched_at}


def test_a_thousand_misfires_of_one_job(small: Bench) -> None:
    """Each poll plans a part of them and the punctual job; in the end each occurrence has one run."""
    bench = small
    bench.client.add("flood", task="t.ok", schedule="every 1h", misfire="all")
    bench.set_job("flood", next_run_at=START - (MANY - 1) * HOUR)
    most = len(PLANS) * plan_step.MOST_OF_ONE
    polls = 0
    while (next_run_at := bench.scheduler.job("flood").next_run_at) is None or next_run_at <= START:
        bench.clock.advance(5)
        planned = bench.scheduler.poll().counts.planned
        polls += 1
        assert 1 < planned <= most + 1
        bench.work_off()
    assert MANY // most == polls
    assert polls == len(bench.scheduler.runs("small"))
    _punctual(bench)
    assert [START - n * HOUR for n in reversed(range(MANY))] == [
        run.scheduled_for for run in bench.scheduler.runs("flood")
    ]
    invariants.check(bench.database)


def test_a_thousand_jobs_that_are_late(small: Bench) -> None:
    """A job that comes due behind a thousand is planned at once, the thousand in few polls."""
    bench = small

    def herd(tx: object, now: object) -> None:
        for number in range(MANY):
            definition = checked(
                name=f"herd-{number}", task="t.ok", schedule="every 1h", run_immediately=True
            )
            define.create(tx, START, bench.config, definition, Source.OPERATOR)  # type: ignore[arg-type]

    bench.database.run(herd)
    bench.clock.advance(5)
    polls = [bench.scheduler.poll()]
    bench.work_off()
    assert ["succeeded"] == [run.status for run in bench.scheduler.runs("small")]
    while polls[-1].next_in is not None and polls[-1].next_in < 0.1:  # the scheduler asks again at once
        polls.append(bench.scheduler.poll())
        bench.work_off()
    most = len(PLANS) * plan_step.BATCH
    assert -(-(MANY + 1) // most) >= len([one for one in polls if one.counts.planned])
    assert MANY + 1 == sum(one.counts.planned for one in polls)
    _punctual(bench)
    counts = [1 for run in bench.scheduler.runs() if run.job.startswith("herd-")]
    assert MANY == len(counts)
    for _ in range(3):  # a good part of the herd is still in the queue
        bench.clock.advance(5)
        bench.scheduler.poll()
        bench.work_off()
    assert bench.statuses().count("queued") > MANY / 2
    _punctual(bench)
    invariants.check(bench.database)


def _beside(bench: Bench, polls: int) -> None:
    """So many polls, a second apart, with a worker that finishes at once what it is given: five at a time."""
    for _ in range(polls):
        bench.clock.advance(1)
        bench.scheduler.poll()
        bench.work_off()


@pytest.mark.parametrize("late", [timedelta(0), HOUR])
def test_a_job_shares_slots_and_priority_with_a_thousand_others(bench: Bench, late: timedelta) -> None:
    """Jobs that are due again in an hour let the one that is due again in five seconds go first: its runs are
    the same as alone, whether the herd is late or only many, and the herd goes on beside it."""
    bench.client.add("small", task="t.ok", schedule="every 5s")

    def herd(tx: object, now: object) -> None:
        for number in range(MANY):
            definition = checked(name=f"herd-{number}", task="t.ok", schedule="every 2h")
            define.create(tx, START, bench.config, definition, Source.OPERATOR)  # type: ignore[arg-type]

    bench.database.run(herd)
    moved = update(job_table).where(job_table.c.name.like("herd-%"))
    due = START + timedelta(seconds=1) - late
    bench.database.run(lambda tx, now: tx.execute(moved.values(next_run_at=due)))
    _beside(bench, 30)
    _punctual(bench)
    small = len(bench.scheduler.runs("small"))
    ended = sum(run.status == "succeeded" for run in bench.scheduler.runs()) - small
    assert (6, True) == (small, ended >= 30 * 5 - 2 * small - 10), ended
    invariants.check(bench.database)


def test_a_job_shares_slots_with_a_thousand_misfires_of_another(bench: Bench) -> None:
    """Misfires of a job that may overlap itself wait for slots all at once, in order, and disturb nobody."""
    bench.client.add("small", task="t.ok", schedule="every 5s")
    bench.client.add("flood", task="t.ok", schedule="every 1m", misfire="all", overlap="concurrent")
    bench.set_job("flood", next_run_at=START - (MANY - 1) * timedelta(minutes=1))
    _beside(bench, 30)
    _punctual(bench)
    assert 6 == len(bench.scheduler.runs("small"))
    ended = [run for run in bench.scheduler.runs("flood") if run.status == "succeeded"]
    late = [run.scheduled_for for run in ended if run.scheduled_for <= START]
    assert [START - n * timedelta(minutes=1) for n in reversed(range(MANY))][: len(late)] == late
    assert len(late) > 100
    invariants.check(bench.database)
