"""The guard of exclusive bodies: a thread in the worker's main process that never waits for the database.

It watches how long the leases of exclusive runs may be trusted, and kills a body in time when that ends. The
keeper cannot: it may be waiting for the answer to the renewal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from celery_sched.model import RunKey
from celery_sched.steps.finish import Outcome
from celery_sched.worker import trust
from celery_sched.worker.board import NEVER, Board, encoded
from celery_sched.worker.endings import Ending, Endings

logger = logging.getLogger("celery_sched.worker")
LOOK = 0.5
"""Longest sleep in seconds: new bodies come, and have more time than that."""
SOON = 0.05
"""Seconds between two steps of a kill."""


class Guard:
    """Watches the exclusive bodies of one worker."""

    def __init__(
        self,
        board: Board,
        endings: Endings,
        live: Callable[[], Collection[RunKey]],
        settle: Callable[[RunKey, Outcome], None],
        grace: float,
    ) -> None:
        """``settle`` has an outcome written when the database is back; ``grace``: seconds after SIGTERM."""
        self._board, self._endings, self._live, self._settle = board, endings, live, settle
        self._grace = grace
        self._mine: set[RunKey] = set()
        self._asked: set[bytes] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sched-guard", daemon=True)

    def start(self) -> None:
        """Begin. Called after the pool has forked its children."""
        self._thread.start()

    def stop(self) -> None:
        """End; no body is left."""
        self._stopping.set()

    def _work(self) -> None:
        pause = LOOK
        while not self._stopping.wait(pause):
            try:
                pause = self.look()
            except Exception:
                # it must not die: with it the worker's part of the promise would end
                logger.exception("the guard of exclusive jobs failed, trying again in %g s", SOON)
                pause = SOON

    def look(self) -> float:
        """Kill what is due; return the seconds until the next look."""
        now = trust.clock()
        places = list(self._board.places())  # of those that are not exclusive, none is ever due
        due = {place.key for place in places if place.kill_at <= now}
        self._asked &= due  # a key never comes again, so the others are over
        if due - self._asked:
            self._ask(due)
        if self._mine:
            for key, outcome in self._endings.work(self._live(), only=self._mine):
                self._settle(key, outcome)
            self._mine = {key for key in self._mine if self._endings.is_open(key)}
        if self._mine:
            return SOON
        next_one = min((place.kill_at for place in places if place.key not in due), default=NEVER)
        return max(0.0, min(LOOK, next_one - trust.clock()))

    def _ask(self, due: set[bytes]) -> None:
        # one whose message is not here is not renewed either: its own timer ends it
        for key in self._live():
            if encoded(key) in due - self._asked:
                self._asked.add(encoded(key))
                self._mine.add(key)
                self._endings.want(Ending(key, trust.LOST, trust.WHY, grace=self._grace))
