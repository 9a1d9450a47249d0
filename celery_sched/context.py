"""What a job's function is told about its run."""

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
    log: logging.Logger = field(repr=False)

    @property
    def lost(self) -> bool:
        """Whether this run's lease is known to be gone: stop writing to the outside."""
        return self.is_lost()


current: ContextVar[Context | None] = ContextVar("celery_sched_context", default=None)
