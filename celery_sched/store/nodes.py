"""Statements on nodes: scheduler and worker processes, each with a UUID of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from celery_sched.model import Node, NodeId, NodeKind
from celery_sched.store.engine import Tx
from celery_sched.store.tables import node


def register(tx: Tx, now: datetime, new: Node) -> None:
    """Add a process. ``started_at`` and ``last_seen`` are ``now``, the database's."""
    statement = insert(node).values(
        id=new.id,
        app=new.app,
        kind=new.kind.value,
        host=new.host,
        pid=new.pid,
        name=new.name,
        version=new.version,
        facts=dict(new.facts),
        started_at=now,
        last_seen=now,
    )
    try:
        with tx.begin_nested():
            tx.execute(statement)
    except IntegrityError:
        return  # the other poll of the same process did it in the same moment


def seen(tx: Tx, now: datetime, node_id: NodeId, facts: Mapping[str, Any] | None = None) -> bool | None:
    """Note that a process is alive; return whether it was asked to stop, ``None`` if its row is gone."""
    values: dict[str, Any] = {"last_seen": now}
    if facts is not None:
        values["facts"] = dict(facts)
    if tx.execute(update(node).where(node.c.id == node_id).values(**values)).rowcount == 0:
        return None
    return stop_requested(tx, node_id)


def stop_requested(tx: Tx, node_id: NodeId) -> bool | None:
    """Whether a process was asked to stop; ``None`` if its row is gone."""
    row = tx.execute(select(node.c.stop_requested_at).where(node.c.id == node_id)).first()
    return None if row is None else row[0] is not None


def leave(tx: Tx, node_id: NodeId) -> None:
    """Remove a process that ends."""
    tx.execute(delete(node).where(node.c.id == node_id))


def every(tx: Tx, app: str) -> Sequence[Node]:
    """All known processes of an app, the longest running first."""
    rows = tx.execute(select(node).where(node.c.app == app).order_by(node.c.started_at, node.c.id))
    return [
        Node(
            id=NodeId(row.id),
            app=row.app,
            kind=NodeKind(row.kind),
            host=row.host,
            pid=row.pid,
            name=row.name,
            version=row.version,
            started_at=row.started_at,
            last_seen=row.last_seen,
            facts=row.facts,
            stop_requested_at=row.stop_requested_at,
        )
        for row in rows
    ]


def request_stop(tx: Tx, now: datetime, node_id: NodeId) -> bool:
    """Ask a process to stop; false when there is no such node."""
    return tx.execute(update(node).where(node.c.id == node_id).values(stop_requested_at=now)).rowcount == 1


def forget(tx: Tx, app: str, before: datetime) -> int:
    """Remove the rows of processes not seen since ``before``."""
    return tx.execute(delete(node).where(node.c.app == app, node.c.last_seen < before)).rowcount
