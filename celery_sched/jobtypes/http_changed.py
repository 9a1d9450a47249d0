"""``http_changed``: a sensor that publishes when something on the web has changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urljoin, urlsplit

from celery_sched import __version__, secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import options
from celery_sched.jobtypes.base import JobContext
from celery_sched.jobtypes.http_address import AddressRefused, Deadline, Policy, look_up
from celery_sched.jobtypes.http_fields import read_headers, read_url
from celery_sched.jobtypes.options import option
from celery_sched.jobtypes.sensor import Memory, Sensor, SensorConfig, Start
from celery_sched.jobtypes.wire import Limits, Unreachable
from celery_sched.jobtypes.wire_http import Answer, request
from celery_sched.store.engine import Database
from celery_sched.store.sensors import News

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
SHOWN = 300


class NotLookedAt(SchedulerError):
    """The resource could not be looked at: whether it has changed is not known."""


class Compare(StrEnum):
    """What says that it has changed."""

    AUTO = "auto"
    BODY = "body"


class Asked(StrEnum):
    """How it is asked for."""

    GET = "GET"
    HEAD = "HEAD"


@dataclass(frozen=True, kw_only=True)
class HttpChangedConfig(SensorConfig):
    """Which resource, and what of it."""

    url: str = option(options.Form("URL", read_url, text=True), "what is looked at")
    method: Asked = option(
        options.one_of(Asked),
        "`HEAD` asks for `ETag` and `Last-Modified` alone, where a server has them",
        "GET",
    )
    headers: Mapping[str, str] = option(options.Form("mapping of texts", read_headers), "headers", {})
    compare: Compare = option(
        options.one_of(Compare),
        "`auto`: `ETag`, else `Last-Modified`, and the content where these differ; `body`: the content alone",
        "auto",
    )
    keep: int = option(
        options.count(0, 32 * 1024), "bytes of the content, as a text, that the event brings along", 0
    )
    most: int = option(options.count(1, 1 << 30), "largest content, in bytes, that is looked at", 16 << 20)
    timeout: timedelta = option(options.duration("1h"), "for all of it: look-up, redirects, content", "30s")


@dataclass(frozen=True)
class Version:
    """What tells one state of a resource from another."""

    etag: str | None = None
    last_modified: str | None = None
    sha256: str | None = None
    """Of its content; None: it was not asked for."""
    size: int | None = None


class HttpChanged(Sensor[HttpChangedConfig]):
    """A resource that has changed."""

    name = "http_changed"
    description = "publishes an event when a resource of the web has changed"
    config = HttpChangedConfig

    def check(self, config: HttpChangedConfig) -> None:
        """Without the content, neither can it be compared, nor come along."""
        if config.method is Asked.HEAD and (config.compare is Compare.BODY or config.keep):
            field = "keep" if config.keep else "compare"
            value = config.keep or config.compare.value
            raise InvalidValue(f"{self.name}: {field}", value, "HEAD brings no content", "Set method=GET.")

    def warnings(self, config: HttpChangedConfig, settings: Config) -> list[str]:
        """A host that is not on the list."""
        host = None if secrets.is_reference(config.url) else urlsplit(config.url).hostname
        try:
            if host is not None:
                Policy.of(settings).check_name(host)
        except AddressRefused as error:
            return [f"{error}, as it is set here"]
        return []

    def sense(self, config: HttpChangedConfig, ctx: JobContext, database: Database) -> dict[str, Any]:
        """Ask for it, with what is known of it; publish where it is something else."""
        memory = Memory(database, ctx, config, [self.name, secrets.redact(config.url)])
        known = None if memory.value is None else Version(**memory.value)
        found, status, text = _asked(config, ctx, known)
        if found is None:
            return {"published": 0, "status": status}
        changed = _differs(config, known, found) if known is not None else config.start is Start.BEGINNING
        told = {"status": status, **asdict(found)}
        payload = {
            "url": _shown(config.url),
            **told,
            "previous": None if known is None else asdict(known),
            **({"body": text} if config.keep else {}),
        }
        memory.move(asdict(found), [News(payload)] if changed else [])
        return {"published": int(changed), **told, **({"first": True} if known is None else {})}


def _differs(config: HttpChangedConfig, known: Version, found: Version) -> bool:
    if config.compare is Compare.AUTO and found.etag is not None and found.etag == known.etag:
        return False
    if None in (found.sha256, known.sha256):  # one of the two looks did not ask for the content
        return (found.etag, found.last_modified) != (known.etag, known.last_modified)
    # a server behind others may give each of them an ETag of its own: the content decides
    return found.sha256 != known.sha256


def _asked(
    config: HttpChangedConfig, ctx: JobContext, known: Version | None
) -> tuple[Version | None, int, str]:
    """What it is now (None: as it was), the answer's status, and the beginning of the content."""
    deadline, policy = time.monotonic() + config.timeout.total_seconds(), Policy.of(ctx.settings)

    def resolve(host: str, port: int) -> list[str]:
        left = max(0.001, deadline - time.monotonic())
        return [str(address) for address in look_up(host, port, policy, Deadline(left))]

    def alive() -> None:
        ctx.heartbeat()  # the waits are bounded by the time-out, so it hides no hang

    conditions = {}
    if known is not None and config.compare is Compare.AUTO:
        conditions = {"If-None-Match": known.etag, "If-Modified-Since": known.last_modified}
    headers = {"User-Agent": f"celery_sched/{__version__}", "Accept": "*/*", **config.headers}
    seconds, url = config.timeout.total_seconds(), config.url
    limits = Limits(deadline, seconds, seconds, config.most)
    for _ in range(MOST_REDIRECTS + 1):
        sent = {**headers, **{name: text for name, text in conditions.items() if text}}
        try:
            answer = request(config.method, url, sent, None, limits, alive, resolve=resolve)
            try:
                if answer.status not in REDIRECTS:
                    return _read(config, url, answer, conditional=bool(conditions))
                location = answer.headers.get("location", "")
            finally:
                answer.close()
        except Unreachable as error:
            raise NotLookedAt(f"{_shown(url)}: {error}") from error
        url, headers = _redirected(url, location, headers)
    raise NotLookedAt(f"{_shown(config.url)} redirected more than {MOST_REDIRECTS} times")


