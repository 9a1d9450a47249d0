"""One job's bad schedule never stops another's: it says what is wrong, can be repaired, paused, deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.e2e.deployment import Answer, Deployment, Process
from tests.private_server import wait_until

PATIENCE = 60.0
BREAKS = {
    "zone": ("timezone = 'Mars/Olympus'", "Mars/Olympus", ("--tz", "UTC")),
    "schedule": ("schedule = 'every now and then'", "now and then", ("--schedule", "every 1h")),
    "calendar": ("exclude = '[\"holidays:ATLANTIS\"]'", "ATLANTIS", ("--exclude", "dates:2026-01-01")),
    "policy": ("misfire = 'sometimes'", "sometimes", ("--misfire", "once")),
    "json": ("exclude = 'dates:'", "exclude 'dates:'", ("--exclude", "dates:2026-01-01")),
}
"""Job -> what plain SQL writes into its row, what the reason must name, the edit that repairs it."""

TASKS = f"""
from celery_sched import job

@job("every 1s", name="fine")
def fine():
    pass

for name in {list(BREAKS)}:
    @job("every 1h", name=name)
    def broken():
        pass
"""


def _write(deployment: Deployment, statement: str, *values: str) -> int:
    """Plain SQL, beside all commands; the rows it changed."""
    with closing(sqlite3.connect(deployment.home / "sched.sqlite3", timeout=20)) as connection, connection:
        return connection.execute(statement, values).rowcount


def _statuses(deployment: Deployment) -> dict[str, tuple[str, str | None]]:
    return {row[0]: row[1:] for row in deployment.rows("SELECT name, status, status_reason FROM sched_job")}


def _planned(deployment: Deployment, job: str) -> int:
    (row,) = deployment.rows(f"SELECT count(*) FROM sched_run WHERE job = '{job}'")
    return int(row[0])


def _told(deployment: Deployment, *arguments: str, code: int = 0) -> Answer:
    """A command that ends with that exit code and never with a traceback."""
    answer = deployment.sched(*arguments)
    assert (code, False) == (answer.code, "Traceback" in answer.out + answer.err), (arguments, answer)
    return answer


@pytest.fixture
def broken(migrated: Deployment) -> Iterator[tuple[Deployment, Process]]:
    """A scheduler, a job that is fine, and one job for each kind of damage."""
    (migrated.folder / "tasks.py").write_text(TASKS)
    with migrated.running("beat", "-l", "INFO") as beat:
        wait_until(lambda: _planned(migrated, "fine"), PATIENCE, "the first run of the job that is fine")
        yield migrated, beat


def test_a_broken_job_is_told_repaired_and_deleted(broken: tuple[Deployment, Process]) -> None:
    """Damaged by plain SQL, each is in error with its reason, others go on; an edit makes it active again."""
    deployment, beat = broken
    for name, (assignment, _, _) in BREAKS.items():
        assert 1 == _write(deployment, f"UPDATE sched_job SET {assignment} WHERE name = ?", name)
    for look in (("jobs",), ("jobs", "show", "zone"), ("jobs", "show", "policy")):
        _told(deployment, *look)  # before a scheduler has seen it, too
    past = "next_run_at = strftime('%Y-%m-%d %H:%M:%S.000000', 'now', '-1 hour')"
    for name in BREAKS:
        assert 1 == _write(deployment, f"UPDATE sched_job SET {past} WHERE name = ?", name)
    wait_until(
        lambda: {"error"} == {_statuses(deployment)[name][0] for name in BREAKS}, PATIENCE, "all in error"
    )
    before = _planned(deployment, "fine")
    wait_until(lambda: _planned(deployment, "fine") >= before + 2, PATIENCE, "the other job to go on")
    assert [0] * len(BREAKS) == [_planned(deployment, name) for name in BREAKS]
    assert beat.text().count("cannot be planned and is in status 'error'") == len(BREAKS)

    problems = deployment.sched("status", "--json").json["problems"]
    shown = {job["name"]: job for job in _told(deployment, "jobs", "--json").json}
    for name, (_, named, _) in BREAKS.items():
        assert named in (shown[name]["status_reason"] or "")
        assert [True] == [named in line for line in problems if f"job '{name}' is in error" in line]

    for name in ("zone", "calendar"):
        assert BREAKS[name][1] in _told(deployment, "jobs", "show", name).out

    # to resume is no repair: it is refused, with the reason; what is wrong stays visible
    assert "Mars/Olympus" in _told(deployment, "resume", "zone", code=2).err
    assert "error" == _statuses(deployment)["zone"][0]
    for name, (_, _, repair) in BREAKS.items():
        _told(deployment, "jobs", "edit", name, *repair)
        if name == "policy":  # says nothing about the times, so the edit leaves the job where it stands
            _told(deployment, "resume", name)
        assert ("active", None) == _statuses(deployment)[name]
    assert [0] * len(BREAKS) == [_planned(deployment, name) for name in BREAKS], "nothing fires at once"


def test_a_broken_job_is_paused_and_deleted(broken: tuple[Deployment, Process]) -> None:
    """What cannot be read can be paused and deleted, and so can what nobody has found out yet."""
    deployment, _ = broken
    for name in ("zone", "policy", "json"):
        assert 1 == _write(deployment, f"UPDATE sched_job SET {BREAKS[name][0]} WHERE name = ?", name)
        _told(deployment, "pause", name)
        assert "paused" == _statuses(deployment)[name][0]
        _told(deployment, "jobs", "delete", name)
    assert {"fine", "schedule", "calendar"} == set(_statuses(deployment))
