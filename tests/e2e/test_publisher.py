"""A broker that is away, as the publisher meets it: bounded, and never sure of what it cannot be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from celery import Celery

from celery_sched.model import Dispatch, JobId, RunId, RunKey, Token
from celery_sched.steps.publish import CALL_TIMEOUT, CONNECT_TIMEOUT, Publisher
from tests.proxy import Proxy
from tests.servers import RedisServer

DISPATCH = Dispatch(
    key=RunKey(RunId("run"), Token("token"), 1),
    app="shop",
    job_id=JobId(1),
    job="job",
    task="jobs.fast",
    args=(),
    kwargs={},
    options={},
    scheduled_for=datetime(2026, 1, 1, tzinfo=UTC),
    fence=1,
    pool="default",
)
SLACK = 1.5
"""Seconds for a busy machine; one more try would take longer than that."""


@pytest.fixture
def publisher(proxy: Proxy, redis_server: RedisServer) -> Iterator[Publisher]:
    """A publisher that is connected through the proxy, with no options of its own."""
    proxy.start(redis_server.port)
    number = redis_server.fresh_url().rpartition("/")[2]
    with Celery("shop", broker=f"redis://127.0.0.1:{proxy.port}/{number}", set_as_current=False) as app:
        made = Publisher(app)
        assert made.connect() is None
        yield made
        made.close()


@pytest.mark.parametrize("state", ["blackhole", "refuse"])
def test_a_batch_without_an_answer_is_uncertain(publisher: Publisher, proxy: Proxy, state: str) -> None:
    """Nobody knows whether the message is there: not sent, not unsent; and the next connect says why."""
    assert (DISPATCH,) == publisher.publish([DISPATCH]).sent
    getattr(proxy, state)()
    began = time.monotonic()
    done = publisher.publish([DISPATCH])
    assert ((), (), (DISPATCH,), ()) == (done.sent, done.unsent, done.uncertain, done.bad)
    assert time.monotonic() - began < CALL_TIMEOUT + SLACK
    # the silent connection was thrown away: the next poll must not claim runs for it
    assert publisher.connect() is not None
    proxy.passing()
    assert publisher.connect() is None
    assert (DISPATCH,) == publisher.publish([DISPATCH]).sent


@pytest.mark.parametrize(("state", "allowed"), [("blackhole", CONNECT_TIMEOUT), ("refuse", 0.0)])
def test_connecting_is_bounded(publisher: Publisher, proxy: Proxy, state: str, allowed: float) -> None:
    """One try, no pause before another: a poll that waits here plans nothing."""
    publisher.close()
    getattr(proxy, state)()
    began = time.monotonic()
    assert publisher.connect() is not None
    assert time.monotonic() - began < allowed + SLACK


def test_results_are_not_subscribed_to(proxy: Proxy, redis_server: RedisServer) -> None:
    """The result backend is not talked to: silent, it would hold up a poll far beyond its time-outs."""
    proxy.start(redis_server.port)
    broker, results = redis_server.fresh_url(), f"redis://127.0.0.1:{proxy.port}/0"
    with Celery("shop", broker=broker, backend=results, set_as_current=False) as app:
        publisher = Publisher(app)
        assert publisher.connect() is None
        assert (DISPATCH,) == publisher.publish([DISPATCH]).sent
        publisher.close()
    assert 0 == proxy.accepted
