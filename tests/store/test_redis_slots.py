"""Slots in a real Redis: brought in line with the rows, never more than the limit, zero at rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import redis

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.inflight import GRACE, RedisSlots
from celery_sched.model import JobId, RunId
from celery_sched.rules.fitting import Candidate, Held
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store.tables import job as job_table
from celery_sched.testing import holding
from tests import invariants
from tests.servers import RedisServer
from tests.store.world import FULL, START, Bench

IDS = [RunId(f"run-{number}") for number in range(10)]


@pytest.fixture
def slots(redis_url: str) -> Iterator[RedisSlots]:
    """Slots whose set was rebuilt: they grant."""
    made = RedisSlots(redis_url, "bench")
    assert frozenset() == _ask(made, IDS).runs
    yield made
    made.close()


def _ask(slots: RedisSlots, wanted: list[RunId], *, held: list[RunId] | None = None, now: datetime = START,
         limit: int = 3) -> object:  # fmt: skip
    rows = [Held("default", run_id, now + timedelta(seconds=60)) for run_id in held or []]
    return slots.reserve(now, {"default": limit}, rows, {"default": _candidates(wanted)})


def _candidates(wanted: list[RunId]) -> list[Candidate]:
    return [Candidate(run_id, JobId(1)) for run_id in wanted]


def _granted(slots: RedisSlots, wanted: list[RunId], **more: object) -> list[RunId]:
    granted = _ask(slots, wanted, **more)  # type: ignore[arg-type]
    return sorted(granted.runs)  # type: ignore[attr-defined]


def test_never_more_than_the_limit(slots: RedisSlots) -> None:
    """Wanted ten, granted three; wanted again, none; the best ones first."""
    assert IDS[:3] == _granted(slots, IDS)
    assert [] == _granted(slots, IDS)
    assert 3 == slots.members("default")


def test_a_release_twice_frees_one_slot(slots: RedisSlots) -> None:
    """A48: releasing twice, or what was never granted, frees nothing more."""
    _granted(slots, IDS)
    slots.release("default", IDS[:1])
    slots.release("default", IDS[:1])
    slots.release("default", [RunId("never"), IDS[9]])
    assert 2 == slots.members("default")
    assert IDS[3:4] == _granted(slots, IDS[3:])
    assert 3 == slots.members("default")


def test_an_expired_score_frees_nothing_while_its_run_is_held(slots: RedisSlots) -> None:
    """A48: a run three times longer than its lease keeps its slot as long as its row is held."""
    _granted(slots, IDS)
    late = START + timedelta(seconds=180)
    assert [] == _granted(slots, IDS[3:], held=IDS[:3], now=late)
    rows = [Held("default", run_id, START + timedelta(seconds=60)) for run_id in IDS[:3]]
    assert frozenset() == slots.reserve(late, {"default": 3}, rows, {"default": _candidates(IDS[3:])}).runs
    assert 3 == slots.members("default")


def test_members_without_a_row_are_freed_after_a_grace(slots: RedisSlots) -> None:
    """A grant whose claim never committed comes back; a grant of a moment ago is left alone."""
    _granted(slots, IDS)
    assert [] == _granted(slots, IDS[3:], now=START + timedelta(seconds=GRACE))
    after = _ask(slots, IDS[3:], now=START + timedelta(seconds=GRACE + 1))
    assert (3, 3) == (after.drift, len(after.runs))  # type: ignore[attr-defined]


def test_rows_without_a_member_take_their_slots_back(slots: RedisSlots) -> None:
    """What the database holds counts, whoever claimed it, and the drift says so."""
    asked = _ask(slots, IDS[5:], held=IDS[:2])
    assert (2, 1) == (asked.drift, len(asked.runs))  # type: ignore[attr-defined]
    assert 3 == slots.members("default")


def test_a_flush_never_opens_the_gates(slots: RedisSlots, redis_url: str) -> None:
    """A48: after a flush nothing is granted until the set was rebuilt from the rows."""
    _granted(slots, IDS)
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    assert [] == _granted(slots, IDS[5:], held=IDS[:2])
    assert IDS[5:6] == _granted(slots, IDS[5:], held=IDS[:2])


def test_pools_do_not_share_slots(slots: RedisSlots) -> None:
    """Each pool has its own set, and each app its own pools."""
    _granted(slots, IDS)
    other = {"narrow": _candidates(IDS[5:])}
    assert frozenset() == slots.reserve(START, {"narrow": 1}, [], other).runs  # its first rebuild
    assert {IDS[5]} == slots.reserve(START, {"narrow": 1}, [], other).runs
    assert (3, 1) == (slots.members("default"), slots.members("narrow"))


def test_without_redis_the_database_counts(redis_server: RedisServer, bench_url: str, tmp_path: Path) -> None:
    """Redis dies: the claim counts rows instead, exactly; it comes back empty: rebuilt, and used again."""
    bench = Bench(bench_url, tmp_path, redis_url=redis_server.fresh_url(), max_concurrent_jobs=3)
    try:
        for number in range(9):
            bench.job(f"job-{number}")
        bench.scheduler.poll()
        assert (3, "3/3") == _did(bench)
        redis_server.kill()
        assert (0, "3/3") == _did(bench)
        assert 3 == bench.work_off()
        assert (3, "3/3") == _did(bench)
        redis_server.restart()
        assert 3 == bench.work_off()
        assert (0, "0/3") == _did(bench)  # it is rebuilt first
        assert (3, "3/3") == _did(bench)
        invariants.check(bench.database, redis_url=bench.config.redis_url)
        assert 3 == bench.work_off()
        bench.scheduler.poll()
        assert (0, 0) == (bench.in_flight(), bench.scheduler.runtime.slots.members("default"))
    finally:
        bench.close()


def _did(bench: Bench) -> tuple[int, str]:
    counts = bench.scheduler.poll().counts
    return counts.dispatched, counts.in_flight


def test_a_run_holds_one_slot_however_often_it_is_tried(
    bench_url: str, redis_url: str, tmp_path: Path
) -> None:
    """A48: some are retried, killed, cancelled, and Redis is flushed: never above 3, zero at rest."""
    size = 200 if FULL else 60
    bench = Bench(bench_url, tmp_path, redis_url=redis_url, max_concurrent_jobs=3)
    slots = bench.scheduler.runtime.slots
    try:
        for number in range(size):
            bench.job(f"job-{number:03}", overlap="concurrent")
        most, seen, flushed = 0, 0, False
        while any(status in ("queued", "dispatched", "running") for status in bench.statuses()) or not seen:
            bench.scheduler.poll()
            most = max(most, bench.in_flight(), slots.members("default") or 0)
            for key in bench.messages():
                seen += 1
                if bench.start(key).verdict is not Verdict.YOURS:
                    continue
                if seen % 10 == 1:
                    continue  # its worker is killed
                if seen % 5 == 2:
                    bench.client.cancel(key.id)
                    bench.finish(key, RunStatus.CANCELLED)
                elif seen % 3 == 0 and key.attempt < 3:
                    assert bench.retry(key, bench.clock.now)
                    again = type(key)(key.id, key.token, key.attempt + 1)
                    most = max(most, bench.in_flight())
                    assert Verdict.YOURS == bench.start(again).verdict
                    assert bench.finish(again).settled
                else:
                    assert bench.finish(key).settled
                slots.release("default", [key.id])
            if seen > size / 2 and not flushed:
                flushed = True
                with redis.Redis.from_url(redis_url) as connection:
                    connection.flushdb()
            bench.clock.advance(25)
        assert 3 == most
        bench.scheduler.poll()
        assert (0, 0) == (bench.in_flight(), slots.members("default"))
        assert size == len(bench.statuses())
        assert {"succeeded", "lost", "cancelled"} == set(bench.statuses())
        invariants.check(bench.database, redis_url=redis_url)
    finally:
        bench.close()


@pytest.mark.parametrize("why", ["locked by another session", "the claim fails"])
def test_losers_keep_no_slot(bench_url: str, redis_url: str, tmp_path: Path, why: str) -> None:
    """lock losers hold no slot, in Redis either: what was granted and not claimed is given back at once."""
    bench = Bench(bench_url, tmp_path, redis_url=redis_url, max_concurrent_jobs=3)
    slots = bench.scheduler.runtime.slots
    try:
        bench.scheduler.poll()
        job = bench.job()
        bench.plan()
        if why == "the claim fails":
            failpoints.arm("claim:locked", _fail)
            assert 0 == bench.scheduler.poll().counts.dispatched
        elif bench.database.dialect.row_locks:
            with holding(bench.session(), job_table, job.id):
                assert (0, 1) == _lost(bench)
        assert 0 == slots.members("default")
        failpoints.disarm("claim:locked")
        assert 1 == bench.scheduler.poll().counts.dispatched
        invariants.check(bench.database, redis_url=redis_url)
    finally:
        failpoints.disarm("claim:locked")
        bench.close()


def _lost(bench: Bench) -> tuple[int, int]:
    counts = bench.scheduler.poll().counts
    return counts.dispatched, counts.lock_lost


def _fail() -> None:
    raise FailpointReached("claim:locked")
