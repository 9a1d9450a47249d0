"""Carries out one job of a type in this process, as the body of its task would on a worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from celery_sched import config, secrets
from celery_sched.context import Context
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType

RUN = "11111111-2222-3333-4444-555555555555"


def context_of(job: str = "job", **fields: Any) -> Context:
    """A run's context."""
    given: dict[str, Any] = {
        "run_id": RUN,
        "job": job,
        "scheduled_for": datetime(2026, 1, 31, 9, tzinfo=UTC),
        "attempt": 2,
        "fence": 7,
        "is_lost": lambda: False,
        "beat": lambda: None,
        "log": logging.getLogger("celery_sched.job.job"),
        **fields,
    }
    return Context(**given)


def carry_out(
    name: str, kwargs: Mapping[str, Any], *, app: Any = None, ctx: Any = None, **settings: Any
) -> Any:
    """The result of a job of the type ``name``; ``settings`` are a worker's, without their prefix."""
    kind = registry.find(name)
    assert isinstance(kind, JobType), kind
    found = config.load({f"sched_{key}": value for key, value in settings.items()}, "test", {})
    made = app or Celery("types", set_as_current=False)

    @secrets.kept
    def body() -> Any:
        return kind.carry_out(kwargs, ctx or context_of(), found, made)

    return body()
