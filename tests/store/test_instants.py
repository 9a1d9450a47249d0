"""Instants are the same in every session's time zone, on every database."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import URL, make_url, text

from tests.store.world import Bench

ZONES = {"UTC": "+00:00", "America/New_York": "-04:00", "Asia/Shanghai": "+08:00"}
INSTANT = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def in_zone(bench: Bench, request: pytest.FixtureRequest) -> Iterator[str]:
    """New sessions of the database have this time zone (SQLite has none: its processes have)."""
    zone: str = request.param
    url = make_url(bench.config.database_url)
    if bench.database.dialect.name == "postgresql":
        statement = f"ALTER DATABASE {url.database} SET timezone TO '{zone}'"
        bench.database.run(lambda tx, now: tx.execute(text(statement)))
    if bench.database.dialect.name == "mariadb":
        _globally(url, ZONES[zone])
    yield zone
    if bench.database.dialect.name == "mariadb":
        _globally(url, "SYSTEM")
    if bench.database.dialect.name == "postgresql":
        statement = f"ALTER DATABASE {url.database} RESET timezone"
        bench.database.run(lambda tx, now: tx.execute(text(statement)))


def _globally(url: URL, zone: str) -> None:
    with pymysql.connect(host=url.host, port=url.port, user=url.username, autocommit=True) as connection:
        connection.cursor().execute("SET GLOBAL time_zone = %s", (zone,))


def _in_another_process(bench: Bench, zone: str, wanted: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.instants", bench.config.database_url, wanted],
        env={**os.environ, "TZ": zone},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("in_zone", ZONES, indirect=True)
def test_an_instant_is_the_same_in_every_session(bench: Bench, in_zone: str) -> None:
    """A21: written here, read there, and the other way round, in nine settings: the same instant, aware."""
    bench.client.add("job", task="t.ok", schedule="every 1h")
    bench.set_job("job", next_run_at=INSTANT)
    read, server, host, name = _in_another_process(bench, in_zone, "read")
    assert "2026-07-01T12:00:00+00:00" == read
    assert {"UTC": "UTC", "America/New_York": "EST", "Asia/Shanghai": "CST"}[in_zone] == name
    # the database's clock, too, is an instant and not a wall time
    assert abs(float(server) - float(host)) < 60
    local = INSTANT.astimezone(timezone(timedelta(hours=5, minutes=30))) + timedelta(microseconds=1)
    _in_another_process(bench, in_zone, local.isoformat())
    job = bench.scheduler.job("job")
    assert INSTANT + timedelta(microseconds=1) == job.next_run_at
    assert timedelta(0) == (job.next_run_at or INSTANT).utcoffset()


def test_a_naive_value_is_refused(bench: Bench) -> None:
    """A21: a naive datetime is a bug in the caller, never taken for anybody's local time."""
    bench.client.add("job", task="t.ok", schedule="every 1h")
    with pytest.raises(Exception, match="naive datetime"):
        bench.set_job("job", next_run_at=datetime(2026, 7, 1, 12))
