"""Runs that shall end: who is to be killed, who was, and what is written afterwards."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import killer
from celery_sched.worker.board import Board
from celery_sched.worker.killer import Kill

logger = logging.getLogger("celery_sched.worker")
GRACE = 1.0
"""Seconds that a pool has to report a dead child itself."""


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
    dying: int | None = None
    """The child that is known to die, or dead: what it started is killed."""


class Endings:
    """What is wanted and what was done. Any thread asks, the keeper's thread kills."""

    def __init__(self, board: Board, terminate_job: Callable[[int], None]) -> None:
        self._board, self._terminate_job = board, terminate_job
        self._wanted: deque[Ending] = deque()
        self._open: dict[RunKey, Ending] = {}
        self._killed: dict[RunKey, Ending] = {}
        self._told: set[RunKey] = set()
        self._dead: dict[RunKey, float] = {}

    def __bool__(self) -> bool:
        return bool(self._wanted or self._open)

    def want(self, ending: Ending) -> None:
        """Ask for a kill."""
        self._wanted.append(ending)

    def killed(self, key: RunKey) -> Ending | None:
        """Why that run was killed, if it was."""
        return self._killed.get(key)

    def forget(self, live: Collection[RunKey]) -> None:
        """Only runs whose message is here matter."""
        self._told.intersection_update(live)
        self._killed = {key: ending for key, ending in self._killed.items() if key in live}

    def notice_deaths(self, live: Collection[RunKey]) -> None:
        """Find bodies whose child has died. Pools without an event loop report that ten seconds later."""
        dead: dict[RunKey, float] = {}
        for key in live:
            place = self._board.find(key)
            if place is None or place.pid == os.getpid() or key in self._killed:
                continue
            if killer.is_dead(place.pid):
                dead[key] = self._dead.get(key, time.monotonic())
                # the pools with an event loop know more about it, and sooner
                if time.monotonic() - dead[key] >= GRACE:
                    why = "the child process died"
                    self.want(
                        Ending(key, Outcome(RunStatus.LOST, None, why, why), why, Absent.WRITE, place.pid)
                    )
        self._dead = dead

    def work(self, live: Collection[RunKey]) -> Iterator[tuple[RunKey, Outcome]]:
        """Kill what shall be killed; yields the outcomes to write."""
        while self._wanted:
            ending = self._wanted.popleft()
            self._open.setdefault(ending.key, ending)
        for ending in list(self._open.values()):
            key = ending.key
            # before the kill: the main thread may hear of the death before this line is left
            self._killed[key] = ending
            came = killer.kill(self._board, key, self._terminate_job)
            if came is Kill.KILLED:
                logger.warning("run %s, attempt %d, was killed: %s", key.id, key.attempt, ending.why)
            else:
                del self._killed[key]
            if came is Kill.IMPOSSIBLE:
                self._give_up(ending)
            elif came is Kill.NOT_NOW or (came is Kill.NOT_THERE and self._waits(ending, live)):
                continue
            elif came is not Kill.NOT_THERE or ending.absent is Absent.WRITE:
                if came is Kill.NOT_THERE and ending.dying is not None:
                    killer.kill_leftovers(ending.dying)
                if ending.outcome is not None:
                    yield key, ending.outcome
            del self._open[key]

    def _waits(self, ending: Ending, live: Collection[RunKey]) -> bool:
        return ending.absent is Absent.WAIT and ending.key in live

    def _give_up(self, ending: Ending) -> None:
        """A body in a thread of the main process: it is told (``ctx.lost``), and people are told once."""
        key = ending.key
        self._board.trust(key, 0.0)
        if key not in self._told:
            logger.warning(
                "run %s shall end (%s) but runs in a thread of this worker, which cannot be killed: "
                "its lease runs out and the sweep settles it",
                key.id,
                ending.why,
            )
        self._told.add(key)
