"""A worker's row among the nodes: that it is alive, what it consumes, what people ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_sched.model import NodeId, NodeKind
from celery_sched.runtime import this_process
from celery_sched.store import nodes, runs
from celery_sched.store.engine import Tx


@dataclass(frozen=True)
class Asked:
    """``stop``: the worker shall end. ``cancel``: a run of it shall, which the next renewal kills."""

    stop: bool
    cancel: bool


class Presence:
    """Written by the keeper's thread; ``facts`` is asked each time (queues may be added while it runs)."""

    def __init__(self, node: NodeId, app: str, name: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._node, self._app, self._name, self._facts = node, app, name, facts

    def show(self, tx: Tx, now: datetime) -> Asked:
        """Be seen, registering where the row is not there (yet, or no longer); return what is asked."""
        facts = dict(self._facts())
        stop = nodes.seen(tx, now, self._node, facts)
        if stop is None:
            kind = NodeKind.WORKER
            nodes.register(tx, now, this_process(self._node, self._app, kind, self._name, now, facts))
        return Asked(bool(stop), runs.exists(tx, runs.stopping_on(self._app, self._node)))

    def leave(self, tx: Tx, now: datetime) -> None:
        """Sign off."""
        nodes.leave(tx, self._node)
