"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.deployment import Deployment
from tests.e2e.launch import start
from tests.e2e.scale import SCALED
from tests.e2e.site import Kind, MakeSite, Site, Start
from tests.private_server import CHROMIUM

pytest.register_assert_rewrite(
    "tests.e2e.measurements",
    "tests.e2e.caps",
    "tests.e2e.faults",
    "tests.e2e.accounted",
    "tests.e2e.starving",
    "tests.e2e.storm",
    "tests.e2e.consumers",
)
CALM = replace(SCALED, lease=15)
"""For tests of times, not of leases: a busy machine does not run into the sessions' time-outs (a third)."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = CHROMIUM.find()
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium, or script/services")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """An empty folder: no database yet, no jobs."""
    return Deployment(tmp_path)


@pytest.fixture
def migrated(deployment: Deployment) -> Deployment:
    """A folder with a database."""
    answer = deployment.sched("migrate")
    assert 0 == answer.code, answer.err
    return deployment


@pytest.fixture(params=["postgres", "embedded"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A deployment under measurement, on PostgreSQL + Redis and on the embedded default."""
    database = None
    if request.param == "postgres":
        database = request.getfixturevalue("postgres")
        request.getfixturevalue("redis_server")  # skips where Redis is missing
    made = Site(request.param, tmp_path / "site", SCALED, start, database)
    try:
        yield made
        if request.node.stash.get(FAILED, False):
            print(made.report())
    finally:
        made.close()


@pytest.fixture
def make_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeSite]:
    """Makes deployments, also several side by side, with a lease that is long beside a busy machine."""
    made: list[Site] = []

    def make(kind: Kind, start: Start = start) -> Site:
        database = None
        if kind == "postgres":
            database = request.getfixturevalue("postgres")
            request.getfixturevalue("redis_server")  # skips where Redis is missing
        made.append(Site(kind, tmp_path / f"site{len(made)}", CALM, start, database))
        return made[-1]

    try:
        yield make
        if request.node.stash.get(FAILED, False):
            for site in made:
                print(site.report())
    finally:
        for site in made:
            site.close()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember a failure, so that a fixture can show what its processes logged."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
