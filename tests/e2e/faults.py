"""Measurements 6 to 8: a late settler, a broker that is away, a database that falls silent."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psutil
from sqlalchemy import select, text

from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import metadata
from tests.e2e.measurements import Figures, all_succeed, each_once
from tests.e2e.site import Site, main_process, seconds
from tests.proxy import Proxy
from tests.reaper import REAPER

# 6 ------------------------------------------------------------------------------------------------


def late_settler(site: Site) -> Figures:
    """A run whose lease was taken over finishes: one audit line, and nothing else in the database."""
    scale = site.scale
    site.scheduler()
    first = site.worker("-c", "1")
    site.client.add("late", task="jobs.sleep", args=[5], schedule="every 1h", run_immediately=True)
    site.wait(lambda: site.bodies("late"), 30, "the body to run")
    [body] = site.bodies("late")
    main, child = main_process(body), psutil.Process(body.pid)
    # a machine that is frozen, as a laptop or a virtual machine is; not in the middle of a write to SQLite,
    # which would block every writer until it thaws (a stated limit)
    for _ in range(100):
        main.suspend()
        child.suspend()
        if site.kind != "embedded" or _can_write(site):
            break
        main.resume()
        child.resume()
    else:
        raise AssertionError("the worker never stopped writing")
    limit = scale.lease + 2 + scale.patience
    site.wait(lambda: site.client.get_run(body.run).status == "lost", limit, "the frozen run to be lost")  # type: ignore[arg-type]
    # the frozen worker's connection would still be handed a message: the successor goes another way
    site.client.edit("late", options={"queue": "other"})
    site.worker("-c", "1", "-Q", "other")
    successor = site.client.run("late", args=[3600])
    site.wait_for_runs("late", "running", 1, 30)
    before = _snapshot(site, successor.id)
    child.resume()
    site.wait(lambda: site.client.status().late_settlers == 1, limit, "the late settler to be counted")
    after = _snapshot(site, successor.id)
    new = [row for row in after.pop("sched_audit") if row not in before["sched_audit"]]
    del before["sched_audit"]
    assert before == after, "a late settler changed something"
    assert 1 == len(new), new
    assert ["end"] == [end.what for end in site.bodies("late", "end")], "the late body did not finish"
    job = site.client.get("late")
    assert (successor.id, "running") == (job.locked_by, site.client.get_run(successor.id).status)
    # the worker lives on
    main.resume()
    site.client.add("after", task="jobs.fast", schedule="every 1h", run_immediately=True)
    site.wait_for_runs("after", "succeeded", 1, limit)
    assert "running" == first.container.status
    site.client.cancel(successor.id, reason="the measurement is over")
    site.wait_until_empty(limit)
    return {"audit lines": len(new), "other changes": 0}


def _can_write(site: Site) -> bool:
    """Whether nobody holds SQLite's write lock."""
    file = site.settings["sched_database_url"].removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, timeout=0.2, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        database.execute("ROLLBACK")
        return True


def _snapshot(site: Site, successor: str) -> dict[str, list[dict[str, Any]]]:
    """All rows, but for the signs of life of nodes, schedulers and the successor's lease."""

    def work(tx: Any, now: datetime) -> dict[str, list[dict[str, Any]]]:
        tables = {}
        for table in metadata.sorted_tables:
            if table.name != "sched_node":
                rows = tx.execute(select(table).order_by(*table.primary_key.columns)).mappings()
                tables[table.name] = [dict(row) for row in rows]
        return tables

    tables = site.runtime.database.read(work)
    for row in tables["sched_app"]:
        for column in ("last_pass_at", "sweep_not_before", "late_settlers"):
            del row[column]
    for row in tables["sched_run"]:
        if row["id"] == successor:
            del row["lease_expires_at"]
    return tables


# 7 ------------------------------------------------------------------------------------------------


def broker_down(site: Site) -> Figures:
    """The broker is gone while jobs come due (embedded: its folder is renamed), and comes back."""
    with _away(site) as (settings, go, come_back):
        return _outage(site, settings, go, come_back)


