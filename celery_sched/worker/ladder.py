"""The steps by which a body is ended: SIGTERM, after a while SIGKILL; what not even that ends is given up."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from celery_sched.model import RunKey
from celery_sched.worker import killer
from celery_sched.worker.board import Board
from celery_sched.worker.killer import Kill, TellPool

DIED = "its process had died"


@dataclass(frozen=True)
class _Told:
    """A body that was told to end: when, in which child, and what that had started."""

    at: float
    pid: int
    started: tuple[psutil.Process, ...]


@dataclass(frozen=True)
class Step:
    """What came of this look at it, and all that was done so far, in words."""

    came: Kill
    said: str


class Ladder:
    """Goes up one step at a time and never waits for a body: look again until it is not ``TOLD``."""

    def __init__(self, board: Board, tell_pool: TellPool) -> None:
        self._board, self._tell_pool = board, tell_pool
        self._told: dict[RunKey, _Told] = {}
        self._first: dict[RunKey, float] = {}

    def forget(self, live: Collection[RunKey]) -> None:
        """Only runs whose message is here matter."""
        self._told = {key: told for key, told in self._told.items() if key in live}
        self._first = {key: first for key, first in self._first.items() if key in live}

    def climb(self, key: RunKey, grace: float) -> Step:
        """The next step, if it is time for it.

        :param grace: seconds between SIGTERM and SIGKILL; 0: SIGKILL at once.
        """
        told = self._told.get(key)
        if told is None and grace > 0:
            first = self._first.setdefault(key, time.monotonic())
            step = self._tell(key)
            # a child that cannot be stopped cannot be told either, however long that lasts
            if step.came is not Kill.NOT_NOW or time.monotonic() - first < grace:
                return step
        if told is None:
            came = killer.kill(self._board, key, self._tell_pool)
            return Step(came, DIED if came is Kill.GONE else "SIGKILL" + _stuck(came))
        place = self._board.find(key)
        waited = time.monotonic() - told.at
        if place is not None and not place.over and waited < grace and not killer.is_dead(told.pid):
            return Step(Kill.TOLD, "SIGTERM")
        came = killer.kill(self._board, key, self._tell_pool)
        if came is Kill.NOT_NOW:
            return Step(Kill.TOLD, "SIGTERM")
        if came in (Kill.NOT_THERE, Kill.GONE):  # it died of it
            killer.kill_leftovers(told.pid, told.started)
            return Step(Kill.GONE, f"SIGTERM, ended after {waited:.1f} s")
        if place is not None and place.over:
            return Step(came, f"SIGTERM, ended after {waited:.1f} s")
        return Step(came, f"SIGTERM, then SIGKILL after {waited:.1f} s" + _stuck(came))

    def _tell(self, key: RunKey) -> Step:
        place = self._board.find(key)
        came, started = killer.tell(self._board, key, self._tell_pool)
        if came is Kill.TOLD and place is not None:
            self._told[key] = _Told(time.monotonic(), place.pid, tuple(started))
            self._board.distrust(key)
        return Step(came, DIED if came is Kill.GONE else "SIGTERM")


def _stuck(came: Kill) -> str:
    return ", which did not end it: abandoned" if came is Kill.STUCK else ""
