"""Runs that shall end: who is to be killed, who was, and what is written afterwards."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import killer
from celery_sched.worker.board import Board
from celery_sched.worker.killer import Kill, TellPool
from celery_sched.worker.ladder import Ladder, Step
from celery_sched.worker.trust import WHY

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
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; the run's reason says what was done. ``None``: SIGKILL at once."""


class Endings:
    """What is wanted and what was done. Any thread asks; the keeper kills, and the guard what is exclusive.

    One of them at a time, as one would let a child go on that the other has stopped. Neither waits for the
    database meanwhile.
    """

    def __init__(self, board: Board, tell_pool: TellPool) -> None:
        self._board, self._ladder = board, Ladder(board, tell_pool)
        self._wanted: deque[Ending] = deque()
        self._open: dict[RunKey, Ending] = {}
        self._killed: dict[RunKey, Ending] = {}
        self._told: set[RunKey] = set()
        self._abandoned: set[RunKey] = set()
        self._dead: dict[RunKey, float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._wanted or self._open)

    def want(self, ending: Ending) -> None:
        """Ask for a kill."""
        self._wanted.append(ending)

    def killed(self, key: RunKey) -> Ending | None:
        """Why that run was killed, if it was."""
        return self._killed.get(key)

    def is_open(self, key: RunKey) -> bool:
        """Whether that run is being ended."""
        return key in self._open

    def forget(self, live: Collection[RunKey]) -> None:
        """Only runs whose message is here matter, and those that are being ended."""
        with self._lock:
            live = {*live, *self._open}
            self._told.intersection_update(live)
            self._abandoned.intersection_update(live)
            self._ladder.forget(live)
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
                    why = WHY if place.timer else "the child process died"
                    self.want(
                        Ending(key, Outcome(RunStatus.LOST, None, why, why), why, Absent.WRITE, place.pid)
                    )
        self._dead = dead

    def work(
        self, live: Collection[RunKey], *, only: Collection[RunKey] | None = None
    ) -> Iterator[tuple[RunKey, Outcome]]:
        """Kill what shall be killed; yields the outcomes to write.

        :param only: look at these runs and no others.
        """
        with self._lock:
            while self._wanted:
                self._begin(self._wanted.popleft())
            keys = [key for key in self._open if only is None or key in only]
        for key in keys:
            with self._lock:
                ending = self._open.get(key)
                outcome = None if ending is None else self._step(ending, live)
            if outcome is not None:
                yield key, outcome

    def _step(self, ending: Ending, live: Collection[RunKey]) -> Outcome | None:
        """One step up the ladder; what is to be written, if this was the last one."""
        key = ending.key
        # before the kill: the main thread may hear of the death before this line is left
        self._killed[key] = ending
        step = self._ladder.climb(key, ending.grace or 0.0)
        came = step.came
        if came is Kill.TOLD:
            return None
        if came is Kill.KILLED:
            logger.warning(
                "run %s, attempt %d, was killed: %s (%s)", key.id, key.attempt, ending.why, step.said
            )
        elif came is Kill.STUCK:
            self._abandon(ending)
        elif came is not Kill.GONE:
            del self._killed[key]
        outcome = None
        if came is Kill.IMPOSSIBLE:
            self._give_up(ending)
        elif came is Kill.NOT_NOW or (came is Kill.NOT_THERE and self._waits(ending, live)):
            return None
        elif came is not Kill.NOT_THERE or ending.absent is Absent.WRITE:
            if came is Kill.NOT_THERE and ending.dying is not None:
                killer.kill_leftovers(ending.dying)
            if ending.outcome is not None:
                outcome = _with_steps(ending, step, ending.outcome)
        del self._open[key]
        return outcome

    def _begin(self, ending: Ending) -> None:
        known = self._open.get(ending.key)
        if ending.key in self._abandoned:
            return
        if known is None:
            self._open[ending.key] = ending
        elif not ending.grace and known.grace:
            # its lease went to somebody else meanwhile, or does in a moment: no more time for it
            self._open[ending.key] = replace(known, grace=0.0)

    def _abandon(self, ending: Ending) -> None:
        """A child that not even SIGKILL ends: it is settled all the same, and never looked at again."""
        key = ending.key
        place = self._board.find(key)
        logger.error(
            "run %s, attempt %d, is abandoned (%s): child %s waits in the kernel and ends when that lets go. "
            "Its lock and its slot come back now, its place in this worker's pool does then",
            key.id,
            key.attempt,
            ending.why,
            place.pid if place is not None else "",
        )
        self._board.distrust(key)
        self._abandoned.add(key)

    def _waits(self, ending: Ending, live: Collection[RunKey]) -> bool:
        return ending.absent is Absent.WAIT and ending.key in live

    def _give_up(self, ending: Ending) -> None:
        """A body in a thread of the main process: it is told (``ctx.lost``), and people are told once."""
        key = ending.key
        self._board.distrust(key)
        if key not in self._told:
            logger.warning(
                "run %s shall end (%s) but runs in a thread of this worker, which cannot be killed: "
                "its lease runs out and the sweep settles it",
                key.id,
                ending.why,
            )
        self._told.add(key)


def _with_steps(ending: Ending, step: Step, outcome: Outcome) -> Outcome:
    if ending.grace is None or step.came is Kill.NOT_THERE:
        return outcome
    return replace(outcome, reason=f"{outcome.reason}; {step.said}")
