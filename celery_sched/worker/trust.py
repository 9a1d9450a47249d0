"""How long a worker trusts the lease of a run, and when it kills an exclusive one that it could not renew.

Never as long as the database: counted from before the question was sent, and with the database's own two
times only, so that neither a slow answer nor a wrong clock of this host lengthens it.

For an exclusive job, whose lease ends at E, with M as ``sched_exclusive_margin``:

    E - M        the worker's main process kills the child, with SIGTERM first where that fits
    E - M / 4    the child kills itself, should it be alive still
    E            another worker may have the job's next run
"""

from __future__ import annotations

import time
from datetime import datetime

from celery_sched.config import Config
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.steps.renew import KILL_TIME

TIMER = 0.75
"""The part of the margin after which the child kills itself."""
WHY = "the lease of an exclusive job could not be renewed"
LOST = Outcome(RunStatus.LOST, error=WHY, reason=WHY)


def clock() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(asked_at: float, now: datetime, lease_expires_at: datetime, margin: float = 0.0) -> float:
    """Until when (on :func:`clock`) a lease is to be trusted.

    :param asked_at: the time on :func:`clock` before the call that the database answered.
    :param now: the database's time, as it answered.
    :param margin: seconds kept back; for exclusive jobs.
    """
    return asked_at + (lease_expires_at - now).total_seconds() - margin


def margin_of(config: Config, exclusive: bool) -> float:
    """Seconds of its lease that are kept back for the kill."""
    return config.exclusive_margin.total_seconds() if exclusive else 0.0


def timer_after(config: Config) -> float:
    """Seconds between the time at which the main process is to kill a body and that of its own timer."""
    return config.exclusive_margin.total_seconds() * TIMER


def grace(config: Config) -> float:
    """Seconds that an exclusive body has after SIGTERM: ``sched_kill_grace`` where that fits, else none."""
    wanted = config.kill_grace.total_seconds()
    return wanted if wanted + KILL_TIME.total_seconds() <= timer_after(config) else 0.0
