"""The database is away for longer than a lease, again and again, or comes back with another time.

Healthy workers' runs go on and succeed, once; a run whose worker died is settled all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launch import as_process
from tests.e2e.scale import SCALED
from tests.e2e.site import MakeSite, Site
from tests.e2e.wrong_clock import WrongClock
from tests.proxy import Proxy
from tests.servers import PostgresServer

FULL = bool(os.environ.get("SCHED_FULL"))
LEASE = 8.0 if FULL else 7.0
"""A worker that is stuck in a call has got over it after half of it and a second, also on a busy machine."""
SETTINGS: dict[str, Any] = {
    "sched_lease": LEASE,
    "sched_poll_interval": 0.5,
    "sched_heartbeat_timeout": LEASE,
    "sched_max_concurrent_jobs": 20,
}
AWAY, BACK = (1.5 * LEASE, 0.5 * LEASE) if FULL else (1.3 * LEASE, 0.4 * LEASE)
TIMES = 5 if FULL else 2
PATIENCE = 30.0
LONG = [f"long-{number}" for number in range(3)]
Outage = Callable[[], None]


def _cut(proxy: Proxy, _server: PostgresServer) -> tuple[Outage, Outage]:
    def go() -> None:
        proxy.refuse()
        proxy.cut()

    return go, proxy.passing


def _black_hole(proxy: Proxy, _server: PostgresServer) -> tuple[Outage, Outage]:
    return proxy.blackhole, proxy.passing


def _frozen(_proxy: Proxy, server: PostgresServer) -> tuple[Outage, Outage]:
    return server.pause, server.resume


def _crashed(_proxy: Proxy, server: PostgresServer) -> tuple[Outage, Outage]:
    return server.kill, server.restart


WAYS = {"cut": _cut, "black hole": _black_hole, "frozen": _frozen, "crashed": _crashed}


@contextmanager
def _through(site: Site, server: PostgresServer) -> Iterator[tuple[Proxy, Mapping[str, Any]]]:
    """A proxy before the database, and the settings of nodes that go through it."""
    with Proxy() as proxy:
        proxy.start(server.port)
        url = site.settings["sched_database_url"].replace(f":{server.port}/", f":{proxy.port}/")
        yield proxy, {**SETTINGS, "sched_database_url": url}


def _begin(site: Site, seconds: float) -> None:
    """Runs that last longer than all that comes, with and without heartbeats; one that ends meanwhile."""
    at_once: dict[str, Any] = {"schedule": "once 2000-01-01T00:00Z", "run_immediately": True}
    for name in LONG:
        site.client.add(name, task="jobs.sleep", args=[seconds], **at_once)
    site.client.add("beating", task="jobs.beat_for", args=[seconds], **at_once)
    site.client.add("ends meanwhile", task="jobs.sleep", args=[3.0], **at_once)
    site.wait(lambda: len(site.bodies()) == len(LONG) + 2, PATIENCE, "the bodies to run")


def _all_succeed(site: Site, patience: float) -> None:
    """Every run, each in one body; nothing was swept."""
    names = [*LONG, "beating", "ends meanwhile"]
    for name in names:
        site.wait_for_runs(name, "succeeded", 1, patience)
    runs = [run for name in names for run in site.runs(name)]
    assert [(name, "succeeded", 1) for name in names] == [(run.job, run.status, run.attempt) for run in runs]
    assert sorted(names) == sorted(body.job for body in site.bodies())
    assert (0, 0) == (site.client.status().swept, site.client.status().late_settlers)


@pytest.mark.timeout(900 if FULL else 180)
@pytest.mark.parametrize(
    "starts", [False, True], ids=["schedulers live on", "a scheduler starts right after"]
)
@pytest.mark.parametrize("way", WAYS)
def test_repeated_outages_longer_than_the_lease(
    make_site: MakeSite, postgres: PostgresServer, way: str, starts: bool
) -> None:
    """For more than a lease, every two: no run of a healthy worker is abandoned, all succeed."""
    if not FULL and (way, starts) not in (("black hole", False), ("cut", True)):
        pytest.skip("with SCHED_FULL=1")
    site = make_site("postgres", start=as_process)
    with _through(site, postgres) as (proxy, settings):
        go, come_back = WAYS[way](proxy, postgres)
        scheduler = site.scheduler(**settings).container
        site.worker("-c", "6", **settings)
        _begin(site, TIMES * (AWAY + BACK) + 1)
        try:
            for _ in range(TIMES):
                go()
                if starts:
                    scheduler.kill("SIGKILL")
                site.let_pass(AWAY)
                come_back()
                if starts:
                    scheduler.start()
                    assert scheduler.ready()
                site.let_pass(BACK)
        finally:
            postgres.heal()
        _all_succeed(site, PATIENCE + LEASE)


@pytest.mark.skipif(not FULL, reason="with SCHED_FULL=1")
@pytest.mark.timeout(600)
def test_one_outage_of_many_leases(make_site: MakeSite, postgres: PostgresServer) -> None:
    """What ends early in it is written late, and counts."""
    site = make_site("postgres", start=as_process)
    with _through(site, postgres) as (proxy, settings):
        site.scheduler(**settings)
        site.worker("-c", "6", **settings)
        _begin(site, 15 * LEASE)
        proxy.blackhole()
        site.let_pass(13 * LEASE)
        proxy.passing()
        _all_succeed(site, PATIENCE + 3 * LEASE)


class OtherTime(PostgresServer):
    """A PostgreSQL whose clock is wrong by what was last set."""

    @property
    def clock(self) -> WrongClock:
        return WrongClock(self.folder / "clock")

    def prepare(self) -> None:
        self.step(0)
        super().prepare()

    def step(self, seconds: float) -> None:
        """Be so far ahead of this host from now on."""
        self.clock.set(seconds)
        self.clock.file.chmod(0o644)  # the server runs as another user

    def environment(self) -> Mapping[str, str]:
        return self.clock.env()


@pytest.fixture
def moving(tmp_path: Path, redis_server: object) -> Iterator[tuple[Site, OtherTime]]:
    """A deployment on a database whose clock can be stepped."""
    server = OtherTime()
    try:
        server.start()
        site = Site("postgres", tmp_path / "site", replace(SCALED, lease=LEASE), as_process, server)
        try:
            yield site, server
        finally:
            site.close()
    finally:
        server.destroy()


@pytest.mark.parametrize("leases", [4, -4] if FULL else [2, -2], ids=["ahead", "back"])
def test_the_databases_clock_jumps_at_a_fail_over(moving: tuple[Site, OtherTime], leases: int) -> None:
    """The successor's clock is leases ahead, or behind: no run is abandoned, and a dead one does not hang."""
    site, server = moving
    site.scheduler(**SETTINGS)
    killed = site.worker("-c", "1", "-Q", "other", **SETTINGS)
    site.worker("-c", "6", **SETTINGS)
    _begin(site, 3 * LEASE)
    site.client.add(
        "dead", task="jobs.hang", schedule="every 1h", run_immediately=True, options={"queue": "other"}
    )
    site.client.add("tick", task="jobs.fast", schedule="every 1s", overlap="concurrent")
    site.wait(lambda: site.bodies("dead") and site.bodies("tick"), PATIENCE, "the bodies to run")
    killed.kill("SIGKILL")
    server.kill()
    before = datetime.now(UTC)
    server.step(leases * LEASE)
    server.restart()
    assert abs((site.now() - before) - timedelta(seconds=leases * LEASE)) < timedelta(seconds=LEASE)
    limit = 2 * LEASE + (0 if leases > 0 else -leases * LEASE) + PATIENCE
    site.wait_for_runs("dead", "lost", 1, limit)
    site.client.pause("tick")
    names = [*LONG, "beating", "ends meanwhile"]
    for name in names:
        site.wait_for_runs(name, "succeeded", 1, limit)
    assert [1] * len(names) == [len(site.bodies(name)) for name in names]
    assert 1 == site.client.status().swept
    planned = [run.scheduled_for for run in site.runs("tick")]
    assert sorted(set(planned)) == planned, "an occurrence came twice"
    site.wait_until_empty(limit)
