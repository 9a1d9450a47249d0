"""``agent``: asks an AI agent or a chat model behind any OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from celery_sched import secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import agent_talk as talk
from celery_sched.jobtypes import options
from celery_sched.jobtypes.agent_answers import Completion, Usage
from celery_sched.jobtypes.agent_client import Attempt, Budget, Endpoint
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import option

LONGEST_CONTENT = 40_000
"""Bytes of all answers that a result keeps; the whole result has 64 KiB."""
ATTEMPTS_SHOWN = 50
OURS = ("model", "messages", "stream")


class LeaseLost(SchedulerError):
    """The run's lease is gone: it goes on elsewhere, or was stopped."""


def _url(value: Any, what: str) -> str:
    text: str = options.FILLED.read(value, what)
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise InvalidValue(what, value, "a URL", f"It cannot be read: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidValue(what, value, "http:// or https:// and a host, such as https://api.example.com/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidValue(what, value, "no user, password, query or fragment", "The key goes into api_key.")
    return text.strip()


def _models(value: Any, what: str) -> tuple[str, ...]:
    names = options.texts(value, what)
    if not 1 <= len(names) <= 20 or not all(name.strip() for name in names) or len(set(names)) < len(names):
        raise InvalidValue(what, value, "1 to 20 names of models, each once")
    return names


def _extra(value: Any, what: str) -> dict[str, Any]:
    found: dict[str, Any] = options.MAPPING.read(value, what)
    for name in OURS:
        if name in found:
            hint = "There is a field for it: models, messages, stream."
            raise InvalidValue(f"{what}[{name!r}]", found[name], "no field that the type sets itself", hint)
    return found


def _follow_ups(value: Any, what: str) -> tuple[str, ...]:
    found = options.texts(value, what)
    if len(found) > 19 or not all(text.strip() for text in found):
        raise InvalidValue(what, value, "at most 19 texts, none empty")
    return found


@dataclass(frozen=True, kw_only=True)
class Agent:
    """What is asked of whom, and how patiently."""

    base_url: str = option(
        options.Form("http:// or https:// URL", _url, text=True),
        "the endpoint; `/chat/completions` is added: `https://api.example.com/v1`",
    )
    api_key: str | None = option(
        options.Form("`secret:NAME`", options.FILLED.read, text=True),
        "key, sent as `Authorization: Bearer`",
        None,
    )
    headers: Mapping[str, str] = option(options.TEXT_MAPPING, "further headers", {})
    models: Sequence[str] = option(
        options.Form("list of names", _models),
        "models, the preferred one first; the others are for fail-over",
    )
    system: str | None = option(options.TEXT, "the first message, of the role `system`", None)
    messages: Sequence[Mapping[str, Any]] = option(
        options.Form("list of mappings", talk.read_messages),
        "the conversation so far: mappings with `role` and `content`",
        [],
    )
    prompt: str | None = option(
        options.TEXT,
        "the last message, of the role `user`; in it and in `system`, `{payload}` and `{payload.FIELD}` "
        "stand for the payload",
        None,
    )
    payload: Any = option(
        options.ANY,
        "what the work begins with: where no text has `{payload}`, it is the first message of the user; "
        "default: the payload of the event that started the run",
        None,
    )
    follow_ups: Sequence[str] = option(
        options.Form("list of texts", _follow_ups),
        "what the user says after each answer: every text is one step more",
        [],
    )
    stream: bool = option(
        options.TRUTH,
        "whether the answer comes in pieces; otherwise `idle_timeout` bounds the wait for the whole of it",
        True,
    )
    temperature: float | None = option(options.number(0, 2), "sent with the request", None)
    max_tokens: int | None = option(options.count(1, 10_000_000), "sent with the request", None)
    extra: Mapping[str, Any] = option(
        options.Form("mapping", _extra),
        "further fields of the request: `response_format`, `top_p`, `tools`",
        {},
    )
    deadline: timedelta = option(
        options.duration("1d"), "bounds everything: all steps, attempts and pauses together", "5m"
    )
    attempts_per_model: int = option(options.count(1, 20), "how often one model is asked, a step", 2)
    max_attempts: int = option(options.count(1, 50), "how often all models are asked, a step", 6)
    request_timeout: timedelta = option(options.duration("1d"), "longest that one request may last", "2m")
    idle_timeout: timedelta = option(options.duration("1h"), "longest silence of a server", "60s")
    connect_timeout: timedelta = option(options.duration("10m"), "longest that connecting may last", "10s")
    backoff: timedelta = option(
        options.duration("10m"),
        "pause before a model is asked again, doubled each time, at most 30 s; `Retry-After` is kept to",
        "1s",
    )


class AgentType(JobType[Agent]):
    """Fail-over over a list of models, bounded in attempts and in time."""

    name = "agent"
    description = "asks an AI agent or chat model behind an OpenAI-compatible endpoint"
    config = Agent

    def read(self, kwargs: Mapping[str, Any]) -> Agent:
        """As any type's; a key that is written out would stand in the database."""
        key = kwargs.get("api_key")
        if isinstance(key, str) and not secrets.is_reference(key):
            hint = "Write api_key=secret:NAME; a server that wants no key needs none."
            raise InvalidValue("agent: api_key", "***", "a reference to a secret", hint)
        return super().read(kwargs)

    def check(self, config: Agent) -> None:
        talk.check_texts(config.system, config.prompt)

    def warnings(self, config: Agent, settings: Config) -> list[str]:
        found = []
        if not (config.prompt or config.messages or config.payload is not None):
            found.append(
                "agent: without prompt, messages or payload only a run that an event started says anything"
            )
        if config.idle_timeout > config.deadline:
            found.append("agent: idle_timeout is longer than deadline, which bounds it")
        return found

    def run(self, config: Agent, ctx: JobContext) -> dict[str, Any]:
        """Ask, and ask again; the tokens of all steps are added up."""

        def alive() -> None:
            # the waits are bounded by the deadline, so a heartbeat in them hides no hang
            if not ctx.heartbeat():
                raise LeaseLost("the run's lease is lost: it goes on elsewhere, or was stopped")

        budget = Budget(_endpoint(config), time.monotonic() + config.deadline.total_seconds(), alive)
        messages = talk.opening(
            config.system, config.messages, config.prompt, talk.payload_of(config.payload, ctx.event)
        )
        done: list[Completion] = []
        for follow_up in (None, *config.follow_ups):
            if follow_up is not None:
                messages += [
                    {"role": "assistant", "content": done[-1].content},
                    {"role": "user", "content": follow_up},
                ]
            done.append(budget.ask(messages))
            ctx.log.info(
                "step %d of %d: %s", len(done), 1 + len(config.follow_ups), budget.attempts[-1].model
            )
        return _result(done, budget.attempts)


def _endpoint(config: Agent) -> Endpoint:
    key = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
    body: dict[str, Any] = {"temperature": config.temperature, "max_tokens": config.max_tokens}
    if config.stream:
        body["stream_options"] = {"include_usage": True}
    given = {name: value for name, value in body.items() if value is not None} | dict(config.extra)
    return Endpoint(
        base_url=config.base_url,
        models=config.models,
        headers={**config.headers, **key},
        # `"extra": {"stream_options": null}` takes a field away that a server does not know
        body={name: value for name, value in given.items() if value is not None},
        stream=config.stream,
        attempts_per_model=config.attempts_per_model,
        max_attempts=config.max_attempts,
        connect_timeout=config.connect_timeout.total_seconds(),
        idle_timeout=config.idle_timeout.total_seconds(),
        request_timeout=config.request_timeout.total_seconds(),
        pause=config.backoff.total_seconds(),
    )


def _result(done: Sequence[Completion], attempts: Sequence[Attempt]) -> dict[str, Any]:
    last = done[-1]
    room = LONGEST_CONTENT // (len(done) if len(done) == 1 else len(done) + 1)
    found: dict[str, Any] = {
        "model": attempts[-1].model,
        "content": _cut(last.content, room),
        "finish_reason": last.finish_reason,
        "steps": len(done),
        "usage": asdict(sum((one.usage for one in done), Usage())),
        "attempts": [asdict(one) for one in attempts[-ATTEMPTS_SHOWN:]],
    }
    if len(done) > 1:
        found["answers"] = [_cut(one.content, room) for one in done]
    if any(len(_cut(one.content, room)) < len(one.content) for one in done):
        found["cut"] = True
    if last.tool_calls and len(json.dumps(last.tool_calls)) <= room:
        found["tool_calls"] = list(last.tool_calls)
    return found


def _cut(text: str, room: int) -> str:
    """The beginning of a text, so long that it has at most ``room`` bytes as JSON."""
    if len(json.dumps(text)) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(json.dumps(text[:middle])) <= room else (low, middle - 1)
    return text[:low]
