"""Killing one run: exactly the child that is in its body, with all that it started, and nobody else.

The child is stopped first (SIGSTOP), then the board is read: only a child that stands in the body of that
attempt is told to end, or killed, any other continues. This holds for every pool that forks, with and without
an event loop, also while the main process is busy or shuts down; and a child in a body holds no lock of the
pool.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NoReturn

import psutil

from celery_sched.model import RunKey
from celery_sched.worker.board import Board, Place

logger = logging.getLogger("celery_sched.worker")
STOP_TIMEOUT = 1.0
"""Seconds to wait until a child has stopped, and until a killed one is gone."""
TELL_TIMEOUT = 0.2
"""Seconds to wait until a child has stopped that is only to be told; it is tried again soon."""
LOOK = 0.001
DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Kill(Enum):
    """What came of it."""

    TOLD = "told"
    """The body was told to end (SIGTERM)."""
    KILLED = "killed"
    STUCK = "stuck"
    """SIGKILL was sent, but the child waits in the kernel: it ends when that lets go, and does no more."""
    GONE = "gone"
    """The child died by itself in that body; what it left was killed."""
    NOT_THERE = "not there"
    """No process is in that body: it is over, or has not begun."""
    NOT_NOW = "not now"
    """The child did not stop: try again."""
    IMPOSSIBLE = "impossible"
    """The body runs in a thread of the main process."""


TellPool = Callable[[int, int], None]
"""Sends a signal to a child by way of the pool, so that the pool takes its death for what it is."""


def tell(board: Board, key: RunKey, tell_pool: TellPool) -> tuple[Kill, list[psutil.Process]]:
    """Send SIGTERM to the child that is in the body of ``key``; also returns what that has started.

    From then on the child does nothing after the body but wait to be killed.
    """
    found = _standing(board, key, TELL_TIMEOUT)
    if isinstance(found, Kill):
        return found, []
    process, place, stands = found
    if not stands:
        _continue(process)
        return Kill.NOT_NOW, []
    started = _descendants(process)
    board.tell(place)
    tell_pool(place.pid, signal.SIGTERM)
    _continue(process)
    return Kill.TOLD, started


def kill(board: Board, key: RunKey, tell_pool: TellPool) -> Kill:
    """Kill the child that is in the body of ``key``, or was told to end there, with all that it started."""
    found = _standing(board, key, STOP_TIMEOUT)
    if isinstance(found, Kill):
        return found
    process, place, _ = found
    _kill_tree(process, place, tell_pool)
    return Kill.KILLED if _wait(lambda: _state(process) in DEAD, STOP_TIMEOUT) else Kill.STUCK


def _standing(board: Board, key: RunKey, patience: float) -> Kill | tuple[psutil.Process, Place, bool]:
    """The child in the body of ``key``, stopped; ``False``: it waits in the kernel, and stops after that."""
    place = board.find(key)
    if place is None:
        return Kill.NOT_THERE
    if place.pid == os.getpid():
        return Kill.IMPOSSIBLE
    process = _child(place.pid)
    stopped = None if process is None else _stop(process, patience)
    if process is None or stopped is None:
        if board.find(key) is None:
            return Kill.NOT_THERE  # it finished, and then the child ended, as one does after its last task
        kill_leftovers(place.pid)
        return Kill.GONE
    # what waits in the kernel has the stop signal ahead of it, before it runs another line of its own
    if not stopped and _state(process) != psutil.STATUS_DISK_SLEEP:
        _continue(process)
        return Kill.NOT_NOW
    again = board.find(key)
    if again is None or (again.index, again.pid) != (place.index, place.pid):
        # it finished meanwhile: what it does now is somebody else's
        _continue(process)
        return Kill.NOT_THERE
    return process, again, stopped


def kill_self() -> NoReturn:
    """Kill what this process has started, its group where it leads one, and itself."""
    try:
        _kill_descendants(psutil.Process())
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def is_dead(pid: int) -> bool:
    """Whether a child of this process has ended (collected or not)."""
    return _child(pid) is None


def kill_leftovers(pid: int, known: Iterable[psutil.Process] = ()) -> None:
    """Kill what a child that dies, or died, has started, but not the child itself.

    It may be on its way out, where it holds a lock that all children share.

    :param known: what it had started while it was alive, also with a session of its own.
    """
    if pid == os.getpid():
        return  # a body in a thread: what it started cannot be told from what others did
    process = _child(pid)
    found = [*known, *([] if process is None else _descendants(process))]
    for other in psutil.process_iter():
        if other.pid != pid and _in_session(other.pid, pid):
            found.append(other)
    for other in found:
        _quietly(other.kill)


def _in_session(pid: int, leader: int) -> bool:
    """Whether a process is of the session that a child leads, in whatever group of it."""
    try:
        return os.getsid(pid) == leader
    except ProcessLookupError:
        return False


def _child(pid: int) -> psutil.Process | None:
    """The process of that pid if it is alive and ours: a pid may have been used again."""
    try:
        process = psutil.Process(pid)
        return process if process.ppid() == os.getpid() and process.status() not in DEAD else None
    except psutil.NoSuchProcess:
        return None


def _stop(process: psutil.Process, patience: float) -> bool | None:
    """Stop a process and wait until it stands; ``None``: it is dead, ``False``: it does not stop."""
    try:
        process.suspend()
    except psutil.NoSuchProcess:
        return None
    state = ""

    def stands() -> bool:
        nonlocal state
        state = _state(process)
        return state == psutil.STATUS_STOPPED or state in DEAD

    if not _wait(stands, patience):
        return False
    return None if state in DEAD else True


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _continue(process: psutil.Process) -> None:
    try:
        process.resume()
    except psutil.NoSuchProcess:
        logger.debug("child %d died while it was looked at", process.pid)


def _kill_tree(process: psutil.Process, place: Place, tell_pool: TellPool) -> None:
    """Kill a stopped child, its group, and descendants that made a session of their own."""
    _kill_descendants(process)
    tell_pool(place.pid, signal.SIGKILL)
    if place.leads_group:
        try:
            os.killpg(place.pid, signal.SIGKILL)
        except ProcessLookupError:
            logger.debug("the group of child %d is gone", place.pid)
    _quietly(process.kill)


def _kill_descendants(process: psutil.Process) -> None:
    descendants: dict[int, psutil.Process] = {}
    # A descendant may fork until it is stopped; what it made shows up in the next round.
    for _ in range(10):
        new = [child for child in _descendants(process) if child.pid not in descendants]
        if not new:
            break
        for child in new:
            descendants[child.pid] = child
            _quietly(child.suspend)
    for child in descendants.values():
        _quietly(child.kill)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _quietly(action: Callable[[], Any]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        logger.debug("a process was gone before it was killed")


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True
