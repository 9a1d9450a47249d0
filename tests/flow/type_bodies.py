"""A task of no type that looks up a secret itself."""

from __future__ import annotations

import logging

from celery import current_app, shared_task

from celery_sched import runtime, secrets


@shared_task
def looks_up(ends: str) -> dict[str, str]:
    """Tells its secret in its result, its error and its log."""
    value: str = secrets.resolve("secret:TOKEN", runtime.of(current_app._get_current_object()).config)
    logging.getLogger("somebody").warning("logged %s", value)
    if ends == "failed":
        raise ValueError(f"with {value}")
    return {"found": value}
