"""The cap, over several schedulers that race for the last slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_sched.rules.transitions import HELD
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import Bench, together

CAP, JOBS = 5, 40


@pytest.fixture(params=["database", "redis"])
def capped(request: pytest.FixtureRequest, make_bench: Callable[..., Bench]) -> Bench:
    """A bench of five slots, counted by the database or in Redis; many jobs are due at once."""
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    bench = make_bench(max_concurrent_jobs=CAP, redis_url=redis_url)
    bench.scheduler.poll()
    for number in range(JOBS):
        bench.job(f"job-{number:02}", overlap="concurrent" if number % 3 else "skip")
    bench.plan()
    return bench


def _round(bench: Bench, race: Callable[[], None]) -> int:
    """Let them race until no slot is free; nothing finishes meanwhile, so every slot too many is seen."""
    waiting = bench.statuses().count("queued")
    for _ in range(20):
        race()
        assert bench.in_flight() <= CAP
        if bench.in_flight() == min(CAP, waiting):
            break
    assert min(CAP, waiting) == bench.in_flight()
    invariants.check(bench.database, redis_url=bench.config.redis_url)
    done = bench.work_off()
    assert min(CAP, waiting) == done
    return done


def test_two_schedulers_never_exceed_the_cap(capped: Bench) -> None:
    """two schedulers never exceed the cap (four, as threads): 40 runs are due, five at a time go, all go."""
    schedulers: list[ManualScheduler] = [capped.another() for _ in range(4)]
    finished = 0
    while finished < JOBS:
        finished += _round(capped, lambda: _at_once(schedulers))
    assert ["succeeded"] * JOBS == capped.statuses()


def _at_once(schedulers: list[ManualScheduler]) -> None:
    together(*(scheduler.poll for scheduler in schedulers))


@pytest.fixture
def pollers(capped: Bench) -> Iterator[list[Poller]]:
    """Two scheduler processes."""
    made = [Poller(capped) for _ in range(2)]
    for poller in made:
        poller.ready()
    yield made
    for poller in made:
        poller.end()


def test_two_scheduler_processes_never_exceed_the_cap(capped: Bench, pollers: list[Poller]) -> None:
    """two schedulers never exceed the cap (as processes): 40 runs are due, five at a time go, all go."""

    def race() -> None:
        for poller in pollers:
            poller.poll()
        assert [None, None] == [poller.wait() for poller in pollers]

    finished = 0
    while finished < JOBS:
        finished += _round(capped, race)
    assert ["succeeded"] * JOBS == capped.statuses()
    assert {""} == {_errors(poller.log) for poller in pollers}


def _errors(log: Path) -> str:
    return "\n".join(line for line in log.read_text().splitlines() if line.startswith("ERROR"))


def test_redis_away_for_one_scheduler(make_bench: Callable[..., Bench], redis_url: str) -> None:
    """One scheduler counts rows because Redis is out of its reach: slots come back to exactly zero."""
    bench = make_bench(max_concurrent_jobs=CAP, redis_url=redis_url)
    for number in range(20):
        bench.job(f"job-{number:02}")
    bench.scheduler.poll()
    away = bench.another()
    blind = Bench(str(bench.config.database_url), bench.folder, clock=bench.clock, max_concurrent_jobs=CAP)
    try:
        while "queued" in bench.statuses():
            together(bench.scheduler.poll, blind.scheduler.poll, away.poll)
            assert CAP * 2 >= bench.in_flight()
            bench.work_off()
        bench.clock.advance(11)
        bench.scheduler.poll()
        assert [] == [status for status in bench.statuses() if status in HELD]
        invariants.check(bench.database, redis_url=redis_url)
    finally:
        blind.close()
