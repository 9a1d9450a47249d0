"""Publish: claimed runs become ordinary Celery messages. Network only; no transaction is open meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery.result import denied_join_result
from kombu.exceptions import SerializationError

from celery_sched.failpoints import failpoint
from celery_sched.model import Dispatch

logger = logging.getLogger("celery_sched.publish")
CONNECT_TIMEOUT = 2.0
"""Seconds to connect to the broker."""
CALL_TIMEOUT = 2.0
"""Seconds for one broker call: a broker that fell silent delays a pass by no more than a few of these."""
BATCH = 100
"""Messages in one round trip, where the transport can."""

BAD = (SerializationError, TypeError, ValueError, KeyError)
"""A message that cannot be made: arguments that are no JSON, an option or a queue that does not exist."""

HEADER_RUN = "sched_run"
HEADER_TOKEN = "sched_token"
HEADER_ATTEMPT = "sched_attempt"
HEADER_RETRIES = "sched_retries"
HEADER_APP = "sched_app"
HEADER_JOB = "sched_job"
HEADER_FENCE = "sched_fence"
HEADER_FOR = "sched_for"


@dataclass(frozen=True)
class Published:
    """What became of each: ``sent`` (confirmed), ``unsent`` (certainly not), ``uncertain``, ``bad`` (why)."""

    sent: tuple[Dispatch, ...] = ()
    unsent: tuple[Dispatch, ...] = ()
    uncertain: tuple[Dispatch, ...] = ()
    bad: tuple[tuple[Dispatch, str], ...] = ()


class Publisher:
    """One broker connection. Used by one pass at a time; thrown away after any error."""

    def __init__(self, app: Any) -> None:
        """Open nothing yet. ``app`` is the Celery app whose broker, routes and serializer are used."""
        self._app = app
        self._connection: Any = None
        self._producer: Any = None

    def connect(self) -> str | None:
        """Make sure that the broker answers; return why it does not, or ``None``.

        Asked before anything is claimed: while the broker is away, runs wait as ``queued`` and hold nothing.
        """
        if self._producer is not None and self._is_alive():
            return None
        self.close()
        try:
            connection = self._app.connection_for_write(connect_timeout=CONNECT_TIMEOUT)
            connection.transport_options = {**connection.transport_options, **bounded_options(connection)}
            # each host once: connect() would wait 2 s and try again, and the poll with it
            connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1), interval_start=0)
            self._connection = connection
            self._producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)
        except Exception as error:
            self.close()
            return f"{type(error).__name__}: {error}"
        return None

    def _is_alive(self) -> bool:
        """Whether the connection still stands, as far as this side can tell without a round trip."""
        connection = self._connection
        return bool(connection.connected and connection.transport.verify_connection(connection.connection))

    def close(self) -> None:
        """Close the connection; errors of a connection that is broken anyway are of no interest."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.collapse() if hasattr(connection, "collapse") else connection.release()
            except Exception as error:
                logger.debug("closing a broker connection: %r", error)

    def publish(self, dispatches: Sequence[Dispatch]) -> Published:
        """Send runs to the broker, in batches. :meth:`connect` must have succeeded.

        Guard: none; each message carries run id, token and attempt, so a duplicate is dropped by the start.
        Locks: none.
        If it dies here: the claim's lease expires and the sweep publishes again, under the same token.
        """
        sent: list[Dispatch] = []
        bad: list[tuple[Dispatch, str]] = []
        for start in range(0, len(dispatches), BATCH):
            part = dispatches[start : start + BATCH]
            good: list[Dispatch] = []
            try:
                # Nobody waits here for results: Celery would open a connection of its own to the result
                # backend, without our time-outs, and subscribe to the result of every run.
                with denied_join_result(), self._producer.batch(max_size=BATCH * 4):
                    for dispatch in part:
                        try:
                            self._send(dispatch)
                            good.append(dispatch)
                        except self._broken:
                            raise
                        except BAD as error:  # one bad row never hides the others
                            bad.append((dispatch, f"{type(error).__name__}: {error}"))
            except Exception as error:  # what the broker has of this batch is unknown, whatever it was
                failed = {bad_one.key.id for bad_one, _ in bad}
                logger.warning("publishing failed, %d run(s) uncertain: %r", len(part), error)
                uncertain = tuple(d for d in part if d.key.id not in failed)
                unsent = tuple(dispatches[start + len(part) :])
                self.close()
                return Published(tuple(sent), unsent, uncertain, tuple(bad))
            failpoint("publish:sent")
            sent += good
        return Published(tuple(sent), bad=tuple(bad))

    @property
    def _broken(self) -> tuple[type[BaseException], ...]:
        """Errors that say that the connection, not the message, is at fault."""
        # the stubs of kombu do not know BatchPublishError
        from kombu.exceptions import BatchPublishError, OperationalError  # type: ignore[attr-defined]

        connection = self._connection
        own = () if connection is None else (*connection.connection_errors, *connection.channel_errors)
        return (OperationalError, BatchPublishError, OSError, *own)

    def _send(self, dispatch: Dispatch) -> None:
        options = dict(dispatch.options)
        headers = {**options.pop("headers", {}), **headers_of(dispatch)}
        if dispatch.time_limit is not None:
            options["time_limit"] = dispatch.time_limit.total_seconds()
        if dispatch.soft_time_limit is not None:
            options["soft_time_limit"] = dispatch.soft_time_limit.total_seconds()
        self._app.send_task(
            dispatch.task,
            args=list(dispatch.args),
            kwargs=dict(dispatch.kwargs),
            task_id=dispatch.key.id,
            producer=self._producer,
            headers=headers,
            eta=dispatch.eta,
            retries=dispatch.retries,
            add_to_parent=False,
            retry=False,
            **options,
        )


def headers_of(dispatch: Dispatch) -> Mapping[str, Any]:
    """What tells a worker which run, claim and attempt a message is for."""
    return {
        HEADER_RUN: dispatch.key.id,
        HEADER_TOKEN: dispatch.key.token,
        HEADER_ATTEMPT: dispatch.key.attempt,
        HEADER_RETRIES: dispatch.retries,
        HEADER_APP: dispatch.app,
        HEADER_JOB: dispatch.job,
        HEADER_FENCE: dispatch.fence,
        HEADER_FOR: dispatch.scheduled_for.isoformat(),
    }


def bounded_options(connection: Any) -> Mapping[str, Any]:
    """Transport options with which no broker call lasts long, whatever the network does."""
    driver = connection.transport.driver_type
    if driver == "redis":
        return {
            "socket_timeout": CALL_TIMEOUT,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "retry_on_timeout": False,
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0.1,
            "interval_max": 0.1,
        }
    if driver == "amqp":
        return {
            "read_timeout": CALL_TIMEOUT,
            "write_timeout": CALL_TIMEOUT,
            # the broker says that it has the message: a publish into a dead socket is noticed
            "confirm_publish": True,
        }
    return {}
