"""The migrations make the tables that the code works with, safely, and the tables refuse impossible rows."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect, text
from sqlalchemy.exc import DBAPIError

from celery_sched.errors import SchedulerError, SchemaMismatch
from celery_sched.store import schema, tables
from celery_sched.store.engine import Database, Tx

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A new, empty database of each kind."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def migrated(database: Database) -> Database:
    """A new, migrated database of each kind."""
    schema.upgrade(database.url.render_as_string(hide_password=False))
    return database


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def describe(tx: Tx) -> dict[str, Any]:
    """All that the database itself says about our tables."""
    inspector = inspect(tx)
    return {
        name: {
            "columns": {
                c["name"]: (str(c["type"]), getattr(c["type"], "fsp", None), c["nullable"], c["default"])
                for c in inspector.get_columns(name)
            },
            "primary key": inspector.get_pk_constraint(name),
            "unique": sorted(map(str, inspector.get_unique_constraints(name))),
            "indexes": sorted(map(str, inspector.get_indexes(name))),
            "checks": sorted((str(c["name"]), c["sqltext"]) for c in inspector.get_check_constraints(name)),
            "options": inspector.get_table_options(name),
        }
        for name in sorted(tables.metadata.tables)
    }


def without_counters(found: dict[str, Any]) -> dict[str, Any]:
    """MariaDB's options without what depends on the rows that were there before."""
    for table in found.values():
        table["options"] = {k: v for k, v in table["options"].items() if "auto_increment" not in k}
    return found


def test_migrations_make_the_tables_of_the_code(migrated: Database) -> None:
    """Alembic finds no difference between the migrated database and the tables in the code."""

    def differences(tx: Tx, _now: datetime) -> list[Any]:
        options = {
            "version_table": schema.VERSION_TABLE,
            "compare_type": schema.compare_type,
            "include_object": schema.include_object,
        }
        return list(compare_metadata(MigrationContext.configure(tx, opts=options), tables.metadata))

    assert [] == migrated.run(differences)


def test_migrations_make_the_same_constraints(migrated: Database) -> None:
    """Also what Alembic does not compare, CHECKs above all, is what `create_all` makes."""
    made = migrated.run(lambda tx, now: describe(tx))
    migrated.run(lambda tx, now: tables.metadata.drop_all(tx))
    migrated.run(lambda tx, now: tables.metadata.create_all(tx))
    expected = migrated.run(lambda tx, now: describe(tx))
    assert without_counters(expected) == without_counters(made)


def test_a_migration_that_was_cut_off_goes_on(database: Database) -> None:
    """MariaDB commits every statement by itself: tables of an earlier attempt do not stop the next one."""
    job = tables.metadata.tables["sched_job"]
    left = database.run(lambda tx, now: (job.create(tx), describe_job(tx))[1])
    schema.upgrade(url_of(database))
    assert schema.HEAD == database.read(lambda tx, now: schema.current(tx))
    assert left == database.read(lambda tx, now: describe_job(tx))


def describe_job(tx: Tx) -> Any:
    return sorted(map(str, inspect(tx).get_indexes("sched_job")))


def test_migrating_again_changes_nothing(migrated: Database) -> None:
    """`migrate` on a database that is at head keeps its rows."""
    migrated.run(lambda tx, now: tx.execute(insert(tables.pool).values(app="a", name="p", slots=3)))
    schema.upgrade(url_of(migrated))
    assert [("a", "p", 3)] == migrated.read(
        lambda tx, now: [tuple(r) for r in tx.execute(tables.pool.select())]
    )


def test_several_migrations_at_once(database: Database) -> None:
    """Four processes that migrate one empty database at the same time all succeed."""
    code = (
        "import sys; from celery_sched.store import schema; sys.stdin.readline(); schema.upgrade(sys.argv[1])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, url_of(database)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [(0, "")] * 4 == [
        (process.returncode, error) for process, error in zip(processes, errors, strict=True)
    ]
    assert schema.HEAD == database.read(lambda tx, now: schema.current(tx))


def test_a_migration_waits_for_another(database: Database) -> None:
    """While one migration works, a second one waits; it does not work beside it."""
    inside, go_on, order = threading.Event(), threading.Event(), []

    def first(_connection: Any) -> None:
        inside.set()
        assert go_on.wait(30)
        order.append("first")

    one = threading.Thread(target=schema.exclusively, args=(url_of(database), first))
    two = threading.Thread(
        target=schema.exclusively, args=(url_of(database), lambda _connection: order.append("second"))
    )
    one.start()
    assert inside.wait(30)
    two.start()
    two.join(0.5)
    early = list(order)
    go_on.set()
    one.join(30)
    two.join(30)
    assert ([], ["first", "second"]) == (early, order)


