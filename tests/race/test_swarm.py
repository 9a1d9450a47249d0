"""Everything at once, with sessions that are cut: nothing stays locked, and the tables stay consistent."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from celery_sched.errors import DatabaseUnavailable, NotFound, RunRefused
from celery_sched.rules.schedules import between
from celery_sched.rules.transitions import ACTIVE, RunStatus
from celery_sched.rules.upcoming import schedule_of
from celery_sched.runtime import new_node_id
from celery_sched.steps.start import Verdict
from celery_sched.store import gaps
from celery_sched.testing import ManualScheduler
from tests import invariants
from tests.private_server import wait_until
from tests.store.world import FULL, PATIENCE, Bench

SECONDS = 60 if FULL else 5
JOBS = 9
STEADY = {"steady-once": "once", "steady-all": "all", "steady-skip": "skip"}
"""Jobs that nobody meddles with, each with its misfire policy: their occurrences can be counted."""
KILL = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = database()"
    " AND id <> connection_id() ORDER BY rand() LIMIT 1",
}


class Swarm:
    """Schedulers, workers, people and a killer on one bench, each a thread."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self._seed = bench, seed
        self._over = threading.Event()
        self.kills = 0
        self.bodies: list[tuple[str, int]] = []
        self._schedulers: queue.Queue[ManualScheduler] = queue.Queue()
        for _ in range(2):
            self._schedulers.put(bench.another())
        self._threads = ThreadPoolExecutor(8)

    def run(self) -> None:
        """Let them all loose for a while; raise what any of them should not have met."""
        works = [*[self._schedule] * 2, *[self._work] * 3, *[self._meddle] * 2, self._kill]
        futures = [
            self._threads.submit(self._until_over, work, random.Random(self._seed + number))
            for number, work in enumerate(works)
        ]
        least = time.monotonic() + SECONDS
        most = least + 4 * PATIENCE  # it ends sooner where the machine is not busy
        try:
            while not any(future.done() for future in futures) and time.monotonic() < most:
                self._look()
                if time.monotonic() > least and self._did_enough():
                    break
        finally:
            self._over.set()
            self._threads.shutdown()
        for future in futures:
            future.result()

    def _did_enough(self) -> bool:
        """On a busy machine it takes longer."""
        kills = self.bench.database.dialect.name == "sqlite" or self.kills > 3
        return kills and len(self.bodies) > 20 and any(attempt > 1 for _, attempt in list(self.bodies))

    def _look(self) -> None:
        """What must hold, holds in between too."""
        try:
            invariants.check(self.bench.database)
        except (DBAPIError, psycopg.Error, pymysql.MySQLError):
            self._over.wait(0.05)  # the killer hit this session

    def _until_over(self, work: Callable[[random.Random], None], dice: random.Random) -> None:
        while not self._over.is_set():
            try:
                work(dice)
            except (DatabaseUnavailable, NotFound, RunRefused):
                self._over.wait(0.01)

    def _schedule(self, _dice: random.Random) -> None:
        scheduler = self._schedulers.get()
        try:
            while not self._over.is_set():
                scheduler.poll()
        finally:
            self._schedulers.put(scheduler)

    def _work(self, dice: random.Random) -> None:
        bench, node = self.bench, new_node_id()
        for key in bench.messages():
            bench.receive(key, node=node)
            if dice.random() < 0.1 or bench.start(key, node=node).verdict is not Verdict.YOURS:
                continue
            self.bodies.append((key.id, key.attempt))
            chance = dice.random()
            if chance < 0.1:
                continue  # hung, and its worker is dead
            if chance < 0.3:
                bench.renew(key, node=node)
            bench.finish(key, RunStatus.FAILED if chance > 0.9 else RunStatus.SUCCEEDED)

    def _meddle(self, dice: random.Random) -> None:
        client, name = self.bench.client, f"job-{dice.randrange(JOBS)}"
        act = dice.choice(["run", "run", "cancel", "cancel", "retry", "edit", "pause", "resume"])
        if act in ("cancel", "retry"):
            found = client.runs(name, limit=5)
            if found:
                getattr(client, act)(dice.choice(found).id)
        elif act == "edit":
            client.edit(
                name,
                schedule=dice.choice(["every 1s", "every 2s"]),
                priority=dice.randrange(10),
                retries=dice.randrange(3),
                requeue=dice.random() < 0.5,
                retry_delay=timedelta(seconds=dice.random()),
            )
        else:
            getattr(client, act)(name)

    def _kill(self, _dice: random.Random) -> None:
        """Cut a session, whatever it is doing."""
        statement = KILL.get(self.bench.database.dialect.name)
        if statement is None:
            self._over.wait(1)
            return
        engine = create_engine(self.bench.database.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                while not self._over.wait(0.15):
                    if self.kills > 4 + len(self.bodies) / 2:
                        continue  # on a busy machine, too, something must be done in between
                    victim = connection.exec_driver_sql(statement).scalar()
                    if victim is not None and self.bench.database.dialect.name == "mariadb":
                        connection.exec_driver_sql(f"KILL {victim}")
                    self.kills += victim is not None
        except DBAPIError as error:
            assert "1094" in str(error), error  # it had gone by itself
        finally:
            engine.dispose()


@pytest.fixture
def swarm(make_bench: Callable[..., Bench]) -> Iterator[Swarm]:
    """Twelve jobs of all policies, five slots, leases of three seconds, the database's clock."""
    bench = make_bench(real=True, lease=3, poll_interval=0.5, start_timeout=3, max_runtime=4)
    for number in range(JOBS):
        policy = ("skip", "queue", "concurrent")[number % 3]
        bench.client.add(
            f"job-{number}",
            task="t.ok",
            schedule="every 1s",
            overlap=policy,
            max_queued=5,
            retries=number % 2,
            retry_delay=timedelta(seconds=0.5),
        )
    for name, misfire in STEADY.items():
        bench.client.add(name, task="t.ok", schedule="every 1s", overlap="queue", misfire=misfire)
    yield Swarm(bench, seed=20)


def wrongly_counted(bench: Bench, name: str) -> list[datetime]:
    """Occurrences up to the job's mark, and instants of its runs, that are not counted exactly once."""
    row = bench.job_row(name)
    found = Counter(run.scheduled_for for run in bench.scheduler.runs(name) if run.trigger == "schedule")
    schedule = schedule_of(row)
    wanted = between(schedule, row.created_at, row.last_scheduled_for, 1_000_000)
    for gap in bench.database.read(lambda tx, now: gaps.of_job(tx, row.id, 1_000_000)):
        inside = [instant for instant in wanted if gap.from_at <= instant <= gap.to_at]
        assert gap.count == len(inside), gap
        found.update(inside)
    strange = {instant for instant in found if instant not in wanted}
    return sorted(strange | {instant for instant in wanted if found[instant] != 1})


def test_a_swarm_ends_consistent(swarm: Swarm) -> None:
    """Plans, claims, sweeps, stops, starts, renewals, outcomes, retries, edits and cut sessions at a time."""
    bench = swarm.bench
    swarm.run()
    assert len(swarm.bodies) == len(set(swarm.bodies)) > 20
    assert bench.database.dialect.name == "sqlite" or swarm.kills > 3
    for job in bench.client.list():
        bench.client.pause(job.name)

    def at_rest() -> bool:
        bench.scheduler.poll()
        for key in bench.messages():
            if bench.start(key).verdict is Verdict.YOURS:
                bench.finish(key)
        return not any(status in ACTIVE for status in bench.statuses())

    wait_until(at_rest, PATIENCE, "the last runs to end, by their workers or by the sweep")
    invariants.check(bench.database)
    assert 0 == bench.in_flight()
    assert "succeeded" in bench.statuses()
    assert any(attempt > 1 for _, attempt in swarm.bodies)
    for name in STEADY:
        assert bench.job_row(name).last_scheduled_for is not None
        assert [] == wrongly_counted(bench, name)
