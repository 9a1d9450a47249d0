"""The lease of an exclusive run in the database: never shorter than its worker was told."""

from __future__ import annotations

from datetime import timedelta

from celery_sched.rules.transitions import RunStatus
from tests import invariants
from tests.store.world import START, Bench


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_the_start_says_that_it_is_exclusive(bench: Bench) -> None:
    """The worker learns it from the start's answer, which also is the newest word on it."""
    assert bench.start(bench.claimed("alone", exclusive=True).key).exclusive is True
    assert bench.start(bench.claimed("other").key).exclusive is False


def test_its_deadline_shortens_no_lease(bench: Bench) -> None:
    """From the start on, and at each renewal: its worker has the time to kill it at the deadline."""
    key = bench.claimed("alone", exclusive=True, time_limit=20).key
    started = bench.start(key)
    assert (START + seconds(60), START + seconds(20)) == (started.lease_expires_at, started.deadline_at)
    bench.clock.advance(10)
    renewed = bench.renew(key, exclusive={key.id})
    assert ({key.id: START + seconds(70)}, {key.id: START + seconds(20)}) == (
        renewed.leases,
        renewed.deadlines,
    )
    assert frozenset({key.id}) == renewed.exclusive
    assert START + seconds(70) == bench.row(key.id).lease_expires_at
    invariants.check(bench.database)
    # over its deadline it is renewed no more, and nobody else may have the job before the lease ends
    bench.clock.advance(15)
    assert {key.id: "ran longer than its time_limit (20 s)"} == bench.renew(key, exclusive={key.id}).overdue
    assert START + seconds(70) == bench.row(key.id).lease_expires_at
    bench.clock.advance(44.9)
    assert () == bench.sweep().settled
    bench.clock.advance(0.2)
    ((_, status, reason),) = bench.sweep().settled
    assert (RunStatus.TIMED_OUT, True) == (status, reason.startswith("ran longer than its time_limit (20 s)"))


def test_a_heartbeat_shortens_no_lease(bench: Bench) -> None:
    """The answer to this renewal may be lost: the worker then trusts the lease that it knows."""
    alone = bench.running("alone", exclusive=True, heartbeat_timeout=5).key
    other = bench.running("other", heartbeat_timeout=5).key
    bench.clock.advance(1)
    beats = {alone.id: seconds(0), other.id: seconds(0)}
    renewed = bench.renew(alone, other, beats=beats, exclusive={alone.id})
    assert {alone.id: START + seconds(61), other.id: START + seconds(6)} == renewed.leases
    bench.clock.advance(4.5)  # about to be over, where the lease is lengthened for the kill
    bench.renew(alone, exclusive={alone.id}, killable={alone.id})
    assert START + seconds(65.5) == bench.row(alone.id).lease_expires_at
    invariants.check(bench.database)


def test_a_heartbeat_that_comes_too_late_shortens_no_lease(bench: Bench) -> None:
    """It switches the run to a deadline that has passed: its worker has the time to kill it."""
    alone = bench.running("alone", exclusive=True, heartbeat_timeout=5).key
    other = bench.running("other", heartbeat_timeout=5).key
    bench.clock.advance(10)
    beats = {alone.id: seconds(8), other.id: seconds(8)}
    renewed = bench.renew(alone, other, beats=beats, exclusive={alone.id})
    assert dict.fromkeys((alone.id, other.id), "no heartbeat for 5 s") == renewed.overdue
    assert START + seconds(60) == bench.row(alone.id).lease_expires_at
    assert START + seconds(7) == bench.row(other.id).lease_expires_at
