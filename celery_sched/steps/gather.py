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
from celery_sched.store import deliveries, events, job_forms, jobs, runs, subscriptions
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
        job_forms.check_row(row)
        subscription = read(row.on)
    except InvalidValue as error:  # only plain SQL writes that
        return Gathered(row.name, error=str(error))
    room = rooms[0]
    waiting, cut = _waiting(tx, known.id, subscription, room.left)
    chosen = choose(subscription, waiting, now, room.left, cut=cut)
    made, carried, void = _make(tx, now, row, subscription, chosen.bundles, room.unfinished)
    failpoint("gather:inserted")
    dropped = void + _drop(tx, now, chosen)
    return Gathered(row.name, made, carried, dropped, more=bool(void) or (cut and bool(dropped)))


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
) -> tuple[int, int, int]:
    """Insert the runs, and have them take their deliveries; how many, of how many, and how many are void."""
    known = events.find(tx, {one.event_id for bundle in bundles for one in bundle.carried})
    is_batch = subscription.deliver is Deliver.BATCH
    single = not is_batch and subscription.mode is not Mode.ALL
    void: list[str] = []
    made = carried = 0
    last = EPOCH
    for bundle in bundles:
        whole = [one for one in bundle.carried if EventId(one.event_id) in known]
        void += [one.id for one in bundle.carried if EventId(one.event_id) not in known]
        if not whole or (subscription.mode is Mode.ALL and len(whole) < len(bundle.carried)):
            continue
        for part in _parts(whole, known) if is_batch else [whole]:
            run_id = carrier_id(one.id for one in part)
            found = [known[EventId(one.event_id)] for one in part]
            told = [events.told(one, now) for one in found]
            kwargs = {**row.kwargs, **({"event": told[0]} if single else {"events": told})}
            # of runs that wait equally long the earlier instant goes first: so they keep their order
            last = max(last + INSTANT, min(one.published_at or now for one in found))
            new = {
                **runs.from_job(row, now, kwargs=kwargs),
                "id": run_id,
                "trigger_kind": Trigger.EVENT.value,
                "scheduled_for": last,
                "status": RunStatus.QUEUED.value,
                "start_by": now + min(PATIENCE, (unfinished + made) * BEHIND),
                "hops": max(one.hops for one in found),
                "kwargs": kwargs,
            }
            runs.add(tx, [new])
            if deliveries.take(tx, run_id, [one.id for one in part]) != len(part):
                raise RuntimeError("a delivery was taken while its job was locked")
            made, carried = made + 1, carried + len(part)
        older = [one.id for one in bundle.superseded]
        deliveries.drop(tx, now, older, f"a later event came first: run {run_id}")
    deliveries.drop(tx, now, void, "its event was deleted")
    return made, carried, len(void)


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
