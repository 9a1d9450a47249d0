"""A runtime for a test's own process, beside the processes under test."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from celery_sched import runtime
from celery_sched.config import Config

LEASE = timedelta(seconds=60)


def patient(config: Config) -> runtime.Runtime:
    """One of these settings whose transactions have the time of those of a long lease.

    A short lease is for the processes under test. A third of it, in which a session must go on, is less than
    a busy machine may pause the test's own process.
    """
    made = runtime.make(config)
    return replace(made, database=runtime.make(replace(config, lease=max(config.lease, LEASE))).database)
