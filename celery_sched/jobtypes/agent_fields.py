"""The fields of the job type ``agent``, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import agent_talk as talk
from celery_sched.jobtypes import options
from celery_sched.jobtypes.options import option

OURS = ("model", "messages", "stream")


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
class AgentConfig:
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
    ca_file: str | None = option(
        options.FILLED, "file, on the worker, with the certificates to trust instead of the system's", None
    )
