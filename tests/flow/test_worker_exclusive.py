"""Exclusive jobs: whatever happens to a worker, its body is dead before another one may have the next run."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from celery_sched.model import RunId
from celery_sched.steps.stop import stop
from celery_sched.testing import ManualScheduler
from celery_sched.worker.trust import WHY
from tests.flow.worker_world import PATIENCE, Worker, World
from tests.private_server import wait_until
from tests.proxy import Proxy
from tests.reaper import gone
from tests.servers import PostgresServer

MakeWorld = Callable[..., World]
SHORT = {"sched_lease": 6, "sched_exclusive_margin": 2}


def lines(world: World) -> list[tuple[int, int]]:
    """What exclusive bodies left, in order: fencing number and process."""
    file = world.folder / "fences"
    found = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(fence), int(pid)) for fence, pid, _ in found]


def worker_through(world: World, proxy: Proxy, *arguments: str) -> Worker:
    """A worker that reaches the database through the proxy; the others reach it directly."""
    direct = world.settings
    url = direct["sched_database_url"]
    through = re.sub(r":\d+/", f":{proxy.port}/", url)
    world.settings = {**direct, "sched_database_url": through}
    try:
        return world.worker(*arguments)
    finally:
        world.settings = direct


def renewed_twice(world: World, run_id: RunId) -> bool:
    """Whether its worker has had the answer to a renewal, and knows more than its start said."""
    row = world.row(run_id)
    lease = world.config.lease + world.config.renew_interval * 1.5
    return row.started_at is not None and row.lease_expires_at > row.started_at + lease


@contextmanager
def frozen(worker: Worker) -> Iterator[None]:
    """Its main process stands still."""
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("outage", ["cut", "black-holed", "frozen"])
def test_two_fencing_numbers_never_interleave(
    make_world: MakeWorld, proxy: Proxy, postgres: PostgresServer, postgresql_url: str, outage: str
) -> None:
    """A worker that cannot renew kills its exclusive body before another worker has the next run.

    Also when its main process stands still. What else it runs goes on.
    """
    proxy.start(postgres.port)
    # half a second more than elsewhere for the child that kills itself
    world = make_world(database=postgresql_url, sched_lease=9, sched_exclusive_margin=4)
    first = worker_through(world, proxy, "-c", "2", "-Q", "first")
    world.worker("-c", "1", "-Q", "second")
    scheduler = ManualScheduler(world.app, runtime=world.runtime)
    client = scheduler.client
    client.add(
        "alone",
        task="exclusive.writes",
        schedule="every 1h",
        args=[60],
        exclusive=True,
        overlap="queue",
        options={"queue": "first"},
    )
    client.add(
        "plain",
        task="bodies.until_file",
        schedule="every 1h",
        args=["plain", "enough"],
        options={"queue": "first"},
    )
    run_id, plain = client.run("alone").id, client.run("plain").id

    def passing(condition: Callable[[], object]) -> Callable[[], object]:
        """A scheduler that is there all the time, and claims as soon as it may."""

        def look() -> object:
            scheduler.poll()
            if lines(world) and world.status(run_id) != "running":
                assert gone(lines(world)[0][1]), "its run is free, and its process is alive"
            return condition()

        return look

    wait_until(passing(lambda: lines(world) and "plain:begin" in world.marks()), PATIENCE, "bodies to begin")
    wait_until(passing(lambda: renewed_twice(world, run_id)), PATIENCE, "renewals")
    client.edit("alone", args=[1], options={"queue": "second"})
    next_id = client.run("alone").id

    def settled_elsewhere() -> None:
        """The next run ends on the other worker, and what else the first one runs goes on to its end."""
        wait_until(passing(lambda: world.status(next_id) == "succeeded"), PATIENCE, "the next run to end")
        (world.folder / "enough").touch()
        # before the first one is well again: it learns then that this lease was swept too, and kills for it
        wait_until(lambda: "plain:end" in world.marks(), PATIENCE, "the plain job to go on to its end")

    if outage == "frozen":
        with frozen(first):
            settled_elsewhere()
    else:
        proxy.refuse() if outage == "cut" else proxy.blackhole()
        settled_elsewhere()
    fences = [fence for fence, _ in lines(world)]
    assert [1, 2] == sorted(set(fences))
    assert sorted(fences) == fences
    assert "lost" == world.status(run_id)
    first.wait_for_log("it kills itself" if outage == "frozen" else f"was killed: {WHY} (SIGKILL)")
    proxy.passing()
    assert 1 == len(set(world.pids()))
    wait_until(passing(lambda: world.status(plain) != "running"), PATIENCE, "the plain job to be settled")
    assert world.status(plain) in ("succeeded", "lost")


def test_it_is_settled_with_the_reason_when_the_database_is_back(
    make_world: MakeWorld, proxy: Proxy, postgres: PostgresServer, postgresql_url: str
) -> None:
    """Nobody swept it meanwhile: its worker says why it killed it, also where no thread of the child ran."""
    proxy.start(postgres.port)
    world = make_world(database=postgresql_url, **SHORT)
    worker = worker_through(world, proxy, "-c", "1")
    run_id = world.run("exclusive.locks", exclusive=True)
    wait_until(lambda: lines(world), PATIENCE, "the body to begin")
    wait_until(lambda: renewed_twice(world, run_id), PATIENCE, "renewals")
    ((_, child),) = lines(world)
    proxy.refuse()
    wait_until(lambda: gone(child), PATIENCE, "the body to be killed")
    row = world.row(run_id)
    assert world.database.read(lambda tx, now: now) < row.lease_expires_at
    assert "running" == row.status
    proxy.passing()
    done = world.wait(run_id)
    assert ("lost", WHY, f"{WHY}; SIGKILL") == (done.status, done.error, done.reason)
    assert "succeeded" == world.wait(world.run("plain")).status  # the pool's slot came back
    assert worker.process.poll() is None


def test_a_child_that_killed_itself_is_settled_with_the_reason(make_world: MakeWorld) -> None:
    """The main process stood still, and goes on: it says why its child is dead."""
    world = make_world(**SHORT)
    worker = world.worker("-c", "1")
    run_id = world.run("exclusive.writes", 60, exclusive=True)
    wait_until(lambda: lines(world), PATIENCE, "the body to begin")
    wait_until(lambda: renewed_twice(world, run_id), PATIENCE, "renewals")
    child = lines(world)[0][1]
    with frozen(worker):
        left = world.database.read(lambda tx, now: now) - world.row(run_id).lease_expires_at
        lease_ends = time.monotonic() - left.total_seconds()  # nobody renews it now
        wait_until(lambda: gone(child), PATIENCE, "the child to kill itself")
        last = (world.folder / "fences").read_text().splitlines()[-1]
        assert float(last.split()[2]) < lease_ends
    done = world.wait(run_id)
    assert "lost" == done.status
    assert (done.reason or "").startswith(WHY), done.reason
    assert "succeeded" == world.wait(world.run("plain")).status


def test_it_runs_for_many_leases_as_long_as_they_are_renewed(make_world: MakeWorld) -> None:
    """Nothing is killed while all is well, and the child's next run is not hit by the timer of this one."""
    world = make_world(sched_lease=3)
    world.worker("-c", "1")
    assert "succeeded" == world.wait(world.run("exclusive.writes", 7, exclusive=True)).status
    assert "succeeded" == world.wait(world.run("naps", "next", 4)).status
    assert 1 == len({*(pid for _, pid in lines(world)), *world.pids()})


