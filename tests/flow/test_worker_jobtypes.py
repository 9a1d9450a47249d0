"""Job types on a real worker: what ends a run ends its command; the gate hides what a run has looked up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_sched.secrets import HIDDEN
from tests.flow.test_worker_kill import wait_until_gone
from tests.flow.worker_world import World
from tests.jobtypes.test_shell import FAMILY, family

MakeWorld = Callable[..., World]
SECRET = "hunter2-hunter2"


def command(world: World, name: str) -> tuple[Any, list[int]]:
    """A run of a command with a child of its own, both in their bodies; the pids of both."""
    file = world.folder / name
    run_id = world.run(
        "celery_sched.shell", kwargs={"command": [sys.executable, "-c", FAMILY, str(file), "group"]}
    )
    pids = family(file)
    return run_id, pids


def test_what_ends_a_run_ends_its_command(make_world: MakeWorld) -> None:
    """A stop of the run, and the death of the worker's child, leave nothing of the command alive."""
    world = make_world(sched_allow_shell=True, sched_lease=15, sched_poll_interval=1)
    worker = world.worker("-c", "1")
    stopped, pids = command(world, "stopped")
    world.update(stopped, stop_requested_at=world.row(stopped).started_at, stop_requested_by="a test")
    assert "cancelled" == world.wait(stopped).status
    for pid in pids:
        wait_until_gone(pid)
    killed, pids = command(world, "killed")
    [child] = [one.pid for one in worker.children() if pids[0] in {far.pid for far in one.children()}]
    os.kill(child, signal.SIGKILL)
    assert "lost" == world.wait(killed).status
    for pid in pids:
        wait_until_gone(pid)


@pytest.mark.parametrize("ends", ["succeeded", "failed"])
def test_the_gate_hides_secrets(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Also of a task that is no type: what is stored of its run, and what is logged, has no secret."""
    monkeypatch.setenv("CELERY_SCHED_SECRET_TOKEN", SECRET)
    world = make_world(include=["tests.flow.type_bodies"])
    worker = world.worker("-c", "1")
    run = world.wait(world.run("tests.flow.type_bodies.looks_up", ends))
    assert ends == run.status
    told = str(run.result) if ends == "succeeded" else str(run.error)
    assert (True, False) == (HIDDEN in told, SECRET in told)
    worker.wait_for_log(f"logged {HIDDEN}")
    assert "logged " + SECRET not in worker.text()


def test_a_row_that_was_written_by_hand(make_world: MakeWorld, tmp_path: Path) -> None:
    """What a definition would have refused is refused on the worker; a command that is off does not run."""
    world = make_world()
    world.worker("-c", "1")
    touched = tmp_path / "touched"
    off = world.wait(world.run("celery_sched.shell", kwargs={"command": ["/usr/bin/touch", str(touched)]}))
    assert ("failed", True) == (off.status, "this worker carries out no commands" in str(off.error))
    assert not touched.exists()
    wrong = world.wait(world.run("celery_sched.http", kwargs={"url": "file:///etc/passwd"}))
    assert ("failed", True) == (wrong.status, "an http:// or https:// URL" in str(wrong.error))
