"""Restarts, pauses and outages with real processes: the grid stays, and every occurrence has one record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import update

from celery_sched.model import Run
from celery_sched.rules.misfire import MOST_CATCH_UP, SHOWN
from celery_sched.store import pools
from celery_sched.store.tables import job as job_table
from tests.e2e.accounted import SECOND, each_once, gaps_of, runs_of
from tests.e2e.site import Kind, MakeSite, Site

FULL = bool(os.environ.get("SCHED_FULL"))
PATIENCE = 30.0
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
CONCURRENT: dict[str, Any] = {"task": "jobs.fast", "overlap": "concurrent"}


def _ran(site: Site, job: str) -> list[Run]:
    return [run for run in runs_of(site.runtime, job) if run.status != "skipped"]


def _missed(site: Site, job: str) -> list[Run]:
    """The occurrences that were given up and have a row of their own."""
    found = [run for run in runs_of(site.runtime, job) if run.status == "skipped"]
    assert all((run.reason or "").startswith("missed") for run in found), found
    return found


def _more(site: Site, job: str, count: int) -> None:
    """Wait for ``count`` more runs that succeed."""
    before = len(site.client.runs(job, status="succeeded", limit=10_000))
    site.wait_for_runs(job, "succeeded", before + count, PATIENCE)


def _settled(site: Site, *jobs: str) -> None:
    """Plan no more, and wait until all of these jobs' runs succeeded in one body each."""
    site.stop_planning()
    site.wait_until_empty(PATIENCE)
    for job in jobs:
        site.wait(lambda job=job: {"succeeded"} == {run.status for run in _ran(site, job)}, PATIENCE, job)
        assert sorted(run.id for run in _ran(site, job)) == sorted(body.run for body in site.bodies(job))


@pytest.mark.parametrize("kind", ["postgres", *(["embedded"] if FULL else [])])
def test_five_restarts_at_odd_moments(make_site: MakeSite, kind: Kind) -> None:
    """Killed and stopped in turn: the grids stay where they are; each occurrence ran, or is recorded."""
    site = make_site(kind)
    node = site.scheduler().container
    site.worker("-c", "2")
    every = site.client.add("every", schedule="every 3s", **CONCURRENT)
    site.client.add("cron", schedule="* * * * * */2", **CONCURRENT)
    site.client.add("all", schedule="* * * * * *", misfire="all", **CONCURRENT)
    _more(site, "all", 1)
    for number, moment in enumerate((0.3, 1.7, 0.9, 0.1, 1.2)):
        site.let_pass(moment)
        if number % 2:
            node.stop()
        else:
            node.kill("SIGKILL")
        node.start()
        assert node.ready()
    for job in ("every", "cron", "all"):
        _more(site, job, 2)
    _settled(site, "every", "cron", "all")
    assert every.anchor == site.client.get("every").anchor
    each_once(site.runtime, "every", 3 * SECOND, every.anchor)
    each_once(site.runtime, "cron", 2 * SECOND)
    every_second = each_once(site.runtime, "all", SECOND)
    assert every_second == [run.scheduled_for for run in _ran(site, "all")]
    assert len(every_second) >= 8


def test_paused_resumed_and_edited(make_site: MakeSite) -> None:
    """Time spent paused is not missed; a resume and an edit fire nothing at once."""
    site = make_site("postgres")
    site.scheduler()
    site.worker("-c", "2")
    added = site.client.add("tick", schedule="every 1s", misfire="all", **CONCURRENT)
    # next due at the end of an hour that began when it was made: whatever is done to it, it stays so
    hourly = site.client.add("hourly", schedule="every 1h", **CONCURRENT)
    _more(site, "tick", 2)
    for job in ("tick", "hourly"):
        site.client.pause(job, "for a while")
    paused = site.now()
    known = len(runs_of(site.runtime, "tick"))
    site.let_pass(3)
    assert known == len(runs_of(site.runtime, "tick")), "nothing is planned meanwhile"
    resuming = site.now()
    for job in ("tick", "hourly"):
        site.client.resume(job)
    _more(site, "tick", 2)
    first = runs_of(site.runtime, "tick")[known]
    assert resuming < first.scheduled_for <= first.queued_at
    _none_between(site, paused, resuming)
    assert timedelta(0) == (first.scheduled_for - added.anchor) % SECOND

    editing = site.now()
    site.client.edit("tick", schedule="every 2s")
    edited = site.now()
    site.client.edit("hourly", description="another", misfire="skip")

    def since() -> list[Run]:
        return [run for run in runs_of(site.runtime, "tick") if run.queued_at > edited]

    site.wait(lambda: sum(run.status == "succeeded" for run in since()) >= 2, PATIENCE, "two runs of it")
    later = since()
    assert all(editing < run.scheduled_for <= run.queued_at for run in later)
    spans = [b.scheduled_for - a.scheduled_for for a, b in pairwise(later)]
    assert {2 * SECOND} == set(spans)
    assert hourly.next_run_at == site.client.get("hourly").next_run_at
    assert [] == runs_of(site.runtime, "hourly")
    _settled(site, "tick")


def _none_between(site: Site, paused: datetime, resuming: datetime) -> None:
    """No occurrence of the pause has a run, and nothing says that it was missed."""
    for job in ("tick", "hourly"):
        assert [] == [run for run in runs_of(site.runtime, job) if paused < run.scheduled_for <= resuming]
        assert [] == [gap for gap in gaps_of(site.runtime, job) if gap.reason.startswith("missed")]


