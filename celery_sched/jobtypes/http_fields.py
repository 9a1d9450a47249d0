"""The fields of the job type `http`, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from celery_sched import secrets
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.options import (
    ANY,
    FILLED,
    MAPPING,
    TEXT,
    TRUTH,
    Form,
    count,
    duration,
    option,
    text_mapping,
)
from celery_sched.rules import readers

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RANGE = re.compile(r"([1-5]\d\d)(?:-([1-5]\d\d))?")
OURS = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")


class Method(StrEnum):
    """What is asked of the server."""

    GET = "GET"
    HEAD = "HEAD"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"
    OPTIONS = "OPTIONS"


Status = tuple[tuple[int, int], ...]
"""Ranges of status codes, both ends included."""


def read_url(value: Any, what: str) -> str:
    """An absolute URL of a web server."""
    text = str(FILLED.read(value, what))
    allowed = "an http:// or https:// URL with a host"
    if secrets.is_reference(text):
        return text  # looked at again when it is known
    if any(char.isspace() or not char.isprintable() for char in text):
        raise InvalidValue(what, value, f"{allowed}, without blanks and control characters")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidValue(what, value, allowed, f"It cannot be read: {error}.") from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidValue(what, value, allowed)
    if parts.username is not None:
        raise InvalidValue(what, host, "no user or password in a URL, where logs show them", "Use auth.")
    return text


def read_method(value: Any, what: str) -> Method:
    """A method, in capitals or not."""
    return readers.one_of(Method)(value.upper() if isinstance(value, str) else value, what)


def read_headers(value: Any, what: str) -> dict[str, str]:
    """Headers that may be sent; those that say how the message is written are ours."""
    headers = text_mapping(value, what)
    for name, text in headers.items():
        if not _TOKEN.fullmatch(name) or name.lower() in OURS:
            raise InvalidValue(f"{what}: header", name, f"a header's name, and none of {', '.join(OURS)}")
        if any(char in text for char in "\r\n\0"):
            raise InvalidValue(f"{what}[{name!r}]", text, "one line")
    return headers


def read_expect(value: Any, what: str) -> Status:
    """``200``, ``"200-299"``, or a list of such."""
    found = []
    for part in value if isinstance(value, list | tuple) else [value]:
        match = None if isinstance(part, bool) else _RANGE.fullmatch(str(part).strip())
        low, high = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if low > high:
            raise InvalidValue(what, value, 'status codes: 200, "200-299", or a list of such')
        found.append((low, high))
    if not found:
        raise InvalidValue(what, value, "at least one status code")
    return tuple(found)


def read_auth(value: Any, what: str) -> dict[str, str] | None:
    """``user`` and ``password``."""
    auth = text_mapping(value, what)
    if auth.keys() != {"user", "password"}:
        raise InvalidValue(what, sorted(auth), "user and password, and nothing else")
    if ":" in auth["user"] and not secrets.is_reference(auth["user"]):
        raise InvalidValue(f"{what}: user", auth["user"], "no colon, by the rules of Basic authentication")
    return auth


def read_query(value: Any, what: str) -> dict[str, list[str]]:
    """Parameters: texts, numbers, or lists of them."""
    query = {}
    for key, part in dict(MAPPING.read(value, what)).items():
        values = part if isinstance(part, list) else [part]
        query[key] = list(text_mapping({str(at): one for at, one in enumerate(values)}, what).values())
    return query


URL = Form("URL", read_url, text=True)


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """A request, and what is made of its answer."""

    url: str = option(URL, "where it goes: `http://` or `https://`")
    method: Method = option(Form("word", read_method), f"one of {', '.join(Method)}", "GET")
    headers: Mapping[str, str] = option(Form("mapping of texts", read_headers), "headers", {})
    auth: Mapping[str, str] | None = option(
        Form("mapping", read_auth), "Basic authentication: `user` and `password`", None
    )
    query: Mapping[str, list[str]] = option(
        Form("mapping", read_query), "parameters, added to those of the URL; a list: several of a name", {}
    )
    body: str | None = option(TEXT, "the body as a text; set its `Content-Type` in `headers`", None)
    json: Any = option(ANY, "the body as JSON (then `body` is not given)", None)
    form: Mapping[str, list[str]] | None = option(
        Form("mapping", read_query), "the body as a form (then neither `body` nor `json` is given)", None
    )
    expect: Status = option(
        Form("status codes", read_expect),
        'answers that are a success: `200`, `"200-299"`, or a list of such; any other fails the run',
        "200-299",
    )
    timeout: timedelta = option(duration("1d"), "for all of it: look-up, redirects, the whole answer", "30s")
    redirects: int = option(count(0, 20), "most redirects that are followed; each is checked as `url` is", 5)
    idempotency_key: bool = option(
        TRUTH, "send `Idempotency-Key: <run id>`, the same for every attempt of a run", True
    )
    keep: int = option(count(0, 32 * 1024), "bytes of the answer that are kept in the result", 8192)
    ca_file: str | None = option(
        FILLED, "file, on the worker, with the certificates to trust instead of the system's", None
    )
