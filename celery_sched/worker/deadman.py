"""The dead-man timer of an exclusive body: a thread in the child, beside the body.

The main process renews the lease and writes to the board how long it may be trusted. If that time passes,
because the main process could not renew and not kill, is frozen, or is dead, the child kills itself, with all
that the body has started.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import NoReturn

from celery_sched.worker import killer
from celery_sched.worker.board import Board
from celery_sched.worker.trust import WHY, clock

logger = logging.getLogger("celery_sched.worker")
LONGEST = 0.5
"""Longest sleep in seconds: what a thread sleeps is not counted while the host is suspended."""
SHORTEST = 0.01


class DeadMan:
    """One for each exclusive body: :meth:`start` before it, :meth:`leave` after it."""

    def __init__(self, board: Board, index: int, after: float) -> None:
        """``after``: seconds after the time at which the main process is to kill it."""
        self._board, self._index, self._after = board, index, after
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sched-deadman", daemon=True)

    def start(self) -> None:
        """Begin; raises ``RuntimeError`` where no thread can be started."""
        self._thread.start()

    def leave(self) -> bool:
        """Leave the board, and end the timer in the same moment: it never hits what this child does next.

        ``True``: the body was told to end, and this process waits to be killed; so the timer goes on.
        """
        with self._lock:
            told = self._board.leave(self._index)
            if not told:
                self._over.set()
            return told

    def _watch(self) -> None:
        # signals are the body's: one that this thread took would not wake it
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._over.wait(self._pause()):
            with self._lock:
                if not self._over.is_set() and clock() >= self._due_at():
                    self._end()

    def _due_at(self) -> float:
        return self._board.kill_at(self._index) + self._after

    def _pause(self) -> float:
        return max(SHORTEST, min(LONGEST, self._due_at() - clock()))

    def _end(self) -> NoReturn:
        self._board.note_timer(self._index)
        try:
            logger.error("%s, and nobody else ended this process: it kills itself", WHY)
        finally:
            killer.kill_self()
