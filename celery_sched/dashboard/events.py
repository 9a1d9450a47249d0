"""The pages of events and of their deliveries: what was published, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from tornado.web import HTTPError, authenticated

from celery_sched.client import Client
from celery_sched.dashboard.handlers import Page
from celery_sched.dashboard.look import NotNow, ready, refused
from celery_sched.model import Delivery, DeliveryStatus, Event
from celery_sched.steps.redeliver import DROPPED, RETRIED
from celery_sched.store import deliveries, events
from celery_sched.store.engine import SQLAlchemyError, Tx

EVENTS, DELIVERIES = "schedule_events", "schedule_deliveries"
"""Names of the addresses."""
ACTIONS = ("retry", "drop")
SHOWN = 100


@dataclass(frozen=True)
class Published:
    """The newest events."""

    now: datetime
    lines: Sequence[Event]
    waiting: int
    """How many are not handed out yet, of all."""


@dataclass(frozen=True)
class OnTheWay:
    """The newest deliveries, with their events."""

    now: datetime
    lines: Sequence[tuple[Delivery, Event | None]]
    """The event is None where it is gone."""
    counts: Mapping[str, int]
    """Of all: how many wait, are taken, are dead."""


def published(app: Any) -> Published:
    """What was published, the newest first.

    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)
    name = runtime.config.app

    def work(tx: Tx, now: datetime) -> Published:
        return Published(now, events.newest(tx, name, limit=SHOWN), events.standing(tx, name)[0])

    try:
        return runtime.database.read(work)
    except SQLAlchemyError as error:
        raise refused(error) from error


def on_the_way(app: Any, status: str | None, event_id: int | None) -> OnTheWay:
    """Deliveries, the newest first: all, those of one status, or those of one event.

    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)
    name = runtime.config.app

    def work(tx: Tx, now: datetime) -> OnTheWay:
        found = deliveries.newest(tx, name, status=status, event_id=event_id, limit=SHOWN)
        rows = events.find(tx, {one.event_id for one in found})
        of = {event: events.from_row(row, {}) for event, row in rows.items()}
        return OnTheWay(now, [(one, of.get(one.event_id)) for one in found], deliveries.counts(tx, name))

    try:
        return runtime.database.read(work)
    except SQLAlchemyError as error:
        raise refused(error) from error


def redo(app: Any, delivery: str, action: str, by: str) -> str:
    """Have a delivery go its way again, or give it up; return what was done, in words.

    :raises SchedulerError: there is no such one, it is not in a state for that, or no database.
    """
    client = Client(ready(app))
    try:
        if action == "retry":
            done = client.retry_deliveries([delivery], by=by)
        else:
            done = client.drop_deliveries([delivery], by=by)
    except SQLAlchemyError as error:
        raise refused(error) from error
    if done.refused:
        raise NotNow(f"delivery {delivery}: {done.refused[0][1]}")
    return "the delivery goes its way again" if action == "retry" else "the delivery is dropped"


class EventsPage(Page):
    """The list of events."""

    @authenticated
    async def get(self) -> None:
        """The newest events, and how many deliveries each has."""
        found, problem = await self.look_up(("events", self.capp), partial(published, self.capp))
        self.show("events", found=found, problem=problem)


class DeliveriesPage(Page):
    """The list of deliveries, and what may be done with them."""

    @authenticated
    async def get(self) -> None:
        """All, those of ``?status=``, or those of ``?event=``."""
        status = self.get_query_argument("status", "") or None
        if status is not None and status not in list(DeliveryStatus):
            allowed = ", ".join(DeliveryStatus)
            raise HTTPError(400, "%s", f"status {status!r} is refused: it is one of {allowed}.")
        given = self.get_query_argument("event", "")
        if given and not (given.isascii() and given.isdigit() and len(given) < 19):
            raise HTTPError(400, "%s", f"event {given!r} is refused: it is an event's number.")
        event_id = int(given) if given else None
        key = ("deliveries", self.capp, status, event_id)
        found, problem = await self.look_up(key, partial(on_the_way, self.capp, status, event_id))
        self.show(
            "deliveries",
            found=found,
            problem=problem,
            status_shown=status,
            event_id=event_id,
            here=self.reverse_url(DELIVERIES),
            RETRIED=RETRIED,
            DROPPED=DROPPED,
        )

    @authenticated
    async def post(self) -> None:
        """Carry out ``action``, retry or drop, for the one with ``?id=``."""
        given = self.get_query_argument("id")
        work = partial(redo, self.capp, given)
        await self.carry_out(f"delivery {given}", ACTIONS, work, str(self.reverse_url(DELIVERIES)))