def _read(
    config: HttpChangedConfig, url: str, answer: Answer, *, conditional: bool
) -> tuple[Version | None, int, str]:
    if answer.status == 304 and conditional:
        return None, 304, ""
    if answer.status != 200:
        said = " ".join(b"".join(_first(answer, SHOWN)).decode("utf-8", "replace").split())
        raise NotLookedAt(f"{_shown(url)} answered {answer.status}, expected 200: {said}")
    etag, modified = answer.headers.get("etag"), answer.headers.get("last-modified")
    if config.method is Asked.HEAD:
        if etag is None and modified is None:
            raise NotLookedAt(f"{_shown(url)} has neither ETag nor Last-Modified. Set method=GET.")
        return Version(etag, modified), 200, ""
    digest, size, kept = hashlib.sha256(), 0, b""
    for chunk in answer.chunks():
        digest.update(chunk)
        size += len(chunk)
        kept += chunk[: max(0, config.keep - len(kept))]
    text = secrets.redact(kept.decode("utf-8", "replace"), cut_after=size > len(kept))
    return Version(etag, modified, digest.hexdigest(), size), 200, text


def _first(answer: Answer, size: int) -> list[bytes]:
    """The beginning of a body; what breaks off does not matter."""
    found: list[bytes] = []
    try:
        for chunk in answer.chunks():
            found.append(chunk[:size])
            break
    except Unreachable as error:
        found.append(f"({error})".encode())
    return found


def _redirected(url: str, location: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Where a server sends us; its address is checked as the first one's was."""
    found: str = read_url(urljoin(url, location), "the redirect's URL")
    old, new = urlsplit(url), urlsplit(found)
    if old.scheme == "https" and new.scheme == "http":
        raise NotLookedAt(f"{_shown(url)} redirected to {_shown(found)}, which is not encrypted")
    if (old.scheme, old.hostname, old.port) != (new.scheme, new.hostname, new.port):
        # another server gets nothing that was meant for the first one
        headers = {name: headers[name] for name in ("User-Agent", "Accept") if name in headers}
    return found, headers


def _shown(url: str) -> str:
    """A URL without its query, which may be somebody's secret."""
    return urlsplit(url)._replace(query="", fragment="").geturl()
