"""celery_sched: a scheduler for Celery that keeps its jobs in a SQL database.

Public names only. Importing this package creates no app, opens nothing and does not import Celery;
the stand-alone ``app`` (for ``celery -A celery_sched ...``) is made when it is first asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Context",
    "InvalidValue",
    "SchedulerError",
    "__version__",
    "client",
    "heartbeat",
    "job",
    "publish",
    "setup",
]

if TYPE_CHECKING:
    from celery_sched.app import setup
    from celery_sched.client import client, publish
    from celery_sched.context import Context, heartbeat
    from celery_sched.decorators import job
    from celery_sched.errors import InvalidValue, SchedulerError

_HOMES = {
    "Context": "celery_sched.context",
    "InvalidValue": "celery_sched.errors",
    "SchedulerError": "celery_sched.errors",
    "heartbeat": "celery_sched.context",
    "job": "celery_sched.decorators",
    "publish": "celery_sched.client",
    "setup": "celery_sched.app",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "celery":
        return import_module("celery_sched.app").standalone()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'celery_sched' has no attribute {name!r}")


class _Package(ModuleType):
    """``client`` and ``app`` are these objects, for ever.

    Python sets a submodule as an attribute of its package when it is imported: ``from celery_sched import
    client`` would give the module ``celery_sched.client``, which has no ``add``.
    """

    @property
    def client(self) -> Any:
        """The client of Celery's current app."""
        return import_module("celery_sched.client").client

    @client.setter
    def client(self, module: ModuleType) -> None:
        """The import of the submodule: nothing to keep."""

    @property
    def app(self) -> Any:
        """The stand-alone Celery app, made when it is first asked for."""
        return import_module("celery_sched.app").standalone()

    @app.setter
    def app(self, module: ModuleType) -> None:
        """The import of the submodule: nothing to keep."""


sys.modules[__name__].__class__ = _Package
