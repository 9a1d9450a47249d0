"""Runs that take several slots: never more than a pool has, no run starves, none blocks for nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_sched.doctor.pools import concurrency
from celery_sched.errors import InvalidValue
from celery_sched.inflight import GRACE, RedisSlots
from celery_sched.model import JobId, RunId, RunKey, Token
from celery_sched.rules.fitting import Candidate, Held, fit
from celery_sched.rules.turn import PATIENCE, overdue
from celery_sched.steps.claim import claim
from celery_sched.steps.start import Verdict
from celery_sched.store import pools, queue, runs
from celery_sched.testing import START
from tests import invariants
from tests.store.world import APP, FULL, Bench, names


@pytest.fixture(params=["database", "redis"])
def weighed(request: pytest.FixtureRequest, make_bench: Callable[..., Bench]) -> Bench:
    """A bench of five slots, counted by the database or in Redis."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    bench = make_bench(redis_url=redis_url)
    bench.scheduler.poll()
    return bench


def _job(bench: Bench, name: str, weight: int, **policies: object) -> None:
    bench.client.add(name, task="t.ok", schedule="none", overlap="concurrent", weight=weight, **policies)


def _waiting(bench: Bench) -> list[str]:
    return sorted(run.job for run in bench.scheduler.runs() if run.status == "queued")


def _held(bench: Bench) -> list[str]:
    return sorted(run.job for run in bench.scheduler.runs() if run.status in ("dispatched", "running"))


def _settled(bench: Bench, polls: int = 3) -> None:
    """So many polls, the first of which a fresh set in Redis may need for itself."""
    for _ in range(polls):
        bench.scheduler.poll()


def _finish(bench: Bench, name: str) -> None:
    """One run of this job, which was published, starts and ends."""
    key = next(key for key in _keys(bench) if bench.row(key.id).job == name)
    assert Verdict.YOURS == bench.start(key).verdict
    assert bench.finish(key).settled


def _keys(bench: Bench) -> list[RunKey]:
    rows = [bench.row(run.id) for run in bench.scheduler.runs() if run.status == "dispatched"]
    return [RunKey(RunId(row.id), Token(row.token), row.attempt) for row in rows]


