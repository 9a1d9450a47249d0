"""The client: the whole, its nodes and its pools."""

from __future__ import annotations

from datetime import datetime

from celery_sched.client.base import Base, near
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Node, NodeId, Pool
from celery_sched.status import Status, alive, look
from celery_sched.store import nodes, pools
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

    def pools(self) -> list[Pool]:
        """All pools of the app, by name."""
        return self._database.read(lambda tx, now: list(pools.every(tx, self._config.app).values()))

    def resize_pool(self, name: str, slots: int, *, by: str = "python") -> Pool:
        """Change a pool's slots while everything runs.

        :raises InvalidValue: not a whole number from 0 to 100000.
        :raises NotFound: no such pool.
        """
        if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= 100_000:
            raise InvalidValue("slots", slots, "a whole number from 0 to 100000")

        def work(tx: Tx, now: datetime) -> Pool:
            old = pools.resize(tx, self._config.app, name, slots)
            if old is None:
                known = list(pools.every(tx, self._config.app))
                raise NotFound("pool", name, near(name, known) or f"There are: {', '.join(known) or 'none'}.")
            self._note(tx, now, by, "resize", f"pool:{name}", {"old": old, "new": slots})
            return Pool(self._config.app, name, slots)

        return self._database.run(work)
