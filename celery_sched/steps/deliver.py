"""Deliver: what was published is handed out to the jobs that subscribe to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.failpoints import failpoint
from celery_sched.model import DeliveryStatus, EventId
from celery_sched.rules.identity import delivery_id
from celery_sched.rules.subscriptions import Subscription, read
from celery_sched.store import deliveries, events, subscriptions
from celery_sched.store.engine import Tx

BATCH = 200
"""Events handed out in one transaction."""
MOST = 5000
"""Deliveries made in one transaction, of one event apart that has more."""
REPLAY_BATCH = 500
"""Older events looked at in one transaction for a job that wants them."""


@dataclass(frozen=True)
class Delivered:
    """``events`` handed out as so many ``deliveries``; ``errors``: jobs whose ``on`` is wrong, and why."""

    events: int = 0
    deliveries: int = 0
    errors: tuple[tuple[str, str], ...] = ()
    more: bool = False


def deliver(tx: Tx, now: datetime, config: Config) -> Delivered:
    """Make a delivery of each waiting event for each job that wants it, and mark the events as handed out.

    There is no cursor: ids are given out of order with the commits, and one would pass over what commits
    late. A delivery's id is made of the subscription's and the event's.

    Guard: ``fanned_out_at`` is NULL, read under the row lock; unique (subscription, event).
    Locks: the events (skip locked).
    If it dies here: nothing was written; any scheduler does it.
    """
    rows = events.lock_waiting(tx, config.app, BATCH)
    if not rows:
        return Delivered()
    wanted, errors = _read(subscriptions.every(tx, config.app))
    new: list[dict[str, Any]] = []
    done: list[EventId] = []
    for row in rows:
        found = _deliveries(row, wanted, config, now)
        if done and len(new) + len(found) > MOST:
            break
        new += found
        done.append(EventId(row.id))
    deliveries.add(tx, new)
    failpoint("deliver:inserted")
    if events.mark_fanned_out(tx, now, done) != len(done):
        raise RuntimeError("an event was handed out while its row was locked")
    return Delivered(len(done), len(new), errors, more=len(rows) == BATCH or len(done) < len(rows))


def replay(tx: Tx, now: datetime, config: Config) -> Delivered:
    """Make deliveries of older events for jobs that want them (``start: beginning``), a part at a time.

    Here a cursor passes over nothing: an event that is not to be seen yet is handed out once it is, and then
    the subscription is known.

    Guard: unique (subscription, event).
    Locks: the subscription (skip locked).
    If it dies here: nothing was written; any scheduler goes on from the same place.
    """
    made = 0
    more = False
    wanted, errors = _read(subscriptions.every(tx, config.app))
    for known, subscription in wanted:
        if known.replay_after is None:
            continue
        row = subscriptions.lock(tx, known.id)
        if row is None or row.replay_after is None:
            continue
        found = events.after(tx, config.app, row.replay_after, REPLAY_BATCH)
        new = [one for event in found for one in _deliveries(event, [(known, subscription)], config, now)]
        deliveries.add(tx, new)
        failpoint("replay:inserted")
        is_last = len(found) < REPLAY_BATCH
        subscriptions.replayed(tx, row.id, None if is_last else found[-1].id)
        made += len(new)
        more = more or not is_last
        break  # one subscription a transaction
    return Delivered(0, made, errors, more or subscriptions.to_do(tx, config.app).replaying)


def _read(rows: Sequence[Any]) -> tuple[list[tuple[Any, Subscription]], tuple[tuple[str, str], ...]]:
    """Subscriptions by row; one that plain SQL broke never stops the others."""
    wanted: list[tuple[Any, Subscription]] = []
    errors: list[tuple[str, str]] = []
    for row in rows:
        try:
            wanted.append((row, read(row.on)))
        except InvalidValue as error:
            errors.append((row.name, str(error)))
    return wanted, tuple(errors)


def _deliveries(
    event: Any, wanted: Sequence[tuple[Any, Subscription]], config: Config, now: datetime
) -> list[dict[str, Any]]:
    """The deliveries of an event; of one that goes round in a circle of jobs they are dead at once."""
    cycle = event.hops > config.max_hops
    reason = f"cycle: {event.hops} jobs in a row were run for an event, sched_max_hops is {config.max_hops}"
    return [
        {
            "id": delivery_id(row.id, event.id),
            "app": row.app,
            "subscription_id": row.id,
            "job_id": row.job_id,
            "event_id": event.id,
            "topic": event.topic,
            "status": (DeliveryStatus.DEAD if cycle else DeliveryStatus.PENDING).value,
            "reason": reason if cycle else None,
            "created_at": now,
            "finished_at": now if cycle else None,
        }
        for row, subscription in wanted
        if subscription.wants(event.topic, event.payload)
    ]
