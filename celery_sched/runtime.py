"""What one Celery app's scheduler works with: settings, database, slots. One per app and process."""

from __future__ import annotations

import os
import socket
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched import __version__
from celery_sched import config as settings
from celery_sched.config import Config
from celery_sched.inflight import Slots, make_slots
from celery_sched.model import Node, NodeId, NodeKind
from celery_sched.notify_settings import Policy
from celery_sched.store import notices
from celery_sched.store.engine import Clock, Database

_lock = threading.Lock()
_runtimes: weakref.WeakKeyDictionary[Any, Runtime] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Runtime:
    """Settings, database and slots of one app."""

    config: Config
    database: Database
    slots: Slots

    def close(self) -> None:
        """Close the connections."""
        self.database.dispose()
        self.slots.close()


def make(config: Config, *, clock: Clock | None = None) -> Runtime:
    """A runtime for these settings; nothing is opened yet."""
    database = Database(
        config.database_url,
        session_timeout=_patience(config),
        clock=clock,
        options={notices.OPTION: Policy(config.notify, config.notify_templates)},
    )
    return Runtime(config, database, make_slots(config))


def _patience(config: Config) -> timedelta:
    """SQLite's writers wait for each other, not for a row: they get longer."""
    if config.database_url.startswith("sqlite"):
        return min(timedelta(seconds=15), config.lease / 2)
    return config.session_timeout


def of(app: Any) -> Runtime:
    """The runtime of a Celery app, made when it is first asked for.

    :raises InvalidConfig: settings that are wrong, all of them named.
    """
    with _lock:
        known = _runtimes.get(app)
        if known is None:
            known = _runtimes[app] = make(settings.load(app.conf, app.main))
        return known


def new_node_id() -> NodeId:
    """Identity of one process: never a host name, which machines use again."""
    return NodeId(str(uuid.uuid4()))


def this_process(
    node_id: NodeId, app: str, kind: NodeKind, name: str, now: datetime, facts: Mapping[str, Any]
) -> Node:
    """What a scheduler or worker says of itself."""
    return Node(
        id=node_id,
        app=app,
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        name=name,
        version=__version__,
        started_at=now,
        last_seen=now,
        facts=facts,
        stop_requested_at=None,
    )
