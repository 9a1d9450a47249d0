"""celery_sched: a scheduler for Celery that keeps its jobs in a SQL database.

Public names only. Importing this package creates no app, opens nothing and does not import Celery;
the stand-alone ``app`` (for ``celery -A celery_sched ...``) is made when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Context", "InvalidValue", "SchedulerError", "__version__", "client", "job", "setup"]

if TYPE_CHECKING:
    from celery_sched.app import setup
    from celery_sched.client import client
    from celery_sched.context import Context
    from celery_sched.decorators import job
    from celery_sched.errors import InvalidValue, SchedulerError

_HOMES = {
    "Context": "celery_sched.context",
    "InvalidValue": "celery_sched.errors",
    "SchedulerError": "celery_sched.errors",
    "client": "celery_sched.client",
    "job": "celery_sched.decorators",
    "setup": "celery_sched.app",
}


def __getattr__(name: str) -> Any:
    """Import a public name (or make the stand-alone ``app``) when it is first used."""
    from importlib import import_module

    if name in ("app", "celery"):
        return import_module("celery_sched.app").standalone()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'celery_sched' has no attribute {name!r}")
