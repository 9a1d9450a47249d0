"""Claim: who gets a slot, who gets the job's lock, and what those who lose keep (nothing)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.steps.start import Verdict
from celery_sched.store import pools
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import run as run_table
from celery_sched.testing import holding
from tests import invariants
from tests.store.world import APP, Bench, names


def test_the_cap_within_one_tick_is_exact(bench: Bench) -> None:
    """cap within one tick is exact: 20 due at once, 5 slots: 5 in flight, 15 counted, then oldest first."""
    for number in range(20):
        bench.job(f"job-{number:02}", overlap="concurrent" if number % 2 else "skip")
        bench.clock.advance(0.001)
    polled = bench.scheduler.poll()
    assert (20, 5, 15, "5/5") == (
        polled.counts.planned,
        polled.counts.dispatched,
        polled.counts.at_capacity,
        polled.counts.in_flight,
    )
    assert 5 == bench.in_flight()
    invariants.check(bench.database)
    seen = []
    while held := [run for run in bench.scheduler.runs() if run.status == "dispatched"]:
        seen.append(sorted(run.job for run in held))
        assert len(held) == bench.work_off()
        polled = bench.scheduler.poll()
        assert 0 == polled.counts.at_capacity  # each is counted once
    assert [[f"job-{n:02}" for n in range(start, start + 5)] for start in range(0, 20, 5)] == seen
    assert 15 == bench.totals().at_capacity
    invariants.check(bench.database)


def test_a_claim_never_takes_more_than_is_free(bench: Bench) -> None:
    """cap within one tick is exact: candidates beyond the free slots are refused by the claim itself."""
    for number in range(8):
        bench.job(f"job-{number}", overlap="concurrent")
    bench.plan()
    assert (5, 0) == (len(bench.claim(limit=8)), len(bench.claim(limit=8)))
    invariants.check(bench.database)


def test_lock_losers_hold_no_slot(make_bench: Callable[..., Bench]) -> None:
    """lock losers hold no slot: of ten waiting runs of a job one is claimed, others' runs get the rest."""
    bench = make_bench(max_concurrent_jobs=3)
    bench.client.add("greedy", task="t.ok", schedule="every 1h", overlap="queue", priority=9)
    for _ in range(10):
        bench.client.run("greedy")
    for number in range(2):
        bench.job(f"modest-{number}")
    bench.plan()
    assert ["greedy", "modest-0", "modest-1"] == sorted(names(bench.claim(limit=3)))
    assert 3 == bench.in_flight()
    invariants.check(bench.database)


def test_lock_losers_that_were_candidates_hold_no_slot(make_bench: Callable[..., Bench]) -> None:
    """lock losers hold no slot: without a look at the queue first, the claim itself refuses nine of ten."""
    bench = make_bench(max_concurrent_jobs=10)
    job = bench.client.add("greedy", task="t.ok", schedule="every 1h", overlap="queue")
    wanted = [Candidate(bench.client.run("greedy").id, job.id) for _ in range(10)]
    done = bench.database.run(
        lambda tx, now: claim(tx, now, bench.config, {"default": wanted}, count_slots=True)
    )
    assert ([wanted[0].run_id], [one.run_id for one in wanted[1:]]) == (
        [dispatch.key.id for dispatch in done.dispatches],
        list(done.lost),
    )
    assert 1 == bench.in_flight()
    invariants.check(bench.database)


def test_what_others_hold_is_left_to_them(bench: Bench) -> None:
    """A job or run that another session has locked is passed over; the others are claimed meanwhile."""
    if not bench.database.dialect.row_locks:
        return  # one writer at a time: there is nothing to pass over
    for number in range(3):
        bench.job(f"job-{number}")
    bench.plan()
    first, second, third = bench.scheduler.runs()
    with (
        holding(bench.session(), job_table, first.job_id),
        holding(bench.session(), run_table, second.id),
    ):
        assert [third.job] == names(bench.claim())
    assert sorted([first.job, second.job]) == sorted(names(bench.claim()))


