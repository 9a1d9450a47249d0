"""What commands say of a run's `on_lost` task, and of a job that has missed its deadline."""

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
from click.testing import CliRunner

from celery_sched.beat.deadlines import Watcher
from tests.store.world import APP, Bench

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """One on SQLite: the statements are tested on every database elsewhere."""
    made = Bench(f"sqlite:///{tmp_path / 'sched.sqlite3'}", tmp_path)
    yield made
    made.close()


@pytest.fixture
def command(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `celery -A shown sched ...` in this process: its exit code, and what it printed."""
    module: Any = ModuleType("shown")
    module.app = Celery(APP, set_as_current=False)
    module.app.conf.update(bench.settings)
    monkeypatch.setitem(sys.modules, "shown", module)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(celery, ["-A", "shown", "sched", *arguments], catch_exceptions=False)
        return done.exit_code, done.stdout

    return run


def test_a_run_and_what_puts_it_right_name_each_other(bench: Bench, command: Command) -> None:
    """`runs show` of a lost run has the run of its `on_lost` task, which is one of a system job."""
    key = bench.running(on_lost="t.close").key
    assert [] == json.loads(command("runs", "show", key.id, "--json")[1])["put_right_by"]
    bench.clock.advance(61)
    bench.sweep()
    [made] = json.loads(command("runs", "show", key.id, "--json")[1])["put_right_by"]
    assert ("t.close", "queued", key.id) == (made["task"], made["status"], made["parent_id"])
    assert f"run {made['id']} (t.close): queued" in command("runs", "show", key.id)[1]
    assert f"put right by run {made['id']}" in " ".join(command("why", key.id)[1].split())
    assert ["job"] == [job["name"] for job in json.loads(command("jobs", "--json")[1])]
    every = json.loads(command("jobs", "--all", "--json")[1])
    assert [("job", "operator"), ("sched:on_lost", "system")] == [
        (job["name"], job["source"]) for job in every
    ]


def test_an_overdue_job_is_shown(bench: Bench, command: Command) -> None:
    """`status` is not healthy and says why; `jobs` marks it."""
    bench.client.add("nightly", task="t.ok", schedule="0 2 * * *", must_succeed_by="1h")
    bench.clock.advance(3601)
    assert "overdue" not in command("jobs")[1] + command("status")[1]
    assert 1 == len(Watcher(bench.scheduler.runtime).watch())
    code, said = command("status")
    assert (1, True) == (code, "job 'nightly' is overdue" in said)
    assert "active (overdue)" in command("jobs")[1]
    shown = json.loads(command("jobs", "show", "nightly", "--json")[1])
    assert "2026-03-02T13:00:00Z" == shown["overdue_since"]
