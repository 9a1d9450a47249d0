"""Outages of the database, as a timeline: who lives through them keeps its runs, the dead lose theirs.

The times of a lease of 60 s. A worker's call to a database that swallows it fails after half a lease at the
most (the watchdog's limit) and is made again a second later; schedulers pass as soon as the database is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_sched import failpoints
from celery_sched.model import RunKey
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import run as run_table
from celery_sched.worker.keeper import RETRY
from tests import invariants
from tests.store.world import FULL, Bench

LEASE = 60.0
STUCK = 15.0
"""Seconds after which a call that the database swallowed fails: one and a half session time-outs."""
PASS = 9.5
"""Seconds between two looks of the schedulers in these timelines; they look as soon as a lease is over."""
ONE_DATABASE = pytest.mark.parametrize("bench_url", ["sqlite"], indirect=True)
"""The statements are those of `test_outage`, which has them all."""
FRESH = pytest.mark.parametrize("fresh", [False, True], ids=["the same scheduler", "one that just started"])
TIMELINES: dict[str, list[tuple[float, float]]] = {
    "one and a half leases": [(90, 70)],
    "an hour": [(3600, 70)],
    "just noticed": [(31, 70)],
    "not noticed": [(29, 70)],
    "one and a half leases, every two, five times": [(90, 30)] * 5,
    "every minute": [(45, 15)] * 5,
    "every minute, for most of it": [(50, 10)] * 5,
    "again while the sweep is held back": [(40, 18)] * 5,
    "again at the end of the hold": [(90, 25), (34.5, 70)],
    "long and short": [(90, 12), (29, 5), (33, 20), (120, 70)],
}
"""Seconds without and with the database, in turn."""


class Timeline:
    """A worker with a run, another one that died with its own, and schedulers, as time goes by."""

    def __init__(self, bench: Bench, *, fresh: bool, phase: float = 0.0) -> None:
        """``fresh``: after each outage another scheduler has just started, and none of the others is left.

        ``phase``: seconds from the last renewal to the first outage.
        """
        self.bench, self._fresh, self._scheduler = bench, fresh, bench.scheduler
        bench.scheduler.advance(40, step=10)
        self.alive: RunKey = bench.running("alive", overlap="concurrent").key
        self.dead: RunKey = bench.running("dead").key
        bench.renew(self.alive)
        self._now, self._renew_at, self._over_at = 0.0, LEASE / 3, LEASE
        self.up(phase)

    def up(self, seconds: float) -> None:
        """The database answers."""
        end = self._now + seconds
        pass_at = self._now
        while True:
            # in the same moment the scheduler is first
            over_at = self._over_at + 0.1 if self._over_at >= self._now else end
            at = min(pass_at, over_at, self._renew_at, end)
            self._go_to(at)
            if at == end:
                return
            if at in (pass_at, over_at):
                self._scheduler.poll()
                pass_at = at + PASS
            else:
                self.bench.renew(self.alive)
                self._renew_at, self._over_at = at + LEASE / 3, at + LEASE

    def down(self, seconds: float) -> None:
        """Whatever is asked is swallowed."""
        end = self._now + seconds
        while self._renew_at < end:
            self._renew_at += STUCK + RETRY
        self._go_to(end)
        if self._fresh:
            self._scheduler = self.bench.another()

    def live_through(self, timeline: Iterable[tuple[float, float]]) -> None:
        for down, up in timeline:
            self.down(down)
            self.up(up)

    def _go_to(self, at: float) -> None:
        self.bench.clock.advance(at - self._now)
        self._now = at

    def check(self) -> None:
        """The run of the worker that lived goes on; nothing keeps the other one's for ever."""
        assert "running" == self.bench.status(self.alive.id)
        self.up(2 * LEASE + PASS)
        assert ("running", "lost") == (self.bench.status(self.alive.id), self.bench.status(self.dead.id))
        assert self.bench.finish(self.alive).settled
        invariants.check(self.bench.database)


@ONE_DATABASE
@FRESH
@pytest.mark.parametrize("name", TIMELINES)
def test_no_run_of_a_living_worker_is_abandoned(
    make_bench: Callable[..., Bench], name: str, fresh: bool
) -> None:
    """However long, and however often: what its worker can still renew is not swept, what is dead is."""
    bench = make_bench(max_runtime=36_000)
    timeline = Timeline(bench, fresh=fresh, phase=LEASE / 3 - 0.5)
    timeline.live_through(TIMELINES[name])
    timeline.check()


@ONE_DATABASE
@given(
    phase=st.floats(0, LEASE / 3),
    timeline=st.lists(st.tuples(st.floats(1, 200), st.floats(STUCK + RETRY, 90)), min_size=1, max_size=6),
    fresh=st.booleans(),
)
@settings(
    max_examples=200 if FULL else 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_the_outages(
    make_bench: Callable[..., Bench], phase: float, timeline: Sequence[tuple[float, float]], fresh: bool
) -> None:
    """Any outages between which a worker's call gets through."""
    bench = make_bench(max_runtime=36_000)
    bench.database.run(lambda tx, now: [tx.execute(t.delete()) for t in (run_table, job_table)] and None)
    world = Timeline(bench, fresh=fresh, phase=phase)
    world.live_through(timeline)
    world.check()


@ONE_DATABASE
def test_a_machine_that_sleeps_between_a_look_and_its_sweep(make_bench: Callable[..., Bench]) -> None:
    """It saw that a lease was over, and slept for minutes with all its workers: it judges again first."""
    bench = make_bench()
    bench.scheduler.advance(70, step=25)
    dead = bench.running("dead").key
    bench.scheduler.advance(55, step=5)
    alive = bench.running("alive").key
    bench.clock.advance(5.5)
    failpoints.arm("hello:judged", lambda: bench.clock.advance(300))
    try:
        bench.scheduler._poll.presence.forget()
        assert 0 == bench.scheduler._poll(float("inf")).counts.swept
    finally:
        failpoints.disarm("hello:judged")
    assert 0 == bench.scheduler.poll().counts.swept
    assert [alive.id] == list(bench.renew(alive).leases)
    bench.scheduler.advance(45, step=5)
    bench.renew(alive)
    bench.scheduler.advance(20, step=5)
    assert ("running", "lost") == (bench.status(alive.id), bench.status(dead.id))


@ONE_DATABASE
@FRESH
@pytest.mark.parametrize("jump", [3600, 61, 31, -3600, -61, -31])
def test_the_clock_jumps_at_a_fail_over(make_bench: Callable[..., Bench], jump: float, fresh: bool) -> None:
    """By more than half a lease: nothing is abandoned; what is dead hangs so much longer at the most."""
    bench = make_bench(max_runtime=36_000)
    timeline = Timeline(bench, fresh=fresh, phase=LEASE / 3 - 0.5)
    timeline.down(90 if fresh else 4)
    bench.clock.advance(jump)
    timeline.up(LEASE)
    assert "running" == bench.status(timeline.alive.id)
    if jump < 0:
        timeline.up(-jump)
    timeline.check()
