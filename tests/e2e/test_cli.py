"""`celery -A celery_sched sched ...` as people and programs use it: output and exit codes."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_sched import runtime
from tests.e2e.deployment import Deployment

JOB_FIELDS = {
    "name", "app", "task", "schedule", "timezone", "enabled", "status", "status_reason", "overlap",
    "next_run_at", "last_run_at", "last_status", "run_count", "success_count", "failure_count",
    "skipped_count", "locked_by", "locked_at", "lease_expires_at",
}  # fmt: skip
RUN_FIELDS = {
    "id", "job", "scheduled_for", "trigger", "status", "reason", "attempt", "worker", "dispatched_at",
    "started_at", "finished_at", "fence", "error", "result",
}  # fmt: skip
STATUS_FIELDS = {
    "schedulers", "workers", "inflight", "max_concurrent_jobs", "due", "oldest_due_seconds", "running",
    "queued", "swept", "dispatched", "at_capacity", "lock_lost", "late_settlers", "healthy", "problems",
}  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["jobs"], ["runs"], ["status"], ["pools"], ["run", "x"], ["stop", "--all"], ["doctor"]],
    ids=lambda arguments: arguments[0],
)
def test_no_command_makes_a_database(deployment: Deployment, arguments: list[str]) -> None:
    """Without a database a command says which it looked for and what to run, fails, and writes nothing."""
    answer = deployment.sched(*arguments)
    said = answer.out + answer.err
    assert (1, True) == (answer.code, "celery -A celery_sched sched migrate" in said), said
    assert f"sqlite:///{deployment.home}/sched.sqlite3" in said
    assert [] == list(deployment.folder.iterdir())


def test_migrate_makes_a_database_once(deployment: Deployment) -> None:
    """The first call makes the tables, the second finds them; both succeed."""
    first, second = deployment.sched("migrate"), deployment.sched("migrate")
    assert (0, 0) == (first.code, second.code)
    assert ("empty -> " in first.out, "up to date" in second.out) == (True, True)


def test_a_password_is_not_shown(deployment: Deployment) -> None:
    """The message about a database that is away names its URL without the password."""
    deployment.env["CELERY_SCHED_DATABASE_URL"] = "postgresql+psycopg://me:secret@127.0.0.1:1/db"
    answer = deployment.sched("jobs")
    assert (1, "") == (answer.code, answer.out)
    assert "postgresql+psycopg://me:***@127.0.0.1:1/db" in answer.err
    assert ("secret" in answer.err, "Traceback" in answer.err) == (False, False)


def test_a_wrong_setting_is_named(deployment: Deployment) -> None:
    """A refused setting is a message with its name and value, not a traceback."""
    deployment.env["CELERY_SCHED_LEASE"] = "soon"
    answer = deployment.sched("jobs")
    assert (2, "") == (answer.code, answer.out)
    assert ("CELERY_SCHED_LEASE" in answer.err, "'soon'" in answer.err) == (True, True)
    assert "Traceback" not in answer.err


def test_the_life_of_a_job(migrated: Deployment) -> None:
    """A job is added, listed, shown, edited, paused, resumed and deleted."""
    added = migrated.sched(
        *("jobs", "add", "nightly", "--task", "celery_sched.ping", "--schedule", "30 2 * * *"),
        *(
            "--tz",
            "Europe/Berlin",
            "--args",
            "[]",
            "--kwargs",
            "{}",
            "--overlap",
            "queue",
            "--misfire",
            "all",
        ),
        *("--misfire-grace", "1h", "--expires", "30m", "--max-runtime", "90s", "--time-limit", "2h"),
        *("--priority", "7", "--queue", "slow", "--description", "every night", "--json"),
    )
    assert 0 == added.code, added.err
    [listed] = migrated.sched("jobs", "--json").json
    assert set() == JOB_FIELDS - set(listed)
    expected = {
        "name": "nightly", "app": "celery_sched", "task": "celery_sched.ping", "schedule": "30 2 * * *",
        "timezone": "Europe/Berlin", "enabled": True, "status": "active", "overlap": "queue",
        "misfire": "all", "misfire_grace": 3600, "expires": 1800, "max_runtime": 90, "time_limit": 7200,
        "priority": 7, "options": {"queue": "slow"}, "description": "every night", "run_count": 0,
        "locked_by": None, "last_run_at": None,
    }  # fmt: skip
    assert expected == {key: listed[key] for key in expected}
    assert added.json == listed

    shown = migrated.sched("jobs", "show", "nightly", "--json").json
    assert (5, listed["next_run_at"]) == (len(shown["next"]), shown["next"][0])
    for_people = migrated.sched("jobs", "show", "nightly")
    assert (0, True, True) == (for_people.code, "every night" in for_people.out, "1h" in for_people.out)

    edited = migrated.sched(
        "jobs", "edit", "nightly", "--schedule", "every 5m", "--expires", "none", "--queue", "none", "--json"
    ).json
    assert ("every 5m", None, {}) == (edited["schedule"], edited["expires"], edited["options"])
    assert (90, "Europe/Berlin") == (edited["max_runtime"], edited["timezone"])

    assert 0 == migrated.sched("pause", "nightly", "--reason", "holidays").code
    [paused] = migrated.sched("jobs", "list", "--status", "paused", "--json").json
    assert ("paused", True) == (paused["status"], "holidays" in paused["status_reason"])
    assert [] == migrated.sched("jobs", "--status", "active", "--json").json
    assert "active" == migrated.sched("resume", "nightly", "--json").json["status"]

    table = migrated.sched("jobs")
    assert ("nightly" in table.out, "every 5m" in table.out, "(in " in table.out) == (True, True, True)
    assert 0 == migrated.sched("jobs", "delete", "nightly").code
    assert [] == migrated.sched("jobs", "--json").json


def test_a_pool_is_resized(migrated: Deployment) -> None:
    """Old and new number of slots are said, for people and for programs."""
    with closing(sqlite3.connect(migrated.home / "sched.sqlite3")) as database, database:
        database.execute("INSERT INTO sched_pool (app, name, slots) VALUES ('celery_sched', 'default', 5)")
    assert "pool default: 5 -> 7 slots\n" == migrated.sched("pools", "resize", "default", "7").out
    changed = migrated.sched("pools", "resize", "default", "8", "--json").json
    assert {"name": "default", "slots": 8, "old_slots": 7} == changed
    assert 2 == migrated.sched("pools", "resize", "defualt", "8").code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", "add", "x", "--task", "t", "--schedule", "61 * * * *"], "61"),
        (
            ["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--tz", "Europe/Berlln"],
            "Europe/Berlin",
        ),
        (["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--overlap", "quque"], "queue"),
        (["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--args", "{}"], "a JSON list"),
        (["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--kwargs", "{"], "a JSON object"),
        (["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--args", "[NaN]"], "nan is refused"),
        (
            ["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--max-runtime", "-1"],
            "max_runtime '-1'",
        ),
        (["jobs", "add", "x", "--task", "t", "--schedule", "every 5m", "--priority", "10"], "9"),
        (["jobs", "add", " x", "--task", "t", "--schedule", "every 5m"], "name"),
        (["jobs", "add", "known", "--task", "t", "--schedule", "every 5m"], "known"),
        (["jobs", "add", "x", "--task", "t"], "schedule None is refused: it must be given"),
        (["jobs", "edit", "known"], "--schedule"),
        (["jobs", "edit", "known", "--schedule", "every 0s"], "every 0s"),
        (["jobs", "show", "knwon"], "known"),
        (["jobs", "delete", "knwon"], "known"),
        (["pause", "knwon"], "known"),
        (["run", "knwon"], "known"),
        (["run", "known", "--timeout", "5s"], "--wait"),
        (["run", "known", "--args", "1"], "a JSON list"),
        (["cancel", "no-such-run"], "no-such-run"),
        (["runs", "--status", "done"], "succeeded"),
        (["runs", "--limit", "0"], "0"),
        (["stop"], "--all"),
        (["stop", "no-such-node"], "no-such-node"),
        (["pools", "resize", "default", "-1"], "-1"),
        (["next", "30 2 * * 8"], "8"),
        (["next", "@daily", "--tz", "Mars"], "Mars"),
        (["next", "@daily", "--from", "tomorrow"], "tomorrow"),
        (["next", "@daily", "-n", "0"], "0"),
        (["nxet", "@daily"], "next"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_refused_values(app_here: Path, arguments: list[str], said: str) -> None:
    """A refused value is exit code 2 with a message that names it; nothing on stdout, nothing written."""
    answer = CliRunner().invoke(celery, ["-A", APP_HERE, "sched", *arguments])
    assert (2, "") == (answer.exit_code, answer.stdout), answer.output
    assert (True, False) == (said in answer.stderr, "Traceback" in answer.stderr), answer.stderr
    with closing(sqlite3.connect(app_here / "sched.sqlite3")) as database:
        assert [("known", 1)] == database.execute("SELECT name, version FROM sched_job").fetchall()
        assert [("add",)] == database.execute("SELECT action FROM sched_audit").fetchall()


APP_HERE = "celery_sched_test_app"


@pytest.fixture(scope="module")
def app_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Somebody's app in this process, which saves a second a command, with a database and one job."""
    home = tmp_path_factory.mktemp("known")
    module = ModuleType(APP_HERE)
    module.app = Celery("here", set_as_current=False)  # type: ignore[attr-defined]
    module.app.conf.update(sched_home=str(home), broker_url="memory://")
    sys.modules[APP_HERE] = module
    add = ["jobs", "add", "known", "--task", "celery.backend_cleanup", "--schedule", "every 1h"]
    for arguments in (["migrate"], add):
        answer = CliRunner().invoke(celery, ["-A", APP_HERE, "sched", *arguments])
        assert 0 == answer.exit_code, answer.output
    yield home
    runtime.of(module.app).close()
    del sys.modules[APP_HERE]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A folder with a database and one job that is not due soon."""
    deployment = Deployment(tmp_path_factory.mktemp("known"))
    assert 0 == deployment.sched("migrate").code
    add = ("jobs", "add", "known", "--task", "celery_sched.ping", "--schedule", "every 1h")
    assert 0 == deployment.sched(*add).code
    return deployment


def test_an_unknown_task_is_a_warning(migrated: Deployment) -> None:
    """A task that this app does not have may exist in a worker: the job is made, and the nearest named."""
    answer = migrated.sched("jobs", "add", "x", "--task", "celery_sched.pong", "--schedule", "every 1h")
    assert (0, True) == (answer.code, "Did you mean 'celery_sched.ping'?" in answer.err)


def test_tasks_that_cannot_be_imported(migrated: Deployment) -> None:
    """The job is made all the same, and what is wrong with the tasks is said without a traceback."""
    (migrated.folder / "tasks.py").write_text("raise RuntimeError('not today')")
    answer = migrated.sched("jobs", "add", "x", "--task", "tasks.x", "--schedule", "every 1h")
    assert (0, True, False) == (answer.code, "not today" in answer.err, "Traceback" in answer.err)
    assert "added x: next run" in answer.out


def test_next_is_pure(deployment: Deployment) -> None:
    """Instants strictly after the given one, as UTC, across a clock change; not a file is written."""
    answer = deployment.sched(
        *("next", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-03-27T02:30", "-n", "3", "--json")
    )
    expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    assert (0, expected, "") == (answer.code, answer.json, answer.err)
    assert [] == list(deployment.folder.iterdir())


def test_next_of_a_schedule_that_is_over(deployment: Deployment) -> None:
    """There is no further instant: an empty list for programs, a sentence for people."""
    past = ("next", "once 2020-01-01T00:00:00Z")
    assert [] == deployment.sched(*past, "--json").json
    answer = deployment.sched(*past)
    assert (0, "", True) == (answer.code, answer.out, "never" in answer.err)


def test_runs_without_a_scheduler(known: Deployment) -> None:
    """A run by hand is queued; waiting for it says at once that nobody will start it; it can be cancelled."""
    run = known.sched("run", "known", "--json").json
    assert ("queued", "manual", 1, set()) == (
        run["status"],
        run["trigger"],
        run["attempt"],
        RUN_FIELDS - set(run),
    )
    # overlap is "skip": the waiting run is in the way
    refused = known.sched("run", "known", "--wait", "--timeout", "2s")
    assert (1, True) == (refused.code, run["id"] in refused.err)

    [listed] = known.sched("runs", "--job", "known", "--json").json
    assert run["id"] == listed["id"]
    assert run["id"] in known.sched("runs").out
    cancelled = known.sched("cancel", run["id"], "--reason", "a test", "--json").json
    assert ("cancelled", True) == (cancelled["status"], "a test" in cancelled["reason"])
    again = known.sched("cancel", run["id"])
    assert (2, True) == (again.code, "cancelled already" in again.err)
    assert [] == known.sched("runs", "--status", "queued", "--json").json

    waiting = known.sched("run", "known", "--wait", "--timeout", "1s")
    assert 1 == waiting.code
    assert ("No scheduler is alive" in waiting.err, "still queued" in waiting.err) == (True, True)
    [left] = known.sched("runs", "--status", "queued", "--json").json
    assert 0 == known.sched("cancel", left["id"]).code


def test_status_without_a_scheduler(known: Deployment) -> None:
    """Nobody is there to plan: not healthy, exit code 1, and the problem is named."""
    answer = known.sched("status", "--json")
    status = answer.json
    assert (1, False, set()) == (answer.code, status["healthy"], STATUS_FIELDS - set(status))
    assert ([], []) == (status["schedulers"], status["workers"])
    for_people = known.sched("status")
    assert (1, True) == (for_people.code, status["problems"][0] in for_people.out)


def test_stop_where_nothing_runs(known: Deployment) -> None:
    """There is nothing to wait for: it says so and succeeds at once."""
    answer = known.sched("stop", "--all", "--wait")
    assert (0, True) == (answer.code, "nothing to stop" in answer.err)


def test_the_app_must_be_named(deployment: Deployment) -> None:
    """Another app's name that cannot be found is usage, with the name in the message."""
    answer = deployment.sched("jobs", app="no_such_app")
    assert (2, "", True) == (answer.code, answer.out, "no_such_app" in answer.err)
