"""Nodes whose own clocks are wrong: what is due, and what comes next, is the database's business.

And the database's own clock: it steps back, it leaps ahead, and weeks pass between two deploys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import libfaketime
import pytest
from celery import Celery

from celery_sched import runtime
from celery_sched.config import load
from celery_sched.model import JobDefinition
from celery_sched.rules.definition import checked
from celery_sched.steps.define import sync
from celery_sched.store import gaps
from celery_sched.testing import FakeClock, ManualScheduler
from celery_sched.transport import embedded_broker, ensure_folders

ROOT = Path(__file__).parents[2]
SECOND = timedelta(seconds=1)
WANTED = 6
"""Occurrences to be seen, one a second."""


def scheduler(url: str, folder: Path) -> ManualScheduler:
    """A scheduler that has the database's own clock."""
    ensure_folders(folder)
    app = Celery("proj", set_as_current=False)
    app.conf.update(embedded_broker(folder), sched_database_url=url, sched_home=str(folder))
    app.conf.sched_max_concurrent_jobs = 1000
    return ManualScheduler(app, runtime=runtime.make(load(app.conf, "proj", {})))


def poll_until_seen(url: str, folder: str) -> None:
    """Poll until there are enough occurrences; say what this process takes for now (run in a subprocess)."""
    polling = scheduler(url, Path(folder))
    print(json.dumps(time.time()), flush=True)
    deadline = time.monotonic() + 60
    while len(polling.runs("job")) < WANTED:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(polling.runs('job'))} occurrences")
        polling.poll()
    polling.close()


@pytest.mark.parametrize("offset", [-90, 90])
def test_a35_a_node_with_a_wrong_clock(postgresql_url: str, tmp_path: Path, offset: int) -> None:
    """A35: a scheduler that is 90 s slow or fast, beside a right one: each second one run, none lost."""
    polling = scheduler(postgresql_url, tmp_path)
    added = polling.client.add("job", task="t", schedule="every 1s", overlap="concurrent")
    code = "import sys; from tests.flow.test_clocks import poll_until_seen; poll_until_seen(*sys.argv[1:])"
    library = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    wrong = {"LD_PRELOAD": str(library), "FAKETIME": f"{offset:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code, postgresql_url, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **wrong},
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        thinks = json.loads(other.stdout.readline())
        assert abs(thinks - time.time() - offset) < 30, "its clock is wrong"
        while other.poll() is None:
            polling.poll()
    assert 0 == other.returncode
    runs = polling.runs("job")
    assert added.next_run_at is not None
    assert [added.next_run_at + n * SECOND for n in range(len(runs))] == [run.scheduled_for for run in runs]
    late = [(run.queued_at - run.scheduled_for) / SECOND for run in runs]
    assert all(0 <= seconds < 30 for seconds in late), late
    assert abs((datetime.now(UTC) - runs[-1].scheduled_for) / SECOND) < 30, "the database's clock is right"
    polling.close()


WEEK, DAY, HOUR = (timedelta(days=7), timedelta(days=1), timedelta(hours=1))


def deployed(url: str, folder: Path, clock: FakeClock, definition: JobDefinition) -> ManualScheduler:
    """A scheduler that starts, as each deploy starts one, with that job in its code."""
    ensure_folders(folder)
    app = Celery("proj", set_as_current=False)
    app.conf.update(embedded_broker(folder), sched_database_url=url, sched_home=str(folder))
    started = ManualScheduler(app, clock=clock)
    started.database.run(lambda tx, now: sync(tx, now, started.config, [definition]))
    return started


def test_a_weekly_job_fires_although_deploys_are_daily(tmp_path: Path) -> None:
    """`every 7d` in code, a new scheduler each day for 15 days, changed code: two runs, on the grid."""
    clock, url = FakeClock(), f"sqlite:///{tmp_path / 'sched.sqlite3'}"
    for day in range(15):
        code = checked(name="weekly", task="t", schedule="every 7d", description=f"deploy {day}")
        started = deployed(url, tmp_path, clock, code)
        started.poll()
        if day == 0:
            (first,) = started.client.list()
        clock.advance(DAY - HOUR)
        started.poll()
        clock.advance(HOUR)
        started.close()
    last = deployed(url, tmp_path, clock, code)
    last.poll()
    (job,) = last.client.list()
    assert (first.anchor, first.anchor + 3 * WEEK) == (job.anchor, job.next_run_at)
    assert [first.anchor + n * WEEK for n in (1, 2)] == [run.scheduled_for for run in last.runs("weekly")]
    last.close()


def test_the_database_clock_steps_back(database_url: str, tmp_path: Path) -> None:
    """On SQLite the host's clock rules, anywhere else the server's: an hour back, and nothing comes twice."""
    clock = FakeClock()
    polling = deployed(database_url, tmp_path, clock, checked(name="job", task="t", schedule="*/10 * * * *"))
    polling.client.edit("job", overlap="concurrent")
    polling.advance(HOUR, step=600)
    assert 6 == len(polling.runs("job"))
    clock.advance(-HOUR)
    polling.poll()
    # edited or resumed by the wrong clock, it still goes on from its mark
    polling.client.pause("job")
    polling.client.resume("job")
    polling.client.edit("job", schedule="*/5 * * * *")
    polling.advance(HOUR, step=300)
    assert 6 == len(polling.runs("job")), "all of this was run already"
    polling.advance(HOUR, step=300)
    seen = [run.scheduled_for for run in polling.runs("job")]
    assert (6 + 12, sorted(set(seen))) == (len(seen), seen)
    polling.close()


@pytest.mark.parametrize(("misfire", "ran"), [("once", 1), ("all", 24), ("skip", 0)])
def test_the_database_clock_leaps_ahead(tmp_path: Path, misfire: str, ran: int) -> None:
    """A day and half an hour that were not: the misfire policy decides, each occurrence has one record."""
    clock, url = FakeClock(), f"sqlite:///{tmp_path / 'sched.sqlite3'}"
    code = checked(name="job", task="t", schedule="0 * * * *", misfire=misfire, overlap="concurrent")
    polling = deployed(url, tmp_path, clock, code)
    polling.poll()
    clock.advance(DAY + HOUR / 2)
    polling.poll()
    runs = polling.runs("job")
    assert ran == sum(run.status != "skipped" for run in runs)
    assert {"missed"} >= {(run.reason or "missed").partition(":")[0] for run in runs}
    job = polling.job("job")
    found = polling.database.read(lambda tx, now: gaps.of_job(tx, job.id))
    assert 24 == len(runs) + sum(gap.count for gap in found)
    assert (24 - ran, clock.now + HOUR / 2) == (job.skipped_count, job.next_run_at)
    polling.close()
