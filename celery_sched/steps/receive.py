"""Receive: a worker has the message of a run, not started yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.config import Config
from celery_sched.model import NodeId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Received:
    """``taken`` are kept alive by this worker now; ``refused`` are not (duplicate, stale, stopped)."""

    taken: tuple[RunKey, ...] = ()
    refused: tuple[RunKey, ...] = ()


def receive(tx: Tx, now: datetime, config: Config, keys: Sequence[RunKey], node: NodeId) -> Received:
    """Note which worker has the messages; the lease becomes ``sched_lease``.

    A receipt proves the publish: where its mark has not come yet (a quick worker) it will not match any
    more, so the receipt counts the publish and begins the queue wait that renewals end with.

    Guard: id, token, attempt, dispatched, no stop request, not received by another worker (a duplicate
    keeps nothing alive).
    Locks: runs.
    If it dies here: the lease expires and the run is published again.
    """
    if not keys:
        return Received()
    nobody_else = run.c.received_by.is_(None) | (run.c.received_by == node)
    match = runs.held_by(keys) & run.c.stop_requested_at.is_(None) & nobody_else
    # a statement of its own: MariaDB computes later columns of one UPDATE from what earlier ones became
    runs.transition(
        tx,
        RunStatus.DISPATCHED,
        sources={RunStatus.DISPATCHED},
        match=match & run.c.published_at.is_(None),
        values={"published_at": now, "publish_count": run.c.publish_count + 1},
    )
    runs.transition(
        tx,
        RunStatus.DISPATCHED,
        sources={RunStatus.DISPATCHED},
        match=match,
        values={"received_by": node, "received_at": now, "lease_expires_at": now + config.lease},
    )
    mine = (run.c.received_by == node) & (run.c.status == RunStatus.DISPATCHED.value)
    taken = set(runs.ids(tx, runs.held_by(keys) & mine))
    return Received(
        tuple(key for key in keys if key.id in taken), tuple(key for key in keys if key.id not in taken)
    )
