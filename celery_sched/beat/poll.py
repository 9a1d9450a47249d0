"""One poll: sweep, plan, backfill, deliver, gather, claim, publish; and the transactions around them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery_sched.beat.broker import Broker
from celery_sched.beat.look import Look, Queue, look, look_closer
from celery_sched.beat.presence import Presence
from celery_sched.errors import DatabaseUnavailable
from celery_sched.failpoints import failpoint
from celery_sched.inflight import GRACE, Granted
from celery_sched.model import BackfillStatus, Dispatch, JobId, Node, RunId
from celery_sched.rules.fitting import Candidate, Room
from celery_sched.rules.transitions import HELD, RunStatus
from celery_sched.runtime import Runtime
from celery_sched.steps.backfill import backfill
from celery_sched.steps.claim import BATCH as CLAIM_BATCH
from celery_sched.steps.claim import Claimed, claim
from celery_sched.steps.deliver import deliver, replay
from celery_sched.steps.gather import gather
from celery_sched.steps.mark import mark_published, mark_unsent
from celery_sched.steps.plan import plan
from celery_sched.steps.publish import Publisher
from celery_sched.steps.sweep import Swept, sweep, sweep_outdated
from celery_sched.store import apps, jobs, pools, queue, recent, subscriptions
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, settle

logger = logging.getLogger("celery_sched.beat")
T = TypeVar("T")
PLANS = (False, True)
"""The plan batches of one poll, whether the latest due come first: a burst never keeps the sweep and the
claims waiting for long, and neither the longest due nor those that are on time wait for all of it."""
CLAIM_WITHIN = timedelta(seconds=GRACE / 2)
"""A claim begins at most this long after Redis granted its slots, and lasts no longer: both are one grace."""
SOON = timedelta(milliseconds=20)
"""Pause while there is more to do at once."""
BUSY, BUSY_FOR = 0.1, 2.0
"""Seconds between two polls, for so long after something was dispatched while more waits, or a backfill made
runs: short ones do not go at a pool's slots a second. What waits for long runs costs no more than usual."""

AGAIN = 1.0
"""Seconds after which what may not have arrived is published again; each time in a row, twice as many."""
WARN_AGAIN = 600.0
"""Seconds after which the log says again that a job's queue is full."""


