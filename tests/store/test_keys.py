"""Concurrency keys: of each at most so many runs are in flight, and what waits for one delays nobody else."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.model import RunId, RunKey, Token
from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.steps.start import Verdict
from celery_sched.store import pools
from tests import invariants
from tests.store.world import APP, Bench

TEMPLATE = "customer:{customer}"


@pytest.fixture(params=["database", "redis"])
def keyed(request: pytest.FixtureRequest, make_bench: Callable[..., Bench]) -> Bench:
    """A bench of five slots, counted by the database or in Redis."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    bench = make_bench(redis_url=redis_url)
    bench.scheduler.poll()
    return bench


def _job(bench: Bench, name: str, template: str | None = TEMPLATE, **policies: Any) -> None:
    policies = {"overlap": "concurrent", "schedule": "none", "concurrency_key": template, **policies}
    bench.client.add(name, task="t.ok", **policies)


def _run(bench: Bench, name: str, customer: object) -> RunId:
    return bench.client.run(name, kwargs={"customer": customer}).id


def _held(bench: Bench) -> list[str | None]:
    """Keys of what is in flight."""
    rows = [run for run in bench.scheduler.runs() if run.status in ("dispatched", "running")]
    return sorted((run.concurrency_key for run in rows), key=str)


def _finish(bench: Bench, run_id: RunId) -> None:
    row = bench.row(run_id)
    key = RunKey(run_id, Token(row.token), row.attempt)
    assert Verdict.YOURS == bench.start(key).verdict
    assert bench.finish(key).settled


def test_of_one_key_so_many_are_in_flight(keyed: Bench) -> None:
    """Two jobs share a key: one run of it at a time, whichever job's; when that ends the next one starts."""
    bench = keyed
    _job(bench, "a")
    _job(bench, "b")
    first, second, third = _run(bench, "a", 7), _run(bench, "b", 7), _run(bench, "b", 8)
    for _ in range(3):
        bench.scheduler.poll()
    assert ["customer:7", "customer:8"] == _held(bench)
    assert ["dispatched", "queued", "dispatched"] == [bench.status(one) for one in (first, second, third)]
    assert "for key customer:7 (1 in flight, key_limit is 1)" == bench.client.waits_for(second)
    assert "for key customer:7" in bench.client.why_run(second).text
    bench.clock.advance(1)
    last = bench.client.run("a", kwargs={"customer": 7})
    assert ("queued", "for key customer:7 (1 in flight, key_limit is 1)") == (last.status, last.waits)
    bench.scheduler.poll()
    assert 0 == bench.totals().at_capacity  # it is no slot that they wait for
    _finish(bench, first)
    bench.scheduler.poll()
    assert ("dispatched", ["customer:7", "customer:8"]) == (bench.status(second), _held(bench))
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_limit_of_several(keyed: Bench) -> None:
    """``key_limit`` runs of a key, no more, also when one claim could take all; read at the claim."""
    bench = keyed
    _job(bench, "a", key_limit=2)
    for _ in range(6):
        _run(bench, "a", 7)
    for _ in range(3):
        bench.scheduler.poll()
    assert ["customer:7"] * 2 == _held(bench)
    bench.client.edit("a", key_limit=4)
    bench.scheduler.poll()
    assert ["customer:7"] * 4 == _held(bench)
    bench.client.edit("a", key_limit=1)
    bench.work_off()
    for _ in range(2):
        bench.scheduler.poll()
    assert ["customer:7"] == _held(bench)
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_full_key_hides_nobody(keyed: Bench) -> None:
    """A hundred runs of one key, first in turn, and more than a poll looks at: those of other keys, and of
    none, are claimed in the same poll."""
    bench = keyed
    _job(bench, "flood", priority=9)
    _job(bench, "other")
    _job(bench, "plain", None)
    for _ in range(100):
        _run(bench, "flood", 7)
    for customer in (8, 9):
        _run(bench, "other", customer)
    _run(bench, "plain", 7)
    bench.scheduler.poll()
    if bench.config.redis_url:
        bench.scheduler.poll()
    assert [None, "customer:7", "customer:8", "customer:9"] == sorted(
        (key for key in _held(bench)), key=lambda key: key or ""
    )
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_job_goes_on_with_its_other_keys(keyed: Bench) -> None:
    """A job without overlap, whose first waiting run's key is full, runs the next one of another key; runs of
    one key stay in order."""
    bench = keyed
    _job(bench, "holder")
    _job(bench, "queue", overlap="queue")
    _run(bench, "holder", 7)
    for _ in range(2):
        bench.scheduler.poll()
    ids = []
    for customer in (7, 7, 8):
        ids.append(_run(bench, "queue", customer))
        bench.clock.advance(1)
    bench.scheduler.poll()
    assert ["queued", "queued", "dispatched"] == [bench.status(one) for one in ids]
    assert f"behind run {ids[2]}, which is dispatched" == bench.client.waits_for(ids[0])
    for key in [run.id for run in bench.scheduler.runs() if run.status == "dispatched"]:
        _finish(bench, key)
    bench.scheduler.poll()
    assert ["dispatched", "queued", "succeeded"] == [bench.status(one) for one in ids]
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_one_that_waits_for_slots_does_not_hold_its_key(keyed: Bench) -> None:
    """The first run of a key waits in a full pool, or is too heavy for ever: those of the key in other pools,
    and lighter ones, go on."""
    bench = keyed
    bench.database.run(lambda tx, now: pools.ensure(tx, APP, "full", 0))
    _job(bench, "stuck", pool="full", priority=9)
    _job(bench, "huge", weight=5, priority=9)
    bench.client.resize_pool("default", 4)
    _job(bench, "light")
    stuck, huge, light = (_run(bench, name, 7) for name in ("stuck", "huge", "light"))
    bench.clock.advance(1200)
    for _ in range(2):
        bench.scheduler.poll()
    assert ["queued", "queued", "dispatched"] == [bench.status(one) for one in (stuck, huge, light)]
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_key_follows_its_job(bench: Bench) -> None:
    """A template that is changed, given or taken away acts on what waits: the claim makes the key again."""
    _job(bench, "a", None, kwargs={"customer": 7, "region": "eu"}, schedule="every 1h")
    for _ in range(3):
        bench.client.run("a")
    bench.client.edit("a", concurrency_key=TEMPLATE)
    bench.scheduler.poll()
    assert ["customer:7"] == _held(bench)
    bench.scheduler.poll()
    assert ["customer:7"] * 3 == [run.concurrency_key for run in bench.scheduler.runs()]
    bench.client.edit("a", concurrency_key="region:{region}")
    _finish(bench, next(run.id for run in bench.scheduler.runs() if run.status == "dispatched"))
    bench.scheduler.poll()
    assert ["region:eu"] == _held(bench)
    bench.client.edit("a", concurrency_key=None)
    bench.scheduler.poll()
    assert [None, "region:eu"] == _held(bench)
    invariants.check(bench.database)