def test_a_run_takes_its_weight(weighed: Bench) -> None:
    """Two runs of two slots and one of one fill five; the row says what each took, and gives it all back."""
    bench = weighed
    for name, weight in (("a", 2), ("b", 2), ("c", 1), ("d", 1)):
        _job(bench, name, weight)
        bench.client.run(name)
        bench.clock.advance(0.001)
    polled = bench.scheduler.poll()
    _settled(bench)
    assert (["a", "b", "c"], ["d"], "5/5") == (_held(bench), _waiting(bench), polled.counts.in_flight)
    assert {"a": 2, "b": 2, "c": 1} == {
        run.job: run.weight for run in bench.scheduler.runs() if run.job != "d"
    }
    use = bench.client.get_pool("default")
    assert (5, 5, 3, 1, 2) == (use.slots, use.taken, use.in_flight, use.waiting, use.heaviest)
    assert 5 == bench.client.status().inflight
    invariants.check(bench.database, redis_url=bench.config.redis_url)
    _finish(bench, "a")
    assert 3 == bench.client.get_pool("default").taken
    _settled(bench)
    assert (["b", "c", "d"], 4) == (_held(bench), bench.client.get_pool("default").taken)
    invariants.check(bench.database, redis_url=bench.config.redis_url)
    bench.work_off()
    _settled(bench)
    assert 0 == bench.client.get_pool("default").taken
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_heavy_run_does_not_block_lighter_ones(weighed: Bench) -> None:
    """Three slots are taken: runs of three wait; those of one behind them go on, however many are heavy."""
    bench = weighed
    for name, weight in (("first", 3), ("heavy", 3), ("light", 1)):
        _job(bench, name, weight)
    bench.client.run("first")
    _settled(bench)
    for _ in range(80):  # more than the candidates that one poll looks at
        bench.client.run("heavy")
    bench.clock.advance(1)
    for _ in range(2):
        bench.client.run("light")
    _settled(bench, 1)
    assert ["first", "light", "light"] == _held(bench)
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_heavy_run_does_not_starve(weighed: Bench) -> None:
    """Light runs come all the time and fill the pool; a run of all its slots starts within its patience and
    the time that those take which ran then."""
    bench = weighed
    _job(bench, "heavy", 5)
    _job(bench, "light", 1)
    for _ in range(5):
        bench.client.run("light")
    _settled(bench, 2)
    heavy = bench.client.run("heavy").id
    asked_at = bench.clock.now
    while bench.status(heavy) == "queued":
        bench.clock.advance(20)
        bench.client.run("light")
        _finish(bench, "light")
        for run in bench.scheduler.runs("light"):  # a run that is in flight is renewed by its worker
            if run.status == "dispatched":
                bench.set_run(run.id, lease_expires_at=bench.clock.now + timedelta(minutes=1))
        _settled(bench, 1)
        assert bench.clock.now - asked_at < PATIENCE + timedelta(seconds=5 * 20 + 20)
    assert bench.clock.now - asked_at >= PATIENCE
    assert ["heavy"] == _held(bench)
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_slots_are_kept_for_one_that_is_overdue(weighed: Bench) -> None:
    """While an overdue run waits for its slots, those that are free stay free; one of higher priority goes
    on; what waits behind it is said to wait for it, and counts as capped."""
    bench = weighed
    for name, weight, priority in (("first", 3, 5), ("heavy", 4, 5), ("light", 1, 5), ("urgent", 1, 9)):
        _job(bench, name, weight, priority=priority)
    bench.client.run("first")
    _settled(bench, 2)
    heavy = bench.client.run("heavy").id
    bench.clock.advance(PATIENCE.total_seconds())
    bench.set_run(bench.scheduler.runs("first")[0].id, lease_expires_at=bench.clock.now + timedelta(hours=1))
    light = bench.client.run("light")
    assert (
        "for slots of pool 'default' (3 of 5 taken), which are kept for run " + f"{heavy}, which takes 4"
    ) == light.waits
    bench.client.run("urgent")
    polled = bench.scheduler.poll()
    assert (["first", "urgent"], ["heavy", "light"]) == (_held(bench), _waiting(bench))
    assert (True, 2) == ((polled.next_in or 0) > 0.05, polled.counts.at_capacity)
    assert {True} == {bench.row(run_id).at_capacity_at is not None for run_id in (heavy, light.id)}
    assert str(heavy) in bench.client.why_run(light.id).text
    assert "for 4 slots of pool 'default' (4 of 5 taken, 1 other run(s) waiting)" == bench.client.waits_for(
        heavy
    )
    _finish(bench, "first")
    _settled(bench, 1)
    assert (["heavy", "urgent"], ["light"]) == (_held(bench), _waiting(bench))
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_weight_that_never_fits_blocks_nobody(weighed: Bench) -> None:
    """A pool made smaller than a run's weight: the run waits, however long, and everybody else goes on;
    status, why and the answer to a run by hand say so; when the pool is larger again it runs."""
    bench = weighed
    _job(bench, "huge", 5)
    _job(bench, "light", 1)
    bench.client.resize_pool("default", 4)
    run = bench.client.run("huge")
    never = "for 5 slots of pool 'default', which has 4: it never starts"
    assert (never, never) == (run.waits, bench.client.waits_for(run.id))
    assert never in bench.client.why_run(run.id).text
    assert any("weight 5" in problem and "4 slots" in problem for problem in bench.client.status().problems)
    assert (["huge"], 5) == (
        list(bench.client.get_pool("default").too_heavy),
        bench.client.get_pool("default").heaviest,
    )
    bench.clock.advance(2 * PATIENCE.total_seconds())
    for _ in range(4):
        bench.client.run("light")
    polled = bench.scheduler.poll()
    assert (["light"] * 4, ["huge"]) == (_held(bench), _waiting(bench))
    polled = bench.scheduler.poll()
    assert (0, True) == (polled.counts.dispatched, (polled.next_in or 1) > 0.05)  # not asked again at once
    bench.work_off()
    bench.client.resize_pool("default", 5)
    _settled(bench, 1)
    assert ["huge"] == _held(bench)
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_doctor_names_what_never_starts_and_unequal_limits(bench: Bench) -> None:
    """A weight that its pool cannot hold, and jobs that share a key with different limits; nothing else."""
    _job(bench, "fits", 2)
    _job(bench, "huge", 5)
    for name, limit in (("one", 1), ("two", 2)):
        _job(bench, name, 1, concurrency_key="k:{a}", key_limit=limit)
    definitions = [job.definition for job in bench.client.list()]
    assert ["keys"] == [one.subject for one in concurrency(bench.scheduler.runtime, definitions)]
    bench.client.resize_pool("default", 4)
    heavy, keys = concurrency(bench.scheduler.runtime, definitions)
    assert ("warning", "pools", True) == (heavy.level, heavy.subject, "'huge' has weight 5" in heavy.message)
    assert ("warning", "keys") == (keys.level, keys.subject)
    assert "('one': 1, 'two': 2)" in keys.message
    bench.client.resize_pool("default", 0)
    bench.client.edit("two", key_limit=1)
    assert [] == concurrency(bench.scheduler.runtime, [job.definition for job in bench.client.list()])


