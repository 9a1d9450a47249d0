"""The broker and Redis: do they answer, and how long do they wait for an acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import redis
from celery import Celery
from kombu.utils.url import maybe_sanitize_url

from celery_sched.doctor.findings import PATIENCE, Finding, within
from celery_sched.durations import format_duration
from celery_sched.model import JobDefinition
from celery_sched.runtime import Runtime
from celery_sched.steps.publish import Publisher

CONSUMER_TIMEOUT = timedelta(minutes=30)
"""RabbitMQ's default: a message that is not acknowledged for longer closes its consumer's channel."""
VISIBILITY_TIMEOUT = 3600
"""Seconds, kombu's default for Redis: a message that is not acknowledged for longer is delivered again."""


def broker(app: Celery) -> list[Finding]:
    url = maybe_sanitize_url(app.conf.broker_write_url or app.conf.broker_url or "")

    def connect() -> str | None:
        publisher = Publisher(app)
        try:
            return publisher.connect()
        finally:
            publisher.close()

    why = within(PATIENCE, connect)
    if why is not None:
        return [
            Finding(
                "warning",
                "broker",
                f"{url} cannot be reached: {why.rstrip('.')}. Runs wait until it is back.",
            )
        ]
    return [Finding("ok", "broker", f"{url} answers")]


def redis_slots(runtime: Runtime) -> list[Finding]:
    url = runtime.config.redis_url
    if url is None:
        return [Finding("ok", "redis", "sched_redis_url is not set: the database counts what is in flight")]

    def ping() -> str | None:
        client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
        try:
            client.ping()
        except redis.RedisError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            client.close()
        return None

    why = within(PATIENCE, ping)
    shown = maybe_sanitize_url(url)
    if why is not None:
        message = (
            f"{shown} (sched_redis_url) cannot be reached: {why.rstrip('.')}. The database counts meanwhile."
        )
        return [Finding("warning", "redis", message)]
    return [Finding("ok", "redis", f"{shown} answers")]


def acknowledgement(runtime: Runtime, app: Celery, definitions: Sequence[JobDefinition]) -> list[Finding]:
    """How long the broker lets a late acknowledgement wait, against the job that may run longest."""
    longest, name = runtime.config.max_runtime, "any job"
    for definition in definitions:
        runtime_of = max(runtime.config.max_runtime, definition.max_runtime or timedelta(0))
        allowed = min(runtime_of, definition.time_limit or runtime_of)
        if allowed > longest:
            longest, name = allowed, f"job {definition.name!r}"
    may = f"{name} may run for {format_duration(longest)}"
    with app.connection_for_read() as connection:
        driver = connection.transport.driver_type
        visibility = (connection.transport_options or {}).get("visibility_timeout", VISIBILITY_TIMEOUT)
    if driver == "redis" and longest > timedelta(seconds=visibility):
        message = (
            f"{may}, and Redis delivers a message again after {visibility} s without acknowledgement (the"
            " start drops it). Set broker_transport_options['visibility_timeout'] above the longest job."
        )
        return [Finding("warning", "visibility_timeout", message)]
    if driver == "amqp":
        return _consumer_timeout(app, longest, may)
    return []


def _consumer_timeout(app: Celery, longest: timedelta, may: str) -> list[Finding]:
    subject = "consumer_timeout"
    arguments = [queue.queue_arguments or {} for queue in app.amqp.queues.consume_from.values()]
    given = [one["x-consumer-timeout"] for one in arguments if "x-consumer-timeout" in one]
    known = timedelta(milliseconds=min(given)) if given else CONSUMER_TIMEOUT
    source = "x-consumer-timeout of its queues" if given else "its default, which cannot be read from here"
    if longest > known:
        message = (
            f"{may}, and RabbitMQ closes the channel of a consumer that acknowledges nothing for"
            f" {format_duration(known)} ({source}): workers reconnect in mid-run. Give the queues the"
            " argument x-consumer-timeout (milliseconds), or raise consumer_timeout in rabbitmq.conf."
        )
        return [Finding("warning", subject, message)]
    message = f"{may}; RabbitMQ's consumer_timeout must be longer ({format_duration(known)}: {source})"
    return [Finding("info", subject, message)]