def test_planned_runs_have_keys(bench: Bench) -> None:
    """Occurrences and backfills have the key of the job's own arguments."""
    _job(bench, "a", kwargs={"customer": 7}, schedule="every 1h", run_immediately=True)
    _job(bench, "b", "{0}", args=["x y"], schedule="every 1h", run_immediately=True)
    bench.plan()
    assert ["customer:7", "x y"] == sorted(str(run.concurrency_key) for run in bench.scheduler.runs())


def test_a_run_that_can_have_no_key_is_refused(bench: Bench) -> None:
    """By hand, with arguments that lack the name: refused at once, nothing is written."""
    _job(bench, "a")
    for given in ({}, {"kwargs": {"customer_id": 7}}):
        with pytest.raises(InvalidValue, match=r"job 'a': concurrency_key .*\{customer\} is not among them"):
            bench.client.run("a", **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="concurrency_key"):
        bench.client.edit("a", schedule="every 1h")
    assert [] == bench.scheduler.runs()


def test_a_run_that_can_have_no_key_fails(keyed: Bench) -> None:
    """Its job was changed by plain SQL meanwhile: the run fails with the reason instead of running unlimited;
    lock and slots are free, and a retry by hand runs once the job is right again."""
    bench = keyed
    _job(bench, "a", overlap="skip")
    run_id = _run(bench, "a", 7)
    bench.set_job("a", concurrency_key="{nobody}")
    for _ in range(3):
        bench.scheduler.poll()
    row = bench.row(run_id)
    assert ("failed", None, 1) == (row.status, row.started_at, bench.job_row("a").failure_count)
    assert "it was not started: concurrency_key '{nobody}' is refused" in row.error
    assert (None, 0, []) == (bench.job_row("a").lock_token, bench.in_flight(), bench.messages())
    bench.set_job("a", concurrency_key="{customer}")
    bench.client.retry(run_id)
    bench.scheduler.poll()
    assert (["7"], 1) == (_held(bench), bench.work_off())
    invariants.check(bench.database, redis_url=bench.config.redis_url)


def test_a_claim_without_the_pool_default(bench: Bench) -> None:
    """The row that whoever counts keys locks was deleted by plain SQL: the claim makes it again."""
    _job(bench, "a", pool="default")
    run_id, job = _run(bench, "a", 7), bench.scheduler.job("a")
    bench.database.run(lambda tx, now: pools.remove(tx, APP, "default"))
    granted = {"default": [Candidate(run_id, job.id)]}
    done = bench.database.run(lambda tx, now: claim(tx, now, bench.config, granted, count_slots=False))
    assert ([run_id], [5]) == (
        [one.key.id for one in done.dispatches],
        [pool.slots for pool in bench.client.pools()],
    )


def test_any_keys(keyed: Bench) -> None:
    """Random keys, weights, pools and ends: of no key are too many in flight, and all is done."""
    bench, chance = keyed, random.Random(7)
    bench.client.create_pool("other", 3)
    for number in range(4):
        policies = {"key_limit": 2, "weight": 1 + number % 3, "pool": ("default", "other")[number % 2]}
        _job(bench, f"job-{number}", **policies)
    for _ in range(20):
        for _ in range(chance.randrange(4)):
            _run(bench, f"job-{chance.randrange(4)}", chance.randrange(3))
        bench.scheduler.poll()
        invariants.check(bench.database)
        for key in bench.messages():
            assert Verdict.YOURS == bench.start(key).verdict
            if chance.random() < 0.8:
                assert bench.finish(key).settled
        bench.clock.advance(chance.choice([1, 15]))
    for _ in range(60):
        bench.clock.advance(25)
        bench.scheduler.poll()
        invariants.check(bench.database)
        bench.work_off()
        if not bench.in_flight() and "queued" not in bench.statuses():
            break
    assert ("queued" in bench.statuses(), bench.in_flight()) == (False, 0)
    bench.clock.advance(timedelta(seconds=11).total_seconds())
    bench.scheduler.poll()
    invariants.check(bench.database, redis_url=bench.config.redis_url)