def test_a_weight_above_the_pool_is_refused(bench: Bench) -> None:
    """At add and edit, naming both; what a smaller pool made wrong later may still be edited elsewhere."""
    bench.client.create_pool("narrow", 2)
    with pytest.raises(
        InvalidValue, match=r"job 'a': weight 3 is refused: at most the 2 slots of its pool 'narrow'"
    ):
        _job(bench, "a", 3, pool="narrow")
    with pytest.raises(InvalidValue, match=r"weight 6 is refused: at most the 5 slots of its pool 'default'"):
        _job(bench, "a", 6)
    _job(bench, "a", 3)
    with pytest.raises(InvalidValue, match=r"weight 3 is refused: at most the 2 slots of its pool 'narrow'"):
        bench.client.edit("a", pool="narrow")
    bench.client.resize_pool("default", 1)
    assert "new" == bench.client.edit("a", description="new").definition.description
    with pytest.raises(InvalidValue, match="weight 2 is refused"):
        bench.client.edit("a", weight=2)
    bench.client.resize_pool("default", 0)  # closed, for all alike
    _job(bench, "b", 1)


def test_a_weight_is_read_when_the_run_is_claimed(weighed: Bench) -> None:
    """What already waits, or was granted by Redis as lighter, takes what its job says in the moment of the
    claim."""
    bench = weighed
    _job(bench, "a", 1)
    job = bench.scheduler.job("a")
    run = bench.client.run("a")
    bench.client.edit("a", weight=3)
    assert run.weight is None  # nobody knows yet
    granted = {"default": [Candidate(run.id, job.id, 1)]}
    lost = bench.database.run(lambda tx, now: claim(tx, now, bench.config, granted, count_slots=False))
    assert ((), (run.id,)) == (lost.dispatches, lost.lost)
    _settled(bench, 2)
    assert (3, 3) == (bench.row(run.id).weight, bench.client.get_pool("default").taken)
    bench.client.edit("a", weight=1)  # what runs keeps what it took
    _settled(bench)
    assert 3 == bench.client.get_pool("default").taken
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_overdue_is_the_same_in_sql(bench: Bench) -> None:
    """The database tells the overdue runs as the rule does, to the microsecond."""
    _job(bench, "a", 1)
    now, tick = bench.clock.now, timedelta(microseconds=1)
    expected = {}
    for ready_at in (now, now - PATIENCE, now - PATIENCE + tick, now - timedelta(seconds=5)):
        for start_by in (None, now, now + tick, now - tick, ready_at, ready_at + tick, ready_at - tick):
            run_id = bench.client.run("a").id
            bench.set_run(run_id, ready_at=ready_at, start_by=start_by)
            expected[run_id] = overdue(ready_at, start_by, now)
    found = bench.database.read(lambda tx, now: queue.ready_in(tx, APP, now, "default", 500))
    assert expected == {one.run_id: one.overdue for one in found}
    assert {True, False} == set(expected.values())


def test_the_cap_holds_for_any_weights(weighed: Bench) -> None:
    """Random weights, ends, kills and edits: never above the slots, zero at rest."""
    bench, chance = weighed, random.Random(4)
    slots = bench.scheduler.runtime.slots
    for weight in range(1, 6):
        _job(bench, f"w{weight}", weight, priority=chance.randrange(10))
    for number in range(120 if FULL else 30):
        for _ in range(chance.randrange(4)):
            bench.client.run(f"w{chance.randint(1, 5)}")
        bench.scheduler.poll()
        invariants.check(bench.database)
        assert (slots.members("default") or 0) <= 5
        for key in bench.messages():
            if chance.random() < 0.2:
                continue  # its worker is killed
            if bench.start(key).verdict is Verdict.YOURS and chance.random() < 0.9:
                assert bench.finish(key).settled
        if number % 7 == 3:
            bench.client.edit("w2", weight=chance.randint(1, 4))
        bench.clock.advance(chance.choice([1, 15, 29]))
    for _ in range(200):
        bench.clock.advance(25)
        bench.scheduler.poll()
        invariants.check(bench.database)
        bench.work_off()
        if not bench.in_flight() and not _waiting(bench):
            break
    _settled(bench, 2)
    assert ([], 0) == (_waiting(bench), bench.client.get_pool("default").taken)
    invariants.check(bench.database, redis_url=bench.config.redis_url)


