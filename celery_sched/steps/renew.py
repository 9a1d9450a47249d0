"""Renew: a worker's main process proves that its runs are alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from celery_sched.config import Config
from celery_sched.model import NodeId, RunId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run


@dataclass(frozen=True)
class Renewed:
    """What became of the worker's runs.

    ``stopped``: kill, settle as cancelled (id -> who and why). ``overdue``: kill, settle as timed out.
    ``stale``: kill, settle nothing; another claim, attempt or outcome is current.
    """

    now: datetime
    leases: Mapping[RunId, datetime] = field(default_factory=dict)
    deadlines: Mapping[RunId, datetime] = field(default_factory=dict)
    stopped: Mapping[RunId, str] = field(default_factory=dict)
    overdue: frozenset[RunId] = frozenset()
    stale: frozenset[RunId] = frozenset()


def renew(tx: Tx, now: datetime, config: Config, keys: Sequence[RunKey], node: NodeId) -> Renewed:
    """Extend the leases of a worker's received and running runs to min(now + ``sched_lease``, deadline).

    Guard: id, token, attempt, no stop request; running here and before its deadline, or dispatched and
    received here within ``sched_start_timeout`` of its publish (or eta).
    Locks: runs.
    If it dies here: the leases run out; the worker stops trusting them first.
    """
    if not keys:
        return Renewed(now)
    running = (run.c.status == RunStatus.RUNNING.value) & (run.c.worker == node) & (run.c.deadline_at > now)
    earliest = now - config.start_timeout
    # the queue wait of Celery's own retry begins at its eta
    in_time = run.c.published_at.is_(None) | (run.c.published_at > earliest) | (run.c.eta > earliest)
    waiting = (run.c.status == RunStatus.DISPATCHED.value) & (run.c.received_by == node) & in_time
    alive = runs.held_by(keys) & run.c.stop_requested_at.is_(None) & (running | waiting)
    runs.extend_leases(tx, alive, now + config.lease)
    rows = runs.find(tx, [key.id for key in keys])
    leases: dict[RunId, datetime] = {}
    deadlines: dict[RunId, datetime] = {}
    stopped: dict[RunId, str] = {}
    overdue: set[RunId] = set()
    stale: set[RunId] = set()
    for key in keys:
        row = rows.get(key.id)
        if row is None or row.token != key.token or row.attempt < key.attempt:
            stale.add(key.id)
        elif row.attempt > key.attempt or row.status == RunStatus.DISPATCHED:
            # Celery's own retry: this attempt has just ended; or a message that waits for its start
            if row.received_by == node and row.attempt == key.attempt:
                leases[key.id] = row.lease_expires_at
        elif row.worker != node:
            stale.add(key.id)
        elif row.stop_requested_at is not None:
            stopped[key.id] = f"{row.stop_requested_by}: {row.stop_reason or 'no reason given'}"
        elif row.deadline_at <= now:
            overdue.add(key.id)
        else:
            leases[key.id] = row.lease_expires_at
            deadlines[key.id] = row.deadline_at
    return Renewed(now, leases, deadlines, stopped, frozenset(overdue), frozenset(stale))
