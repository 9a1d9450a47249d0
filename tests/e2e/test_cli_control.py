"""`sched pause`, `resume`, `cancel`, `run` and `pools` as people and programs use them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner, Result

from celery_sched import runtime

APP = "celery_sched_control_app"
Sched = Callable[..., Result]


@pytest.fixture
def sched(tmp_path: Path) -> Iterator[Sched]:
    """Commands on an app in this process, which saves a second each; it has a database and no scheduler."""
    module = ModuleType(APP)
    module.app = Celery("here", set_as_current=False)  # type: ignore[attr-defined]
    module.app.conf.update(sched_home=str(tmp_path), broker_url="memory://")
    sys.modules[APP] = module

    def run(*arguments: str, code: int = 0) -> Result:
        answer = CliRunner().invoke(celery, ["-A", APP, "sched", *arguments])
        assert code == answer.exit_code, answer.output
        return answer

    run("migrate")
    yield run
    runtime.of(module.app).close()
    del sys.modules[APP]


def add(sched: Sched, name: str, *options: str) -> None:
    sched("jobs", "add", name, "--task", "celery.backend_cleanup", "--schedule", "every 1h", *options)


def data(answer: Result) -> Any:
    return json.loads(answer.stdout)


def test_pause_and_resume(sched: Sched) -> None:
    """A pause leaves what waits, or cancels it; each says what it did; `--json` is the job."""
    add(sched, "a")
    run = data(sched("run", "a", "--json"))
    paused = sched("pause", "a", "--reason", "holidays")
    assert "paused a: holidays\n" == paused.stdout
    assert "1 run(s) of it go on; to stop them too: sched pause a --running cancel" in paused.stderr
    assert f"paused a\n{run['id']} cancelled\n" == sched("pause", "a", "--running", "cancel").stdout
    [line] = data(sched("runs", "--json"))
    assert ("cancelled", True) == (line["status"], line["reason"].endswith("the job was paused"))
    assert ("paused", []) == tuple(data(sched("pause", "a", "--json"))[key] for key in ("status", "stopped"))
    assert sched("resume", "a").stdout.startswith("resumed a: next run ")


def test_pause_and_resume_all(sched: Sched) -> None:
    """`resume --all` resumes what `pause --all` paused; what was paused by itself is named, and stays so."""
    for name in ("a", "b", "c"):
        add(sched, name)
    sched("pause", "b")
    run = data(sched("run", "c", "--json"))
    assert "paused 2 job(s): deploy\n" == sched("pause", "--all", "--reason", "deploy").stdout
    again = data(sched("pause", "--all", "--running", "cancel", "--json"))
    assert ([], [(run["id"], "cancelled")]) == (
        again["paused"],
        [(stopped["id"], stopped["status"]) for stopped in again["stopped"]],
    )
    resumed = sched("resume", "--all")
    assert ("resumed 2 job(s)\n", True) == (resumed.stdout, "still so: b" in resumed.stderr)
    assert [] == data(sched("resume", "--all", "--json"))


def test_cancel_several(sched: Sched) -> None:
    """Several runs, all of a job; what is over already is said, and refused where nothing is left to stop."""
    add(sched, "a", "--overlap", "queue")
    ids = [data(sched("run", "a", "--json"))["id"] for _ in range(4)]
    assert (
        f"{ids[0]} cancelled\n{ids[1]} cancelled\n" == sched("cancel", ids[0], ids[1][:8], ids[0][:9]).stdout
    )
    third = sched("cancel", ids[1], ids[2], "--reason", "enough", "--json")
    assert f"run {ids[1]} is cancelled already" in third.stderr
    assert [(ids[2], True)] == [(run["id"], "enough" in run["reason"]) for run in data(third)]
    refused = sched("cancel", *ids[:2], code=2)
    assert ("", 2) == (refused.stdout, refused.stderr.count("is cancelled already"))
    assert [ids[3]] == [run["id"] for run in data(sched("cancel", "--job", "a", "--json"))]
    idle = sched("cancel", "--job", "a")
    assert ("", True) == (idle.stdout, "has no run that is not finished" in idle.stderr)


def test_run_says_what_it_waits_for(sched: Sched) -> None:
    """Starts at the next poll; behind a run; in the place of one; refused (1) with the run in its way."""
    for policy in ("queue", "replace", "queue_one"):
        add(sched, policy, "--overlap", policy)
    first = sched("run", "queue")
    run_id = first.stdout.split()[0]
    assert f"{run_id} queued: it starts at the next poll\n" == first.stdout
    behind = data(sched("run", "queue", "--json"))
    assert (run_id, f"behind run {run_id}, which is queued", []) == (
        behind["waits_for"],
        behind["waits"],
        behind["replaces"],
    )
    old = sched("run", "replace").stdout.split()[0]
    new = sched("run", "replace")
    assert f"run {old} was stopped for it" in new.stderr
    assert new.stdout.endswith("queued: it starts at the next poll\n")
    live, waiting = (data(sched("run", "queue_one", "--json"))["id"] for _ in range(2))
    refused = sched("run", "queue_one", code=1)
    assert ("", True) == (refused.stdout, f"queue_one: run {waiting} waits already" in refused.stderr), live


def test_pools(sched: Sched) -> None:
    """Made, used, shown, resized, refused while it is used, deleted."""
    assert "pool reports: 2 slots\n" == sched("pools", "create", "reports", "--slots", "2").stdout
    add(sched, "a", "--pool", "reports")
    sched("run", "a")
    use = {"slots": 2, "taken": 0, "in_flight": 0, "waiting": 1, "heaviest": 1}
    shown = {"name": "reports", **use, "too_heavy": [], "jobs": ["a"]}
    assert shown == data(sched("pools", "show", "reports", "--json"))
    assert ["slots 2", "taken 0, by 0 run(s)", "queued 1", "heaviest 1 slot(s) a run", "jobs a"] == [
        " ".join(line.split()) for line in sched("pools", "show", "reports").stdout.splitlines()
    ]
    assert "pool reports: 2 -> 3 slots\n" == sched("pools", "resize", "reports", "3").stdout
    assert "at most the 3 slots of its pool" in sched("jobs", "edit", "a", "--weight", "4", code=2).stderr
    sched("jobs", "edit", "a", "--weight", "3")
    assert "too few for a run of: a" in sched("pools", "resize", "reports", "2").stderr
    (run,) = data(sched("runs", "--job", "a", "--json"))
    never = "for 3 slots of pool 'reports', which has 2: it never starts"
    assert never == data(sched("runs", "show", run["id"], "--json"))["waits"]
    assert never in sched("why", run["id"][:8]).stdout
    assert "is used by 1 job(s) (a)" in sched("pools", "delete", "reports", code=1).stderr
    sched("cancel", "--job", "a")
    sched("jobs", "edit", "a", "--pool", "default")
    assert "deleted pool reports\n" == sched("pools", "delete", "reports").stdout
    assert [] == data(sched("pools", "--json"))


NEW = ("jobs", "add", "b", "--task", "t", "--schedule", "@daily")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pause"], "--all"),
        (["pause", "a", "--all"], "--all"),
        (["pause", "a", "--running", "kill"], "keep"),
        (["resume"], "--all"),
        (["cancel"], "--job"),
        (["cancel", "x", "--job", "a"], "--job"),
        (["cancel", "no-such-run", "other"], "no-such-run"),
        (["cancel", "--job", "b"], "no job 'b'"),
        ([*NEW, "--pool", "reprots"], "pool 'reprots'"),
        ([*NEW, "--overlap", "replace", "--misfire", "all"], "misfire 'all'"),
        (["pools", "create", "p"], "--slots"),
        (["pools", "create", "p", "--slots", "-1"], "-1"),
        (["pools", "create", " p", "--slots", "1"], "' p'"),
        (["pools", "show", "p"], "no pool 'p'"),
        (["pools", "delete", "default"], "cannot be deleted"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_refused_values(sched: Sched, arguments: list[str], said: str) -> None:
    """A refused value is exit code 2 with a message that names it; nothing on stdout, nothing written."""
    add(sched, "a")
    before = data(sched("jobs", "--json"))
    answer = sched(*arguments, code=2)
    assert ("", True, False) == (answer.stdout, said in answer.stderr, "Traceback" in answer.stderr), (
        answer.stderr
    )
    assert (before, [], []) == tuple(data(sched(what, "--json")) for what in ("jobs", "runs", "pools"))
