"""The doctor names what is missing, wrong or away, one finding each, and never fails itself."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from sqlalchemy import text

from celery_sched import __version__, config, runtime
from celery_sched.client import Client
from celery_sched.doctor import Finding, examine, findings, processes, services
from celery_sched.model import JobDefinition, Node, NodeId, NodeKind
from celery_sched.rules.definition import checked
from celery_sched.runtime import Runtime
from celery_sched.store import nodes, schema
from celery_sched.store.engine import Database
from celery_sched.transport import embedded_broker, ensure_folders
from tests.servers import PostgresServer

Make = Callable[..., tuple[Runtime, Celery]]

WORKER = Node(
    id=NodeId("w1"),
    app="proj",
    kind=NodeKind.WORKER,
    host="h",
    pid=7,
    name="celery@h",
    version=__version__,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    last_seen=datetime(2026, 1, 1, tzinfo=UTC),
    facts={"queues": ["celery"], "prefetch": 1, "acks_late": True, "gate": True},
    stop_requested_at=None,
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes an app with the embedded broker, and its runtime on a migrated database of its own."""
    made: list[tuple[Runtime, Celery]] = []

    def build(*, migrate: bool = True, **settings: Any) -> tuple[Runtime, Celery]:
        app = Celery("proj", set_as_current=False)
        ensure_folders(tmp_path)
        app.conf.update({**embedded_broker(tmp_path), "sched_home": str(tmp_path), **settings})
        ours = runtime.make(config.load(app.conf, app.main))
        if migrate:
            schema.upgrade(ours.config.database_url)
        made.append((ours, app))
        return ours, app

    yield build
    for ours, app in made:
        ours.close()
        app.close()


def wrong(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level in ("warning", "error")]


def the_one(found: list[Finding]) -> Finding:
    """The only finding that needs attention."""
    assert 1 == len(wrong(found)), found
    return wrong(found)[0]


def register(ours: Runtime, *rows: Node) -> None:
    ours.database.run(lambda tx, now: [nodes.register(tx, now, row) for row in rows] and None)


def test_all_is_well(make: Make) -> None:
    """On a migrated database, with a broker that answers and a worker as we want it, nothing is wrong."""
    ours, app = make()
    register(ours, WORKER)
    found = examine(ours, app)
    expected = [("ok", name) for name in ("schema", "rights", "clock", "broker", "redis", "nodes")]
    assert expected == [(finding.level, finding.subject) for finding in found]


def test_every_database_can_be_examined(make: Make, database_url: str) -> None:
    """On each kind of database the owner of the tables is told that nothing is wrong."""
    ours, app = make(sched_database_url=database_url)
    assert [] == wrong(examine(ours, app))


def test_tables_are_missing(make: Make) -> None:
    """A database without our tables is an error that says which command to run."""
    finding = the_one(examine(*make(migrate=False)))
    assert ("error", "schema") == (finding.level, finding.subject)
    assert "celery -A proj sched migrate" in finding.message


def test_missing_rights_are_warnings(make: Make, postgres: PostgresServer, postgresql_url: str) -> None:
    """Each right that is missing, also that to see the schema's version, is a warning that names it."""
    schema.upgrade(postgresql_url)
    owner = Database(postgresql_url)
    role = f"r{os.urandom(4).hex()}"
    grants = [
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        f"REVOKE UPDATE ON sched_node FROM {role}",
        f"REVOKE DELETE ON sched_run FROM {role}",
    ]
    owner.run(lambda tx, now: [tx.execute(text(grant)) for grant in grants] and None)
    limited = owner.url.set(username=role).render_as_string(hide_password=False)
    ours, app = make(migrate=False, sched_database_url=limited)
    lacking = {
        ("warning", "rights", "the database user may not UPDATE in sched_node"),
        ("warning", "rights", "the database user may not DELETE in sched_run"),
    }
    assert lacking == {
        (one.level, one.subject, one.message.partition(":")[0]) for one in wrong(examine(ours, app))
    }
    owner.run(lambda tx, now: tx.execute(text(f"REVOKE SELECT ON sched_version FROM {role}")))
    lacking |= {
        ("warning", "rights", "the version of the schema cannot be read"),
        ("warning", "rights", "the database user may not SELECT in sched_version"),
    }
    assert lacking == {
        (one.level, one.subject, one.message.partition(":")[0]) for one in wrong(examine(ours, app))
    }
    ours.close()
    owner.run(
        lambda tx, now: (tx.execute(text(f"DROP OWNED BY {role}")), tx.execute(text(f"DROP ROLE {role}")))
    )
    owner.dispose()


