"""Gather: deliveries that wait become queued runs, a few of each job at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.failpoints import failpoint
from celery_sched.model import EventId, JobId, JobStatus, Trigger
from celery_sched.rules.gathering import Bundle, Gathering, Pending
from celery_sched.rules.gathering import gather as choose
from celery_sched.rules.identity import carrier_id
from celery_sched.rules.schedules.zones import EPOCH
from celery_sched.rules.subscriptions import Deliver, Mode, Subscription, read
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.turn import PATIENCE
from celery_sched.store import deliveries, events, jobs, runs, subscriptions
from celery_sched.store.engine import Tx

LOOKED = 2000
"""Most deliveries of a job looked at in one transaction."""
LARGEST = 256 * 1024
"""Bytes of the events that one run carries, if it carries several."""
INSTANT = timedelta(microseconds=1)
BEHIND = timedelta(seconds=10)
"""How much later a run for an event should start for each of its job's that is not finished: a job with a
backlog lets those go first that have none."""


@dataclass(frozen=True)
class Gathered:
    """``runs`` were made for ``carried`` deliveries; some ``dropped``; ``error``: why none can be made."""

    job: str = ""
    runs: int = 0
    carried: int = 0
    dropped: int = 0
    error: str | None = None
    more: bool = False


def gather(tx: Tx, now: datetime, job_id: JobId) -> Gathered:
    """Make the runs that carry what waits for a job, the oldest first and only a few ahead.

    What waits behind them stays a short row: a slow job's backlog is no queue that others stand in.

    Guard: job active; deliveries ``pending``, under the job's row lock.
    Locks: the job (skip locked), then the new runs.
    If it dies here: nothing was written; any scheduler does it.
    """
    row = jobs.lock(tx, [job_id], skip_locked=True).get(job_id)
    if row is None or row.status != JobStatus.ACTIVE or row.on is None:
        return Gathered()
    known, rooms = subscriptions.of_job(tx, job_id), subscriptions.rooms(tx, row.app, job_id)
    if known is None or not rooms:
        return Gathered()
    try:
        subscription = read(row.on)
    except InvalidValue as error:  # only plain SQL writes that
        return Gathered(row.name, error=str(error))
    room = rooms[0]
    waiting, cut = _waiting(tx, known.id, subscription, room.left)
    chosen = choose(subscription, waiting, now, room.left, cut=cut)
    made, carried = _make(tx, now, row, subscription, chosen.bundles, room.unfinished)
    failpoint("gather:inserted")
    dropped = _drop(tx, now, chosen)
    return Gathered(row.name, made, carried, dropped, more=cut and bool(dropped))


def _waiting(
    tx: Tx, subscription_id: str, subscription: Subscription, room: int
) -> tuple[list[Pending], bool]:
    """What waits, as much of it as is needed; and whether there is more."""
    if subscription.mode is Mode.ALL:
        lanes: list[list[str]] = [[] for _ in subscription.topics]
        others: list[str] = []
        for name in deliveries.topics(tx, subscription_id):
            place = subscription.place(name)
            (others if place is None else lanes[place]).append(name)
        if not all(lanes):
            return deliveries.together(tx, subscription_id, [others], 1, LOOKED, latest=False), False
        latest = subscription.deliver is Deliver.LATEST
        return deliveries.together(tx, subscription_id, lanes, room, LOOKED, latest=latest), False
    limit = LOOKED if subscription.deliver is not Deliver.EACH else max(room, 1)
    found = deliveries.pending(tx, subscription_id, limit + 1)
    return found[:limit], len(found) > limit


def _make(
    tx: Tx,
    now: datetime,
    row: Any,
    subscription: Subscription,
    bundles: Sequence[Bundle],
    unfinished: int,
) -> tuple[int, int]:
    """Insert the runs, and have them take their deliveries; how many, of how many."""
    wanted = {one.event_id for bundle in bundles for one in bundle.carried}
    known = events.find(tx, wanted)
    is_batch = subscription.deliver is Deliver.BATCH
    single = not is_batch and subscription.mode is not Mode.ALL
    made = carried = 0
    last = EPOCH
    for bundle in bundles:
        for part in _parts(bundle.carried, known) if is_batch else [bundle.carried]:
            ids = [one.id for one in part]
            run_id = carrier_id(ids)
            found = [known[EventId(one.event_id)] for one in part]
            told = [events.told(one) for one in found]
            start_by = now + min(PATIENCE, (unfinished + made) * BEHIND)
            # of runs that wait equally long the earlier instant goes first: so they keep their order
            last = max(last + INSTANT, min(one.published_at for one in found))
            runs.add(
                tx,
                [
                    {
                        **runs.from_job(row, now),
                        "id": run_id,
                        "trigger_kind": Trigger.EVENT.value,
                        "scheduled_for": last,
                        "status": RunStatus.QUEUED.value,
                        "start_by": start_by,
                        "hops": max(one.hops for one in found),
                        "kwargs": {**row.kwargs, **({"event": told[0]} if single else {"events": told})},
                    }
                ],
            )
            if deliveries.take(tx, run_id, ids) != len(ids):
                raise RuntimeError("a delivery was taken while its job was locked")
            made, carried = made + 1, carried + len(ids)
            older = [one.id for one in bundle.superseded]
            deliveries.drop(tx, now, older, f"a later event came first: run {run_id}")
    return made, carried


def _parts(carried: Sequence[Pending], known: Mapping[EventId, Any]) -> list[list[Pending]]:
    """A batch, in parts that a message can hold."""
    parts: list[list[Pending]] = []
    room = 0
    for one in carried:
        size = len(json.dumps(known[EventId(one.event_id)].payload))
        if not parts or size > room:
            parts.append([])
            room = LARGEST
        parts[-1].append(one)
        room -= size
    return parts


def _drop(tx: Tx, now: datetime, chosen: Gathering) -> int:
    unwanted = [one.id for one in chosen.unwanted]
    superseded = [one.id for one in chosen.superseded]
    return (
        deliveries.drop(tx, now, unwanted, "its job does not subscribe to this topic any more")
        + deliveries.drop(tx, now, superseded, "a later event waits")
        + sum(len(bundle.superseded) for bundle in chosen.bundles)
    )