def broker_black_hole(site: Site) -> Figures:
    """The broker swallows what it is sent while jobs come due, and comes back."""
    assert site.redis is not None
    with Proxy() as proxy:
        proxy.start(site.redis.port)
        return _outage(site, site.redis_settings(proxy.port), proxy.blackhole, proxy.passing)


@contextmanager
def _away(site: Site) -> Iterator[tuple[dict[str, Any], Any, Any]]:
    """Settings, how it goes, how it comes back."""
    if site.redis is not None:
        yield {}, site.redis.stop, site.redis.start
        return
    here, there = site.folder / "broker", site.folder / "broker.away"
    yield {}, lambda: here.rename(there), lambda: there.rename(here)


def _outage(site: Site, settings: dict[str, Any], go: Any, come_back: Any) -> Figures:
    scale = site.scale
    site.scheduler(**settings)
    site.worker("-c", "4", **settings)
    site.client.add("due", task="jobs.fast", schedule="every 2s", misfire="all", overlap="concurrent")
    site.wait_for_runs("due", "succeeded", 2, 30)
    went = site.now()
    go()
    site.let_pass(scale.outage)
    come_back()
    back = site.now()
    limit = scale.lease + 5 + scale.patience
    # all that came due until then have their runs once a later one has
    site.wait(lambda: site.runs("due")[-1].scheduled_for > back, limit, "the next occurrence to be planned")
    due = [run.id for run in site.runs("due") if run.scheduled_for <= back]
    site.wait(
        lambda: {"succeeded"} == {site.client.get_run(run_id).status for run_id in due},
        limit,
        "what came due while the broker was away to succeed",
    )
    meanwhile = [body for body in site.bodies("due") if went < body.scheduled_for <= back]
    site.stop_planning()
    runs = all_succeed(site, "due", limit)
    each_once(runs, timedelta(seconds=2))
    site.wait_until_empty(limit)
    figures = {
        "came due meanwhile": len(meanwhile),
        "runs": len(runs),
        "last one after the return (s)": (max(body.at for body in meanwhile) - back).total_seconds(),
    }
    assert len(meanwhile) >= scale.outage / 2 - 1, figures
    # also what was on its way when the broker went: it does not wait for the end of its lease
    assert figures["last one after the return (s)"] <= limit - scale.lease / 2, figures
    return figures


POLL = 1.0
"""``sched_poll_interval`` of measurement 8, in seconds."""

# 8 ------------------------------------------------------------------------------------------------


def silent_database(site: Site) -> Figures:
    """The database falls silent during a tick: the next one starts on time, nothing stays locked."""
    scale = site.scale
    # time-outs so long that a tick which waits for them is seen among the noise of a busy machine, and an
    # interval in which a poll ends although the proxy slows it
    settings = {"sched_lease": max(12.0, scale.lease), "sched_poll_interval": POLL}
    session_timeout = min(10.0, settings["sched_lease"] / 3)
    limit = session_timeout + POLL + 2 + scale.patience
    site.worker("-c", "4", **settings)
    if site.kind == "embedded":
        return _write_locked(site, settings, session_timeout, limit)
    assert site.database is not None
    with Proxy() as proxy:
        proxy.start(site.database.port)
        url = site.settings["sched_database_url"].replace(f":{site.database.port}/", f":{proxy.port}/")
        scheduler = site.scheduler(sched_database_url=url, **settings)
        for attempt in range(10):
            locked = _add_once(site, f"locked-{attempt}", 3)
            # slow enough to be caught between two statements
            proxy.delay(0.01)
            if not _is_caught(site, locked):
                proxy.passing()
                continue
            swallowed = proxy.swallowed
            proxy.blackhole()
            silent = site.now()
            # a connection that lost a byte stays silent; new ones work
            site.wait(lambda before=swallowed: proxy.swallowed > before, 10, "bytes to be swallowed")  # type: ignore[misc]
            proxy.passing()
            site.let_pass(0.3)
            if not set(locked) & set(_unlocked(site)):
                break
            # it had committed in that moment: that is not the case to be measured
        else:
            raise AssertionError("no tick was caught while it held locks")
        site.client.add("next", task="jobs.fast", schedule="every 2s", misfire="all", overlap="concurrent")
        took = _succeed_within(site, locked, silent, limit)
        return _ticked_on(site, scheduler, silent, took)


