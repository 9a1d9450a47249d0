"""Celery's scheduler when it starts where something is wrong, and when its polls hang."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from celery.app import _state
from sqlalchemy import text

from celery_sched import decorators, runtime
from celery_sched.beat import Scheduler, deadlines
from celery_sched.client import Client
from celery_sched.failpoints import arm, disarm
from celery_sched.store import schema
from celery_sched.store.engine import Database
from celery_sched.transport import embedded_broker, ensure_folders
from tests.private_server import wait_until

PATIENCE = 30.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    """An app with the embedded broker."""
    made = Celery("proj", set_as_current=False)
    ensure_folders(tmp_path)
    made.conf.update({**embedded_broker(tmp_path), "sched_home": str(tmp_path), "sched_poll_interval": 0.1})
    yield made
    runtime.of(made).close()
    made.close()


def test_missing_rights_are_named_and_waited_for(
    app: Celery, postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A right that is missing at the start is no crash: it is named, and work begins when it is granted."""
    schema.upgrade(postgresql_url)
    owner = Database(postgresql_url)
    role = f"r{os.urandom(4).hex()}"

    def execute(*statements: str) -> None:
        owner.run(lambda tx, now: [tx.execute(text(statement)) for statement in statements] and None)

    def nodes() -> list[str]:
        return list(owner.read(lambda tx, now: tx.execute(text("SELECT id FROM sched_node")).scalars()))

    execute(
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        f"REVOKE UPDATE ON sched_job FROM {role}",
    )
    app.conf.sched_database_url = owner.url.set(username=role).render_as_string(hide_password=False)
    scheduler = Scheduler(app)
    try:
        said = "the database user may not UPDATE in sched_job"
        wait_until(lambda: said in caplog.text, PATIENCE, "the right to be named")
        assert 0.1 == scheduler.tick()
        assert 1 == caplog.text.count("trying again every")
        execute(f"GRANT UPDATE ON sched_job TO {role}")
        scheduler.tick()
        wait_until(lambda: [scheduler.node_id] == nodes(), PATIENCE, "the scheduler to have begun")
    finally:
        wait_until(lambda: "sched-doctor" not in _threads(), PATIENCE, "the doctor to have looked")
        scheduler.close()
        runtime.of(app).close()
        execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        owner.dispose()


def test_jobs_in_code_that_contradict_each_other_stop_the_start(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs that turn out to have one name are a message and exit code 2, not a traceback."""
    monkeypatch.setattr(decorators, "_registered", [])
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    schema.upgrade(runtime.of(app).config.database_url)

    @decorators.job("@daily")
    @app.task(name="twice")
    def one() -> None:
        """A task."""

    @decorators.job("@hourly", name="twice")
    @app.task(name="other")
    def other() -> None:
        """Another task."""

    with pytest.raises(SystemExit) as stopped:
        Scheduler(app)
    assert 2 == stopped.value.code
    assert "job 'twice' exists already" in caplog.text


def test_polls_that_hang_are_said(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """Ticks return on time while two polls hang; that no third is begun is said once."""
    schema.upgrade(runtime.of(app).config.database_url)
    scheduler = Scheduler(app)
    goes_on = threading.Event()
    arm("hello:judged", lambda: goes_on.wait(PATIENCE) and None)
    try:
        with caplog.at_level(logging.ERROR, logger="celery_sched.beat"):
            for _ in range(5):
                scheduler.tick()
        assert 1 == caplog.text.count("2 polls hang")
        assert 2 == _threads().count("sched-poll")
    finally:
        disarm("hello:judged")
        goes_on.set()
        wait_until(lambda: "sched-doctor" not in _threads(), PATIENCE, "the doctor to have looked")
        scheduler.close()


def test_deadlines_are_watched_off_the_tick(
    app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler that has not ticked once tells of a job that has missed its deadline, and tells it once."""
    caplog.set_level(logging.INFO, logger="celery_sched.deadlines")
    monkeypatch.setattr(deadlines, "EVERY", 0.1)
    app.conf.sched_database_url = f"sqlite:///{tmp_path / 'sched.sqlite3'}"
    schema.upgrade(app.conf.sched_database_url)
    client = Client(runtime.of(app))
    client.add("sync", task="t", schedule="every 1h", must_succeed_by="0.2s")
    scheduler = Scheduler(app)
    try:
        told = "job 'sync' has not succeeded in time"
        wait_until(lambda: told in caplog.text, PATIENCE, "the deadline to be told")
        assert client.get("sync").overdue_since is not None
        client.edit("sync", must_succeed_by=None)
        wait_until(lambda: "no longer overdue" in caplog.text, PATIENCE, "that to be over")
        assert 1 == caplog.text.count(told)
    finally:
        wait_until(lambda: "sched-doctor" not in _threads(), PATIENCE, "the doctor to have looked")
        scheduler.close()


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]
