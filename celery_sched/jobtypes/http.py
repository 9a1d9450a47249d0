"""The job type `http`: one request to a web server, bounded in time, size and where it may go.

With the standard library's client: what matters here is that the address that was checked is the one that is
connected to, for every redirect, which libraries that follow redirects by themselves, keep connections and
read proxies from the environment would have to be talked out of. One request a run needs no more.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

from celery_sched import __version__, secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.http_address import AddressRefused, Connection, Deadline, Policy, look_up
from celery_sched.jobtypes.http_fields import HttpConfig, Method, Status, read_url

KEPT_HEADERS = (
    *("content-type", "content-length", "date", "etag", "last-modified", "location", "retry-after"),
    *("x-request-id", "x-ratelimit-remaining"),
)
"""Headers of the answer that stand in the result."""
SHOWN = 1000
"""Characters of an answer's body that an error shows."""
LONGEST_HEADER = 500
REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "!$&'()*+,;=:@/?%-._~[]"


class UnexpectedStatus(SchedulerError):
    """A server answered with a status that the job does not expect."""


class RedirectRefused(SchedulerError):
    """A server redirected to where the job does not follow."""


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)


@dataclass(frozen=True)
class _Answer:
    status: int
    reason: str
    headers: http.client.HTTPMessage
    body: bytes
    whole: bool


class Http(JobType[HttpConfig]):
    """One request."""

    name = "http"
    description = "calls a URL and looks at the answer's status"
    config = HttpConfig

    def check(self, config: HttpConfig) -> None:
        """One body at most, and none where none is sent."""
        bodies = [name for name in ("body", "json", "form") if getattr(config, name) is not None]
        if len(bodies) > 1:
            raise InvalidValue(
                f"{self.name}: {bodies[1]}", "given", f"there is {bodies[0]}: one body at most"
            )
        if bodies and config.method in (Method.GET, Method.HEAD, Method.OPTIONS):
            allowed = f"a {config.method} has no body"
            raise InvalidValue(f"{self.name}: {bodies[0]}", "given", allowed, "Set method=POST, or PUT.")

    def warnings(self, config: HttpConfig, settings: Config) -> list[str]:
        """A host that is not on the list; a header that looks like a secret and is none."""
        found = []
        host = None if secrets.is_reference(config.url) else urlsplit(config.url).hostname
        if host is not None:
            try:
                Policy.of(settings).check_name(host)
            except AddressRefused as error:
                found.append(f"{error}, as it is set here")
        plain = [name for name in config.headers if name.lower() in ("authorization", "x-api-key", "cookie")]
        plain = [name for name in plain if not secrets.refers(config.headers[name])]
        if config.auth is not None and not secrets.refers(config.auth["password"]):
            plain.append("auth.password")
        for name in plain:
            found.append(f"{name} is stored as it is, for all to read: store secret:NAME instead")
        return found

    def run(self, config: HttpConfig, ctx: JobContext) -> Any:
        """Call, follow redirects, compare the status."""
        began = time.monotonic()
        deadline = Deadline(config.timeout.total_seconds())
        policy = Policy.of(ctx.settings)
        tls = _trusting(config.ca_file)
        request = _first(config, ctx)
        for _ in range(config.redirects + 1):
            answer = _ask(request, policy, deadline, tls, config.keep)
            if answer.status not in REDIRECTS or not config.redirects or _is_expected(answer, config.expect):
                break
            request = _redirected(request, answer)
        else:
            raise RedirectRefused(f"{config.url} redirected more than {config.redirects} times")
        if not _is_expected(answer, config.expect):
            raise UnexpectedStatus(_unexpected(request, answer, config.expect))
        return {
            "status": answer.status,
            "url": _shown(request.url),
            "headers": _kept(answer),
            "body": _body(answer),
            "truncated": not answer.whole,
            "seconds": round(time.monotonic() - began, 3),
        }


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidValue("http: ca_file", ca_file, "a file of certificates", f"{error}") from error


def _first(config: HttpConfig, ctx: JobContext) -> _Request:
    parts = urlsplit(config.url)
    extra = urlencode(config.query, doseq=True)
    query = "&".join(part for part in (parts.query, extra) if part)
    headers = {
        "User-Agent": f"celery_sched/{__version__}",
        "Accept": "*/*",
        "Sched-Run": ctx.run_id,
        "Sched-Job": quote(ctx.job, safe=" "),
        "Sched-Scheduled-For": ctx.scheduled_for.isoformat(),
        "Sched-Attempt": str(ctx.attempt),
        "Sched-Fence": str(ctx.fence),
    }
    if config.idempotency_key:
        headers["Idempotency-Key"] = ctx.run_id
    body, kind = _written(config, ctx)
    if kind is not None:
        headers["Content-Type"] = kind
    if config.auth is not None:
        pair = f"{config.auth['user']}:{config.auth['password']}"
        encoded = base64.b64encode(pair.encode()).decode()
        if secrets.redact(pair) != pair:
            secrets.note(encoded)
        headers["Authorization"] = f"Basic {encoded}"
    given = {name.lower() for name in config.headers}
    headers = {name: text for name, text in headers.items() if name.lower() not in given}
    url = parts._replace(query=query, fragment="").geturl()
    return _Request(config.method, url, {**headers, **config.headers}, body)


