"""The client: events are published and looked at, deliveries are looked at, retried, dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from celery_sched import context
from celery_sched import runtime as runtimes
from celery_sched.client.base import NAMED, SHORTEST, Base, checked_status
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Delivery, DeliveryStatus, Event, EventId, JobId, RunId
from celery_sched.rules import readers
from celery_sched.rules.topics import pattern
from celery_sched.rules.topics import topic as checked_topic
from celery_sched.steps.redeliver import Redelivered, drop, redeliver
from celery_sched.store import deliveries, events
from celery_sched.store.engine import Tx

LARGEST = 64 * 1024
"""Bytes of an event's payload."""
LONGEST_KEY = 200
MOST = 10_000
"""Deliveries of one job that are retried or dropped in one call."""


class Events(Base):
    """What people and programs do with events."""

    def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        key: str | None = None,
        dedupe_key: str | None = None,
        session: Any = None,
    ) -> EventId | None:
        """Publish an event; the jobs that subscribe to its topic run for it (``on``).

        Within a run the event knows the run, and how many came before: a circle of jobs ends.

        :param payload: JSON of at most 64 KiB.
        :param key: what the event is about; ``latest`` and ``all`` look at the events of one key.
        :param dedupe_key: an event of this topic with the same one, which is still kept, is not published
            twice.
        :param session: a Session or Connection of SQLAlchemy on the scheduler's database: the event is
            published when its transaction commits, and never if that is rolled back.
        :return: the event's id; None: its ``dedupe_key`` was there already.
        :raises InvalidValue: a value that is not allowed; nothing was written.
        :raises SchedulerError: within a run whose lease is gone.
        """
        within = context.current.get()
        about = {"key": key, "dedupe_key": dedupe_key, "session": session}
        if within is None:
            return self._publish(topic, payload, **about)
        within.check_held()
        return self.publish_of_run(topic, payload, **about, hops=within.hops + 1, run_id=within.run_id)

    def publish_of_run(
        self, topic: str, payload: Any, *, hops: int, run_id: str, **about: Any
    ) -> EventId | None:
        """The same of what a run publishes: ``hops``, one more than its own."""
        return self._publish(topic, payload, **about, hops=hops, run_id=RunId(run_id))

    def _publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None,
        dedupe_key: str | None,
        session: Any,
        **of_run: Any,
    ) -> EventId | None:
        about: dict[str, Any] = {"topic": checked_topic(topic), "payload": checked_payload(payload), **of_run}
        about |= {"key": _key(key, "key"), "dedupe_key": _key(dedupe_key, "dedupe_key")}
        app = self._config.app
        if session is None:
            return self._database.run(lambda tx, now: events.add(tx, now, app, **about))
        connection = events.connection_of(session)
        return events.add(connection, self._database.now_in(connection), app, **about)

    def events(self, topic: str | None = None, *, waiting: bool = False, limit: int = 100) -> list[Event]:
        """Events, newest first: of one topic or pattern, or those that are not handed out yet.

        :raises InvalidValue: a topic that cannot be one, or a limit below 1.
        """
        wanted = None if topic is None else pattern(topic, "topic")
        _check_limit(limit)
        return self._database.read(
            lambda tx, now: events.newest(tx, self._config.app, topic=wanted, waiting=waiting, limit=limit)
        )

    def deliveries(
        self, job: str | None = None, status: DeliveryStatus | str | None = None, limit: int = 100
    ) -> list[Delivery]:
        """Deliveries, newest first.

        :raises NotFound: no such job.
        :raises InvalidValue: no such status, or a limit below 1.
        """
        wanted = checked_status(status, DeliveryStatus)
        _check_limit(limit)

        def work(tx: Tx, now: datetime) -> list[Delivery]:
            job_id = None if job is None else JobId(self._row(tx, job).id)
            return deliveries.newest(tx, self._config.app, job_id=job_id, status=wanted, limit=limit)

        return self._database.read(work)

    def find_delivery(self, text: str) -> Delivery:
        """The delivery of that id, or the only one whose id begins so.

        :raises NotFound: no such delivery.
        :raises InvalidValue: less than 4 characters, or several, which are named.
        """
        wanted = text.strip().lower()
        if len(wanted) < SHORTEST:
            allowed = f"a delivery's id, or its beginning: at least {SHORTEST} characters"
            raise InvalidValue("DELIVERY", text, allowed, "See: sched deliveries.")
        found = self._database.read(
            lambda tx, now: deliveries.beginning(tx, self._config.app, wanted, limit=NAMED + 1)
        )
        if not found:
            raise NotFound("delivery", text, "See: sched deliveries.")
        if len(found) > 1:
            named = ", ".join(f"{one.id} ({one.job}, {one.status.value})" for one in found[:NAMED])
            more = ", and more" if len(found) > NAMED else ""
            raise InvalidValue("DELIVERY", text, f"several deliveries begin so: {named}{more}")
        return found[0]

    def retry_deliveries(
        self, ids: Iterable[str] = (), *, job: str | None = None, by: str = "python"
    ) -> Redelivered:
        """Have dead or dropped deliveries go their way again: these, or all dead ones of a job.

        One whose run is still there goes with that, as its next attempt, and so does all that it carries.

        :raises NotFound: no such delivery or job; nothing was written.
        """

        def work(tx: Tx, now: datetime) -> Redelivered:
            wanted = self._wanted(tx, ids, job, (DeliveryStatus.DEAD,))
            done = redeliver(tx, now, wanted)
            for one in done.done:
                self._note(tx, now, by, "retry_delivery", f"delivery:{one}", {})
            return done

        return self._database.run(work)

    def drop_deliveries(
        self,
        ids: Iterable[str] = (),
        *,
        job: str | None = None,
        reason: str | None = None,
        by: str = "python",
    ) -> Redelivered:
        """Give up deliveries that wait or are dead: these, or all of a job.

        What a run carries goes with the run: cancel that.

        :raises NotFound: no such delivery or job; nothing was written.
        """
        text = f"dropped by {by}: {reason or 'no reason given'}"

        def work(tx: Tx, now: datetime) -> Redelivered:
            wanted = self._wanted(tx, ids, job, (DeliveryStatus.PENDING, DeliveryStatus.DEAD))
            done = drop(tx, now, wanted, text)
            for one in done.done:
                self._note(tx, now, by, "drop_delivery", f"delivery:{one}", {"reason": reason})
            return done

        return self._database.run(work)

    def _wanted(
        self, tx: Tx, ids: Iterable[str], job: str | None, statuses: Sequence[DeliveryStatus]
    ) -> list[Delivery]:
        """The deliveries of these ids, all of them there; or those of a job that have one of the statuses."""
        app = self._config.app
        if job is not None:
            job_id = JobId(self._row(tx, job).id)
            return [
                one
                for status in statuses
                for one in deliveries.newest(tx, app, job_id=job_id, status=status.value, limit=MOST)
            ]
        wanted = list(dict.fromkeys(ids))
        known = {one.id: one for one in deliveries.of_ids(tx, app, wanted)}
        for one in wanted:
            if one not in known:
                raise NotFound("delivery", one, "See: sched deliveries.")
        return [known[one] for one in wanted]


def publish(
    topic: str,
    payload: Any = None,
    *,
    key: str | None = None,
    dedupe_key: str | None = None,
    session: Any = None,
    app: Any = None,
) -> EventId | None:
    """Publish an event; :meth:`Events.publish` says what comes of it.

    :param app: the Celery app whose jobs it is for; default the current one.
    """
    if app is None:
        from celery._state import get_current_app

        app = get_current_app()
    published = Events(runtimes.of(app))
    return published.publish(topic, payload, key=key, dedupe_key=dedupe_key, session=session)


def checked_payload(value: Any) -> Any:
    """A payload that JSON gives back unchanged, and that is not too large.

    :raises InvalidValue: naming the part that is wrong.
    """
    payload = readers.plain(value, "payload")
    size = len(json.dumps(payload))
    if size > LARGEST:
        hint = "Store the data and publish where it is."
        raise InvalidValue("payload", f"of {size} bytes", f"at most {LARGEST} bytes of JSON", hint)
    return payload


def _key(value: Any, what: str) -> str | None:
    return None if value is None else readers.a_name(value, what, LONGEST_KEY)


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidValue("limit", limit, "a whole number from 1 on")
