"""The process group of a command: ended as a whole, and never another one that got its number."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: less than a worker gives a run that is told to end, 3 s unless
``sched_kill_grace`` is shorter."""
PATIENCE = 5.0
"""Seconds in which what was killed is gone, unless it waits for a disk."""
LOOK = 0.02


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command has ended. It stays in the table of processes, so that its number stays its own."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(process: subprocess.Popen[bytes]) -> int:
    """End what is alive of the group, and descendants that left it; return the command's exit code.

    SIGTERM first, SIGKILL after a moment, or at once when this is interrupted.
    """
    left = _alive(process, set())
    try:
        if left:
            _signal(process, left, signal.SIGTERM)
            left = _after(process, left, GRACE)
    finally:
        if left:
            left = _alive(process, left)
            _signal(process, left, signal.SIGKILL)
            _after(process, left, PATIENCE)
        code = process.wait()
    return code


def _after(
    process: subprocess.Popen[bytes], left: set[psutil.Process], seconds: float
) -> set[psutil.Process]:
    """Who is still alive when all are dead, or after this time."""
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        time.sleep(LOOK)
        left = _alive(process, left)
    return left


def _alive(process: subprocess.Popen[bytes], known: set[psutil.Process]) -> set[psutil.Process]:
    """The command, its group, its descendants, and those of ``known``, as far as they are alive."""
    return {one for one in (*known, *_group(process.pid), *_descendants(process.pid)) if _lives(one)}


def _group(number: int) -> Iterator[psutil.Process]:
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(pid) == number:
                yield psutil.Process(pid)


def _descendants(number: int) -> list[psutil.Process]:
    try:
        return psutil.Process(number).children(recursive=True)
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(process: subprocess.Popen[bytes], others: set[psutil.Process], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # in one go: a group that forks cannot outrun it
    for other in others:
        with suppress(psutil.Error):
            if number is signal.SIGKILL or os.getpgid(other.pid) != process.pid:
                other.send_signal(number)
