"""What a job's function is told about its run, and how it says that it is alive."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Context:
    """Given to a job's function that has a parameter ``ctx``; also :func:`current`.

    ``fence`` is the fencing number: it only grows, per job, with each new claim. Send it along to outside
    systems so that they can refuse a holder that is no longer current.
    """

    run_id: str
    job: str
    scheduled_for: datetime
    attempt: int
    fence: int
    is_lost: Callable[[], bool] = field(repr=False)
    beat: Callable[[], None] = field(repr=False)
    log: logging.Logger = field(repr=False)

    @property
    def lost(self) -> bool:
        """Whether this run's lease is known to be gone: stop writing to the outside."""
        return self.is_lost()

    def heartbeat(self) -> bool:
        """Say that the run makes progress; return whether its lease may still be trusted.

        From the first call on the run may be silent for its ``heartbeat_timeout``, and ``max_runtime`` bounds
        it no longer (``time_limit`` does). It writes to memory only, so call it as often as you like, from
        any thread; it raises nothing.
        """
        self.beat()
        return not self.lost


current: ContextVar[Context | None] = ContextVar("celery_sched_context", default=None)


def heartbeat() -> bool:
    """:meth:`Context.heartbeat` of the run that is being carried out; outside of one it does nothing."""
    ctx = current.get()
    return True if ctx is None else ctx.heartbeat()
