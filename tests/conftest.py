"""Fixtures that all tests share, and what a test run says at its end about programs that were missing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import _state
from hypothesis import settings

from tests.patient import be_patient
from tests.private_server import Server, missing
from tests.proxy import Proxy
from tests.servers import MariaDBServer, PostgresServer, RabbitServer, RedisServer

# No deadline: how long an example takes says how busy the machine is. Derandomized where a red run must
# be the fault of the change, not of the dice.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing of the caller's own configuration reaches a test."""
    settings.load_profile("ci" if IN_CI else "here")
    be_patient()
    for name in list(os.environ):
        if name.startswith(("CELERY_", "FLOWER_")):
            del os.environ[name]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that tested nothing is a failure; in CI, so is one for which a program was missing."""
    if session.config.option.collectonly or session.exitstatus not in (0, 5):
        return
    if hasattr(session.config, "workerinput"):  # one of several processes: the first one judges
        return
    if session.testsfailed == 0 and not _passed(session.config):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    elif IN_CI and missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """The last lines: which programs were missing, and how to get them."""
    if config.option.collectonly:
        return
    if exitstatus in (0, 5) and not _passed(config):
        terminalreporter.section("no test passed", red=True)
        terminalreporter.line("Nothing was tested (all skipped, or none selected): that counts as a failure.")
    absent = missing()
    if not absent:
        return
    names = ", ".join(program.name for program in absent)
    packages = " ".join(program.package for program in absent)
    terminalreporter.section("missing programs", red=IN_CI, yellow=not IN_CI)
    terminalreporter.line(f"Not on this machine, so the tests that need them were skipped: {names}.")
    terminalreporter.line(f"To get them: script/services (Debian packages: {packages}).")
    if IN_CI:
        terminalreporter.line("CI=true: a missing program is a failure.")


def _passed(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    return len(reporter.stats.get("passed", ()))


# Servers: one of each a session, started when the first test asks; whole again after every test.

_started: list[Server] = []


def _serve(server_class: type[Server]) -> Iterator[Server]:
    program = server_class.program
    if program.find() is None:
        pytest.skip(f"{program.name} is not installed: apt-get install {program.package}, or script/services")
    server = server_class()
    try:
        server.start()
        _started.append(server)
        yield server
    finally:
        if server in _started:
            _started.remove(server)
        server.destroy()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The session's PostgreSQL (`PostgresServer`)."""
    yield from _serve(PostgresServer)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """The session's MariaDB (`MariaDBServer`)."""
    yield from _serve(MariaDBServer)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """The session's Redis (`RedisServer`); take `fresh_url()` for a database number of your own."""
    yield from _serve(RedisServer)


@pytest.fixture(scope="session")
def rabbit() -> Iterator[Server]:
    """The session's RabbitMQ (`RabbitServer`); take `fresh_url()` for a virtual host of your own."""
    yield from _serve(RabbitServer)


@pytest.fixture(autouse=True)
def _heal_servers() -> Iterator[None]:
    """A test may freeze, kill or stop a server; the next one finds it running."""
    yield
    for server in _started:
        server.heal()


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Celery's current app and the root logger are the process's: what one test does to them, no other sees.

    An app is current from when it is made; a worker within the test's process sets the logger anew.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    current, default = _state._tls.current_app, _state.default_app
    _state._set_task_join_will_block(False)  # tasks called in two threads at once can leave it set
    yield
    _state._set_current_app(current)
    _state.set_default_app(default)
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new, empty database, once for each kind of database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sched.sqlite3'}"
        return
    server = request.getfixturevalue({"postgresql": "postgres", "mariadb": "mariadb"}[request.param])
    url = server.fresh_database()
    yield url
    server.heal()
    server.drop_database(url)


@pytest.fixture
def postgresql_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database."""
    url = postgres.fresh_database()
    yield url
    postgres.heal()
    postgres.drop_database(url)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty Redis database."""
    return redis_server.fresh_url()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A TCP proxy of a test's own: `proxy.start(port)` puts it before the server at that port."""
    with Proxy() as between:
        yield between
