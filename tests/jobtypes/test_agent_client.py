"""Fail-over between models: what is tried again, in which order, and that nothing passes the deadline."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.agent_answers import Completion, Usage
from celery_sched.jobtypes.agent_client import Budget, Endpoint, GivenUp, Refused
from celery_sched.jobtypes.wire import Limits, Unreachable
from celery_sched.jobtypes.wire_http import request
from tests.jobtypes import model_server as server
from tests.private_server import wait_until

DEADLINE = 2.0
SLACK = 3.0
"""Seconds after the deadline by which a call has returned, on a busy machine too; unbounded it would not."""
MESSAGES = [{"role": "user", "content": "hello"}]


def budget(
    url: str,
    models: tuple[str, ...] = ("a",),
    deadline: float = 20.0,
    alive: Callable[[], None] | None = None,
    **more: Any,
) -> Budget:
    given: dict[str, Any] = {"headers": {"Authorization": "Bearer k"}, "body": {}, "pause": 0.01, **more}
    endpoint = Endpoint(url, models, **given)
    return Budget(endpoint, time.monotonic() + deadline, alive or (lambda: None))


def given_up(asked: Budget) -> GivenUp:
    with pytest.raises(GivenUp) as caught:
        asked.ask(MESSAGES)
    return caught.value


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.1f} s"


def test_whole_answer() -> None:
    """Content, tokens, model and reason of an answer that comes at once; the request is the protocol's."""
    with server.site([server.says("hi")]) as site:
        found = budget(site.url + "/", stream=False, body={"temperature": 0.5}).ask(MESSAGES)
    assert Completion("hi", "stop", Usage(7, 3, 10), "as-served") == found
    (asked,) = site.asked
    assert "/v1/chat/completions" == asked["path"]
    assert "Bearer k" == asked["headers"]["Authorization"]
    assert {"model": "a", "messages": MESSAGES, "stream": False, "temperature": 0.5} == asked["body"]


def test_stream() -> None:
    """The pieces of a stream are one answer, with the tokens that come after its last piece."""
    with server.site([server.streams("he", "llo")]) as site:
        found = budget(site.url).ask(MESSAGES)
    assert Completion("hello", "stop", Usage(7, 3, 10)) == found
    assert site.asked[0]["body"]["stream"] is True


def test_stream_asked_whole_answered() -> None:
    """A server that knows no streams is understood too."""
    with server.site([server.says("hi")]) as site:
        assert "hi" == budget(site.url).ask(MESSAGES).content


@pytest.mark.parametrize(
    ("bad", "status", "named"),
    [
        (
            server.error(429, code=429, status="RESOURCE_EXHAUSTED", message="quota"),
            429,
            "RESOURCE_EXHAUSTED",
        ),
        (
            server.error(200, code=429, status="RESOURCE_EXHAUSTED", message="quota"),
            200,
            "RESOURCE_EXHAUSTED",
        ),
        (server.error(400, status="RESOURCE_EXHAUSTED", message="quota"), 400, "RESOURCE_EXHAUSTED"),
        (server.body(429, '[{"error": {"status": "RESOURCE_EXHAUSTED"}}]'), 429, "RESOURCE_EXHAUSTED"),
        (server.error(200, code="rate_limit_exceeded", message="slow"), 200, "rate_limit_exceeded"),
        (server.body(500, "oops"), 500, "oops"),
        (server.body(503, ""), 503, "503"),
        (server.body(529, '{"error": "overloaded"}'), 529, "overloaded"),
        (server.body(200, "{half"), None, "no JSON"),
        (server.body(200, "[1, 2]"), None, "choices"),
        (server.streams("hel", end=False), None, "ended half, after 3 characters"),
        (server.short, None, "before the answer did"),
        (server.hangs_up, None, "no HTTP"),
    ],
)
def test_tried_again(bad: server.Answer, status: int | None, named: str) -> None:
    """What may pass is tried again with the same model, and the attempt says what it was."""
    with server.site([bad, server.says("hi")]) as site:
        asked = budget(site.url)
        assert "hi" == asked.ask(MESSAGES).content
    first, second = asked.attempts
    assert ("a", status) == (first.model, first.status)
    assert named in (first.error or "")
    assert ("a", 200, None) == (second.model, second.status, second.error)


def test_stream_error_in_the_middle() -> None:
    """An error that comes as a piece of a stream is an error, not half an answer."""

    def answer(talk: server.Talk) -> None:
        server.streams("hel", end=False)(talk)
        talk.event('{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota"}}')

    with server.site([answer, server.streams("hello")]) as site:
        asked = budget(site.url)
        assert "hello" == asked.ask(MESSAGES).content
    assert "RESOURCE_EXHAUSTED" in (asked.attempts[0].error or "")


def test_whole_stream_without_end() -> None:
    """A stream that breaks after its finish_reason is whole."""

    def answer(talk: server.Talk) -> None:
        server.streams("hello", end=False)(talk)
        talk.event('{"choices": [{"delta": {}, "finish_reason": "length"}]}')

    with server.site([answer]) as site:
        asked = budget(site.url)
        assert Completion("hello", "length") == asked.ask(MESSAGES)