def _write_locked(site: Site, settings: dict[str, float], session_timeout: float, limit: float) -> Figures:
    scheduler = site.scheduler(**settings)
    due = _add_once(site, "locked", 3)
    path = site.folder / "sched.sqlite3"
    program = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30); "
        "database.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    REAPER.watch(holder.pid)
    try:
        assert holder.stdout is not None
        assert "locked\n" == holder.stdout.readline()
        silent = site.now()
        site.wait(lambda: site.client.status().due == 3, 30, "jobs to be due while nobody can write")
        site.let_pass(session_timeout * 1.5)
        assert 3 == site.client.status().due
        released = site.now()
    finally:
        holder.communicate()
        REAPER.forget(holder.pid)
    site.client.add("next", task="jobs.fast", schedule="every 2s", misfire="all", overlap="concurrent")
    took = _succeed_within(site, due, released, limit)
    return _ticked_on(site, scheduler, silent, took)


def _add_once(site: Site, prefix: str, count: int) -> list[str]:
    """Jobs that come due together, soon."""
    at = site.now() + seconds(3)
    names = [f"{prefix}-{number}" for number in range(count)]
    for name in names:
        site.client.add(name, task="jobs.fast", schedule=f"once {at.isoformat()}")
    return names


def _is_caught(site: Site, due: list[str]) -> bool:
    """Wait until a tick holds locks, or was over before anybody saw that: whether it does."""
    found = False

    def caught_or_over() -> bool:
        nonlocal found
        found = _is_locking(site)
        return found or all(site.runs(name) for name in due)

    site.wait(caught_or_over, 30, "a tick to lock the due jobs", every=0.005)
    return found


def _is_locking(site: Site) -> bool:
    """Whether a scheduler's transaction holds locks on rows of jobs and waits for its next statement."""
    query = text(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_class ON oid = relation"
        " WHERE relname = 'sched_job' AND mode = 'RowShareLock' AND granted AND state = 'idle in transaction'"
        " AND pid <> pg_backend_pid()"
    )
    # alone: a second poll that is under way would lose its connection too, and then nobody plans
    busy = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    return site.runtime.database.read(
        lambda tx, now: tx.execute(query).scalar_one() == 1 and tx.execute(busy).scalar_one() == 1
    )


def _unlocked(site: Site) -> list[str]:
    query = select(job_table.c.name).with_for_update(skip_locked=True)
    return site.runtime.database.run(lambda tx, now: list(tx.execute(query).scalars()))


def _succeed_within(site: Site, names: list[str], since: datetime, limit: float) -> float:
    """Wait until all these ran; the seconds until the last one did."""
    for name in names:
        site.wait_for_runs(name, "succeeded", 1, limit)
    took = max((body.at - since).total_seconds() for name in names for body in site.bodies(name))
    assert took <= limit, took
    return took


def _ticked_on(site: Site, scheduler: Any, since: datetime, took: float) -> Figures:
    """What comes due meanwhile is on time, and the loop never paused."""
    scale = site.scale
    site.wait(lambda: len(site.bodies("next")) >= 3, 10 + scale.patience, "other jobs to run")
    site.stop_planning()
    all_succeed(site, "next", scale.patience)
    stamps = [
        datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").astimezone()  # the log has local times
        for stamp in re.findall(r"^\[(\S+ \S+): DEBUG/MainProcess\] beat: Waking up", scheduler.logs(), re.M)
    ]
    recent = [stamp for stamp in stamps if stamp >= since - timedelta(seconds=2 * POLL)]
    pauses = [(b - a).total_seconds() for a, b in pairwise(recent)]
    figures = {
        "what was locked ran after (s)": took,
        "longest pause between two ticks (s)": max(pauses),
        "worst lateness meanwhile (s)": max(body.late for body in site.bodies("next")),
    }
    assert figures["longest pause between two ticks (s)"] <= 3 * POLL + 0.5 + scale.lateness_floor, figures
    allowed = POLL + scale.lateness_floor + scale.hiccup
    assert figures["worst lateness meanwhile (s)"] <= allowed, figures
    return figures