def test_a_file_that_cannot_be_written(make: Make, tmp_path: Path) -> None:
    """SQLite that can be read only is a warning on rights."""
    make()
    read_only = f"sqlite:///file:{tmp_path / 'sched.sqlite3'}?mode=ro&uri=true"
    finding = the_one(examine(*make(migrate=False, sched_database_url=read_only)))
    assert ("warning", "rights") == (finding.level, finding.subject)
    assert "may not INSERT, UPDATE, DELETE in sched_" in finding.message
    assert finding.message.endswith("attempt to write a readonly database")


def test_the_database_is_away(make: Make) -> None:
    """A database that does not answer is one warning; broker and Redis are looked at all the same."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"postgresql+psycopg://u:secret@127.0.0.1:{taken.getsockname()[1]}/d"
        found = examine(*make(migrate=False, sched_database_url=url))
    finding = the_one(found)
    assert ("warning", "database") == (finding.level, finding.subject)
    assert False is ("secret" in finding.message)
    assert {"database", "broker", "redis"} == {finding.subject for finding in found}


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), timedelta(minutes=-5)])
def test_clocks_that_differ(make: Make, ahead: timedelta) -> None:
    """A database whose clock is minutes from ours is a warning that says by how much and which way."""
    ours, app = make()
    away = Database(ours.config.database_url, clock=lambda: datetime.now(UTC) + ahead)
    finding = the_one(examine(replace(ours, database=away), app))
    away.dispose()
    assert ("warning", "clock") == (finding.level, finding.subject)
    which = "ahead" if ahead > timedelta(0) else "behind"
    assert re.search(rf"(299\.\d|300\.0) s {which}", finding.message), finding.message


def test_the_broker_is_away(make: Make) -> None:
    """A broker that refuses is a warning that names it, without its password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = examine(*make(broker_url=f"redis://:secret@127.0.0.1:{port}/0", broker_transport_options={}))
    finding = the_one(found)
    assert ("warning", "broker") == (finding.level, finding.subject)
    assert (True, False) == (f"127.0.0.1:{port}" in finding.message, "secret" in finding.message)


def test_a_silent_broker_and_a_silent_redis(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that accept a connection and never answer are warnings too: the doctor comes back."""
    monkeypatch.setattr(services, "PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        found = examine(*make(broker_url=url, broker_transport_options={}, sched_redis_url=url))
    assert ["broker", "redis"] == [finding.subject for finding in wrong(found)]


def test_redis_answers(make: Make, redis_url: str) -> None:
    """Redis that answers is named."""
    found = examine(*make(sched_redis_url=redis_url))
    assert [] == wrong(found)
    assert [True] == [redis_url in finding.message for finding in found if finding.subject == "redis"]


@pytest.mark.parametrize(
    ("changed", "subject", "message"),
    [
        ({"version": "0.0.1"}, "version", "runs celery_sched 0.0.1"),
        ({"facts": {**WORKER.facts, "prefetch": 4}}, "prefetch", "celery@h fetches 4 messages"),
        ({"facts": {**WORKER.facts, "prefetch": 0}}, "prefetch", "celery@h fetches all messages"),
        ({"facts": {**WORKER.facts, "acks_late": False}}, "acks_late", "celery@h acknowledges early"),
    ],
)
def test_a_worker_that_is_set_otherwise(
    make: Make, changed: dict[str, Any], subject: str, message: str
) -> None:
    """Old versions, prefetch and early acknowledgement are warnings that name the worker."""
    ours, app = make()
    register(
        ours, replace(WORKER, **changed), replace(WORKER, id=NodeId("s1"), kind=NodeKind.SCHEDULER, facts={})
    )
    finding = the_one(examine(ours, app))
    assert ("warning", subject, True) == (finding.level, finding.subject, message in finding.message)


@pytest.mark.parametrize(
    ("facts", "exclusive", "options", "named"),
    [
        ({"kills": False}, True, {}, True),
        ({"kills": False, "queues": ["own"]}, True, {"queue": "own"}, True),
        ({"kills": False}, True, {"queue": "own"}, False),  # it does not consume that one
        ({"kills": False}, False, {}, False),
        ({"kills": True}, True, {}, False),
    ],
)
def test_an_exclusive_job_and_a_worker_that_cannot_kill(
    make: Make, facts: dict[str, Any], exclusive: bool, options: dict[str, Any], named: bool
) -> None:
    """The job, the workers that would refuse it, and what to do."""
    ours, app = make()
    register(ours, replace(WORKER, facts={**WORKER.facts, **facts}))
    Client(ours).add("alone", task="t.ok", schedule="every 1h", exclusive=exclusive, options=options)
    found = [finding for finding in examine(ours, app) if finding.subject == "exclusive"]
    assert named == bool(found)
    if named:
        (finding,) = found
        assert "warning" == finding.level
        assert finding.message.startswith("job alone is exclusive, and celery@h would refuse it"), finding


def test_targets_that_are_not_there(make: Make) -> None:
    """The jobs that notify one, the target, and those there are; nothing of the others."""
    ours, app = make()
    for name, notify in (("a", "ops"), ("b", ["boss", "ops"]), ("c", "off"), ("d", None)):
        Client(ours).add(name, task="t.ok", schedule="every 1h", notify=notify)
    there = replace(ours, config=replace(ours.config, notify_targets={"boss": ("json://127.0.0.1",)}))
    finding = the_one(examine(there, app))
    assert ("warning", "notify") == (finding.level, finding.subject)
    assert finding.message.startswith(
        "jobs 'a', 'b' would tell 'ops', which is not in sched_notify_targets here: there are boss."
    )


def test_nodes_that_are_gone_do_not_matter(make: Make) -> None:
    """A worker not seen for longer than a lease is no reason for a warning."""
    ours, app = make()
    long_ago = datetime.now(UTC) - ours.config.lease * 2
    ours.database.run(lambda tx, now: nodes.register(tx, long_ago, replace(WORKER, version="0.0.1")))
    assert [] == wrong(examine(ours, app))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_without_our_gate(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the same queue that never called setup() is named; it is none when it consumes another."""
    monkeypatch.setattr(processes, "INSPECT", 5.0)
    ours, app = make()
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30) as worker:
        finding = the_one(examine(ours, app))
        assert ("warning", "gate", True) == (
            finding.level,
            finding.subject,
            worker.hostname in finding.message,
        )
        register(ours, replace(WORKER, name=worker.hostname))
        assert [] == wrong(examine(ours, app))
        other, elsewhere = make(task_default_queue="elsewhere", sched_app="other")
        assert [] == wrong(examine(other, elsewhere))