def test_it_is_timed_out_at_its_deadline_and_not_before(make_world: MakeWorld) -> None:
    """A deadline within the margin is no lost lease: the body has its whole time, and its grace."""
    world = make_world(**SHORT, sched_max_runtime=4, sched_kill_grace=1.9)
    world.worker("-c", "1")
    run_id = world.run("bodies.cleans_up", "exception", exclusive=True)
    done = world.wait(run_id)
    assert ("timed_out", "ran longer than its max_runtime (4 s)") == (done.status, done.error)
    assert "cleaned" in world.marks()


def test_one_that_is_cancelled_has_its_grace(make_world: MakeWorld) -> None:
    """The end of trust in a body that was told to end is no end of its lease: it may put things right."""
    world = make_world(sched_lease=12)
    world.worker("-c", "1")
    run_id = world.run("bodies.cleans_up", "exception", exclusive=True)
    wait_until(lambda: "cleans_up:exception" in world.marks(), PATIENCE, "the body to begin")
    world.database.run(lambda tx, now: stop(tx, now, run_id, "ada", "enough"))
    done = world.wait(run_id)
    assert "cancelled" == done.status, done
    assert re.fullmatch(r"stopped by ada: enough; SIGTERM, ended after [01]\.\d s", done.reason or "")
    assert "cleaned" in world.marks()


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_a_pool_that_cannot_kill_refuses_it(make_world: MakeWorld, pool: str) -> None:
    """The run fails before its body begins, and says what to do; other jobs run there."""
    world = make_world()
    worker = world.worker("-P", pool, "-c", "2")
    done = world.wait(world.run("plain", name="alone", exclusive=True))
    assert ("failed", "its worker cannot keep exclusive jobs") == (done.status, done.reason)
    assert (done.error or "").startswith(f"job 'alone' is exclusive, and worker {worker.name} cannot kill")
    assert [] == world.marks()
    assert "succeeded" == world.wait(world.run("plain")).status