def _written(config: HttpConfig, ctx: JobContext) -> tuple[bytes | None, str | None]:
    """The body and its type. A job that an event starts, and that has no body of its own, sends the event."""
    if config.body is not None:
        return config.body.encode(), None
    if config.form is not None:
        return urlencode(config.form, doseq=True).encode(), "application/x-www-form-urlencoded"
    found = config.json if config.json is not None else ctx.event
    if found is not None and config.method in (Method.POST, Method.PUT, Method.PATCH):
        return json.dumps(found, ensure_ascii=False).encode(), "application/json"
    return None, None


def _ask(request: _Request, policy: Policy, deadline: Deadline, tls: ssl.SSLContext, keep: int) -> _Answer:
    parts = request.parts
    host = str(parts.hostname).encode("idna").decode() if parts.hostname else ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = look_up(host, port, policy, deadline)
    connection = Connection(host, port, addresses, deadline, tls if parts.scheme == "https" else None)
    target = quote(parts.path or "/", safe=_SAFE) + (
        f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    )
    try:
        connection.request(request.method, target, request.body, dict(request.headers))
        with closing(connection.getresponse()) as answer:
            body = b""
            while len(body) <= keep and (part := answer.read1(keep + 1 - len(body))):
                body += part
        whole = len(body) <= keep
        return _Answer(answer.status, answer.reason, answer.headers, body[:keep], whole)
    except TimeoutError:
        raise TimeoutError(f"{_shown(request.url)}: no whole answer within {deadline.seconds:g} s") from None
    except (http.client.HTTPException, OSError) as error:
        said = str(error) or type(error).__name__
        raise ConnectionError(f"{_shown(request.url)}: {said}") from error
    finally:
        connection.close()


def _redirected(request: _Request, answer: _Answer) -> _Request:
    """Where a server sends us, checked as the first URL was."""
    location = answer.headers.get("Location")
    if not location:
        raise RedirectRefused(f"{_shown(request.url)} answered {answer.status} without a Location")
    try:
        url = read_url(urljoin(request.url, location), "the redirect's URL")
    except InvalidValue as error:
        raise RedirectRefused(f"{_shown(request.url)} redirected to {_shown(location)}: {error}") from error
    old, new = request.parts, urlsplit(url)
    if old.scheme == "https" and new.scheme == "http":
        raise RedirectRefused(f"{_shown(request.url)} redirected to {_shown(url)}, which is not encrypted")
    method, body, headers = request.method, request.body, dict(request.headers)
    if answer.status in (301, 302, 303) and method not in ("GET", "HEAD"):
        method, body = "GET", None
        headers = {name: text for name, text in headers.items() if name.lower() != "content-type"}
    if (old.scheme, old.hostname, old.port) != (new.scheme, new.hostname, new.port):
        # another server gets nothing that was meant for the first one
        if body is not None and secrets.redact(body.decode(errors="replace")).encode() != body:
            raise RedirectRefused(
                f"{_shown(request.url)} redirected to {_shown(url)}, another server, which would get a body "
                "with a secret in it"
            )
        headers = {name: text for name, text in headers.items() if not _is_private(name, text)}
    return _Request(method, url, headers, body)


def _is_private(name: str, text: str) -> bool:
    return name.lower() in ("authorization", "cookie", "proxy-authorization") or secrets.redact(text) != text


def _is_expected(answer: _Answer, expect: Status) -> bool:
    return any(low <= answer.status <= high for low, high in expect)


def _unexpected(request: _Request, answer: _Answer, expect: Status) -> str:
    wanted = ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in expect)
    text = secrets.redact(answer.body.decode(errors="replace"), cut_after=not answer.whole)
    shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    said = f"{request.method} {_shown(request.url)} answered {answer.status} {answer.reason}".rstrip()
    return f"{said}, expected {wanted}" + (f": {shown}" if shown else "")


def _shown(url: str) -> str:
    """A URL without its query and what stands before its host, which may be somebody's secret."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _kept(answer: _Answer) -> dict[str, str]:
    found = {}
    for name, text in answer.headers.items():
        if name.lower() in KEPT_HEADERS:
            found[name.lower()] = text[:LONGEST_HEADER]
    return found


def _body(answer: _Answer) -> Any:
    """The answer's body: JSON where it says so and all of it was kept, else a text."""
    text = answer.body.decode(errors="replace")
    if answer.whole and "json" in str(answer.headers.get("Content-Type", "")).lower():
        try:
            return json.loads(text)
        except ValueError:
            return text
    return secrets.redact(text, cut_after=not answer.whole)
