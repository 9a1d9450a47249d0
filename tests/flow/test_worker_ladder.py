"""SIGTERM, SIGKILL, given up: bodies that resist, with real workers and signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from celery_sched.model import Run, RunId
from celery_sched.steps.stop import stop
from tests.flow.worker_world import ROOT, World
from tests.private_server import wait_until
from tests.reaper import gone

MakeWorld = Callable[..., World]
BROKERS = ["files", "redis"]


def all_gone(world: World, child: int, grandchildren: int) -> None:
    """The child and all that it started, whatever group or session that has."""
    started = [int(line) for line in (world.folder / "grandchildren").read_text().split()]
    assert grandchildren == len(started)
    wait_until(lambda: all(gone(pid) for pid in [child, *started]), 20, f"{child} and {started} to be gone")


def stopped(world: World, run_id: RunId, mark: str) -> tuple[Run, int]:
    """Stop the run when its body has begun; what became of it, and which child it was in."""
    wait_until(lambda: mark in world.marks(), 30, f"{mark} to begin")
    child = world.pids()[world.marks().index(mark)]
    if mark == "hangs:kernel":
        wait_until(lambda: psutil.Process(child).status() == psutil.STATUS_DISK_SLEEP, 30, "the system call")
    world.database.run(lambda tx, now: stop(tx, now, run_id, "ada", "enough"))
    return world.wait(run_id), child


@pytest.mark.parametrize("how", ["ignores", "catches", "locks", "hash", "kernel"])
@pytest.mark.parametrize("broker", BROKERS)
def test_what_sigterm_does_not_end_is_killed_after_the_grace(
    make_world: MakeWorld, broker: str, how: str
) -> None:
    """SIGTERM, a second for it, SIGKILL: child, group and sessions are gone, the slots come back."""
    world = make_world(broker=broker, sched_kill_grace=1, sched_lease=6)
    world.worker("-c", "1")
    done, child = stopped(world, world.run("bodies.hangs", how), f"hangs:{how}")
    assert "cancelled" == done.status
    expected = r"stopped by ada: enough; SIGTERM, then SIGKILL after [1-9]\.\d s"
    if how == "kernel":  # it cannot be stopped, so it is not told: it might do something else meanwhile
        expected = r"stopped by ada: enough; SIGKILL"
    assert re.fullmatch(expected, done.reason or ""), done.reason
    all_gone(world, child, 2)
    assert "succeeded" == world.wait(world.run("plain")).status
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("how", ["exception", "handler"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_job_that_cleans_up_has_the_time_for_it(make_world: MakeWorld, broker: str, how: str) -> None:
    """It puts things right on SIGTERM, and is cancelled all the same, also where it returns a result."""
    world = make_world(broker=broker, sched_lease=12)
    world.worker("-c", "1")
    done, child = stopped(world, world.run("bodies.cleans_up", how), f"cleans_up:{how}")
    assert ("cancelled", None) == (done.status, done.result)
    assert re.fullmatch(r"stopped by ada: enough; SIGTERM, ended after [01]\.\d s", done.reason or "")
    assert "cleaned" in world.marks()
    all_gone(world, child, 1)
    # the child that was told takes no other task: what the job did to its signals is gone with it
    assert "succeeded" == world.wait(world.run("plain")).status
    assert child != world.pids()[-1]
    assert 0 == world.late_settlers()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_child_that_sigterm_kills_outright_leaves_nothing(make_world: MakeWorld, broker: str) -> None:
    """The job has put SIGTERM back to its default: the child dies in its body, what it started too."""
    world = make_world(broker=broker, sched_lease=12)
    world.worker("-c", "1")
    done, child = stopped(world, world.run("bodies.hangs", "default"), "hangs:default")
    assert "cancelled" == done.status
    assert re.fullmatch(r"stopped by ada: enough; SIGTERM, ended after [01]\.\d s", done.reason or "")
    all_gone(world, child, 2)
    assert "succeeded" == world.wait(world.run("plain")).status


@pytest.mark.parametrize("how", ["exception", "handler"])
def test_an_overdue_job_cleans_up_while_the_sweep_waits(make_world: MakeWorld, how: str) -> None:
    """Timed out, also where it returns a result; schedulers, which sweep meanwhile, leave it the time."""
    world = make_world(sched_max_runtime=2, sched_lease=12, sched_kill_grace=3)
    world.worker("-c", "1")
    run_id = world.run("bodies.cleans_up", how)

    def ended() -> bool:
        world.sweep()
        return bool(world.marks()) and world.status(run_id) != "running"

    wait_until(ended, 30, "it to end")
    done = world.wait(run_id)
    assert "timed_out" == done.status
    reason = r"ran longer than its max_runtime \(2 s\); SIGTERM, ended after [01]\.\d s"
    assert re.fullmatch(reason, done.reason or ""), done.reason
    assert "cleaned" in world.marks()


def test_a_body_that_was_told_to_end_settles_nothing(make_world: MakeWorld) -> None:
    """It returns a result in time while its main process is busy: its child waits, the run is timed out."""
    world = make_world(sched_max_runtime=2, sched_lease=60, sched_kill_grace=15)
    worker = world.worker("-c", "1")
    run_id = world.run("bodies.told", "enough")
    wait_until(lambda: "told" in world.marks(), 30, "SIGTERM to come")
    child = world.pids()[0]
    worker.process.send_signal(signal.SIGSTOP)
    try:
        (world.folder / "enough").touch()
        wait_until(lambda: "ends" in world.marks(), 20, "the body to end")
        ended = world.database.read(lambda tx, now: now)
        wait_until(
            lambda: world.database.read(lambda tx, now: now) > ended + timedelta(seconds=1.5), 20, "a while"
        )
        assert ("running", False) == (world.status(run_id), gone(child))
    finally:
        worker.process.send_signal(signal.SIGCONT)
    done = world.wait(run_id)
    assert ("timed_out", None) == (done.status, done.result)
    wait_until(lambda: gone(child), 20, "the child to be gone")


def test_without_a_grace_it_is_killed_at_once(make_world: MakeWorld) -> None:
    """sched_kill_grace 0: SIGKILL is the first step, and the reason says so."""
    world = make_world(sched_kill_grace=0)
    world.worker("-c", "1")
    done, child = stopped(world, world.run("bodies.cleans_up", "exception"), "cleans_up:exception")
    assert ("cancelled", "stopped by ada: enough; SIGKILL") == (done.status, done.reason)
    all_gone(world, child, 1)
    assert "cleaned" not in world.marks()


def test_a_run_that_somebody_else_has_is_killed_at_once(make_world: MakeWorld) -> None:
    """Its lease went elsewhere while it had time to clean up: no more of that."""
    world = make_world(sched_lease=30, sched_kill_grace=9)
    world.worker("-c", "1")
    run_id = world.run("bodies.hangs", "ignores")
    wait_until(lambda: "hangs:ignores" in world.marks(), 30, "the body to begin")
    began = time.monotonic()
    world.update(run_id, token="successor", worker="another")
    all_gone(world, world.pids()[0], 2)
    # one renewal at most: what it was asked in time does not count
    assert time.monotonic() - began < 10 + 5
    assert "running" == world.status(run_id)


def test_what_not_even_sigkill_ends_is_given_up(tmp_path: Path) -> None:
    """A child asleep in the kernel for good: its run is settled, the log says so, nobody waits again."""
    command = ["unshare", "--mount", sys.executable, "-m", "tests.flow.frozen", str(tmp_path)]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root: such a child cannot be made otherwise")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    if "mount: " in done.stderr:
        pytest.skip(f"no loop device to mount: {done.stderr}")
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    reason = "stopped by ada: enough; SIGKILL, which did not end it: abandoned"
    assert [["run-1", "cancelled", reason]] == found["outcomes"]
    assert "run run-1, attempt 1, is abandoned (it was stopped)" in found["logged"][0]
    assert (1, "D", 9, 0.0) == (
        len(found["logged"]),
        found["state"],
        found["ended by"],
        found["trusted until"],
    )
    assert found["again"] < 0.9  # it is not looked at again, which would take a second
