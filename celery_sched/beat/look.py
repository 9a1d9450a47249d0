"""One cheap read that says what a poll has to do, so that an idle poll writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from celery_sched.config import Config
from celery_sched.model import BackfillId, NodeId
from celery_sched.rules.fitting import Candidate, Held
from celery_sched.store import apps, backfills, jobs, nodes, pools, queue, runs, subscriptions
from celery_sched.store.engine import Row, Tx
from celery_sched.store.queue import Waits

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
    events: bool = False
    """Events are to be handed out."""
    replaying: bool = False
    """A job wants older events too."""
    gathering: bool = False
    """Deliveries wait, and there is room for runs that carry them."""


@dataclass(frozen=True)
class Queue:
    """What waits for slots, and who has them."""

    now: datetime
    slots: Mapping[str, int]
    held: tuple[Held, ...]
    candidates: Mapping[str, tuple[Candidate, ...]]
    """Best first; what does not fit is left out."""
    waiting: Mapping[str, Waits]
    next_ready: datetime | None

    @property
    def taken(self) -> dict[str, int]:
        """Pool -> slots that are taken."""
        return taken(self.slots, self.held)


def taken(pools: Iterable[str], held: Iterable[Held]) -> dict[str, int]:
    """Pool -> slots that are taken, of these pools and of those where runs hold any."""
    slots = dict.fromkeys(pools, 0)
    for one in held:
        slots[one.pool] = slots.get(one.pool, 0) + one.weight
    return slots


def look(tx: Tx, now: datetime, config: Config, node: NodeId) -> Look:
    """Read what a poll needs to know first."""
    stop = nodes.stop_requested(tx, node)
    events = subscriptions.to_do(tx, config.app)
    return Look(
        now=now,
        app=apps.get(tx, config.app),
        registered=stop is not None,
        stop_requested=bool(stop),
        expired=runs.exists(tx, runs.expired(config.app, now)),
        outdated=runs.exists(tx, runs.outdated(config.app, now)),
        next_due=jobs.next_due(tx, config.app),
        backfills=tuple(backfills.to_do(tx, config.app)),
        events=events.waiting,
        replaying=events.replaying,
        gathering=events.pending and any(room.left for room in subscriptions.rooms(tx, config.app)),
    )


def look_closer(tx: Tx, now: datetime, config: Config, limit: int) -> Queue:
    """Read what waits, and the best candidates of each pool that has free slots."""
    slots = {name: pool.slots for name, pool in pools.every(tx, config.app).items()}
    held = tuple(queue.held_in_pools(tx, config.app))
    in_use = taken(slots, held)
    waiting = queue.ready_by_pool(tx, config.app, now)
    candidates: dict[str, tuple[Candidate, ...]] = {}
    for pool, waits in waiting.items():
        free = slots.get(pool, 0) - in_use.get(pool, 0)
        if free > 0:
            # more than there are slots for: what a silent session has locked must not hide the others
            wanted = min(free, limit) + SPARE
            short = waits.heaviest > free
            candidates[pool] = tuple(
                queue.ready_in(
                    tx, config.app, now, pool, wanted, free=free if short else None, slots=slots[pool]
                )
            )
    return Queue(
        now=now,
        slots=slots,
        held=held,
        candidates=candidates,
        waiting=waiting,
        next_ready=queue.next_ready_at(tx, config.app, now),
    )
