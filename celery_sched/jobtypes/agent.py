"""``agent``: asks an AI agent or a chat model behind any OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from celery_sched import secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import agent_talk as talk
from celery_sched.jobtypes.agent_answers import Completion, Usage
from celery_sched.jobtypes.agent_client import Attempt, Budget, Endpoint
from celery_sched.jobtypes.agent_fields import AgentConfig
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.http_address import AddressRefused, Deadline, Policy, look_up

LONGEST_CONTENT = 40_000
"""Bytes of all answers that a result keeps; the whole result has 64 KiB."""
ATTEMPTS_SHOWN = 50


class LeaseLost(SchedulerError):
    """The run's lease is gone: it goes on elsewhere, or was stopped."""


class AgentType(JobType[AgentConfig]):
    """Fail-over over a list of models, bounded in attempts and in time."""

    name = "agent"
    description = "asks an AI agent or chat model behind an OpenAI-compatible endpoint"
    config = AgentConfig

    def read(self, kwargs: Mapping[str, Any]) -> AgentConfig:
        """As any type's; a key that is written out would stand in the database."""
        key = kwargs.get("api_key")
        if isinstance(key, str) and not secrets.is_reference(key):
            hint = "Write api_key=secret:NAME; a server that wants no key needs none."
            raise InvalidValue("agent: api_key", "***", "a reference to a secret", hint)
        return super().read(kwargs)

    def check(self, config: AgentConfig) -> None:
        talk.check_texts(config.system, config.prompt)

    def warnings(self, config: AgentConfig, settings: Config) -> list[str]:
        found = []
        if not (config.prompt or config.messages or config.payload is not None):
            found.append(
                "agent: without prompt, messages or payload only a run that an event started says anything"
            )
        host = None if secrets.is_reference(config.base_url) else urlsplit(config.base_url).hostname
        try:
            if host is not None:
                Policy.of(settings).check_name(host)
        except AddressRefused as error:
            found.append(f"{error}, as it is set here")
        if config.idle_timeout > config.deadline:
            found.append("agent: idle_timeout is longer than deadline, which bounds it")
        return found

    def run(self, config: AgentConfig, ctx: JobContext) -> dict[str, Any]:
        """Ask, and ask again; the tokens of all steps are added up."""

        def alive() -> None:
            # the waits are bounded by the deadline, so a heartbeat in them hides no hang
            if not ctx.heartbeat():
                raise LeaseLost("the run's lease is lost: it goes on elsewhere, or was stopped")

        budget = Budget(
            _endpoint(config, ctx.settings), time.monotonic() + config.deadline.total_seconds(), alive
        )
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


def _endpoint(config: AgentConfig, settings: Config) -> Endpoint:
    policy, patience = Policy.of(settings), config.connect_timeout.total_seconds()

    def resolve(host: str, port: int) -> list[str]:
        return [str(address) for address in look_up(host, port, policy, Deadline(patience))]

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
        connect_timeout=patience,
        idle_timeout=config.idle_timeout.total_seconds(),
        request_timeout=config.request_timeout.total_seconds(),
        pause=config.backoff.total_seconds(),
        resolve=resolve,
        tls=_trusting(config.ca_file),
    )


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidValue("agent: ca_file", ca_file, "a file of certificates", f"{error}") from error


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
