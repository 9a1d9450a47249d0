"""The lease keeper: one thread in a worker's main process that talks to the database for it.

It notes receipts, renews leases, kills the runs that are no longer this worker's and settles what the main
process learns about dead children. Nothing else in the main process waits for the database.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery.worker import state as celery_state

from celery_sched.errors import DatabaseUnavailable
from celery_sched.model import RunId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import Runtime, new_node_id
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.receive import receive
from celery_sched.steps.renew import AHEAD, Renewed, renew
from celery_sched.store.engine import Tx
from celery_sched.worker import forks, trust
from celery_sched.worker.beats import Beats
from celery_sched.worker.board import Board
from celery_sched.worker.endings import Absent, Ending, Endings
from celery_sched.worker.guard import Guard
from celery_sched.worker.killer import TellPool
from celery_sched.worker.live import layers, live
from celery_sched.worker.presence import Presence

logger = logging.getLogger("celery_sched.worker")
T = TypeVar("T")
state: Any = celery_state  # celery-types takes None for all that it may hold
LOOK = 0.5
"""Seconds between two looks at what the children do (shared memory, no database)."""
RETRY = 1.0
"""Most seconds between two tries while the database is away."""
SHOW = 2.0
"""Seconds between two signs of life of the worker itself; a request to stop is seen as soon."""
SOON = 0.05
"""Seconds between two tries at something that ends in a moment."""


class Keeper:
    """Renews, kills and settles for one worker. ``node`` is its identity in the database."""

    def __init__(
        self,
        app: Any,
        runtime: Runtime,
        name: str,
        *,
        facts: Callable[[], Mapping[str, Any]],
        terminate_job: TellPool,
    ) -> None:
        self.app, self.runtime, self.name = app, runtime, name
        self.node, self.pid, self.board = new_node_id(), os.getpid(), Board()
        self._presence = Presence(self.node, runtime.config.app, name, facts)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="sched-keeper", daemon=True)
        self._receipts: deque[RunKey] = deque()
        self._outcomes: deque[tuple[RunKey, Outcome]] = deque()
        self._endings = Endings(self.board, terminate_job)
        grace = trust.grace(runtime.config)
        self._guard = Guard(self.board, self._endings, lambda: live(app), self.settle, grace)
        self._beats = Beats(self.board, runtime.config.renew_interval.total_seconds())
        self._received: set[RunKey] = set()
        self._renew_at = self._last_renewal = self._show_at = 0.0
        self._away = False
        # several tries within what a renewal may be late, also with the shortest lease
        self._retry = min(RETRY, runtime.config.renew_interval.total_seconds() / 4)

    # what the main thread calls: none of it waits

    def start(self) -> None:
        """Begin. Called after the pool has forked its children."""
        self._thread.start()
        self._guard.start()

    def received(self, key: RunKey) -> None:
        """The message of a run has arrived."""
        self._receipts.append(key)
        self._wake.set()

    def settle(self, key: RunKey, outcome: Outcome) -> None:
        """Write an outcome that the child cannot write."""
        self._outcomes.append((key, outcome))
        self._wake.set()

    def end(self, ending: Ending) -> None:
        """Kill a run, and then write its outcome."""
        self._endings.want(ending)
        self._wake.set()

    def killed(self, key: RunKey) -> Ending | None:
        """Why this keeper killed that run, if it did."""
        return self._endings.killed(key)

    def stop(self, *, cold: bool) -> None:
        """Write what is left, sign off and end; ``cold``: running bodies were cut off and are settled too."""
        if cold:
            outcome = Outcome(
                RunStatus.LOST,
                error=f"worker {self.name} was shut down while the job was running",
                reason="worker shut down",
            )
            for key in live(self.app):
                place = self.board.find(key)
                if place is not None and place.pid != self.pid:
                    self._endings.want(
                        Ending(key, outcome, "the worker was shut down", Absent.WRITE, place.pid)
                    )
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self.runtime.config.session_timeout.total_seconds() + 5)
        self._guard.stop()

    # the thread

    def _run(self, work: Callable[[Tx, datetime], T]) -> T:
        database = self.runtime.database
        if database.dialect.row_locks:
            return database.run(work)
        with forks.held_off():
            return database.run(work)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._turn()
            self._wake.wait(self._pause())
        until = time.monotonic() + self.runtime.config.session_timeout.total_seconds()
        while True:
            self._wake.clear()
            self._turn(last=True)
            if not (self._endings or self._outcomes) or time.monotonic() > until:
                return
            self._wake.wait(SOON)

    def _turn(self, *, last: bool = False) -> None:
        try:
            self._endings.notice_deaths(live(self.app))
            if self._endings:
                self._outcomes.extend(self._endings.work(live(self.app)))
            self._write_outcomes()
            if last:
                self._run(self._presence.leave)
                return
            self._note_receipts()
            if time.monotonic() >= self._next_renewal():
                self._renew()
            elif beating := self._beats.due(live(self.app)):
                self._renew_these(beating)
            if time.monotonic() >= self._show_at:
                self._show()
            if self._away:
                logger.warning("the database is back, leases are renewed")
            self._away = False
        except DatabaseUnavailable as error:
            if not self._away:
                logger.error("leases cannot be renewed, trying again every %g s: %s", self._retry, error)
            self._away = True
            self._stopping.wait(self._retry)
        except Exception:
            # the keeper must not die: with it every run of this worker would be lost
            logger.exception("the lease keeper failed, trying again in %g s", self._retry)
            self._stopping.wait(self._retry)

    def _pause(self) -> float:
        if self._endings:
            return SOON
        due = min(self._next_renewal(), self._show_at, self._beats.due_at())
        return max(0.0, min(LOOK, due - time.monotonic()))

    def _next_renewal(self) -> float:
        """The next regular one; or a moment before the earliest deadline (its lease is to cover the kill),
        and at that deadline, which only the database knows to have passed.
        """
        deadline = min((place.deadline for place in self.board.places()), default=float("inf"))
        before = deadline - AHEAD.total_seconds() / 2
        at = before if self._last_renewal < before else deadline + 0.01
        return min(self._renew_at, max(at, self._last_renewal + SOON))

    def _note_receipts(self) -> None:
        here = live(self.app)
        self._received &= here
        wanted = {self._receipts.popleft() for _ in range(len(self._receipts))} | here
        keys = [key for key in wanted - self._received if self.board.find(key) is None]
        if not keys:
            return
        try:
            self._run(lambda tx, now: receive(tx, now, self.runtime.config, keys, self.node))
        except DatabaseUnavailable:
            self._receipts.extend(keys)
            raise
        self._received.update(keys)

    def _write_outcomes(self) -> None:
        while self._outcomes:
            key, outcome = self._outcomes.popleft()
            try:
                self._write_outcome(key, outcome)
            except DatabaseUnavailable:
                self._outcomes.appendleft((key, outcome))
                raise
            except Exception:
                logger.exception("run %s: its outcome is not written, its lease runs out", key.id)

    def _write_outcome(self, key: RunKey, outcome: Outcome) -> None:
        config = self.runtime.config
        finished = self._run(
            lambda tx, now: finish(tx, now, config, key, outcome, self.node, unstarted=True, quiet=True)
        )
        if finished.pool is not None:
            self.runtime.slots.release(finished.pool, [key.id])
        if finished.settled:
            why = outcome.error or outcome.reason
            logger.warning("run %s, attempt %d, is %s: %s", key.id, key.attempt, outcome.status.value, why)

    def _renew(self) -> None:
        here = live(self.app)
        self._endings.forget(here)
        self._beats.forget(here)
        began = self._last_renewal = time.monotonic()
        self._renew_these(here)
        self._renew_at = began + self.runtime.config.renew_interval.total_seconds()

    def _renew_these(self, keys: Collection[RunKey]) -> None:
        for layer in layers(keys):
            began = trust.clock()
            beats = self._beats.unwritten(layer.values())
            renewed = self._ask(layer, beats)
            for run_id, beat_at in beats.items():
                self._beats.wrote(layer[run_id], beat_at, renewed.heartbeat_timeouts.get(run_id))
            self._apply(renewed, layer, began)

    def _ask(self, layer: Mapping[RunId, RunKey], beats: Mapping[RunId, float]) -> Renewed:
        config, places = self.runtime.config, {key.id: self.board.find(key) for key in layer.values()}
        killable = {run_id for run_id, place in places.items() if place is not None and place.pid != self.pid}
        exclusive = {run_id for run_id, place in places.items() if place is not None and place.exclusive}

        def work(tx: Tx, now: datetime) -> Renewed:
            clock = time.monotonic()  # here: waiting for the database makes no heartbeat younger
            ages = {run_id: timedelta(seconds=clock - at) for run_id, at in beats.items()}
            keys = list(layer.values())
            return renew(
                *(tx, now, config, keys, self.node), beats=ages, killable=killable, exclusive=exclusive
            )

        return self._run(work)

    def _show(self) -> None:
        """Show that this worker is alive, and learn what is asked of it."""
        asked = self._run(self._presence.show)
        self._show_at = time.monotonic() + min(SHOW, self.runtime.config.renew_interval.total_seconds())
        if asked.cancel:
            self._renew_at = 0.0
        if asked.stop and state.should_stop is None:
            logger.warning("worker %s was asked to stop: it finishes what it runs", self.name)
            state.should_stop = 0  # Celery's own warm shutdown, as SIGTERM asks for it

    def _apply(self, renewed: Renewed, layer: Mapping[RunId, RunKey], began: float) -> None:
        now = renewed.now
        for run_id, lease in renewed.leases.items():
            deadline = renewed.deadlines.get(run_id)
            left = None if deadline is None else time.monotonic() + (deadline - now).total_seconds()
            margin = trust.margin_of(self.runtime.config, run_id in renewed.exclusive)
            self.board.trust(layer[run_id], trust.until(began, now, lease, margin), left)
        grace = self.runtime.config.kill_grace.total_seconds()
        for run_id, why in renewed.stopped.items():
            outcome = Outcome(RunStatus.CANCELLED, reason=f"stopped by {why}")
            self._endings.want(Ending(layer[run_id], outcome, "it was stopped", grace=grace))
        for run_id, why in renewed.overdue.items():
            outcome = Outcome(RunStatus.TIMED_OUT, error=why, reason=why)
            self._endings.want(Ending(layer[run_id], outcome, why, grace=grace))
        for run_id in renewed.stale:
            self._endings.want(Ending(layer[run_id], None, "its lease is no longer this worker's"))
