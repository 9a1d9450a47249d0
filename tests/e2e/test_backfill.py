"""The commands of backfills, with a real scheduler and worker: a bar, Ctrl-C, cancel, a killed scheduler."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.deployment import Deployment
from tests.private_server import wait_until
from tests.reaper import REAPER

TASKS = """
import pathlib
import time

from celery_sched import job


@job("*/10 * * * *", name="report", overlap="concurrent", enabled=False)
def report(ctx, seconds=0.2):
    with open("bodies", "a") as bodies:
        bodies.write(f"{ctx.scheduled_for.isoformat()} {ctx.attempt}\\n")
    time.sleep(seconds)
    if pathlib.Path("failing").exists():
        raise ValueError("as it was told")


@job("*/10 * * * *", name="alone", enabled=False)
def alone(ctx):
    pass
"""
PATIENCE = 90
DAY = (datetime.now(UTC) - timedelta(days=2)).date().isoformat()
TO = f"{DAY}T09:50"
"""60 occurrences from the day's begin on."""


@pytest.fixture
def ready(deployment: Deployment) -> Iterator[Deployment]:
    """A database, and jobs that are disabled: what runs is what a backfill runs."""
    deployment.env["CELERY_SCHED_LEASE"] = "6s"
    (deployment.folder / "tasks").mkdir()
    (deployment.folder / "tasks" / "__init__.py").write_text(TASKS)
    assert 0 == deployment.sched("migrate").code
    with deployment.running("worker", "-l", "INFO", "-c", "4"):
        yield deployment


def bodies(deployment: Deployment) -> Counter[str]:
    """How often the body of each occurrence and attempt was begun."""
    file = deployment.folder / "bodies"
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()


def started(deployment: Deployment) -> None:
    wait_until(lambda: deployment.sched("status").code == 0, PATIENCE, "scheduler and worker to be up")


def expected(attempt: int = 1) -> Counter[str]:
    begin = datetime.fromisoformat(f"{DAY}T00:00+00:00")
    return Counter(f"{(begin + timedelta(minutes=10 * n)).isoformat()} {attempt}" for n in range(60))