def test_check_says_what_to_run(database: Database) -> None:
    """An empty database and one of another release are refused, with the command to run."""
    with pytest.raises(SchemaMismatch, match=r"no celery_sched tables.*celery -A proj sched migrate"):
        database.read(lambda tx, now: schema.check(tx, "proj"))
    schema.upgrade(url_of(database))
    database.read(lambda tx, now: schema.check(tx, "proj"))
    database.run(lambda tx, now: tx.execute(text("UPDATE sched_version SET version_num = '9999'")))
    with pytest.raises(SchemaMismatch, match=r"at revision 9999.*needs 0004.*newer release"):
        database.read(lambda tx, now: schema.check(tx, "proj"))
    with pytest.raises(SchedulerError, match="9999"):
        schema.upgrade(url_of(database))


def test_head_is_the_newest_version() -> None:
    """The revision that the code asks for is the last one in the folder."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(schema.scripts()))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == schema.HEAD


def test_versions_import_nothing_of_ours() -> None:
    """A released version stays what it was, whatever becomes of the code."""
    for path in sorted((schema.scripts() / "versions").glob("[0-9]*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert [] == [name for name in names if name.startswith("celery_sched")], path


def test_alembic_command_line(database: Database) -> None:
    """`alembic -c setup.cfg upgrade head` migrates the database of CELERY_SCHED_DATABASE_URL."""
    environment = {**os.environ, "CELERY_SCHED_DATABASE_URL": url_of(database)}
    alembic = [sys.executable, "-m", "alembic", "-c", str(ROOT / "setup.cfg")]
    done = subprocess.run(
        [*alembic, "upgrade", "head"], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120
    )
    assert (0, schema.HEAD) == (done.returncode, database.read(lambda tx, now: schema.current(tx))), (
        done.stderr
    )


def job_row(**changed: Any) -> dict[str, Any]:
    row = dict.fromkeys(("created_at", "updated_at", "anchor"), NOW)
    return {
        **row,
        "app": "a",
        "name": "n",
        "task": "t",
        "schedule": "every 5m",
        "timezone": "UTC",
        "args": [],
        "kwargs": {},
        "options": {},
        "overlap": "skip",
        "max_queued": 1000,
        "misfire": "once",
        "catchup_window": 1.0,
        "priority": 5,
        "pool": "default",
        "run_immediately": False,
        "description": "",
        "source": "operator",
        "enabled": True,
        "status": "active",
        **changed,
    }


def run_row(**changed: Any) -> dict[str, Any]:
    return {
        "id": "r",
        "app": "a",
        "job_id": 1,
        "job": "n",
        "task": "t",
        "trigger_kind": "schedule",
        "scheduled_for": NOW,
        "status": "queued",
        "pool": "default",
        "priority": 5,
        "queued_at": NOW,
        "ready_at": NOW,
        **changed,
    }


HELD = {"status": "running", "token": "x", "lease_expires_at": NOW + timedelta(minutes=1), "holds_job": 1}
POSSIBLE = [
    ("sched_job", [job_row()]),
    ("sched_job", [job_row(lock_token="x", locked_by="r", priority=0), job_row(app="b", priority=9)]),
    ("sched_run", [run_row(), run_row(id="s")]),
    ("sched_run", [run_row(**HELD), run_row(**{**HELD, "id": "s", "holds_job": 2, "status": "dispatched"})]),
    (
        "sched_run",
        [run_row(**{**HELD, "holds_job": None}), run_row(id="s", status="failed", finished_at=NOW)],
    ),
    ("sched_pool", [{"app": "a", "name": "p", "slots": 0}, {"app": "a", "name": "P", "slots": 1}]),
    ("sched_job", [job_row(), job_row(name="N"), job_row(name="ñ")]),
]
IMPOSSIBLE = {
    "two jobs of a name": ("sched_job", [job_row(), job_row()]),
    "a lock without its run": ("sched_job", [job_row(lock_token="x")]),
    "a locking run without its token": ("sched_job", [job_row(locked_by="r")]),
    "priority too high": ("sched_job", [job_row(priority=10)]),
    "priority too low": ("sched_job", [job_row(priority=-1)]),
    "finished without an end": ("sched_run", [run_row(status="succeeded")]),
    "skipped without an end": ("sched_run", [run_row(status="skipped")]),
    "queued with an end": ("sched_run", [run_row(finished_at=NOW)]),
    "running with an end": ("sched_run", [run_row(**HELD, finished_at=NOW)]),
    "queued with a token": ("sched_run", [run_row(token="x")]),
    "queued with a lease": ("sched_run", [run_row(lease_expires_at=NOW)]),
    "running without a lease": ("sched_run", [run_row(**{**HELD, "lease_expires_at": None})]),
    "dispatched without a token": (
        "sched_run",
        [run_row(**{**HELD, "status": "dispatched", "token": None, "holds_job": None})],
    ),
    "finished with a token": ("sched_run", [run_row(status="lost", finished_at=NOW, token="x")]),
    "a holder without a token": ("sched_run", [run_row(holds_job=1)]),
    "two holders of a job": ("sched_run", [run_row(**HELD), run_row(**{**HELD, "id": "s", "token": "y"})]),
    "an occurrence twice": ("sched_run", [run_row(occurrence_key="k"), run_row(id="s", occurrence_key="k")]),
    "less than no slots": ("sched_pool", [{"app": "a", "name": "p", "slots": -1}]),
}


def test_possible_rows_are_accepted(migrated: Database) -> None:
    """The rows from which the impossible ones differ in one point are fine."""

    def put(tx: Tx, _now: datetime) -> None:
        for table, rows in POSSIBLE:
            with tx.begin_nested() as savepoint:
                for row in rows:
                    tx.execute(insert(tables.metadata.tables[table]).values(**row))
                savepoint.rollback()

    migrated.run(put)


def test_impossible_rows_are_refused(migrated: Database) -> None:
    """Whatever the code does, the database refuses rows that contradict themselves or each other."""

    def refused(tx: Tx, _now: datetime) -> list[str]:
        names = []
        for name, (table, rows) in IMPOSSIBLE.items():
            savepoint = tx.begin_nested()
            for row in rows[:-1]:
                tx.execute(insert(tables.metadata.tables[table]).values(**row))
            try:
                tx.execute(insert(tables.metadata.tables[table]).values(**rows[-1]))
            except DBAPIError as error:
                # no value was too long, missing or of a wrong type: a constraint said no
                assert re.search("constraint|unique|duplicate", str(error.orig), re.IGNORECASE), error
                names.append(name)
            savepoint.rollback()
        return names

    assert list(IMPOSSIBLE) == migrated.run(refused)


def test_instants_keep_microseconds_and_their_zone(migrated: Database) -> None:
    """An instant comes back as the same aware UTC instant, to the microsecond."""
    at = datetime(2026, 3, 29, 3, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))

    def there_and_back(tx: Tx, _now: datetime) -> Any:
        tx.execute(insert(tables.app).values(app="a", last_pass_at=at))
        return tx.execute(tables.app.select()).one().last_pass_at

    assert (at.astimezone(UTC), UTC) == ((found := migrated.run(there_and_back)), found.tzinfo)


def test_rights_of_the_owner(migrated: Database) -> None:
    """Who made the tables lacks nothing, and asking changes nothing."""
    assert [] == schema.missing_rights(migrated)


def test_missing_rights_are_named_postgresql(postgresql_url: str) -> None:
    """A role that lacks DELETE on one table, all on another, and the ids of a third: each is named."""
    schema.upgrade(postgresql_url)
    owner = Database(postgresql_url)
    role = f"r{os.urandom(4).hex()}"
    grants = [
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT USAGE ON SEQUENCE sched_job_id_seq, sched_gap_id_seq, "
        f"sched_event_id_seq, sched_notification_id_seq TO {role}",
        f"REVOKE DELETE ON sched_run FROM {role}",
        f"REVOKE ALL ON sched_pool FROM {role}",
    ]
    owner.run(lambda tx, now: [tx.execute(text(grant)) for grant in grants] and None)
    limited = Database(owner.url.set(username=role).render_as_string(hide_password=False))
    found = {(right, table) for right, table, _ in schema.missing_rights(limited)}
    limited.dispose()
    owner.run(
        lambda tx, now: (tx.execute(text(f"DROP OWNED BY {role}")), tx.execute(text(f"DROP ROLE {role}")))
    )
    owner.dispose()
    assert {
        ("DELETE", "sched_run"),
        ("USAGE", "sched_audit_id_seq"),
        *((right, "sched_pool") for right in ("SELECT", "INSERT", "UPDATE", "DELETE")),
    } == found


def test_missing_rights_are_named_mariadb(mariadb: Any) -> None:
    """A user that lacks DELETE on one table and all on another: each is named."""
    url = mariadb.fresh_database()
    schema.upgrade(url)
    owner = Database(url)
    user = f"u{os.urandom(4).hex()}"
    owner.run(lambda tx, now: tx.execute(text(f"CREATE USER {user}@'%'")))
    for table in [*tables.metadata.tables, schema.VERSION_TABLE]:
        rights = {"sched_pool": "", "sched_run": "SELECT, INSERT, UPDATE"}.get(
            table, "SELECT, INSERT, UPDATE, DELETE"
        )
        if rights:
            owner.run(
                lambda tx, now, t=table, r=rights: (
                    tx.execute(text(f"GRANT {r} ON {t} TO {user}@'%'")) and None
                )
            )
    limited = Database(owner.url.set(username=user).render_as_string(hide_password=False))
    found = {(right, table) for right, table, _ in schema.missing_rights(limited)}
    limited.dispose()
    owner.run(lambda tx, now: tx.execute(text(f"DROP USER {user}@'%'")))
    owner.dispose()
    mariadb.drop_database(url)
    assert {
        ("DELETE", "sched_run"),
        *((right, "sched_pool") for right in ("SELECT", "INSERT", "UPDATE", "DELETE")),
    } == found
