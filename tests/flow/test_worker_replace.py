"""Replaced on a real worker: the hung body is killed, the new one begins when it is gone; never two."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from celery_sched.model import RunId
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.flow.test_worker_kill import gone, wait_until_gone
from tests.flow.worker_world import World
from tests.private_server import wait_until

MakeWorld = Callable[..., World]
PATIENCE = 60.0
TASK = "tick.hangs"
BODIES = ["tests.flow.tick_bodies"]


def _ticks(world: World) -> list[tuple[str, int, float]]:
    """What bodies have written every few milliseconds: run, process, and when; in the order of writing."""
    file = world.folder / "ticks"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(run, int(pid), float(at)) for run, pid, at in (line.split() for line in lines)]


def _running(world: World, scheduler: ManualScheduler, run_id: RunId) -> int:
    """Poll until the run's body writes; the process that it is in."""
    found: list[int] = []

    def there() -> bool:
        scheduler.poll()
        found[:] = [pid for run, pid, _ in _ticks(world) if run == run_id]
        return bool(found)

    wait_until(there, PATIENCE, f"the body of run {run_id} to begin")
    return found[0]


def _over(scheduler: ManualScheduler, run_id: RunId) -> bool:
    scheduler.poll()
    return scheduler.client.get_run(run_id).finished_at is not None


@pytest.mark.parametrize("broker", ["files", "redis"])
def test_a_hung_run_is_replaced(make_world: MakeWorld, broker: str) -> None:
    """Again and again: each run hangs until the next one takes its place. Bodies never overlap in time."""
    world = make_world(broker=broker, sched_lease=6, include=BODIES)
    worker = world.worker("-c", "2")  # there is a free process all the time: what keeps it back is the lock
    scheduler = ManualScheduler(world.app, runtime=world.runtime)
    scheduler.client.add("hung", task=TASK, schedule="every 1h", args=[600], overlap="replace")
    ids = [scheduler.client.run("hung").id]
    pids = [_running(world, scheduler, ids[0])]
    for _ in range(3):
        made = scheduler.client.run("hung", by="ada")
        assert (ids[-1:], ids[-1]) == (list(made.replaces), made.waits_for)
        ids.append(made.id)
        pids.append(_running(world, scheduler, made.id))
        assert gone(pids[-2]), "killed before the next one began"
        stopped = scheduler.client.get_run(ids[-2])
        said = f"stopped by ada: replaced by a run by hand (run {made.id})"
        assert ("cancelled", True) == (stopped.status, str(stopped.reason).startswith(said)), stopped.reason
        began = scheduler.client.get_run(made.id).started_at
        assert None not in (stopped.finished_at, began) and stopped.finished_at <= began  # type: ignore[operator]
    by_run = [[at for run, _, at in _ticks(world) if run == run_id] for run_id in ids]
    for earlier, later in pairwise(by_run):
        assert max(earlier) < min(later), "two bodies at once"
    scheduler.client.pause("hung", running="cancel")
    wait_until(lambda: _over(scheduler, ids[-1]), PATIENCE, "the last one to be stopped")
    wait_until_gone(pids[-1])
    assert worker.process.poll() is None
    assert 0 == scheduler.client.status().inflight
    invariants.check(world.database)


def test_an_occurrence_replaces_a_hung_run(make_world: MakeWorld) -> None:
    """By the schedule: a job that hangs at each occurrence is killed at the next one."""
    world = make_world(sched_lease=6, include=BODIES)
    world.worker("-c", "2")
    scheduler = ManualScheduler(world.app, runtime=world.runtime)
    scheduler.client.add(
        "hung", task=TASK, schedule="every 8s", args=[600], overlap="replace", run_immediately=True
    )

    def bodies() -> list[str]:
        scheduler.poll()
        assert len(scheduler.client.runs("hung", "running")) <= 1
        return list(dict.fromkeys(run for run, _, _ in _ticks(world)))

    wait_until(lambda: len(bodies()) >= 3, PATIENCE, "three occurrences to have begun")
    scheduler.client.pause("hung", running="cancel")
    ids = bodies()
    wait_until(lambda: _over(scheduler, RunId(ids[-1])), PATIENCE, "the last one to be stopped")
    by_run = [[at for run, _, at in _ticks(world) if run == run_id] for run_id in ids]
    for earlier, later in pairwise(by_run):
        assert max(earlier) < min(later), "two bodies at once"
    found = [scheduler.client.get_run(RunId(run_id)) for run_id in ids]
    assert ["cancelled"] * len(ids) == [run.status for run in found]
    told = "stopped by the scheduler: replaced by the occurrence of "
    assert [True] * (len(ids) - 1) == [str(run.reason).startswith(told) for run in found[:-1]]
    invariants.check(world.database)