@dataclass
class Counts:
    """What one poll did."""

    swept: int = 0
    republished: int = 0
    planned: int = 0
    skipped: int = 0
    missed: int = 0
    replaced: int = 0
    backfilled: int = 0
    events: int = 0
    deliveries: int = 0
    carried: int = 0
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
class Drift:
    """How many members of Redis' sets of slots had to be put right: by the last poll, by all of this process.

    A run that ends in the moment in which a poll looks counts too; the poll after that finds nothing.
    """

    drift: int = 0
    drift_total: int = 0


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

    def __init__(self, runtime: Runtime, app: Any, identity: Node) -> None:
        self.runtime, self.config = runtime, runtime.config
        self._drift = Drift()
        self.presence = Presence(runtime, identity, lambda: vars(self._drift))
        self._node = identity.id
        self._broker = Broker(app)
        self._frequent: set[str] = set()
        self._warned: dict[str, float] = {}
        self._lost: frozenset[RunId] = frozenset()
        """What the last claim lost: somebody had it locked, and may for a while. Asked for last."""
        self._busy_until = 0.0
        self._unpublished: dict[RunId, Dispatch] = {}
        """Taken out by the sweep while the broker was away; or sent, and nobody knows whether it arrived."""
        self._pause = self._again_at = 0.0

    def __call__(self, deadline: float) -> Polled:
        """Do one poll. ``deadline`` (monotonic seconds) is checked between the steps.

        :raises DatabaseUnavailable: nothing can be done without the database.
        """
        counts = Counts()
        began = time.monotonic()
        database = self.runtime.database
        seen = database.read(lambda tx, now: look(tx, now, self.config, self._node))
        seen = self.presence.check(seen)
        if seen.stop_requested or not self.config.enabled:
            return Polled(counts, None, seen.stop_requested)
        republish: list[Dispatch] = []
        more = self._step("sweep", lambda: self._sweep(seen, counts, republish), False)
        self._check(deadline)
        if seen.next_due is not None and seen.next_due <= seen.now:
            more = self._step("plan", lambda: self._plan(seen, deadline, counts), False) or more
        self._check(deadline)
        if seen.backfills:
            more = self._step("backfill", lambda: self._backfill(seen, deadline, counts), False) or more
            self._check(deadline)
        if seen.events or seen.replaying or seen.gathering:
            more = self._step("deliver", lambda: self._deliver(seen, deadline, counts), False) or more
            self._check(deadline)
        waiting = database.read(lambda tx, now: look_closer(tx, now, self.config, CLAIM_BATCH))
        more = self._step("claim", lambda: self._claim(waiting, counts, republish), False) or more
        next_due = seen.next_due
        if next_due is not None and next_due <= seen.now:
            next_due = database.read(lambda tx, now: jobs.next_due(tx, self.config.app))
        self._count(counts)
        if line := counts.line():
            logger.info("%s", line)
        if more:
            return Polled(counts, SOON.total_seconds())
        # what was due and still is, somebody else has locked: to ask again at once only burns time
        times = [instant for instant in (next_due, waiting.next_ready) if instant and instant > seen.now]
        elapsed = time.monotonic() - began
        waits = [(instant - seen.now).total_seconds() - elapsed for instant in times]
        if counts.dispatched and database.read(lambda tx, now: queue.any_ready(tx, self.config.app, now)):
            self._busy_until = time.monotonic() + BUSY_FOR
        if time.monotonic() < self._busy_until:
            waits.append(max(BUSY, elapsed))  # a poll that takes long is not made all the time
        next_in = min(waits, default=None)
        return Polled(counts, next_in)

    def close(self) -> None:
        """Close broker connections that no poll uses."""
        self._broker.close()

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

            def work(tx: Tx, now: datetime) -> Swept:
                # again: another poll may have held the sweep back meanwhile, or this machine may have slept
                if apps.sweep_waits(tx, now, self.config.app, self.config.lease):
                    return Swept()
                return sweep(tx, now, self.config)

            done = self.runtime.database.run(work)
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
        self._release((row.pool, RunId(row.id)) for row, _, _ in done.settled if row.status in HELD)
        counts.swept += len(done.settled)

    def _plan(self, seen: Look, deadline: float, counts: Counts) -> bool:
        downtime = apps.downtime_of(seen.app)
        for latest_first in PLANS:
            done = self.runtime.database.run(
                lambda tx, now, latest=latest_first: plan(  # type: ignore[misc]
                    tx, now, self.config, downtime, latest_first=latest
                )
            )
            failpoint("plan:committed")
            counts.planned += done.planned
            counts.skipped += done.skipped
            counts.missed += done.missed
            counts.replaced += len(done.replaced)
            self._release((one.pool, one.run_id) for one in done.replaced if one.freed)
            for job in done.never_ending:
                text = "job %r never ends: its last %d runs were replaced by later ones"
                self._warn_seldom(f"{job}:replaced", text, job, recent.REPLACED_RUNS)
            for one in done.replaced:
                logger.info("run %s of job %r (%s) is replaced", one.run_id, one.job, one.status)
            for job, reason in done.full:
                self._warn_seldom(job, "job %r: an occurrence is skipped, %s", job, reason)
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

    def _warn_seldom(self, about: str, text: str, *values: object) -> None:
        """Warn of what lasts once in ten minutes, not at each occurrence."""
        last = self._warned.get(about)
        if last is None or time.monotonic() - last >= WARN_AGAIN:
            self._warned[about] = time.monotonic()
            logger.warning(text, *values)

    def _backfill(self, seen: Look, deadline: float, counts: Counts) -> bool:
        more = False
        for backfill_id in seen.backfills:
            done = self.runtime.database.run(lambda tx, now, i=backfill_id: backfill(tx, now, self.config, i))  # type: ignore[misc]
            failpoint("backfill:committed")
            if done.created or done.again:
                counts.backfilled += done.created + done.again
                self._busy_until = time.monotonic() + BUSY_FOR
            if done.ended is BackfillStatus.CANCELLED:
                logger.error("backfill %s of job %r is cancelled: %s", backfill_id, done.job, done.reason)
            elif done.ended is not None:
                logger.info("backfill %s of job %r is done", backfill_id, done.job)
            more = more or done.more
            self._check(deadline)
        return more

    def _deliver(self, seen: Look, deadline: float, counts: Counts) -> bool:
        """Hand out what was published; then make the runs that carry it."""
        database, more = self.runtime.database, False
        for is_wanted, work in ((seen.events, deliver), (seen.replaying, replay)):
            if is_wanted:
                out = database.run(lambda tx, now, work=work: work(tx, now, self.config))  # type: ignore[misc]
                failpoint("deliver:committed")
                counts.events += out.events
                counts.deliveries += out.deliveries
                more = more or out.more
                for job, reason in out.errors:
                    self._warn_seldom(f"{job}:on", "job %r gets no events: %s", job, reason)
        for room in database.read(lambda tx, now: subscriptions.rooms(tx, self.config.app)):
            if room.left:
                more = self._step("gather", lambda i=room.job_id: self._gather(i, counts), False) or more  # type: ignore[misc]
                self._check(deadline)
        return more

    def _gather(self, job_id: JobId, counts: Counts) -> bool:
        done = self.runtime.database.run(lambda tx, now: gather(tx, now, job_id))
        failpoint("gather:committed")
        counts.carried += done.carried
        if done.runs:
            self._busy_until = time.monotonic() + BUSY_FOR
        if done.error is not None:
            self._warn_seldom(f"{done.job}:on", "job %r gets no events: %s", done.job, done.error)
        return done.more

    def _claim(self, waiting: Queue, counts: Counts, republish: Sequence[Dispatch]) -> bool:
        """Claim what has slots and publish it, with what the sweep found unstarted."""
        wanted = {
            pool: sorted(chosen, key=lambda one: one.run_id in self._lost)
            for pool, chosen in waiting.candidates.items()
        }
        # whoever else publishes them meanwhile, the start drops what comes twice
        self._keep(republish)
        again: list[Dispatch] = []
        if time.monotonic() >= self._again_at:
            kept, self._unpublished = self._unpublished, {}
            again = [*kept.values()]
        publisher = None
        held_up = False
        if again or any(wanted.values()):
            publisher = self._broker.borrow()
            held_up = publisher is None
            if held_up:
                wanted = {}
                self._keep(again)
        granted = self.runtime.slots.reserve(
            waiting.now, waiting.slots, waiting.held, {pool: wanted.get(pool, []) for pool in waiting.slots}
        )
        counts.drift = granted.drift
        self._drift = Drift(granted.drift, self._drift.drift_total + granted.drift)
        claimed = Claimed()
        if publisher is not None:
            try:
                # no look at the deadline in between: claimed and not published, they would wait for a lease
                claimed = self._claim_granted(wanted, waiting.now, granted, counts)
                self._publish(publisher, [*again, *claimed.dispatches], counts)
                counts.republished = len(again)
            finally:
                self._broker.give_back(publisher)
        counts.dispatched = len(claimed.dispatches)
        return self._left(waiting, claimed, counts) and not self._broker.away and not held_up

    def _claim_granted(
        self, wanted: Mapping[str, Sequence[Candidate]], asked_at: datetime, granted: Granted, counts: Counts
    ) -> Claimed:
        candidates = {
            pool: [one for one in chosen if one.run_id in granted.runs] for pool, chosen in wanted.items()
        }
        pool_of = {one.run_id: pool for pool, chosen in candidates.items() for one in chosen}
        if not pool_of:
            return Claimed()
        taken: set[RunId] = set()

        def work(tx: Tx, now: datetime) -> Claimed:
            if not granted.count_slots and now - asked_at > CLAIM_WITHIN:
                return Claimed(lost=tuple(pool_of))  # somebody else may have been granted these slots by now
            return claim(tx, now, self.config, candidates, count_slots=granted.count_slots)

        try:
            limit = None if granted.count_slots else CLAIM_WITHIN.total_seconds()
            done = self.runtime.database.run(work, limit=limit)
            taken = {dispatch.key.id for dispatch in done.dispatches}
            failpoint("claim:committed")
        finally:
            # only winners keep slots
            self._release((pool, run_id) for run_id, pool in pool_of.items() if run_id not in taken)
        counts.lock_lost += len(done.lost)
        self._lost = frozenset(done.lost)
        for dispatch, why in done.failed:
            logger.error("run %s of job %r is not started: %s", dispatch.key.id, dispatch.job, why)
        return done

    def _publish(self, publisher: Publisher, dispatches: Sequence[Dispatch], counts: Counts) -> None:
        if not dispatches:
            return
        done = self._broker.publish(publisher, dispatches)
        failpoint("publish:unmarked")
        if done.sent:
            self.runtime.database.run(lambda tx, now: mark_published(tx, now, self.config, done.sent))
        if done.uncertain:
            # else they would wait for the end of their lease; but a broker that is only slow is not flooded
            self._pause = min(max(AGAIN, 2 * self._pause), self.config.lease.total_seconds())
            self._again_at = time.monotonic() + self._pause
            self._keep(done.uncertain)
        elif done.sent:
            self._pause = 0.0
        if done.unsent:
            self.runtime.database.run(lambda tx, now: mark_unsent(tx, now, done.unsent))
            counts.unsent += len(done.unsent)
        for dispatch, why in done.bad:
            logger.error("run %s of job %r cannot be published: %s", dispatch.key.id, dispatch.job, why)
            self.runtime.database.run(lambda tx, now, d=dispatch, w=why: _fail(tx, now, d, w))  # type: ignore[misc]
        given_up = [*done.unsent, *(dispatch for dispatch, _ in done.bad)]
        self._release((dispatch.pool, dispatch.key.id) for dispatch in given_up)

    def _keep(self, dispatches: Iterable[Dispatch]) -> None:
        """Publish these again. No more than were in flight: nothing is claimed while the broker is away."""
        self._unpublished.update({dispatch.key.id: dispatch for dispatch in dispatches})

    def _release(self, taken: Iterable[tuple[str, RunId]]) -> None:
        """One call a pool: a Redis that swallows bytes costs its time-out once, not once a run."""
        by_pool: dict[str, list[RunId]] = {}
        for pool, run_id in taken:
            by_pool.setdefault(pool, []).append(run_id)
        for pool, run_ids in by_pool.items():
            self.runtime.slots.release(pool, run_ids)

    def _left(self, waiting: Queue, claimed: Claimed, counts: Counts) -> bool:
        """Note what found no slots; return whether there is more that has some."""
        taken = waiting.taken
        for pool, slots in claimed.slots.items():
            taken[pool] = taken.get(pool, 0) + slots
        counts.in_flight = ",".join(
            f"{'' if pool == pools.DEFAULT else f'{pool}:'}{taken.get(pool, 0)}/{slots}"
            for pool, slots in waiting.slots.items()
        )
        gone = {one.key.id for one in (*claimed.dispatches, *(dispatch for dispatch, _ in claimed.failed))}
        more = False
        short: dict[str, int] = {}
        for pool, waits in waiting.waiting.items():
            slots = waiting.slots.get(pool, 0)
            chosen = waiting.candidates.get(pool, ())
            rest = [one for one in chosen if one.run_id not in gone]
            room = Room(slots - taken.get(pool, 0), slots)
            free = room.free
            fits = [one for one in rest if room.takes(one.weight, overdue=one.overdue)]
            if waits.fresh and (room.closed or waits.heaviest > free):
                short[pool] = 0 if room.closed else free
            # what goes on where something was claimed, and more than was looked at waits, is seen next time
            more = more or bool(fits) or (free > 0 and len(rest) < len(chosen) < waits.count)
        if short:
            counts.at_capacity = self.runtime.database.run(
                lambda tx, now: queue.mark_at_capacity(tx, self.config.app, now, short)
            )
        return more

    def _count(self, counts: Counts) -> None:
        """Add to the app's totals (not worth an error: they are figures, not guarantees)."""
        totals = {name: getattr(counts, name) for name in ("swept", "dispatched", "at_capacity", "lock_lost")}
        if any(totals.values()):
            self.runtime.database.run(lambda tx, now: apps.count(tx, self.config.app, **totals))


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
