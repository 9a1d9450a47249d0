"""A poll that has nothing to do: it writes nothing, and on SQLite waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from celery import Celery

from celery_sched import runtime as runtimes
from celery_sched.inflight import GRACE, DatabaseSlots, Granted
from celery_sched.model import RunId
from celery_sched.rules.fitting import Candidate, Held
from celery_sched.store.tables import job as job_table
from celery_sched.testing import FakeClock, ManualScheduler, holding
from tests.store.world import APP, Bench, statements


def _writes(seen: list[str]) -> list[str]:
    marks = ("insert", "update", "delete", "replace", "for update", "savepoint")
    return [statement for statement in seen if any(mark in statement.lower() for mark in marks)]


def test_an_idle_poll_writes_nothing(bench: Bench) -> None:
    """An idle poll only reads: with no job, with jobs due later, with running ones and with waiting ones."""
    bench.scheduler.poll()
    for number in range(7):
        bench.job(f"job-{number}")
    bench.scheduler.poll()
    bench.clock.advance(1)
    for _ in range(2):
        with statements(bench.database) as seen:
            assert "" == bench.scheduler.poll().counts.line()
        assert [] == _writes(seen)
        assert len(seen) < 15
        bench.work_off()
        bench.scheduler.poll()
        bench.work_off()
        bench.scheduler.poll()


def test_an_idle_poll_says_hello_now_and_then(bench: Bench) -> None:
    """A poll that writes because a sixth of the lease has passed is noticed by the same count."""
    bench.scheduler.poll()
    bench.clock.advance(10)
    with statements(bench.database) as seen:
        bench.scheduler.poll()
    assert [] != _writes(seen)


def test_an_idle_poll_takes_no_write_lock(make_bench: Callable[..., Bench]) -> None:
    """While another writer holds the lock (on SQLite: of the whole database), an idle poll goes on."""
    bench = make_bench(lease=30, poll_interval=1)
    job = bench.client.add("job", task="t.ok", schedule="every 1h")
    bench.scheduler.poll()
    assert timedelta(seconds=10) == bench.config.session_timeout
    with holding(bench.session(), job_table, job.id):
        assert "" == bench.scheduler.poll().counts.line()
        # and so do the commands that look
        assert ["job"] == [job.name for job in bench.client.list()]
        assert runtimes.new_node_id() not in [node.id for node in bench.client.nodes()]


class NotingSlots(DatabaseSlots):
    """Counts in the database, and notes what it is told to free."""

    def __init__(self) -> None:
        self.freed: list[tuple[str, set[RunId]]] = []

    def release(self, pool: str, run_ids: Collection[RunId]) -> None:
        self.freed.append((pool, set(run_ids)))


def test_what_a_sweep_settled_is_freed_in_one_call(bench: Bench) -> None:
    """However many leases ended: a Redis that swallows bytes would hold the poll up once for each call."""
    keys = [bench.running(f"job-{number}").key for number in range(4)]
    slots = NotingSlots()
    app = Celery(APP, set_as_current=False)
    app.conf.update(bench.settings)
    runtime = replace(bench.scheduler.runtime, slots=slots)
    scheduler = ManualScheduler(app, clock=bench.clock, runtime=runtime)
    assert 4 == sum(polled.counts.swept for polled in scheduler.advance(65, step=5))
    assert [("default", {key.id for key in keys})] == slots.freed


class LateSlots(DatabaseSlots):
    """Grants all that is asked for, as Redis does, and takes ``seconds`` of the clock for it."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock, self.seconds = clock, seconds

    def reserve(
        self,
        now: datetime,
        slots: Mapping[str, int],
        held: Collection[Held],
        wanted: Mapping[str, Sequence[Candidate]],
    ) -> Granted:
        self._clock.advance(self.seconds)
        return replace(super().reserve(now, slots, held, wanted), count_slots=False)


def test_slots_that_were_granted_too_long_ago_are_not_claimed(bench: Bench) -> None:
    """Redis keeps a grant without a row for its grace only: a frozen scheduler must not come after that."""
    bench.job()
    bench.plan()
    slots = LateSlots(bench.clock, GRACE / 2 + 1)
    app = Celery(APP, set_as_current=False)
    app.conf.update(bench.settings)
    runtime = replace(bench.scheduler.runtime, slots=slots)
    scheduler = ManualScheduler(app, clock=bench.clock, runtime=runtime)
    counts = scheduler.poll().counts
    assert (0, 1, ["queued"]) == (counts.dispatched, counts.lock_lost, bench.statuses())
    slots.seconds = GRACE / 2
    assert 1 == scheduler.poll().counts.dispatched


def test_a_poll_comes_back_for_the_next_instant(bench: Bench) -> None:
    """The poll returns the time until the next due instant, and comes back at once while there is more."""
    bench.client.add("job", task="t.ok", schedule="every 90s")
    bench.scheduler.poll()
    bench.clock.advance(30)
    next_in = bench.scheduler.poll().next_in
    assert next_in is not None and 55 < next_in <= 60
