"""No child is forked while another thread is inside SQLite.

The C library has locks of its own. A child forked in the moment in which one is held inherits it for ever,
and hangs at its first statement. Idle connections are closed before a fork for the same reason.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from celery_sched.store.engine import Database

LONGEST = 1.0
"""Seconds for which a fork is held off at most: a busy database must not stop the pool."""
_lock = threading.Lock()
_forking = False


@contextmanager
def held_off() -> Iterator[None]:
    """Hold off forks of this process for the time of the block."""
    with _lock:
        yield


def _before() -> None:
    global _forking
    _forking = _lock.acquire(timeout=LONGEST)
    if _forking:
        Database.before_fork()


def _after_in_parent() -> None:
    if _forking:
        _lock.release()


def _after_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