@pytest.mark.parametrize("status", [400, 401, 403, 422, 302])
def test_refused_at_once(status: int) -> None:
    """A request that is refused as such is not made again, nor to another model."""
    with server.site([server.error(status, message="bad request", code="invalid")]) as site:
        error = given_up(budget(site.url, ("a", "b")))
    assert ["a"] == site.models
    assert [status] == [attempt.status for attempt in error.attempts]
    assert isinstance(error, Refused)
    assert "the request is refused" in str(error)
    assert re.search(rf"1\. a, \d+\.\d s: HTTP {status} invalid: bad request", str(error)), error


def test_unknown_model() -> None:
    """A model that is not there is asked once; the next one answers."""
    script = {
        "a": [server.error(404, message="no such model")],
        "b": [server.error(400, code="model_not_found", message="no such model")],
        "c": [server.says("hi")],
    }
    with server.site(script) as site:
        assert "hi" == budget(site.url, ("a", "b", "c")).ask(MESSAGES).content
    assert ["a", "b", "c"] == site.models


def test_no_model_known() -> None:
    """Where no model is known there is nothing to wait for."""
    with server.site([server.error(404, message="no such model")]) as site:
        error = given_up(budget(site.url, ("a", "b"), attempts_per_model=5, max_attempts=10))
    assert ["a", "b"] == site.models
    assert isinstance(error, Refused)
    assert "no model is known there" in str(error)


def test_order_and_bound_per_model() -> None:
    """Models take turns in their order, each at most so often; the error lists every attempt."""
    with server.site([server.body(503, "busy")]) as site:
        error = given_up(budget(site.url, ("a", "b", "c"), attempts_per_model=2, max_attempts=99, pause=0.3))
    assert ["a", "b", "c"] * 2 == site.models
    assert "all models had 2 attempts" in str(error)
    assert [f"{n}. {m}, " in str(error) for n, m in enumerate(site.models, 1)] == [True] * 6


def test_bound_in_all() -> None:
    """No more attempts than allowed over all models."""
    with server.site([server.body(503, "busy")]) as site:
        error = given_up(budget(site.url, ("a", "b"), attempts_per_model=50, max_attempts=5))
    assert 5 == len(site.asked) == len(error.attempts)
    assert not isinstance(error, Refused)
    assert "all 5 attempts are used up" in str(error)


def test_retry_after_is_waited_for() -> None:
    """A server's Retry-After is kept before the same model is asked again, and other models go first."""
    script = {
        "a": [server.body(429, "{}", Retry_After="3"), server.says("late")],
        "b": [server.body(500, "broken")],
    }
    with server.site(script) as site:
        asked = budget(site.url, ("a", "b"), attempts_per_model=2)
        assert "late" == asked.ask(MESSAGES).content
    assert ["a", "b", "b", "a"] == site.models
    assert site.asked[3]["at"] - site.asked[0]["at"] >= 3.0


@pytest.mark.parametrize(
    "busy",
    [
        server.body(429, "{}", Retry_After="60"),
        server.error(429, status="RESOURCE_EXHAUSTED", details=[{"retryDelay": "60s"}]),
    ],
)
def test_retry_after_beyond_the_deadline(busy: server.Answer) -> None:
    """A pause that would pass the deadline is not begun."""
    with server.site([busy]) as site, within(10.0):
        error = given_up(budget(site.url, deadline=20.0))
    assert 1 == len(site.asked)
    assert "the deadline allows no further attempt, and the next may begin in" in str(error)


def test_retry_after_as_a_date() -> None:
    """A date is read by the server's own clock, however wrong that is."""

    def answer(talk: server.Talk) -> None:
        talk.date_time_string = lambda timestamp=None: "Mon, 01 Jan 2001 00:00:00 GMT"  # type: ignore[method-assign]
        server.body(429, "{}", Retry_After="Mon, 01 Jan 2001 00:01:00 GMT")(talk)

    with server.site([answer]) as site:
        error = given_up(budget(site.url, deadline=20.0))
    assert 1 == len(site.asked)
    assert "may begin in" in str(error)


@pytest.mark.parametrize(
    "silent", [server.stalls, server.stalls_within("hel")], ids=["before the head", "within the stream"]
)
def test_silence_is_noticed(silent: server.Answer) -> None:
    """A server that says nothing for the idle time-out is left for the next model."""
    with server.site({"a": [silent], "b": [server.says("hi")]}) as site, within(10.0):
        asked = budget(site.url, ("a", "b"), idle_timeout=2.0, deadline=60.0)
        assert "hi" == asked.ask(MESSAGES).content
    assert ["a", "b"] == site.models
    assert "no byte came for 2 s" == asked.attempts[0].error


