"""Celery's soft time limit, kept to the body of a run.

A prefork pool raises it in the child by a signal, whatever the child does just then. While a run is being
started, or its outcome written, the exception would leave that half done: it is put off until the body
begins, or dropped when the body is over. Pools of threads have no such limit.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import Any

from billiard.pool import SIG_SOFT_TIMEOUT, soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded

logger = logging.getLogger("celery_sched.worker")


class _Now(Enum):
    ELSEWHERE = "a task that is no run, or none"
    AROUND = "around the body of a run"
    BODY = "in the body of a run"


_now = _Now.ELSEWHERE
_came = False
_told: set[str] = set()


def _on_signal(signum: int, frame: FrameType | None) -> None:
    global _came
    if _now is _Now.AROUND:
        _came = True
    else:
        raise SoftTimeLimitExceeded()


@contextmanager
def held_off() -> Iterator[None]:
    """Within the block the soft time limit waits for :func:`let_in`."""
    global _now, _came
    if SIG_SOFT_TIMEOUT is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    # installed by the pool after every hook it has, so here
    if signal.getsignal(SIG_SOFT_TIMEOUT) is soft_timeout_sighandler:
        signal.signal(SIG_SOFT_TIMEOUT, _on_signal)
    _now, _came = _Now.AROUND, False
    try:
        yield
    finally:
        _now = _Now.ELSEWHERE


@contextmanager
def let_in() -> Iterator[None]:
    """Within the block it is raised, at once if it has come already.

    :raises SoftTimeLimitExceeded: also from here.
    """
    global _now
    if _now is _Now.ELSEWHERE:
        yield
        return
    try:
        _now = _Now.BODY
        if _came:
            raise SoftTimeLimitExceeded()
        yield
    finally:
        _now = _Now.AROUND


def warn(job: str, timelimit: Any) -> None:
    """Say once that a job's soft time limit does nothing in a pool of threads.

    :param timelimit: what the message says: hard and soft limit in seconds, or nothing.
    """
    seconds = timelimit[1] if timelimit else None
    if seconds is not None and job not in _told:
        _told.add(job)
        logger.warning(
            "job %r has a soft time limit of %g s; only prefork workers can raise one: here it does nothing",
            job,
            seconds,
        )
