"""The type ``agent``: what it asks, what stands in the history, what is refused when a job is defined."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from celery_sched import config
from celery_sched.context import Context
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.agent import LONGEST_CONTENT, AgentType, LeaseLost
from celery_sched.jobtypes.agent_client import GivenUp
from celery_sched.jobtypes.http_address import AddressRefused
from tests.jobtypes import model_server as server

KEY = "sk-a-key-of-the-test"


class Run:
    """What the type is told about its run, and what it says of itself."""

    def __init__(self) -> None:
        self.beats, self.lost = 0, False

    def beat(self) -> None:
        self.beats += 1

    def context(self) -> Context:
        given: dict[str, Any] = {
            "run_id": "r",
            "job": "j",
            "scheduled_for": datetime(2030, 1, 1, tzinfo=UTC),
            "attempt": 1,
            "fence": 1,
            "is_lost": lambda: self.lost,
            "beat": self.beat,
            "log": logging.getLogger("celery_sched.job.j"),
        }
        return Context(**given)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[config.Config]:
    monkeypatch.setenv("CELERY_SCHED_SECRET_MODEL_KEY", KEY)
    yield config.load(
        {"sched_home": str(tmp_path), "sched_http_allowed_hosts": ["127.0.0.1", "localhost"]}, "app", {}
    )


def carried_out(settings: config.Config, run: Run | None = None, **kwargs: Any) -> Any:
    return AgentType().carry_out({"models": ["a"], **kwargs}, (run or Run()).context(), settings, None)


def asked(site: server.Site) -> list[dict[str, Any]]:
    return [request["body"] for request in site.asked]


def test_result(settings: config.Config) -> None:
    """The result has the answer, the attempts and the tokens; the key travels in the header only."""
    with server.site([server.body(503, "busy"), server.streams("he", "llo")]) as site:
        found = carried_out(
            settings,
            base_url=site.url,
            api_key="secret:MODEL_KEY",
            prompt="Hi",
            backoff="10ms",
            temperature=0,
        )
    attempts = found.pop("attempts")
    assert {
        "model": "a",
        "content": "hello",
        "finish_reason": "stop",
        "steps": 1,
        "usage": server.USAGE,
    } == found
    assert [(503, "HTTP 503: busy"), (200, None)] == [(one["status"], one["error"]) for one in attempts]
    assert f"Bearer {KEY}" == site.asked[0]["headers"]["Authorization"]
    assert {
        "model": "a",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
    } == site.asked[0]["body"]


def test_steps(settings: config.Config) -> None:
    """Each follow-up goes on with the conversation; tokens are added up, and every step says it is alive."""
    run = Run()
    with server.site([server.streams("one"), server.streams("two"), server.streams("three")]) as site:
        found = carried_out(settings, run, base_url=site.url, prompt="1?", follow_ups=["2?", "3?"])
    assert (3, "three", ["one", "two", "three"]) == (found["steps"], found["content"], found["answers"])
    assert {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30} == found["usage"]
    assert ["1?", "one", "2?", "two", "3?"] == [m["content"] for m in asked(site)[2]["messages"]]
    assert run.beats >= 3


def test_attempts_are_counted_per_step_and_time_is_not(settings: config.Config) -> None:
    """Every step has its attempts, but all steps share one deadline."""
    with server.site(
        [server.streams("one"), server.body(503, "busy"), server.streams("two"), server.stalls]
    ) as site:
        with pytest.raises(GivenUp, match="the deadline allows no further attempt"):
            carried_out(
                settings,
                base_url=site.url,
                prompt="1?",
                follow_ups=["2?", "3?"],
                max_attempts=2,
                deadline="5s",
                backoff="10ms",
            )
    assert 4 == len(site.asked)


def test_lost_lease_ends_it(settings: config.Config) -> None:
    """A run that lost its lease asks no further: what it would get is thrown away, and costs."""
    run = Run()
    run.lost = True
    with server.site([server.stalls]) as site, pytest.raises(LeaseLost):
        carried_out(settings, run, base_url=site.url, prompt="Hi", deadline="60s")
    assert [] == site.asked


def test_key_is_hidden_in_errors(settings: config.Config) -> None:
    """A server that says the key back does not bring it into the history."""
    from celery_sched import secrets

    kept = secrets.kept(carried_out)
    with server.site([server.error(401, message=f"wrong key {KEY}")]) as site:
        with pytest.raises(Exception) as caught:
            kept(settings, base_url=site.url, api_key="secret:MODEL_KEY", prompt="Hi")
    assert KEY not in str(caught.value)
    assert "wrong key ***" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": "Hi"}, [("user", "Hi")]),
        ({"system": "S", "prompt": "Hi"}, [("system", "S"), ("user", "Hi")]),
        ({"payload": "work"}, [("user", "work")]),
        ({"payload": "work", "prompt": "Do it"}, [("user", "work\n\nDo it")]),
        ({"payload": {"n": 1}}, [("user", '{\n  "n": 1\n}')]),
        ({"payload": {"n": 1, "l": ["x"]}, "prompt": "{payload.n} {payload.l.0}"}, [("user", "1 x")]),
        ({"payload": 3, "system": "<{payload}>", "prompt": "go"}, [("system", "<3>"), ("user", "go")]),
        (
            {"payload": "p", "messages": [{"role": "assistant", "content": "m"}], "prompt": "q"},
            [("user", "p"), ("assistant", "m"), ("user", "q")],
        ),
        ({"event": {"topic": "t", "payload": "from the event"}}, [("user", "from the event")]),
        ({"event": {"topic": "t", "payload": {"n": 2}}, "prompt": "{payload.n}"}, [("user", "2")]),
        ({"events": [{"payload": 1}, {"payload": 2}], "prompt": "{payload.1}"}, [("user", "2")]),
        ({"prompt": 'keeps {braces} and {"json": 1}'}, [("user", 'keeps {braces} and {"json": 1}')]),
    ],
)
def test_conversation(
    settings: config.Config, given: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """How texts, messages, payload and event become the first request."""
    with server.site([server.streams("ok")]) as site:
        carried_out(settings, base_url=site.url, **given)
    assert expected == [(m["role"], m["content"]) for m in asked(site)[0]["messages"]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "at least one message of the user"),
        ({"system": "S"}, "at least one message of the user"),
        ({"prompt": "{payload.x}", "payload": {"y": 1}}, r"'x' was looked for in \['y'\]"),
        ({"prompt": "{payload.x}"}, "'x' was looked for in null"),
        ({"prompt": "{payload.x}", "payload": "no JSON"}, "'x' was looked for in a text"),
        ({"prompt": "{payload.l.9}", "payload": {"l": [1, 2]}}, "'9' was looked for in a list of 2"),
    ],
)
def test_nothing_to_say(settings: config.Config, given: dict[str, Any], named: str) -> None:
    """What cannot be asked is refused before anybody is asked."""
    with server.site([server.streams("ok")]) as site, pytest.raises(InvalidValue, match=named):
        carried_out(settings, base_url=site.url, **given)
    assert [] == site.asked


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://user:pw@x/v1"}, "api_key"),
        ({"base_url": "http://x:99999/"}, "base_url"),
        ({"models": []}, "models"),
        ({"models": ["a", "a"]}, "each once"),
        ({"models": [""]}, "models"),
        ({"api_key": "sk-written-out"}, "a reference to a secret"),
        ({"messages": [{"role": "boss", "content": "x"}]}, r"messages\[0\]"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content"),
        ({"prompt": "{payload .x}"}, "{payload.FIELD}"),
        ({"extra": {"stream": False}}, "extra"),
        ({"deadline": "0"}, "deadline"),
        ({"deadline": "2d"}, "at most 1d"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"attempts_per_model": 1000}, "attempts_per_model"),
        ({"temperature": 3}, "temperature"),
        ({"follow_ups": [" "]}, "follow_ups"),
        ({"modles": ["a"]}, "models"),
    ],
)
def test_refused_when_defined(given: dict[str, Any], named: str) -> None:
    """A job that cannot work is not defined; the message names the field."""
    with pytest.raises(InvalidValue, match=named) as caught:
        AgentType().read({"base_url": "http://x/v1", "models": ["a"], "prompt": "Hi", **given})
    assert "sk-written-out" not in str(caught.value)


def test_long_answer_is_cut(settings: config.Config) -> None:
    """A long answer leaves room for the rest of the result, which stays JSON, and says that it was cut."""
    text = "ä" * 60_000
    with server.site([server.streams(text)]) as site:
        found = carried_out(settings, base_url=site.url, prompt="1?", follow_ups=["2?"])
    assert len(json.dumps(found)) < LONGEST_CONTENT + 5_000
    assert (True, 2) == (found["cut"], found["steps"])
    assert text.startswith(found["content"])


def test_a_field_can_be_left_out(settings: config.Config) -> None:
    """A field of the request that a server does not know is taken away with null."""
    with server.site([server.streams("ok")]) as site:
        carried_out(settings, base_url=site.url, prompt="Hi", extra={"stream_options": None, "top_p": 0.5})
    assert {"model", "messages", "stream", "top_p"} == set(asked(site)[0])


def test_private_address_is_refused(settings: config.Config) -> None:
    """The rules for hosts of the type http hold for models too: nobody is asked, and the setting is named."""
    strict = dataclasses.replace(settings, http_allowed_hosts=None)
    with server.site([server.streams("ok")]) as site:
        with pytest.raises(AddressRefused, match="sched_http_allowed_hosts"):
            carried_out(strict, base_url=site.url, prompt="Hi")
    assert [] == site.asked


def test_warnings(settings: config.Config) -> None:
    """What is allowed and looks like a mistake is said when the job is made."""
    kind = AgentType()
    plain = kind.read({"base_url": "http://localhost/v1", "models": ["a"], "prompt": "Hi"})
    assert [] == kind.warnings(plain, settings)
    odd = kind.read(
        {"base_url": "http://else.test/v1", "models": ["a"], "deadline": "1m", "idle_timeout": "2m"}
    )
    named = dataclasses.replace(settings, http_allowed_hosts=("localhost",))
    first, second, third = kind.warnings(odd, named)
    assert ("only a run that an event started" in first, "may not call else.test" in second) == (True, True)
    assert "idle_timeout is longer than deadline" in third