# -- Redis ---------------------------------------------------------------------------------------------


@pytest.fixture
def slots(redis_url: str) -> Iterator[RedisSlots]:
    """Slots of their own."""
    made = RedisSlots(redis_url, "bench")
    yield made
    made.close()


WAITING = st.lists(st.tuples(st.integers(1, 7), st.booleans()), max_size=10)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(WAITING, st.lists(st.integers(1, 3), max_size=3), st.integers(0, 7))
def test_redis_grants_by_the_same_rule(
    slots: RedisSlots, waiting: list[tuple[int, bool]], held: list[int], limit: int
) -> None:
    """For any queue, held runs and slots, Redis grants what the rule says; a release gives all of it back."""
    pool = "p"
    candidates = [
        Candidate(RunId(f"w{place}"), JobId(1), weight, late) for place, (weight, late) in enumerate(waiting)
    ]
    rows = [Held(pool, RunId(f"h{place}"), START, weight) for place, weight in enumerate(held)]
    slots.reserve(START, {pool: limit}, rows, {pool: []})  # it may have to be rebuilt first
    granted = slots.reserve(START, {pool: limit}, rows, {pool: candidates})
    expected = fit(candidates, limit - sum(held), limit)
    assert {one.run_id for one in expected} == granted.runs
    assert sum(one.weight for one in expected) + sum(held) == slots.members(pool)
    for _ in range(2):
        slots.release(pool, sorted(granted.runs))
        assert sum(held) == slots.members(pool)
    slots.release(pool, [row.run_id for row in rows])
    assert 0 == slots.members(pool)


def test_weights_are_rebuilt_from_the_rows(slots: RedisSlots) -> None:
    """A heavy run whose weight Redis has forgotten, or has wrong, counts as the rows say: as drift."""
    pool, wanted = "p", [Candidate(RunId("w"), JobId(1), 2)]
    rows = [Held(pool, RunId("h"), START, 3)]
    slots.reserve(START, {pool: 4}, [], {pool: []})
    first = slots.reserve(START, {pool: 4}, rows, {pool: wanted})
    assert (1, frozenset(), 3) == (first.drift, first.runs, slots.members(pool))
    again = slots.reserve(START, {pool: 4}, rows, {pool: wanted})
    assert (0, frozenset()) == (again.drift, again.runs)
    lighter = [Held(pool, RunId("h"), START, 2)]
    healed = slots.reserve(START, {pool: 4}, lighter, {pool: wanted})
    assert (1, {"w"}, 4) == (healed.drift, healed.runs, slots.members(pool))
    later = START + timedelta(seconds=GRACE + 1)  # neither has a row any more
    gone = slots.reserve(later, {pool: 4}, [], {pool: []})
    assert (2, 0) == (gone.drift, slots.members(pool))


def test_a_set_from_before_the_upgrade(slots: RedisSlots, redis_url: str) -> None:
    """Members without a weight, as older releases leave them, take one slot; the rows correct them."""
    with redis.Redis.from_url(redis_url) as connection:
        base = "celery_sched:{bench:p}"
        connection.zadd(f"{base}:inflight", {"old": START.timestamp()})
        connection.hset(f"{base}:granted", "old", str(START.timestamp()))
        connection.set(f"{base}:rebuilt", "1")
    assert 1 == slots.members("p")
    wanted = {"p": [Candidate(RunId("w"), JobId(1), 2)]}
    assert {"w"} == slots.reserve(START, {"p": 3}, [], wanted).runs
    assert 3 == slots.members("p")


def test_the_rows_of_a_pool_that_is_not_default(bench: Bench) -> None:
    """Weights count in their own pool only."""
    bench.database.run(lambda tx, now: pools.ensure(tx, APP, "reports", 3))
    _job(bench, "big", 3, pool="reports")
    _job(bench, "small", 1)
    for name in ("big", "big", "small"):
        bench.client.run(name)
    polled = bench.scheduler.poll()
    assert (["big", "small"], "1/5,reports:3/3") == (_held(bench), polled.counts.in_flight)
    assert () == bench.claim(pool="reports")
    assert {"default": 1, "reports": 3} == bench.database.read(
        lambda tx, now: queue.held_counts(tx, APP, ["default", "reports"])
    )
    assert [] == names(bench.claim())
    assert {"dispatched": 2, "queued": 1} == bench.database.read(
        lambda tx, now: runs.count_by_status(tx, APP)
    )
    invariants.check(bench.database)