def test_an_outage_of_seconds(make_site: MakeSite) -> None:
    """Killed, and back after a while: the latest one or all of them run, as the policy says."""
    site = make_site("postgres")
    node = site.scheduler().container
    site.worker("-c", "2")
    for policy in ("once", "all"):
        site.client.add(policy, schedule="* * * * * *", misfire=policy, **CONCURRENT)
    site.client.add("skip", schedule="* * * * * *", misfire="skip", misfire_grace="1h", **CONCURRENT)
    _more(site, "all", 2)
    node.kill("SIGKILL")
    down = site.now()
    site.let_pass(6)
    up = site.now()
    node.start()
    _more(site, "all", 8)
    _settled(site, "once", "all", "skip")
    for job in ("once", "all", "skip"):
        each_once(site.runtime, job, SECOND)
    while_down = [run for run in _ran(site, "all") if down < run.scheduled_for < up]
    assert len(while_down) >= 5
    assert while_down == sorted(while_down, key=lambda run: (run.queued_at, run.scheduled_for)), (
        "oldest first"
    )
    for job in ("once", "skip"):
        assert [] == [run for run in _ran(site, job) if down + SECOND < run.scheduled_for < up - SECOND]
        assert len(_missed(site, job)) >= 4


def test_an_outage_of_days(make_site: MakeSite) -> None:
    """A month of hours, a day of minutes and of seconds: exact rows and counts for each policy."""
    site = make_site("postgres")
    database = site.runtime.database
    # no slots: what the policy decides to run stays in the queue, where it is counted
    database.run(lambda tx, now: pools.ensure(tx, "shop", "shut", 0))
    now = site.now()
    hourly = f"{(now + 30 * MINUTE).minute} * * * *"  # the latest one is half an hour old
    policies: dict[str, dict[str, Any]] = {
        "hours-once": {"schedule": hourly},
        "hours-all": {"schedule": hourly, "misfire": "all"},
        "hours-all-of-a-week": {"schedule": hourly, "misfire": "all", "catchup_window": "7d"},
        "hours-skip": {"schedule": hourly, "misfire": "skip"},
        "minutes-once": {"schedule": "* * * * *"},
        "minutes-all": {"schedule": "* * * * *", "misfire": "all"},
        "seconds-once": {"schedule": "* * * * * *"},
    }
    for name, policy in policies.items():
        site.client.add(name, pool="shut", **CONCURRENT, **policy)
        back = 30 * DAY if name.startswith("hours") else DAY
        first = site.client.get(name).next_run_at
        assert first is not None
        _last_looked_at(site, name, first - back)
    site.client.add("beside", schedule="* * * * * *", **CONCURRENT)
    site.worker("-c", "2")
    site.scheduler()
    _more(site, "beside", 1)
    site.wait(lambda: site.client.status().due <= 2, PATIENCE, "all to be planned")
    ended = site.now()
    site.wait(lambda: len(_ran(site, "minutes-all")) >= MOST_CATCH_UP, PATIENCE, "all that is made good")
    site.stop_planning()

    for name in policies:
        period = {"hours": HOUR, "minutes": MINUTE, "seconds": SECOND}[name.partition("-")[0]]
        recorded = each_once(site.runtime, name, period, runs_of(site.runtime, name)[-1].scheduled_for)
        wanted = (30 * DAY if period == HOUR else DAY) // period
        # while the scheduler started, some more came due
        assert wanted <= len(recorded) <= wanted + (ended - now) // period + PATIENCE, name
    runs = {name: len(_ran(site, name)) for name in policies}
    assert {
        "hours-once": 1,
        "hours-all": 30 * 24,
        "hours-all-of-a-week": 7 * 24,
        "hours-skip": 0,
    } == {name: count for name, count in runs.items() if name.startswith("hours")}
    assert MOST_CATCH_UP <= runs["minutes-all"] <= MOST_CATCH_UP + 2
    assert runs["minutes-once"] <= 3
    assert [SHOWN] * 2 == [len(_missed(site, name)) for name in ("hours-skip", "hours-once")]
    assert [30 * 24 - SHOWN] == _counts(site, "hours-skip")
    assert [30 * 24 - SHOWN - 1] == _counts(site, "hours-once")
    assert [23 * 24] == _counts(site, "hours-all-of-a-week")
    assert [] == _counts(site, "hours-all")
    (big,) = [count for count in _counts(site, "minutes-all") if count > SHOWN]
    assert DAY // MINUTE - MOST_CATCH_UP <= big <= DAY // MINUTE - MOST_CATCH_UP + 2


def _last_looked_at(site: Site, job: str, first: datetime) -> None:
    """As it would be, had no scheduler looked at the job since just before ``first``."""
    statement = update(job_table).where(job_table.c.name == job)
    values: dict[str, Any] = {"next_run_at": first, "last_scheduled_for": None}
    assert 1 == site.runtime.database.run(lambda tx, now: tx.execute(statement.values(**values))).rowcount


def _counts(site: Site, job: str) -> Sequence[int]:
    return [gap.count for gap in gaps_of(site.runtime, job) if gap.reason.startswith("missed")]
