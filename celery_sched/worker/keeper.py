"""The lease keeper: one thread in a worker's main process that talks to the database for it.

It notes receipts, renews leases, kills the runs that are no longer this worker's and settles what the main
process learns about dead children. Nothing else in the main process waits for the database.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from celery.worker import state

from celery_sched import __version__
from celery_sched.errors import DatabaseUnavailable
from celery_sched.model import Node, NodeKind, RunId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import Runtime, new_node_id
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.receive import receive
from celery_sched.steps.renew import Renewed, renew
from celery_sched.store import nodes
from celery_sched.store.engine import Tx
from celery_sched.worker import forks, killer, message
from celery_sched.worker.board import Board
from celery_sched.worker.killer import Kill

logger = logging.getLogger("celery_sched.worker")
T = TypeVar("T")
celery_state: Any = state  # celery-types does not know all of it
LOOK = 0.5
"""Seconds between two looks at what the children do (shared memory, no database)."""
RETRY = 1.0
"""Seconds between two tries while the database is away."""
SHOW = 2.0
"""Seconds between two signs of life of the worker itself; a request to stop is seen as soon."""
SOON = 0.05
"""Seconds between two tries at something that ends in a moment."""


class Absent(Enum):
    """What to do when no process is in the body of a run that shall end."""

    FORGET = "forget"
    """Its child settles it, or has."""
    WAIT = "wait"
    """The body may begin in a moment: look again as long as its message is here."""
    WRITE = "write"
    """The child is known to die: it settles nothing itself."""


@dataclass(frozen=True)
class Ending:
    """A run of this worker that shall end. ``outcome`` is written after the kill; ``None`` writes nothing."""

    key: RunKey
    outcome: Outcome | None
    why: str
    absent: Absent = Absent.FORGET


class Keeper:
    """Renews, kills and settles for one worker. ``node`` is its identity in the database."""

    def __init__(
        self,
        app: Any,
        runtime: Runtime,
        name: str,
        *,
        facts: Callable[[], Mapping[str, Any]],
        terminate_job: Callable[[int], None],
    ) -> None:
        self.app, self.runtime, self.name = app, runtime, name
        self.node, self.pid, self.board = new_node_id(), os.getpid(), Board()
        self._facts, self._terminate_job = facts, terminate_job
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="sched-keeper", daemon=True)
        self._receipts: deque[RunKey] = deque()
        self._outcomes: deque[tuple[RunKey, Outcome]] = deque()
        self._wanted: deque[Ending] = deque()
        self._endings: dict[RunKey, Ending] = {}
        self._killed: dict[RunKey, Ending] = {}
        self._received: set[RunKey] = set()
        self._told: set[RunKey] = set()
        self._renew_at = self._last_renewal = self._show_at = 0.0
        self._away = self._registered = False

    # what the main thread calls: none of it waits

    def start(self) -> None:
        """Begin. Called after the pool has forked its children."""
        self._thread.start()

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
        self._wanted.append(ending)
        self._wake.set()

    def killed(self, key: RunKey) -> Ending | None:
        """Why this keeper killed that run, if it did."""
        return self._killed.get(key)

    def stop(self, *, cold: bool) -> None:
        """Write what is left, sign off and end; ``cold``: running bodies were cut off and are settled too."""
        if cold:
            outcome = Outcome(
                RunStatus.LOST, error=f"worker {self.name} was shut down while the job was running",
                reason="worker shut down",
            )
            for key in self._live():
                place = self.board.find(key)
                if place is not None and place.pid != self.pid:
                    self._wanted.append(Ending(key, outcome, "the worker was shut down", Absent.WRITE))
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self.runtime.config.session_timeout.total_seconds() + 5)

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
            if not (self._wanted or self._endings or self._outcomes) or time.monotonic() > until:
                return
            self._wake.wait(SOON)

    def _turn(self, *, last: bool = False) -> None:
        try:
            self._end()
            self._write_outcomes()
            if last:
                self._leave()
                return
            self._note_receipts()
            if time.monotonic() >= self._next_renewal():
                self._renew()
            if time.monotonic() >= self._show_at:
                self._show()
            self._back()
        except DatabaseUnavailable as error:
            if not self._away:
                logger.error("leases cannot be renewed, trying again every %g s: %s", RETRY, error)
            self._away = True
            self._stopping.wait(RETRY)
        except Exception:
            # the keeper must not die: with it every run of this worker would be lost
            logger.exception("the lease keeper failed, trying again in %g s", RETRY)
            self._stopping.wait(RETRY)

    def _back(self) -> None:
        if self._away:
            logger.warning("the database is back, leases are renewed")
        self._away = False

    def _pause(self) -> float:
        if self._endings:
            return SOON
        due = min(self._next_renewal(), self._show_at)
        return max(0.0, min(LOOK, due - time.monotonic()))

    def _next_renewal(self) -> float:
        """The next regular one, or the earliest deadline, which only the database knows to have passed."""
        deadline = min((place.deadline for place in self.board.places()), default=float("inf"))
        return min(self._renew_at, max(deadline + 0.01, self._last_renewal + SOON))

    def _live(self) -> dict[RunKey, Any]:
        """The runs whose message this worker has and whose task is not waiting for an eta."""
        for _ in range(100):
            try:
                requests = [
                    *celery_state.requests.values(),
                    *celery_state.reserved_requests,
                    *celery_state.active_requests,
                ]
                waiting = set(celery_state.scheduled_requests)
                break
            except RuntimeError:  # changed by another thread while it was read
                continue
        else:
            raise RuntimeError("Celery's requests never stood still")
        found: dict[RunKey, Any] = {}
        for request in requests:
            key = message.key_of(request.request_dict)
            if key is not None and request.app is self.app and request not in waiting:
                found[key] = request
        return found

    def _note_receipts(self) -> None:
        live = self._live()
        self._received &= live.keys()
        wanted = {self._receipts.popleft() for _ in range(len(self._receipts))} | set(live)
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
        began = self._last_renewal = time.monotonic()
        live = self._live()
        self._told &= live.keys()
        self._killed = {key: ending for key, ending in self._killed.items() if key in live}
        for layer in _layers(live):
            self._apply(self._renew_layer(list(layer.values())), layer, began)
        self._renew_at = began + self.runtime.config.renew_interval.total_seconds()

    def _show(self) -> None:
        """Show that this worker is alive, and learn whether it was asked to stop."""
        stop = self._run(self._seen)
        self._show_at = time.monotonic() + min(SHOW, self.runtime.config.renew_interval.total_seconds())
        if stop and celery_state.should_stop is None:
            logger.warning("worker %s was asked to stop: it finishes what it runs", self.name)
            celery_state.should_stop = 0  # Celery's own warm shutdown, as SIGTERM asks for it

    def _renew_layer(self, keys: Sequence[RunKey]) -> Renewed:
        return self._run(lambda tx, now: renew(tx, now, self.runtime.config, keys, self.node))

    def _apply(self, renewed: Renewed, layer: Mapping[RunId, RunKey], began: float) -> None:
        now = renewed.now
        for run_id, lease in renewed.leases.items():
            deadline = renewed.deadlines.get(run_id)
            left = None if deadline is None else time.monotonic() + (deadline - now).total_seconds()
            self.board.trust(layer[run_id], began + (lease - now).total_seconds(), left)
        for run_id, why in renewed.stopped.items():
            outcome = Outcome(RunStatus.CANCELLED, reason=f"stopped by {why}")
            self._add_ending(Ending(layer[run_id], outcome, "it was stopped"))
        for run_id in renewed.overdue:
            text = "ran longer than its max_runtime"
            self._add_ending(
                Ending(layer[run_id], Outcome(RunStatus.TIMED_OUT, error=text, reason=text), text)
            )
        for run_id in renewed.stale:
            self._add_ending(Ending(layer[run_id], None, "its lease is no longer this worker's"))

    def _seen(self, tx: Tx, now: datetime) -> bool:
        facts = dict(self._facts())
        stop = nodes.seen(tx, now, self.node, facts) if self._registered else None
        if stop is not None:
            return stop
        nodes.register(
            tx,
            now,
            Node(
                id=self.node, app=self.runtime.config.app, kind=NodeKind.WORKER, host=socket.gethostname(),
                pid=self.pid, name=self.name, version=__version__, started_at=now, last_seen=now,
                facts=facts, stop_requested_at=None,
            ),
        )
        self._registered = True
        return False

    def _leave(self) -> None:
        if self._registered:
            self._run(lambda tx, now: nodes.leave(tx, self.node))
            self._registered = False

    # kills

    def _add_ending(self, ending: Ending) -> None:
        self._endings.setdefault(ending.key, ending)

    def _end(self) -> None:
        while self._wanted:
            self._add_ending(self._wanted.popleft())
        if not self._endings:
            return
        live = self._live()
        for ending in list(self._endings.values()):
            self._killed[ending.key] = ending
            came = killer.kill(self.board, ending.key, self._terminate_job)
            if came is Kill.KILLED:
                key, why = ending.key, ending.why
                logger.warning("run %s, attempt %d, was killed: %s", key.id, key.attempt, why)
            else:
                self._killed.pop(ending.key)
            if self._is_over(ending, came, live):
                del self._endings[ending.key]

    def _is_over(self, ending: Ending, came: Kill, live: Mapping[RunKey, Any]) -> bool:
        """Whether nothing is left to do for this ending; its outcome is on its way then."""
        key = ending.key
        if came is Kill.IMPOSSIBLE:
            self.board.trust(key, 0.0)
            if key not in self._told:
                logger.warning(
                    "run %s shall end (%s) but runs in a thread of this worker, which cannot be killed: "
                    "its lease runs out and the sweep settles it", key.id, ending.why,
                )
            self._told.add(key)
            return True
        if came is Kill.NOT_NOW:
            return False
        if came is Kill.NOT_THERE and ending.absent is not Absent.WRITE:
            return ending.absent is Absent.FORGET or key not in live
        if ending.outcome is not None:
            self._outcomes.append((key, ending.outcome))
        return True


def _layers(keys: Mapping[RunKey, Any]) -> list[dict[RunId, RunKey]]:
    """The keys in groups in which no run comes twice: answers are given by run.

    One group as a rule; two where the message of a run's next attempt is here before its last one ended.
    """
    layers: list[dict[RunId, RunKey]] = [{}]
    for key in keys:
        for layer in layers:
            if key.id not in layer:
                layer[key.id] = key
                break
        else:
            layers.append({key.id: key})
    return layers
