"""What people and programs do: add, edit, pause, run, cancel, look.

Everything is checked before anything is written. ``celery_sched.client`` is the client of the current app.
"""

from __future__ import annotations

from typing import Any

from celery_sched import runtime as runtimes
from celery_sched.client.backfills import Backfills
from celery_sched.client.control import Control
from celery_sched.client.events import Events, publish
from celery_sched.client.files import Files
from celery_sched.client.jobs import Jobs
from celery_sched.client.nodes import Nodes
from celery_sched.client.notifications import Notifications
from celery_sched.client.pools import Pools
from celery_sched.client.retries import Retries
from celery_sched.client.runs import Runs


class Client(Jobs, Files, Control, Runs, Retries, Nodes, Pools, Backfills, Events, Notifications):
    """What one app's people may do. Thread-safe."""


class _Current:
    """The client of Celery's current app, found at each use: ``client.add(...)``."""

    def __getattr__(self, name: str) -> Any:
        from celery._state import get_current_app

        return getattr(Client(runtimes.of(get_current_app())), name)


__all__ = ["Client", "client", "publish"]
client: Client = _Current()  # type: ignore[assignment]
