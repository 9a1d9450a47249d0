"""Connections that broke while they lay in the pool."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from celery_sched.errors import DatabaseUnavailable
from celery_sched.store.engine import Database
from tests.private_server import Server
from tests.proxy import Proxy


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_restart_of_the_server_is_not_noticed(request: pytest.FixtureRequest, server: str) -> None:
    """The first use of a connection whose server went and came back takes a new one."""
    found: Server = request.getfixturevalue(server)
    database = Database(found.fresh_database())  # type: ignore[attr-defined]
    before = database.run(lambda tx, now: now)
    found.kill()
    found.start()
    assert database.run(lambda tx, now: now) > before
    database.dispose()


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_pooled_connection_that_swallows_bytes_is_given_up(
    request: pytest.FixtureRequest, server: str, proxy: Proxy
) -> None:
    """The next user of a pooled connection that answers no more waits a bounded time, not for ever."""
    found: Server = request.getfixturevalue(server)
    proxy.start(found.port)
    url: str = found.fresh_database()  # type: ignore[attr-defined]
    database = Database(
        url.replace(f":{found.port}/", f":{proxy.port}/"), session_timeout=timedelta(seconds=3)
    )
    database.run(lambda tx, now: now)
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        database.run(lambda tx, now: now)
    assert time.monotonic() - began < 20
    proxy.passing()
    assert database.run(lambda tx, now: now)
    database.dispose()
