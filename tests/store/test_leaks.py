"""Counters cannot leak: what is given back twice frees one slot; what drifted is put right by one look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from celery_sched.inflight import GRACE
from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.store.world import Bench

MakeCounted = Callable[..., Bench]
REDIS = pytest.mark.parametrize("make_counted", ["redis"], indirect=True)


@pytest.fixture(params=["redis", "database"])
def make_counted(request: pytest.FixtureRequest, bench_url: str, tmp_path: Path) -> Iterator[MakeCounted]:
    """Makes a bench whose slots Redis counts, or the database; sets that were rebuilt."""
    made: list[Bench] = []

    def make(slots: int) -> Bench:
        counts = {"redis_url": request.getfixturevalue("redis_url")} if request.param == "redis" else {}
        made.append(Bench(bench_url, tmp_path, max_concurrent_jobs=slots, **counts))
        made[-1].scheduler.poll()
        return made[-1]

    yield make
    for one in made:
        one.close()


def _check(bench: Bench) -> None:
    """At rest: the rows, the locks, the counts and Redis agree."""
    invariants.check(bench.database, redis_url=bench.config.redis_url or None)


def _started(bench: Bench) -> list[RunKey]:
    """What the last poll dispatched, started by this bench's worker."""
    keys = bench.messages()
    assert [Verdict.YOURS] * len(keys) == [bench.start(key).verdict for key in keys]
    return keys


def _running(bench: Bench, *names: str) -> list[RunKey]:
    """Runs of these new jobs, begun."""
    for name in names:
        bench.job(name)
    assert len(names) == bench.scheduler.poll().counts.dispatched
    return _started(bench)


def test_an_outcome_written_twice_frees_one_slot(make_counted: MakeCounted) -> None:
    """The first report of an end makes room for one run; a second one, when that has begun, for none."""
    bench = make_counted(1)
    [first] = _running(bench, "first")
    bench.job("second")
    bench.job("third")
    assert bench.finish(first).settled
    assert 1 == bench.scheduler.poll().counts.dispatched
    for again in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED):
        assert not bench.finish(first, again).settled
        bench.scheduler.runtime.slots.release("default", [first.id])
        assert 0 == bench.scheduler.poll().counts.dispatched
    assert 1 == bench.in_flight()
    assert (1, 0) == (bench.job_row("first").success_count, bench.job_row("first").failure_count)
    _check(bench)


def test_a_late_outcome_after_the_sweep_frees_no_second_slot(make_counted: MakeCounted) -> None:
    """The slot of a frozen worker's run went to another one; the worker, awake, gives nothing back."""
    bench = make_counted(1)
    bench.scheduler.advance(70, step=25)
    [frozen] = _running(bench, "frozen")
    bench.job("second")
    bench.job("third")
    polled = bench.scheduler.advance(61, step=61 / 7)
    assert (1, 1) == (sum(p.counts.swept for p in polled), sum(p.counts.dispatched for p in polled))
    assert not bench.finish(frozen).settled
    assert 0 == bench.scheduler.poll().counts.dispatched
    assert (1, "lost") == (bench.in_flight(), bench.status(frozen.id))
    _check(bench)


def test_a_late_outcome_of_a_run_that_is_tried_again_leaves_its_new_slot(make_counted: MakeCounted) -> None:
    """The same run holds a slot again, by another claim: what its first worker says frees nothing."""
    bench = make_counted(1)
    bench.scheduler.advance(70, step=25)
    bench.job("again", requeue=True)
    bench.scheduler.poll()
    [first] = _started(bench)
    bench.scheduler.advance(61, step=61 / 7)
    bench.scheduler.advance(30, step=5)
    [second] = _started(bench)
    assert (first.id, first.attempt + 1) == (second.id, second.attempt)
    bench.job("other")
    assert not bench.finish(first).settled
    assert 0 == bench.scheduler.poll().counts.dispatched
    assert (1, "running") == (bench.in_flight(), bench.status(second.id))
    _check(bench)


@REDIS
def test_a_second_release_is_made_good_before_anything_is_granted(make_counted: MakeCounted) -> None:
    """Redis loses a slot that is held by a release too many: the next look takes it back, grants none."""
    bench = make_counted(2)
    keys = _running(bench, "one", "two")
    bench.job("three")
    slots = bench.scheduler.runtime.slots
    slots.release("default", [keys[0].id])
    slots.release("default", [keys[0].id])
    assert 1 == slots.members("default")
    counts = bench.scheduler.poll().counts
    assert (1, 0) == (counts.drift, counts.dispatched)
    assert (2, 2) == (slots.members("default"), bench.in_flight())
    _check(bench)


def _drifts(bench: Bench) -> list[int]:
    return [bench.scheduler.poll().counts.drift for _ in range(3)]


@REDIS
def test_drift_heals_within_one_look(make_counted: MakeCounted) -> None:
    """Redis flushed, a worker killed before it gave its slot back, a slot of nobody: corrected once each."""
    bench = make_counted(5)
    slots = bench.scheduler.runtime.slots
    keys = _running(bench, "one", "two", "three")
    assert [0, 0, 0] == _drifts(bench)
    with redis.Redis.from_url(str(bench.config.redis_url)) as connection:
        connection.flushdb()
        assert [3, 0, 0] == _drifts(bench)
        assert 3 == slots.members("default")
        _settled_only(bench, keys[0])
        assert 3 == slots.members("default"), "its worker died before it could give it back"
        bench.clock.advance(GRACE + 1)
        assert [1, 0, 0] == _drifts(bench)
        connection.zadd(f"celery_sched:{{{bench.config.app}:default}}:inflight", {"nobody": 0})
        assert [1, 0, 0] == _drifts(bench)
        for key in keys[1:]:
            assert bench.finish(key).settled
        assert [0, 0, 0] == _drifts(bench)
        assert 0 == slots.members("default")
        assert [b"celery_sched:{bench:default}:rebuilt"] == connection.keys("*"), "no grant is left behind"
    _check(bench)


@REDIS
def test_drift_is_shown(make_counted: MakeCounted) -> None:
    """``status`` says what the last looks put right, and how much it was since the schedulers started."""
    bench = make_counted(5)
    _running(bench, "one", "two")
    status = bench.client.status()
    assert (0, 0) == (status.drift, status.drift_total)
    with redis.Redis.from_url(str(bench.config.redis_url)) as connection:
        connection.flushdb()
    bench.scheduler.poll()
    bench.clock.advance(11)  # it says so when it says hello
    bench.scheduler.poll()
    # that poll's own look came after its hello
    assert (2, 2) == (bench.client.status().drift, bench.client.status().drift_total)
    bench.clock.advance(11)
    bench.scheduler.poll()
    assert (0, 2) == (bench.client.status().drift, bench.client.status().drift_total)


def _settled_only(bench: Bench, key: RunKey) -> None:
    """What is left of a worker that is killed between the commit and its call to Redis."""
    outcome = Outcome(RunStatus.SUCCEEDED)
    done = bench.database.run(lambda tx, now: finish(tx, now, bench.config, key, outcome, bench.node))
    assert done.settled
