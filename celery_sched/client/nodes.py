"""The client: the whole and its nodes."""

from __future__ import annotations

from datetime import datetime

from celery_sched.client.base import Base
from celery_sched.errors import NotFound
from celery_sched.model import Node, NodeId
from celery_sched.status import Status, alive, look
from celery_sched.store import nodes
from celery_sched.store.engine import Tx


class Nodes(Base):
    """What people do with the app as a whole."""

    def status(self) -> Status:
        """How it is doing, from one look at the database."""
        return self._database.read(lambda tx, now: look(tx, now, self._config))

    def nodes(self) -> list[Node]:
        """Schedulers and workers that are alive."""
        return self._database.read(lambda tx, now: alive(tx, now, self._config))

    def stop_nodes(self, node_id: NodeId | None = None, *, by: str = "python") -> None:
        """Ask one node, or all of the app, to stop: schedulers drain, workers finish what runs.

        :raises NotFound: no such node.
        """

        def work(tx: Tx, now: datetime) -> None:
            living = [node.id for node in alive(tx, now, self._config)]
            if node_id is not None and node_id not in [node.id for node in nodes.every(tx, self._config.app)]:
                raise NotFound("node", node_id, "See: sched status.")
            for one in living if node_id is None else [node_id]:
                nodes.request_stop(tx, now, one)
                self._note(tx, now, by, "stop", f"node:{one}", {})

        self._database.run(work)
