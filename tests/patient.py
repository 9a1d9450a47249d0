"""A runtime for a test's own process, beside the processes under test."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from celery_sched import inflight, runtime
from celery_sched.config import Config

LEASE = timedelta(seconds=60)
REDIS_TIMEOUT = 10.0
"""Seconds for one Redis call of a test's own process: half a second, else, is "Redis is away"."""


def be_patient() -> None:
    """From now on this process's own calls have the time that a busy machine needs."""
    inflight.TIMEOUT = REDIS_TIMEOUT


def patient(config: Config) -> runtime.Runtime:
    """One of these settings whose transactions have the time of those of a long lease.

    A short lease is for the processes under test. A third of it, in which a session must go on, is less than
    a busy machine may pause the test's own process.
    """
    made = runtime.make(config)
    return replace(made, database=runtime.make(replace(config, lease=max(config.lease, LEASE))).database)