def jobs(**changed: Any) -> list[JobDefinition]:
    return [checked(name="long", task="t", schedule="@daily", **changed)]


@pytest.mark.parametrize(
    ("broker", "options", "changed", "expected"),
    [
        ("redis://h", {}, {}, []),
        ("redis://h", {}, {"max_runtime": "2h"}, [("warning", "visibility_timeout")]),
        ("redis://h", {}, {"max_runtime": "2h", "time_limit": "30m"}, []),
        ("redis://h", {"visibility_timeout": 9000}, {"max_runtime": "2h"}, []),
        ("amqp://h", {}, {}, [("info", "consumer_timeout")]),
        ("amqp://h", {}, {"max_runtime": "2h"}, [("warning", "consumer_timeout")]),
        ("memory://", {}, {"max_runtime": "2h"}, []),
    ],
)
def test_late_acknowledgement(
    make: Make, broker: str, options: dict[str, Any], changed: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """A job that may run longer than the broker waits for an acknowledgement is named, with what to set."""
    ours, app = make(broker_url=broker, broker_transport_options=options)
    found = services.acknowledgement(ours, app, jobs(**changed))
    assert expected == [(finding.level, finding.subject) for finding in found]
    assert all("job 'long' may run for 2h" in finding.message for finding in wrong(found))


def test_a_queue_with_its_own_consumer_timeout(make: Make) -> None:
    """The queue's argument x-consumer-timeout, where it is given, is what RabbitMQ goes by."""
    from kombu import Queue

    queue = Queue("celery", queue_arguments={"x-consumer-timeout": 3 * 3600 * 1000})
    ours, app = make(broker_url="amqp://h", broker_transport_options={}, task_queues=[queue])
    found = services.acknowledgement(ours, app, jobs(max_runtime="2h"))
    assert [("info", "consumer_timeout")] == [(finding.level, finding.subject) for finding in found]


def test_a_check_that_fails_is_a_finding() -> None:
    """Whatever a check meets, the others go on: its error is a warning."""

    def broken() -> list[Finding]:
        raise RuntimeError("this one")

    (finding,) = findings.guarded("clock", broken)
    assert ("warning", "clock", True) == (finding.level, finding.subject, "this one" in finding.message)


def test_a_probe_that_hangs_is_left_behind() -> None:
    """A probe that does not come back is reported as such."""
    release = threading.Event()

    def hang() -> None:
        release.wait(60)

    assert "no answer within 0.1 s" == findings.within(0.1, hang)
    release.set()
