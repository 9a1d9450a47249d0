"""One concurrency key, two schedulers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from celery_sched.model import Dispatch
from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.store import pools
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.race.test_staged import during
from tests.store.world import APP, PATIENCE, Bench, together


def _two_runs(bench: Bench) -> list[tuple[str, Candidate]]:
    """Waiting runs of two jobs in two pools, of one key: the pool and the candidate of each."""
    bench.database.run(lambda tx, now: pools.ensure(tx, APP, "other", 5))
    found = []
    for name, pool in (("one", "default"), ("two", "other")):
        job = bench.job(name, concurrency_key="k:{a}", kwargs={"a": 1}, pool=pool, overlap="concurrent")
        bench.plan()
        found.append((pool, Candidate(bench.scheduler.runs(name)[0].id, job.id)))
    return found


@pytest.mark.parametrize("count_slots", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
def test_two_claims_of_one_key(bench: Bench, count_slots: bool, reverse: bool) -> None:
    """Two schedulers claim two runs of a key, of different jobs and pools, at the same time: one gets it; the
    other has waited for it and changes nothing. With slots that Redis granted too."""
    runs = _two_runs(bench)
    first, second = reversed(runs) if reverse else runs

    def claiming(one: tuple[str, Candidate]) -> Callable[[Any, datetime], tuple[Dispatch, ...]]:
        wanted = {one[0]: [one[1]]}
        return lambda tx, now: claim(tx, now, bench.config, wanted, count_slots=count_slots).dispatches

    with during(bench, claiming(first), lambda session: session.run(claiming(second))) as (won, lost):
        assert ([first[1].run_id], ()) == ([one.key.id for one in won], lost.result(PATIENCE))
    assert ("dispatched", "queued") == tuple(bench.status(one[1].run_id) for one in (first, second))
    invariants.check(bench.database)


@pytest.mark.parametrize("counted", ["database", "redis"])
def test_schedulers_never_exceed_a_key(
    request: pytest.FixtureRequest, make_bench: Callable[..., Bench], counted: str
) -> None:
    """Three schedulers race for runs of three keys, two of each at once: never a third, and all are done."""
    redis_url = request.getfixturevalue("redis_url") if counted == "redis" else None
    bench = make_bench(max_concurrent_jobs=20, redis_url=redis_url)
    bench.scheduler.poll()
    for number in range(3):
        policies = {"overlap": "concurrent", "concurrency_key": "k:{a}", "key_limit": 2}
        bench.client.add(f"job-{number}", task="t.ok", schedule="none", **policies)
    for number in range(24):
        bench.client.run(f"job-{number % 3}", kwargs={"a": number % 2})
    schedulers: list[ManualScheduler] = [bench.another() for _ in range(3)]
    for _ in range(40):
        together(*(scheduler.poll for scheduler in schedulers))
        assert bench.in_flight() <= 4
        invariants.check(bench.database)
        bench.work_off()
        if ["succeeded"] * 24 == bench.statuses():
            break
    assert ["succeeded"] * 24 == bench.statuses()
    invariants.check(bench.database, redis_url=redis_url)
