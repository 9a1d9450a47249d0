"""A burst stalls nobody: a thousand occurrences that came due at once, beside jobs that keep their times.

Two small jobs: one has a pool of its own, whose slot no burst can take; one shares the burst's pool and has
the highest priority, so that it waits for the next slot that becomes free and for nothing else. (In the same
pool, the same priority means first come, first served: what comes behind a thousand waits for a thousand.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from celery_sched.model import Run, Source
from celery_sched.rules.definition import checked
from celery_sched.steps import define
from celery_sched.store import pools
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import run as run_table
from tests.e2e.accounted import SECOND, each_once, runs_of
from tests.e2e.site import Kind, MakeSite, Site

FULL = bool(os.environ.get("SCHED_FULL"))
MANY = 1000
EVERY = 5 if FULL else 2
"""Seconds between two occurrences of a small job."""
OCCURRENCES = 12 if FULL else 5
"""Of a small job, in each window."""
SMALL = ("own-pool", "first")
NOISE = 3.0
"""Seconds of lateness that a busy machine makes by itself."""
PATIENCE = 30.0
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Window:
    """What became of some successive occurrences of a small job."""

    ran: int
    worst: float
    """Seconds from the occurrence to the start, at the most."""


@pytest.mark.parametrize("kind", ["postgres", *(["embedded"] if FULL else [])])
def test_a_burst_stalls_nobody(make_site: MakeSite, kind: Kind) -> None:
    """A thousand late occurrences of one job, then a thousand late jobs: the small jobs run as alone."""
    site = make_site(kind)
    database = site.runtime.database
    database.run(lambda tx, now: pools.ensure(tx, "shop", "own", 1))
    site.scheduler(sched_max_concurrent_jobs=5)
    site.worker("-c", "6")  # as many as there are slots: what was claimed finds a process
    site.client.add("own-pool", task="jobs.fast", schedule=f"every {EVERY}s", pool="own")
    site.client.add("first", task="jobs.fast", schedule=f"every {EVERY}s", priority=9)
    site.client.add("flood", task="jobs.fast", schedule="every 1h", misfire="all")
    _add_a_herd(site)
    for job in SMALL:
        site.wait_for_runs(job, "succeeded", 1, PATIENCE)  # the first runs of a worker are slow
    alone = _window(site)

    next_run_at = site.client.get("flood").next_run_at
    assert next_run_at is not None
    assert 1 == _come_due(site, job_table.c.name == "flood", next_run_at - MANY * HOUR)
    beside_flood = _window(site)
    site.wait(lambda: _count(site, "flood") >= MANY, PATIENCE, "every occurrence of the flood in the queue")
    assert MANY == len(each_once(site.runtime, "flood", HOUR, next_run_at))
    assert {"schedule"} == {run.trigger for run in runs_of(site.runtime, "flood")}

    assert MANY == _come_due(site, job_table.c.name.like("herd-%"), site.now() - HOUR)
    beside_herd = _window(site)
    site.wait(lambda: _count(site, "herd-%") >= MANY, PATIENCE, "every job of the herd to have a run")
    assert MANY == _count(site, "herd-%")

    for job in SMALL:
        each_once(site.runtime, job, EVERY * SECOND, site.client.get(job).anchor)
        for beside in (beside_flood[job], beside_herd[job]):
            # at most one that the machine was too busy for
            assert beside.ran >= alone[job].ran - 1, (job, alone, beside_flood, beside_herd)
            allowed = 3 * alone[job].worst + NOISE
            assert beside.worst <= allowed, (job, alone, beside_flood, beside_herd)
    waited = _count(site, "flood", "queued") + _count(site, "herd-%", "queued")
    assert waited > MANY / 2, "there was a burst all the time"


def _add_a_herd(site: Site) -> None:
    definitions = [
        checked(name=f"herd-{number}", task="jobs.fast", schedule="0 0 1 1 *") for number in range(MANY)
    ]

    def work(tx: object, now: datetime) -> None:
        for definition in definitions:
            define.create(tx, now, site.runtime.config, definition, Source.OPERATOR)  # type: ignore[arg-type]

    site.runtime.database.run(work)


def _come_due(site: Site, which: object, at: datetime) -> int:
    """Let jobs be due since ``at``; how many they are."""
    statement = update(job_table).where(which).values(next_run_at=at)  # type: ignore[arg-type]
    return site.runtime.database.run(lambda tx, now: tx.execute(statement)).rowcount


def _count(site: Site, job: str, status: str = "%") -> int:
    query = select(func.count()).where(run_table.c.job.like(job), run_table.c.status.like(status))
    return int(site.runtime.database.read(lambda tx, now: tx.execute(query).scalar_one()))


def _window(site: Site) -> dict[str, Window]:
    """The next occurrences of the small jobs, each when it is decided and, if it runs, has ended."""
    began = site.now()

    def of(job: str) -> Sequence[Run]:
        return [run for run in runs_of(site.runtime, job) if run.scheduled_for > began][:OCCURRENCES]

    def over() -> bool:
        return all(
            len(of(job)) == OCCURRENCES and all(run.finished_at is not None for run in of(job))
            for job in SMALL
        )

    site.wait(over, EVERY * (OCCURRENCES + 1) + PATIENCE, "the runs of the small jobs", every=0.25)
    found = {}
    for job in SMALL:
        started = [(run.started_at, run) for run in of(job) if run.started_at is not None]
        late = [(at - run.scheduled_for).total_seconds() for at, run in started]
        found[job] = Window(len(late), max(late, default=0.0))
    return found
