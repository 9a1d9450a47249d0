"""A worker's row among the nodes: that it is alive, what it consumes, whether it was asked to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery_sched import __version__
from celery_sched.model import Node, NodeId, NodeKind
from celery_sched.store import nodes
from celery_sched.store.engine import Tx


class Presence:
    """Written by the keeper's thread; ``facts`` is asked each time (queues may be added while it runs)."""

    def __init__(self, node: NodeId, app: str, name: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._node, self._app, self._name, self._facts = node, app, name, facts

    def show(self, tx: Tx, now: datetime) -> bool:
        """Be seen, registering where the row is not there (yet, or no longer); return whether to stop."""
        facts = dict(self._facts())
        stop = nodes.seen(tx, now, self._node, facts)
        if stop is not None:
            return stop
        nodes.register(
            tx,
            now,
            Node(
                id=self._node,
                app=self._app,
                kind=NodeKind.WORKER,
                host=socket.gethostname(),
                pid=os.getpid(),
                name=self._name,
                version=__version__,
                started_at=now,
                last_seen=now,
                facts=facts,
                stop_requested_at=None,
            ),
        )
        return False

    def leave(self, tx: Tx, now: datetime) -> None:
        """Sign off."""
        nodes.leave(tx, self._node)
