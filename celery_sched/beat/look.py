"""One cheap read that says what a poll has to do, so that an idle poll writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from celery_sched.config import Config
from celery_sched.model import BackfillId, JobId, NodeId, RunId
from celery_sched.store import apps, backfills, jobs, nodes, pools, queue, runs
from celery_sched.store.engine import Row, Tx

SPARE = 50
"""Candidates read beyond the free slots of a pool."""


@dataclass(frozen=True)
class Look:
    """What is to be done now, and when there will be something."""

    now: datetime
    app: Row | None
    registered: bool
    stop_requested: bool
    expired: bool
    outdated: bool
    next_due: datetime | None
    backfills: tuple[BackfillId, ...] = ()
    """Those that may make more runs, or are over."""


@dataclass(frozen=True)
class Queue:
    """What waits for slots, and who has them."""

    now: datetime
    slots: Mapping[str, int]
    held: tuple[tuple[str, RunId, datetime], ...]
    candidates: Mapping[str, tuple[tuple[RunId, JobId], ...]]
    waiting: Mapping[str, int]
    fresh: Mapping[str, int]
    """How many of the waiting never found their pool full before."""
    next_ready: datetime | None

    @property
    def in_flight(self) -> Mapping[str, int]:
        counts = dict.fromkeys(self.slots, 0)
        for pool, _, _ in self.held:
            counts[pool] = counts.get(pool, 0) + 1
        return counts


def look(tx: Tx, now: datetime, config: Config, node: NodeId) -> Look:
    """Read what a poll needs to know first."""
    stop = nodes.stop_requested(tx, node)
    return Look(
        now=now,
        app=apps.get(tx, config.app),
        registered=stop is not None,
        stop_requested=bool(stop),
        expired=runs.exists(tx, runs.expired(config.app, now)),
        outdated=runs.exists(tx, runs.outdated(config.app, now)),
        next_due=jobs.next_due(tx, config.app),
        backfills=tuple(backfills.to_do(tx, config.app)),
    )


def look_closer(tx: Tx, now: datetime, config: Config, limit: int) -> Queue:
    """Read what waits, and the best candidates of each pool that has free slots."""
    slots = {name: pool.slots for name, pool in pools.every(tx, config.app).items()}
    held = tuple(queue.held_in_pools(tx, config.app))
    counts = queue.ready_by_pool(tx, config.app, now)
    candidates: dict[str, tuple[tuple[RunId, JobId], ...]] = {}
    for pool in counts:
        free = slots.get(pool, 0) - sum(1 for name, _, _ in held if name == pool)
        if free > 0:
            # more than there are slots for: what a silent session has locked must not hide the others
            wanted = min(free, limit) + SPARE
            candidates[pool] = tuple(queue.ready_in(tx, config.app, now, pool, wanted))
    return Queue(
        now=now,
        slots=slots,
        held=held,
        candidates=candidates,
        waiting={pool: count for pool, (count, _) in counts.items()},
        fresh={pool: fresh for pool, (_, fresh) in counts.items()},
        next_ready=queue.next_ready_at(tx, config.app, now),
    )