def test_a_full_pool_hides_no_other(bench: Bench) -> None:
    """Runs of a pool without a free slot, and of a pool that does not exist, do not keep others waiting."""
    bench.database.run(lambda tx, now: pools.ensure(tx, APP, "narrow", 1))
    for number in range(10):
        bench.job(f"narrow-{number}", pool="narrow", priority=9)
    bench.job("wide", priority=0)
    bench.job("nowhere", priority=9)
    bench.set_job("nowhere", pool="gone")
    polled = bench.scheduler.poll()
    assert (2, 10) == (polled.counts.dispatched, polled.counts.at_capacity)
    assert "dispatched" == bench.scheduler.runs("wide")[0].status
    assert ["queued"] == [run.status for run in bench.scheduler.runs("nowhere")]
    invariants.check(bench.database)


def test_priority_then_age(make_bench: Callable[..., Bench]) -> None:
    """A higher priority goes first, among equals the longest ready."""
    bench = make_bench(max_concurrent_jobs=1)
    for name, priority in (("low", 1), ("old", 5), ("new", 5), ("high", 9)):
        bench.job(name, priority=priority)
        bench.plan()
        bench.clock.advance(1)
    order = []
    while dispatches := bench.claim():
        (dispatch,) = dispatches
        order.append(dispatch.job)
        assert Verdict.YOURS == bench.start(dispatch.key).verdict
        bench.finish(dispatch.key)
    assert ["high", "old", "new", "low"] == order


def test_the_cap_changed_while_running(bench: Bench) -> None:
    """cap changed while running: the pool's row counts from the next poll on, and a restart keeps it."""
    for number in range(12):
        bench.job(f"job-{number:02}")
    assert "5/5" == bench.scheduler.poll().counts.in_flight
    bench.client.resize_pool("default", 8)
    assert (3, "8/8") == _did(bench)
    bench.client.resize_pool("default", 2)
    assert (0, "8/2") == _did(bench)
    invariants.check(bench.database, cap=False)
    restarted = bench.another()
    restarted.poll()
    assert [2] == [pool.slots for pool in restarted.client.pools()]
    assert 8 == bench.work_off()
    assert (2, "2/2") == _did(bench)
    bench.client.resize_pool("default", 0)
    assert 2 == bench.work_off()
    assert (0, "0/0") == _did(bench)
    invariants.check(bench.database)


def _did(bench: Bench) -> tuple[int, str]:
    counts = bench.scheduler.poll().counts
    return counts.dispatched, counts.in_flight or _in_flight(bench)


def _in_flight(bench: Bench) -> str:
    return f"{bench.in_flight()}/{bench.client.pools()[0].slots}"


def test_the_fence_only_grows(bench: Bench) -> None:
    """Each claim of a job gets a higher fencing number, whatever became of the runs before it."""
    fences = [bench.claimed(overlap="queue").fence]
    for _ in range(3):
        bench.clock.advance(61)
        for run in bench.scheduler.runs():
            bench.client.cancel(run.id)
        fences.append(bench.again().fence)
    assert [1, 2, 3, 4] == fences
    invariants.check(bench.database)


def test_a_waiting_run_is_not_claimed_before_it_is_ready(bench: Bench) -> None:
    """A run that is ready in the future waits until then, even for a claim that did not look first."""
    job = bench.client.add("job", task="t.ok", schedule="every 1h")
    later = bench.client.run("job")
    ready_at = bench.clock.now + timedelta(seconds=10)
    bench.set_run(later.id, ready_at=ready_at)
    wanted = {"default": [Candidate(later.id, job.id)]}

    def claimed() -> int:
        return len(
            bench.database.run(
                lambda tx, now: claim(tx, now, bench.config, wanted, count_slots=True)
            ).dispatches
        )

    assert (0, 0) == (len(bench.claim()), claimed())
    assert 10 >= (bench.scheduler.poll().next_in or 0) > 5
    bench.clock.now = ready_at
    assert 1 == claimed()
