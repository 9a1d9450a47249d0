"""One poll: sweep, plan, claim, publish. The order of the steps, and the transactions around them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery_sched import __version__
from celery_sched.beat.look import Look, Queue, look, look_closer
from celery_sched.errors import DatabaseUnavailable
from celery_sched.failpoints import failpoint
from celery_sched.inflight import Granted
from celery_sched.model import Dispatch, JobId, Node, NodeId, NodeKind, RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import Runtime
from celery_sched.steps.claim import BATCH as CLAIM_BATCH
from celery_sched.steps.claim import claim
from celery_sched.steps.mark import mark_published, mark_unsent
from celery_sched.steps.plan import plan
from celery_sched.steps.publish import Publisher
from celery_sched.steps.sweep import Swept, outage, sweep, sweep_outdated
from celery_sched.store import apps, jobs, nodes, pools, queue
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, settle

logger = logging.getLogger("celery_sched.beat")
T = TypeVar("T")
PLANS = 2
"""Most plan batches in one poll: a burst never keeps the sweep and the claims waiting for long."""
SOON = timedelta(milliseconds=20)
"""Pause while there is more to do at once."""


@dataclass
class Counts:
    """What one poll did."""

    swept: int = 0
    republished: int = 0
    planned: int = 0
    skipped: int = 0
    missed: int = 0
    dispatched: int = 0
    at_capacity: int = 0
    lock_lost: int = 0
    unsent: int = 0
    drift: int = 0
    in_flight: str = ""

    def line(self) -> str:
        """``swept=1 planned=3 ...``, what is zero left out; empty when nothing was done."""
        did = {name: value for name, value in vars(self).items() if isinstance(value, int) and value}
        if not did:
            return ""
        return " ".join([*(f"{name}={value}" for name, value in did.items()), f"inflight={self.in_flight}"])


@dataclass(frozen=True)
class Polled:
    """What a poll did and in how many seconds there is something to do again."""

    counts: Counts = field(default_factory=Counts)
    next_in: float | None = None
    stop_requested: bool = False


class DeadlinePassed(Exception):
    """A poll took longer than it may; what it has not done, the next one does."""


class Poll:
    """Makes polls for one scheduler process; several may run at once, in different threads."""

    def __init__(self, runtime: Runtime, app: Any, node_id: NodeId, identity: Node) -> None:
        self.runtime, self.config = runtime, runtime.config
        self._app, self._node, self._identity = app, node_id, identity
        self._publishers: list[Publisher] = []
        self._lock = threading.Lock()
        self._last_clocks: tuple[datetime, float] | None = None
        self._frequent: set[str] = set()
        self._broker_away = False
        self._at_broker = 0
        self._seen_at = float("-inf")

    def __call__(self, deadline: float) -> Polled:
        """Do one poll. ``deadline`` (monotonic seconds) is checked between the steps.

        :raises DatabaseUnavailable: nothing can be done without the database.
        """
        counts = Counts()
        began = time.monotonic()
        database = self.runtime.database
        seen = database.read(lambda tx, now: look(tx, now, self.config, self._node))
        if seen.app is None or not seen.registered or self._due_to_say_hello(seen):
            seen = self._say_hello(seen)
        if seen.stop_requested or not self.config.enabled:
            return Polled(counts, None, seen.stop_requested)
        republish: list[Dispatch] = []
        more = self._step("sweep", lambda: self._sweep(seen, counts, republish), False)
        self._check(deadline)
        if seen.next_due is not None and seen.next_due <= seen.now:
            more = self._step("plan", lambda: self._plan(deadline, counts), False) or more
        self._check(deadline)
        waiting = database.read(lambda tx, now: look_closer(tx, now, self.config, CLAIM_BATCH))
        more = self._step("claim", lambda: self._claim(waiting, counts, republish), False) or more
        next_due = (
            database.read(lambda tx, now: jobs.next_due(tx, self.config.app))
            if counts.planned
            else (seen.next_due)
        )
        self._count(counts)
        if line := counts.line():
            logger.info("%s", line)
        if more:
            return Polled(counts, SOON.total_seconds())
        # what was due and still is, somebody else has locked: to ask again at once only burns time
        times = [instant for instant in (next_due, waiting.next_ready) if instant and instant > seen.now]
        elapsed = time.monotonic() - began
        next_in = min(((instant - seen.now).total_seconds() - elapsed for instant in times), default=None)
        return Polled(counts, next_in)

    def close(self) -> None:
        """Close broker connections that no poll uses."""
        with self._lock:
            publishers, self._publishers = self._publishers, []
        for publisher in publishers:
            publisher.close()

    def leave(self) -> None:
        """Take this scheduler off the list of nodes."""
        self.runtime.database.run(lambda tx, now: nodes.leave(tx, self._node))

    # -- being known -------------------------------------------------------------------------------

    def greet_at_next_poll(self) -> None:
        """Make the next poll note that it passes: a scheduler turned by hand has a clock of its own."""
        self._seen_at = float("-inf")
        self._last_clocks = None

    def _due_to_say_hello(self, seen: Look) -> bool:
        """At most once per sixth of the lease, and always after a jump of the clock."""
        every = (self.config.lease / 6).total_seconds()
        return time.monotonic() - self._seen_at >= every or self._clock_jumped(seen.now)

    def _clock_jumped(self, now: datetime) -> bool:
        if self._last_clocks is None:
            return False
        then, at = self._last_clocks
        moved = (now - then).total_seconds() - (time.monotonic() - at)
        return abs(moved) > (self.config.lease / 2).total_seconds()

    def _say_hello(self, seen: Look) -> Look:
        """Register or refresh this node, note the pass, and judge whether there was an outage."""
        config = self.config
        jumped = self._clock_jumped(seen.now)

        def work(tx: Tx, now: datetime) -> tuple[bool, Look]:
            apps.ensure(tx, config.app)
            pools.ensure(tx, config.app, pools.DEFAULT, config.max_concurrent_jobs)
            if nodes.seen(tx, now, self._node) is None:
                nodes.register(tx, now, self._identity)
            row = apps.get(tx, config.app)
            if row is None:
                raise RuntimeError(f"the row of app {config.app!r} vanished")
            judged = outage(tx, now, config, row, jumped)
            failpoint("hello:judged")
            apps.passed(tx, now, config.app)
            return judged.begun, look(tx, now, config, self._node)

        begun, fresh = self.runtime.database.run(work)
        self._seen_at = time.monotonic()
        self._last_clocks = (fresh.now, self._seen_at)
        if begun and fresh.app is not None:
            logger.warning(
                "no scheduler passed for a while (or the clock jumped): the sweep waits until %s",
                fresh.app.sweep_not_before,
            )
        return fresh

    # -- the steps ---------------------------------------------------------------------------------

    def _step(self, name: str, work: Callable[[], T], otherwise: T) -> T:
        """Do one step; an error in it, the database's absence apart, never stops the others."""
        try:
            return work()
        except (DatabaseUnavailable, DeadlinePassed):
            raise
        except Exception:
            logger.exception("action=%s failed; the next poll tries again", name)
            return otherwise

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise DeadlinePassed

    def _sweep(self, seen: Look, counts: Counts, republish: list[Dispatch]) -> bool:
        held_until = None if seen.app is None else seen.app.sweep_not_before
        more = False
        if seen.expired and (held_until is None or held_until <= seen.now):
            done = self.runtime.database.run(lambda tx, now: sweep(tx, now, self.config))
            failpoint("sweep:committed")
            self._report(done, counts)
            republish += done.republish
            more = done.more
        if seen.outdated:
            done = self.runtime.database.run(lambda tx, now: sweep_outdated(tx, now, self.config))
            self._report(done, counts)
            more = more or done.more
        return more

    def _report(self, done: Swept, counts: Counts) -> None:
        for row, status, reason in done.settled:
            logger.warning("[sweep] run %s of job %r is %s: %s", row.id, row.job, status.value, reason)
            if row.status != RunStatus.QUEUED:
                self.runtime.slots.release(row.pool, [RunId(row.id)])
        counts.swept += len(done.settled)

    def _plan(self, deadline: float, counts: Counts) -> bool:
        for _ in range(PLANS):
            done = self.runtime.database.run(lambda tx, now: plan(tx, now, self.config))
            failpoint("plan:committed")
            counts.planned += done.planned
            counts.skipped += done.skipped
            counts.missed += done.missed
            for job, reason in done.errors:
                logger.error("job %r cannot be planned and is in status 'error': %s", job, reason)
            for job, seconds in done.frequent:
                if job not in self._frequent:
                    self._frequent.add(job)
                    logger.warning("job %r fires every %g s: more often than every 10 s", job, seconds)
            if not done.more:
                return False
            if time.monotonic() > deadline:
                break
        return True

    def _claim(self, waiting: Queue, counts: Counts, republish: Sequence[Dispatch]) -> bool:
        """Claim what has slots and publish it, with what the sweep found unstarted."""
        wanted = {pool: [run_id for run_id, _ in chosen] for pool, chosen in waiting.candidates.items()}
        publisher = None
        held_up = False
        if republish or any(wanted.values()):
            publisher = self._borrow(urgent=bool(republish))
            held_up = publisher is None
            if held_up:
                wanted = {}
        granted = self.runtime.slots.reserve(
            waiting.now, waiting.slots, waiting.held, {pool: wanted.get(pool, []) for pool in waiting.slots}
        )
        counts.drift = granted.drift
        dispatches: list[Dispatch] = []
        if publisher is not None:
            try:
                # no look at the deadline in between: claimed and not published, they would wait for a lease
                dispatches = self._claim_granted(waiting, granted, counts)
                self._publish(publisher, [*republish, *dispatches], counts)
            finally:
                self._give_back(publisher)
        counts.republished = len(republish)
        counts.dispatched = len(dispatches)
        return self._full(waiting, dispatches, counts) and not self._broker_away and not held_up

    def _claim_granted(self, waiting: Queue, granted: Granted, counts: Counts) -> list[Dispatch]:
        candidates = {
            pool: [(run_id, job_id) for run_id, job_id in chosen if run_id in granted.runs]
            for pool, chosen in waiting.candidates.items()
        }
        pool_of = {run_id: pool for pool, chosen in candidates.items() for run_id, _ in chosen}
        if not pool_of:
            return []
        taken: set[RunId] = set()
        try:
            done = self.runtime.database.run(
                lambda tx, now: claim(tx, now, self.config, candidates, count_slots=granted.count_slots)
            )
            taken = {dispatch.key.id for dispatch in done.dispatches}
            failpoint("claim:committed")
        finally:
            # only winners keep slots
            for pool in candidates:
                self.runtime.slots.release(
                    pool, [i for i, p in pool_of.items() if p == pool and i not in taken]
                )
        counts.lock_lost += len(done.lost)
        return list(done.dispatches)

    def _publish(self, publisher: Publisher, dispatches: Sequence[Dispatch], counts: Counts) -> None:
        if not dispatches:
            return
        with self._talking():
            done = publisher.publish(dispatches)
        failpoint("publish:unmarked")
        if done.sent:
            self.runtime.database.run(lambda tx, now: mark_published(tx, now, self.config, done.sent))
        if done.unsent:
            self.runtime.database.run(lambda tx, now: mark_unsent(tx, now, done.unsent))
            self._release(done.unsent)
            counts.unsent += len(done.unsent)
        for dispatch, why in done.bad:
            logger.error("run %s of job %r cannot be published: %s", dispatch.key.id, dispatch.job, why)
            self.runtime.database.run(lambda tx, now, d=dispatch, w=why: _fail(tx, now, d, w))  # type: ignore[misc]
            self._release([dispatch])

    def _release(self, dispatches: Sequence[Dispatch]) -> None:
        for dispatch in dispatches:
            self.runtime.slots.release(dispatch.pool, [dispatch.key.id])

    def _full(self, waiting: Queue, dispatches: Sequence[Dispatch], counts: Counts) -> bool:
        """Note what found no slot; return whether there is more that has slots."""
        held = dict(waiting.in_flight)
        for dispatch in dispatches:
            held[dispatch.pool] = held.get(dispatch.pool, 0) + 1
        counts.in_flight = ",".join(
            (
                f"{held.get(pool, 0)}/{slots}"
                if pool == pools.DEFAULT
                else f"{pool}:{held.get(pool, 0)}/{slots}"
            )
            for pool, slots in waiting.slots.items()
        )
        full = [pool for pool, slots in waiting.slots.items() if held.get(pool, 0) >= slots]
        missing = [pool for pool in waiting.waiting if pool not in waiting.slots]
        if any(waiting.fresh.get(pool, 0) > 0 for pool in [*full, *missing]):
            counts.at_capacity = self.runtime.database.run(
                lambda tx, now: queue.mark_at_capacity(tx, self.config.app, now, [*full, *missing])
            )
        took: dict[str, int] = {}
        for dispatch in dispatches:
            took[dispatch.pool] = took.get(dispatch.pool, 0) + 1
        return any(
            count > took.get(pool, 0) and pool in waiting.slots and pool not in full
            for pool, count in waiting.waiting.items()
        )

    def _count(self, counts: Counts) -> None:
        """Add to the app's totals (not worth an error: they are figures, not guarantees)."""
        totals = {name: getattr(counts, name) for name in ("swept", "dispatched", "at_capacity", "lock_lost")}
        if any(totals.values()):
            self.runtime.database.run(lambda tx, now: apps.count(tx, self.config.app, **totals))

    # -- the broker --------------------------------------------------------------------------------

    def _borrow(self, *, urgent: bool) -> Publisher | None:
        """A publisher that is connected; ``None`` while the broker is away, or another poll waits for it.

        A broker that swallows bytes holds up one poll, not both: the other one goes on to sweep and plan.
        ``urgent``: what the sweep took out would wait for a whole lease, so it is tried anyway.
        """
        with self._lock:
            if self._at_broker and not urgent:
                return None
            publisher = self._publishers.pop() if self._publishers else Publisher(self._app)
        with self._talking():
            why = publisher.connect()
        if why is None:
            if self._broker_away:
                logger.warning("the broker is back")
            self._broker_away = False
            return publisher
        if not self._broker_away:
            logger.error("the broker cannot be used, due runs wait: %s", why)
        self._broker_away = True
        return None

    @contextmanager
    def _talking(self) -> Iterator[None]:
        with self._lock:
            self._at_broker += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_broker -= 1

    def _give_back(self, publisher: Publisher) -> None:
        with self._lock:
            self._publishers.append(publisher)


def _fail(tx: Tx, now: datetime, dispatch: Dispatch, why: str) -> None:
    """Settle a run that cannot be made into a message."""
    jobs.lock(tx, [dispatch.job_id])
    settle(
        tx,
        now,
        [
            Settlement(
                dispatch.key, JobId(dispatch.job_id), RunStatus.FAILED, error=f"it cannot be published: {why}"
            )
        ],
        sources={RunStatus.DISPATCHED},
    )


def identity(node_id: NodeId, app: str, kind: NodeKind, name: str, now: datetime) -> Node:
    """What a scheduler says of itself."""
    import os
    import socket

    return Node(
        id=node_id,
        app=app,
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        name=name,
        version=__version__,
        started_at=now,
        last_seen=now,
        facts={},
        stop_requested_at=None,
    )