@contextmanager
def on_a_terminal(deployment: Deployment, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """A command whose stderr is a terminal; the second value reads what it has shown so far."""
    master, slave = pty.openpty()
    file = deployment.folder / "shown"
    with file.open("wb") as output:
        popen = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_sched", "sched", *arguments],
            cwd=deployment.folder,
            env={**deployment.environ(), "TERM": "xterm", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=slave,
        )
    REAPER.watch(popen.pid)
    os.close(slave)
    os.set_blocking(master, False)
    seen = bytearray()

    def read() -> str:
        while True:
            try:
                some = os.read(master, 65_536)
            except (BlockingIOError, OSError):  # nothing yet; or the other end is closed
                break
            if not some:
                break
            seen.extend(some)
        return seen.decode(errors="replace")

    try:
        yield popen, read
    finally:
        popen.kill()
        popen.wait()
        os.close(master)
        REAPER.forget(popen.pid)


def test_a_killed_scheduler_loses_nothing(ready: Deployment) -> None:
    """SIGKILL of the only scheduler in the middle: the next one finishes, each occurrence ran once."""
    with ready.running("beat", "-l", "INFO") as beat:
        started(ready)
        asked = ready.sched(
            *("backfill", "report", "--from", DAY, "--to", TO, "--max-concurrent", "4", "--detach", "--json")
        )
        assert 0 == asked.code, asked.err
        made = json.loads(asked.out)
        assert (60, "running") == (made["total"], made["status"])
        wait_until(lambda: sum(bodies(ready).values()) >= 10, PATIENCE, "some runs")
        beat.popen.send_signal(signal.SIGKILL)
        beat.popen.wait(30)
    left = ready.sched("backfills", "--json").json
    assert [("running", True)] == [(one["status"], one["finished"] < 60) for one in left]
    alone = ready.sched("backfill", "alone", "--from", DAY, "--to", DAY, "--detach")
    assert 0 == alone.code
    with ready.running("beat", "-l", "INFO") as second:
        watched = ready.sched("backfills", "watch", made["id"][:13], timeout=PATIENCE)
        assert 0 == watched.code, watched.err + second.text()
        assert f"{made['id']} done: 60 of 60, 60 succeeded" in watched.out
        assert "report: 60 of 60" in watched.err
    assert expected() == bodies(ready)


def test_a_bar_and_ctrl_c(ready: Deployment) -> None:
    """On a terminal a bar moves; Ctrl-C ends the watching only; cancelled, it makes no more runs."""
    with ready.running("beat", "-l", "INFO"):
        started(ready)
        arguments = ("backfill", "report", "--from", DAY, "--to", f"{DAY}T23:50", "--max-concurrent", "2")
        with on_a_terminal(ready, *arguments) as (popen, read):
            wait_until(lambda: "/144" in read() and "left" in read(), PATIENCE, "the bar to move")
            assert "━" in read()
            popen.send_signal(signal.SIGINT)
            assert 1 == popen.wait(30)
            assert "The backfill goes on." in read()
        [one] = ready.sched("backfills", "list", "--status", "running", "--json").json
        assert f"sched backfills watch {one['id']}" in read()
        before = sum(bodies(ready).values())
        wait_until(lambda: sum(bodies(ready).values()) > before + 2, PATIENCE, "it to go on")
        status = ready.sched("status")
        assert f"of 144 ({one['id']})" in status.out
        cancelled = ready.sched("backfills", "cancel", one["id"][:8], "--reason", "enough")
        assert (0, True) == (cancelled.code, " cancelled: " in cancelled.out), cancelled.err
        wait_until(
            lambda: not ready.rows("SELECT 1 FROM sched_run WHERE finished_at IS NULL"),
            PATIENCE,
            "its runs to end",
        )
        count = ready.rows("SELECT count(*) FROM sched_run")
        watched = ready.sched("backfills", "watch", one["id"])
        assert (1, True) == (watched.code, "enough" in watched.out)
        assert count == ready.rows("SELECT count(*) FROM sched_run")
        refused = ready.sched("backfills", "cancel", one["id"])
        assert (2, "") == (refused.code, refused.out)
        assert "is cancelled already" in refused.err


def test_failures_are_told_and_made_good(ready: Deployment) -> None:
    """Exit code 1 when runs failed; with --reprocess failed they are run again, as their second attempt."""
    (ready.folder / "failing").touch()
    with ready.running("beat", "-l", "INFO"):
        started(ready)
        arguments = ("backfill", "report", "--from", DAY, "--to", TO, "--max-concurrent", "4")
        failed = ready.sched(*arguments, "--json", timeout=PATIENCE)
        assert 1 == failed.code, failed.err
        assert ("done", 60, 0) == tuple(failed.json[name] for name in ("status", "failed", "succeeded"))
        (ready.folder / "failing").unlink()
        planned = ready.sched(*arguments, "--dry-run")
        assert (0, True) == (planned.code, "would run 0 new, 0 again, leave 60 (failed 60)" in planned.out)
        good = ready.sched(*arguments, "--reprocess", "failed", timeout=PATIENCE)
        assert (0, True) == (good.code, "60 succeeded" in good.out), good.err
    assert expected(1) + expected(2) == bodies(ready)
    assert [(60, 2, 2)] == ready.rows("SELECT count(*), min(attempt), max(attempt) FROM sched_run")


def test_without_a_scheduler(migrated: Deployment) -> None:
    """It is kept, and said aloud that nobody is there; what is wrong is refused with exit code 2."""
    (migrated.folder / "tasks").mkdir()
    (migrated.folder / "tasks" / "__init__.py").write_text(TASKS)
    add = ("jobs", "add", "hello", "--task", "celery_sched.ping", "--schedule", "0 * * * *")
    added = migrated.sched(*add, "--tz", "Asia/Tokyo")
    assert 0 == added.code, added.err
    planned = migrated.sched("backfill", "hello", "--from", DAY, "--to", DAY, "--dry-run")
    assert [
        f"hello: 24 occurrences, from {DAY} 00:00:00 JST to {DAY} 23:00:00 JST, 1 at a time",
        "would run 24 new, 0 again, leave 0",
    ] == planned.out.splitlines()
    asked = migrated.sched("backfill", "hello", "--from", DAY, "--to", DAY, "--detach")
    assert (0, True) == (asked.code, "No scheduler is alive" in asked.err)
    assert "0 of 24" in asked.out
    for arguments, said in (
        (("hello", "--from", DAY, "--to", DAY), "is running and has some of these times"),
        (("helo", "--from", DAY, "--to", DAY), "Did you mean 'hello'?"),
        (("hello", "--from", "soon", "--to", DAY), "from 'soon' is refused"),
        (("hello", "--from", DAY, "--to", "2999-01-01"), "not in the future: it is now"),
        (("hello", "--from", DAY), "Missing option '--to'"),
    ):
        refused = migrated.sched("backfill", *arguments)
        assert (2, "", True) == (refused.code, refused.out, said in refused.err), refused.err
    nothing = migrated.sched("backfills", "watch", "zzz")
    assert (2, True) == (nothing.code, "there is no backfill 'zzz'" in nothing.err)
