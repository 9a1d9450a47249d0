"""Heartbeats in the database: what a renewal that carries them writes, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_sched.model import NodeId, RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.renew import AHEAD, KILL_TIME
from tests import invariants
from tests.store.world import START, Bench, statements


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_the_first_heartbeat_switches_the_run_to_its_timeout(bench: Bench) -> None:
    """The deadline is the heartbeat, not the write, plus the timeout; max_runtime bounds the run no more."""
    key = bench.running().key
    assert (START + seconds(600), None) == (bench.row(key.id).deadline_at, bench.row(key.id).beat_at)
    bench.clock.advance(30)
    renewed = bench.renew(key, beats={key.id: seconds(10)})
    row = bench.row(key.id)
    assert (START + seconds(20), START + seconds(140)) == (row.beat_at, row.deadline_at)
    assert ({key.id: START + seconds(140)}, {key.id: seconds(120)}) == (
        renewed.deadlines,
        renewed.heartbeat_timeouts,
    )
    for _ in range(20):  # far past max_runtime
        bench.clock.advance(50)
        assert [key.id] == list(bench.renew(key, beats={key.id: seconds(1)}).leases)
    assert (START + seconds(1029), START + seconds(1149)) == (
        bench.row(key.id).beat_at,
        bench.row(key.id).deadline_at,
    )
    invariants.check(bench.database)


def test_a_job_has_a_timeout_of_its_own_and_a_lease_never_outlasts_it(bench: Bench) -> None:
    """A short heartbeat_timeout also shortens the lease, at once."""
    key = bench.running(heartbeat_timeout=15).key
    bench.clock.advance(5)
    renewed = bench.renew(key, beats={key.id: seconds(0)})
    assert {key.id: START + seconds(20)} == renewed.leases == renewed.deadlines
    invariants.check(bench.database)


def test_time_limit_is_absolute(bench: Bench) -> None:
    """Heartbeats move no deadline past the start plus time_limit; the reason names the limit."""
    key = bench.running(time_limit=100).key
    bench.clock.advance(90)
    assert {key.id: START + seconds(100)} == bench.renew(key, beats={key.id: seconds(0)}).deadlines
    bench.clock.advance(10)
    assert {key.id: "ran longer than its time_limit (100 s)"} == bench.renew(
        key, beats={key.id: seconds(0)}
    ).overdue


def test_a_silent_run_is_judged_from_its_start(bench: Bench) -> None:
    """No heartbeat ever: the NULL hides nothing, the run is overdue after max_runtime."""
    key = bench.running(heartbeat_timeout=15).key
    for _ in range(11):
        bench.clock.advance(50)
        assert [key.id] == list(bench.renew(key).leases)
    bench.clock.advance(50)
    assert {key.id: "ran longer than its max_runtime (600 s)"} == bench.renew(key).overdue


def test_a_run_that_fell_silent_is_overdue_and_both_say_so(bench: Bench) -> None:
    """One timeout after its last heartbeat the worker learns it; the sweep gives the same reason."""
    key = bench.running().key
    bench.renew(key, beats={key.id: seconds(0)})
    for _ in range(3):
        bench.clock.advance(39)
        assert [key.id] == list(bench.renew(key).leases)
    bench.clock.advance(3)
    assert {key.id: "no heartbeat for 120 s"} == bench.renew(key).overdue
    bench.clock.advance(0.1)
    ((row, status, reason),) = bench.sweep().settled
    assert (key.id, RunStatus.TIMED_OUT, "no heartbeat for 120 s on worker@test") == (row.id, status, reason)
    invariants.check(bench.database)


def test_what_the_database_missed_is_written_when_it_is_back(bench: Bench) -> None:
    """After an outage longer than timeout and deadline: one heartbeat of a moment ago keeps the run."""
    alive, silent = bench.running("alive").key, bench.running("silent").key
    bench.renew(alive, silent, beats={alive.id: seconds(0), silent.id: seconds(0)})
    bench.clock.advance(300)
    renewed = bench.renew(alive, silent, beats={alive.id: seconds(2), silent.id: seconds(150)})
    assert {alive.id: START + seconds(418)} == renewed.deadlines
    # counted from when it was sent: this one has been silent for too long since
    assert {silent.id: "no heartbeat for 120 s"} == renewed.overdue
    assert START + seconds(150) == bench.row(silent.id).beat_at
    bench.clock.advance(1)
    assert [silent.id] == [row.id for row, _, _ in bench.sweep().settled]
    invariants.check(bench.database)


def test_an_older_heartbeat_changes_nothing(bench: Bench) -> None:
    """The last heartbeat only moves forward, and never before the start of the body."""
    key = bench.running().key
    bench.clock.advance(50)
    bench.renew(key, beats={key.id: seconds(5)})
    before = bench.row(key.id)
    bench.renew(key, beats={key.id: seconds(30)})
    after = bench.row(key.id)
    assert (before.beat_at, before.deadline_at) == (after.beat_at, after.deadline_at)
    other = bench.running("other").key
    bench.renew(other, beats={other.id: seconds(3600)})
    assert bench.row(other.id).started_at == bench.row(other.id).beat_at


def test_only_the_holder_extends_anything(bench: Bench) -> None:
    """Token, attempt, worker, and a run that goes on: else a heartbeat changes no column."""
    key = bench.running().key
    bench.clock.advance(10)
    beats = {key.id: seconds(0)}
    for stranger in (
        RunKey(key.id, Token("another"), key.attempt),
        RunKey(key.id, key.token, key.attempt + 1),
    ):
        before = bench.snapshot(key.id)
        assert frozenset({key.id}) == bench.renew(stranger, beats=beats).stale
        assert before == bench.snapshot(key.id)
    before = bench.snapshot(key.id)
    assert frozenset({key.id}) == bench.renew(key, node=NodeId("another"), beats=beats).stale
    assert before == bench.snapshot(key.id)
    bench.client.cancel(key.id, by="ada")
    before = bench.snapshot(key.id)
    assert [key.id] == list(bench.renew(key, beats=beats).stopped)
    assert before == bench.snapshot(key.id)
    bench.finish(key, RunStatus.CANCELLED)
    before = bench.snapshot(key.id)
    bench.renew(key, beats=beats)
    assert before == bench.snapshot(key.id)


def test_each_concurrent_run_has_its_own_lease(bench: Bench) -> None:
    """Two runs of a concurrent job: one sends heartbeats, the other falls silent and alone times out."""
    first = bench.running(overlap="concurrent").key
    second = bench.again().key
    bench.start(second)
    bench.renew(first, second, beats={first.id: seconds(0), second.id: seconds(0)})
    for _ in range(3):
        bench.clock.advance(39)
        bench.renew(first, second, beats={first.id: seconds(0)})
    bench.clock.advance(4)
    renewed = bench.renew(first, second, beats={first.id: seconds(0)})
    assert ([first.id], [second.id]) == (list(renewed.leases), list(renewed.overdue))
    invariants.check(bench.database)


def test_the_next_attempt_begins_without_a_heartbeat(bench: Bench) -> None:
    """A heartbeat is an attempt's: after Celery's retry the run is judged from its new start."""
    key = bench.running().key
    bench.renew(key, beats={key.id: seconds(0)})
    assert bench.retry(key, bench.clock.now)
    following = RunKey(key.id, key.token, 2)
    bench.clock.advance(100)
    bench.start(following)
    row = bench.row(key.id)
    assert (None, bench.clock.now + seconds(600)) == (row.beat_at, row.deadline_at)


@pytest.mark.parametrize("seen", ["before", "after"])
def test_a_run_that_is_being_killed_keeps_its_lease_that_long(
    make_bench: Callable[..., Bench], seen: str
) -> None:
    """Overdue, where its worker can kill it: the sweep waits for the kill, once. Elsewhere it does not."""
    bench = make_bench(max_runtime=60)
    killed, thread = bench.running("killed").key, bench.running("thread").key
    bench.clock.advance(50)
    bench.renew(killed, thread)
    if seen == "before":
        bench.clock.advance(9.5)
        assert {killed.id, thread.id} == set(bench.renew(killed, thread, killable=[killed.id]).leases)
        bench.clock.advance(1)
    else:
        bench.clock.advance(10.5)
        assert {killed.id, thread.id} == set(bench.renew(killed, thread, killable=[killed.id]).overdue)
    assert [thread.id] == [row.id for row, _, _ in bench.sweep().settled]
    left = bench.row(killed.id).lease_expires_at - bench.clock.now
    window = bench.config.kill_grace + KILL_TIME
    assert window <= left <= window + AHEAD
    bench.clock.advance(3)
    bench.renew(killed, killable=[killed.id])  # asked again: no longer
    bench.clock.advance(left.total_seconds() - 3)
    assert () == bench.sweep().settled
    bench.clock.advance(0.1)
    assert [killed.id] == [row.id for row, _, _ in bench.sweep().settled]


def test_heartbeats_of_many_runs_take_the_same_statements(make_bench: Callable[..., Bench]) -> None:
    """One renewal writes them all; without heartbeats it takes the two statements that it took before."""
    bench = make_bench(max_concurrent_jobs=50)
    counts = []
    for number in (1, 20):
        keys = [bench.running(f"job-{number}-{one}").key for one in range(number)]
        bench.clock.advance(1)
        with statements(bench.database) as seen:
            bench.renew(*keys, beats={key.id: seconds(0) for key in keys})
        counts.append(len([one for one in seen if "sched_run" in one]))
        assert {bench.clock.now} == {bench.row(key.id).beat_at for key in keys}
        with statements(bench.database) as seen:
            bench.renew(*keys)
        assert 2 == len([one for one in seen if "sched_run" in one])
    assert [4, 4] == counts