@pytest.mark.parametrize(
    "slow",
    [
        server.stalls,
        server.stalls_within("hel"),
        server.trickles("x", 0.1),
        server.trickles(": still here\n\n", 0.1),
        server.trickles('data: {"choices": [{"delta": {"content": "x"}}]}\n\n', 0.1),
        server.trickles_head(0.1),
        server.body(503, "busy"),
    ],
    ids=["silent", "silent within", "bytes", "comments", "pieces", "head", "busy"],
)
def test_nothing_passes_the_deadline(slow: server.Answer) -> None:
    """Whatever comes or does not come, the call ends at its deadline; no time-out between bytes helps."""
    with server.site([slow]) as site, within(DEADLINE + SLACK):
        error = given_up(
            budget(site.url, ("a", "b"), DEADLINE, attempts_per_model=10**6, max_attempts=10**6, pause=0.2)
        )
    assert error.attempts
    assert "the deadline allows no further attempt" in str(error)


def test_request_timeout() -> None:
    """A request that trickles is left at its own time-out, and the time that is left is the next model's."""
    with server.site({"a": [server.trickles("x", 0.1)], "b": [server.says("hi")]}) as site, within(10.0):
        asked = budget(site.url, ("a", "b"), 60.0, request_timeout=0.5)
        assert "hi" == asked.ask(MESSAGES).content
    assert "its time was over before the answer was whole" == asked.attempts[0].error


def test_no_connection() -> None:
    """A closed port is an attempt like any other."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        error = given_up(budget(f"http://127.0.0.1:{reserved.getsockname()[1]}", attempts_per_model=2))
    assert 2 == len(error.attempts)
    assert "no connection" in str(error)


def test_connection_that_is_never_taken() -> None:
    """A server whose queue of connections is full is noticed by the connect time-out, or by its silence."""
    with socket.socket() as deaf, within(10.0):
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            error = given_up(
                budget(
                    f"http://127.0.0.1:{port}", connect_timeout=0.3, idle_timeout=0.3, attempts_per_model=1
                )
            )
        finally:
            for filler in fillers:
                filler.close()
    assert "within 0.3 s" in str(error) or "for 0.3 s" in str(error)


def test_name_server_that_is_silent() -> None:
    """Looking up a name has no time-out of its own; it is left behind."""
    release = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        release.wait()
        return []

    with within(10.0):
        error = given_up(
            budget("http://model.test", resolve=resolve, connect_timeout=0.3, attempts_per_model=1)
        )
    release.set()
    assert "the name 'model.test' was not found within 0.3 s" in str(error)


def test_address_that_is_not_allowed() -> None:
    """What the check of addresses refuses is no attempt: it ends the call."""

    def resolve(host: str, port: int) -> list[str]:
        raise InvalidValue("host", host, "a public address")

    with pytest.raises(InvalidValue):
        budget("http://model.test", resolve=resolve).ask(MESSAGES)


def test_caller_ends_it() -> None:
    """The caller is asked while a server is silent, and may end the call; its error comes through."""
    asked_often = 0

    def alive() -> None:
        nonlocal asked_often
        asked_often += 1
        if asked_often == 3:
            raise KeyError("the lease is lost")

    with server.site([server.stalls]) as site, within(20.0), pytest.raises(KeyError):
        budget(site.url, alive=alive, deadline=60.0).ask(MESSAGES)
    assert 1 == len(site.asked)


@pytest.mark.parametrize(
    ("part", "times", "named"),
    [
        (1 << 19, 34, "the answer is longer than 16777216 bytes"),
        (1 << 20, 2, "a line of the answer is longer"),
    ],
)
def test_long_answer_is_refused(part: int, times: int, named: str) -> None:
    """An answer without end is not kept in memory."""

    with server.site([server.streams(*["x" * part] * times)]) as site:
        error = given_up(budget(site.url, attempts_per_model=1, deadline=60.0))
    assert named in str(error)


def test_calls_of_tools() -> None:
    """Calls of tools in a stream are put together from their pieces."""

    def answer(talk: server.Talk) -> None:
        talk.head(200, "text/event-stream")
        for piece in (
            '{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{\\"a\\""}}',
            '{"index": 0, "function": {"arguments": ": 1}"}}',
        ):
            talk.event(f'{{"choices": [{{"delta": {{"tool_calls": [{piece}]}}}}]}}')
        talk.event('{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}')
        talk.event("[DONE]")

    with server.site([answer]) as site:
        found = budget(site.url).ask(MESSAGES)
    call = {"id": "c1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert ("tool_calls", (call,)) == (found.finish_reason, found.tool_calls)


def test_bytes_that_are_there_do_not_pass_the_deadline() -> None:
    """A server that sends faster than we read never makes us wait; the deadline is looked at all the same."""
    with server.site([server.streams(*["x" * 10_000] * 500)]) as site:
        deadline = time.monotonic() + 3.0
        answer = request("POST", site.url, {}, b"{}", Limits(deadline, 10.0, 10.0), lambda: None)
        wait_until(lambda: time.monotonic() > deadline, 10.0, "the deadline to pass")
        with pytest.raises(Unreachable, match="its time was over"):
            list(answer.lines())
        answer.close()
