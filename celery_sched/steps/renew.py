"""Renew: a worker's main process proves that its runs are alive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from celery_sched.config import Config
from celery_sched.model import NodeId, RunId, RunKey
from celery_sched.rules import limits
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import beats as beat_store
from celery_sched.store import runs
from celery_sched.store.beats import Beat
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

KILL_TIME = timedelta(seconds=2)
"""What a kill may take, beside the time that a body has after SIGTERM."""
AHEAD = timedelta(seconds=1)
"""So long before its deadline a run that may have to be killed gets the time for that."""
NONE: Mapping[RunId, timedelta] = MappingProxyType({})


@dataclass(frozen=True)
class Renewed:
    """What became of the worker's runs.

    ``stopped``: kill, settle as cancelled (id -> who and why). ``overdue``: kill, settle as timed out (id ->
    what it exceeded). ``stale``: kill, settle nothing; another claim, attempt or outcome is current.
    """

    now: datetime
    leases: Mapping[RunId, datetime] = field(default_factory=dict)
    deadlines: Mapping[RunId, datetime] = field(default_factory=dict)
    heartbeat_timeouts: Mapping[RunId, timedelta] = field(default_factory=dict)
    """Of the running ones."""
    stopped: Mapping[RunId, str] = field(default_factory=dict)
    overdue: Mapping[RunId, str] = field(default_factory=dict)
    stale: frozenset[RunId] = frozenset()
    exclusive: frozenset[RunId] = frozenset()
    """Those whose lease is not shortened by their deadline."""


def renew(
    tx: Tx,
    now: datetime,
    config: Config,
    keys: Sequence[RunKey],
    node: NodeId,
    *,
    beats: Mapping[RunId, timedelta] = NONE,
    killable: Collection[RunId] = (),
    exclusive: Collection[RunId] = (),
) -> Renewed:
    """Extend the leases of a worker's received and running runs to min(now + ``sched_lease``, deadline).

    Heartbeats come first, counted from when they were sent: one that the database was away for still moves
    the deadline. A run that is overdue, or in a moment, and that its worker can kill keeps its lease for as
    long as that takes, once: else the job's next run would begin beside what this one does on SIGTERM. The
    lease of an exclusive run is never shortened, also not by its deadline: its worker would trust the longer
    one if this answer were lost.

    Guard: id, token, attempt, no stop request; running here and before its deadline (for a heartbeat: also
    past it), or dispatched and received here within ``sched_start_timeout`` of its publish (or eta).
    Locks: runs.
    If it dies here: the leases run out; the worker stops trusting them first.

    :param beats: how long ago these runs sent their last heartbeat.
    :param killable: runs whose body is in a process that the worker can kill.
    :param exclusive: runs that were exclusive when they started.
    """
    if not keys:
        return Renewed(now)
    here = (run.c.status == RunStatus.RUNNING.value) & (run.c.worker == node)
    mine = runs.held_by(keys) & run.c.stop_requested_at.is_(None)
    if beats:
        known = beat_store.with_limits(tx, list(beats))
        last = {
            run_id: _beat(config, row, now - beats[run_id])
            for run_id, row in known.items()
            if row.started_at is not None
        }
        if last:
            beat_store.record(tx, mine & here, last, uncapped=exclusive)
    earliest = now - config.start_timeout
    # the queue wait of Celery's own retry begins at its eta
    in_time = run.c.published_at.is_(None) | (run.c.published_at > earliest) | (run.c.eta > earliest)
    waiting = (run.c.status == RunStatus.DISPATCHED.value) & (run.c.received_by == node) & in_time
    match = mine & (here & (run.c.deadline_at > now) | waiting)
    runs.extend_leases(tx, match, now + config.lease, uncapped=exclusive)
    rows = beat_store.with_limits(tx, [key.id for key in keys])
    leases: dict[RunId, datetime] = {}
    deadlines: dict[RunId, datetime] = {}
    timeouts: dict[RunId, timedelta] = {}
    stopped: dict[RunId, str] = {}
    overdue: dict[RunId, str] = {}
    stale: set[RunId] = set()
    dying: list[RunKey] = []
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
            dying.append(key)
            bounds = limits.of(config, row)
            overdue[key.id] = bounds.why_over(row.started_at, row.deadline_at, row.beat_at)
        else:
            if row.deadline_at <= now + AHEAD:
                dying.append(key)
            leases[key.id] = row.lease_expires_at
            deadlines[key.id] = row.deadline_at
            timeouts[key.id] = limits.of(config, row).heartbeat_timeout
    dying = [key for key in dying if key.id in killable]
    if dying:
        match = runs.held_by(dying) & here & run.c.stop_requested_at.is_(None)
        until = now + AHEAD + config.kill_grace + KILL_TIME
        beat_store.keep_while_killed(tx, match & (run.c.deadline_at <= now + AHEAD), until)
    return Renewed(
        *(now, leases, deadlines, timeouts, stopped, overdue, frozenset(stale), frozenset(exclusive))
    )


def _beat(config: Config, row: Any, at: datetime) -> Beat:
    started_at: datetime = row.started_at
    # its clock is the worker's: never before the body began
    beat_at = max(at, started_at)
    return Beat(beat_at, limits.of(config, row).deadline(started_at, beat_at))
