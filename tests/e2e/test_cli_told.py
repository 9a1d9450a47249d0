"""What `sched` commands tell people who have the wrong database or the wrong name."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from celery_sched.store import schema
from celery_sched.store.engine import Database
from tests.e2e.deployment import Deployment


@pytest.mark.parametrize("command", ["jobs", "migrate", "doctor"])
def test_a_database_of_a_newer_release(migrated: Deployment, command: str) -> None:
    """The newer release is what helps, not `migrate`; `migrate` itself says so too and changes nothing."""
    with closing(sqlite3.connect(migrated.home / "sched.sqlite3")) as database, database:
        database.execute("UPDATE sched_version SET version_num = '9999'")
    answer = migrated.sched(command)
    said = answer.out + answer.err
    assert (1, True) == (answer.code, "9999" in said and "Install the newer release" in said), said
    assert ("sched migrate" in said, "Traceback" in said) == (False, False), said


@pytest.mark.parametrize("command", ["jobs", "migrate", "doctor"])
def test_a_file_that_is_no_database(migrated: Deployment, command: str) -> None:
    """A damaged file is named, with what SQLite says of it."""
    file = migrated.home / "sched.sqlite3"
    file.write_bytes(b"no database at all " * 1000)
    answer = migrated.sched(command)
    said = answer.out + answer.err
    assert (1, True, False) == (answer.code, "file is not a database" in said, "Traceback" in said), said
    assert str(file) in said


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["resume", "job"], 2),
        (["next", "--job", "job"], 2),
        (["next", "--job", "job", "--from", "2026-01-01"], 2),
        (["backfill", "job", "--from", "2026-01-01", "--to", "2026-01-02", "--dry-run"], 2),
        (["why", "job", "now"], 0),
    ],
)
def test_a_zone_that_vanished(migrated: Deployment, command: list[str], code: int) -> None:
    """What needs the job's times names the job, the zone, and the command that repairs it."""
    add = (
        "jobs",
        "add",
        "job",
        "--task",
        "celery_sched.ping",
        "--schedule",
        "@daily",
        "--tz",
        "Europe/Berlin",
    )
    assert 0 == migrated.sched(*add).code
    assert 0 == migrated.sched("pause", "job").code
    with closing(sqlite3.connect(migrated.home / "sched.sqlite3")) as database, database:
        database.execute("UPDATE sched_job SET timezone = 'Mars/Base'")
    answer = migrated.sched(*command)
    said = answer.out + answer.err
    assert (code, False) == (answer.code, "Traceback" in said), said
    told = ("'Mars/Base' is refused", "sched jobs edit job --tz ZONE", "job")
    assert [] == [word for word in told if word not in said], said


def test_names_that_are_not_there(migrated: Deployment) -> None:
    """The last part of a name finds the job; what is like nothing is told where to look."""
    name = "billing.jobs.collect"
    add = ("jobs", "add", name, "--task", "celery_sched.ping", "--schedule", "@daily")
    assert 0 == migrated.sched(*add).code
    assert f"Did you mean '{name}'?" in migrated.sched("run", "collect").err
    assert "See: sched jobs" in migrated.sched("run", "nothing like it").err
    refused = migrated.sched("jobs", "edit", name, "--pool", "fast").err
    assert "one of the pools there are: default." in refused, refused


@pytest.mark.parametrize("command", ["migrate", "server"])
def test_a_home_that_cannot_be_made(deployment: Deployment, command: str) -> None:
    """The place in the way is named with the setting to change, not in a traceback."""
    (deployment.folder / "file").touch()
    deployment.env["CELERY_SCHED_HOME"] = str(deployment.folder / "file" / "home")
    answer = deployment.sched(command)
    assert (1, "") == (answer.code, answer.out)
    assert (True, False) == ("CELERY_SCHED_HOME" in answer.err, "Traceback" in answer.err), answer.err
    assert f"Error: {deployment.folder}/file" in answer.err


def test_a_right_that_is_missing(tmp_path: Path, postgresql_url: str) -> None:
    """A database user who may not read jobs is told what the database said, and where to look."""
    schema.upgrade(postgresql_url)
    owner = Database(postgresql_url)
    role = f"r{os.urandom(4).hex()}"
    grants = (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT ON sched_version TO {role}",
    )
    for grant in grants:
        owner.run(lambda tx, now, grant=grant: tx.exec_driver_sql(grant))  # type: ignore[misc]
    limited = owner.url.set(username=role).render_as_string(hide_password=False)
    answer = Deployment(tmp_path, {"CELERY_SCHED_DATABASE_URL": limited}).sched("jobs")
    owner.run(lambda tx, now: tx.exec_driver_sql(f"DROP OWNED BY {role}"))
    owner.run(lambda tx, now: tx.exec_driver_sql(f"DROP ROLE {role}"))
    owner.dispose()
    assert (1, "") == (answer.code, answer.out)
    assert "permission denied for table sched_job" in answer.err
    assert ("sched doctor" in answer.err, "Traceback" in answer.err) == (True, False), answer.err
