"""Notifications are sent, by Apprise: mail, Slack, Teams, webhooks and a hundred more.

On a worker only: that is where the secrets are that targets refer to. Nothing that is raised or logged here
shows a target's URL.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from celery_sched import __version__, notify_settings, secrets
from celery_sched.config import Config
from celery_sched.errors import NotFound, SchedulerError
from celery_sched.model import NoticeKind
from celery_sched.rules import notices as rule
from celery_sched.runtime import Runtime
from celery_sched.store import notices

INSTALL = "Apprise is not installed here: pip install celery_sched[notify]"
SAID = 500
"""Characters of what Apprise says of a failure."""
_TYPES = {
    NoticeKind.SUCCESS: "success",
    NoticeKind.RECOVERY: "success",
    NoticeKind.SKIPPED: "warning",
    NoticeKind.PAUSED: "warning",
}
_WORST = ("failure", "warning", "success")


class NotSent(SchedulerError):
    """A message was not sent, or not to all of a target's addresses."""


@secrets.kept
def send(runtime: Runtime, target: str, ids: Sequence[int]) -> dict[str, Any]:
    """Send one message with these notifications to a target; what was pruned meanwhile is left out.

    :raises NotSent: it may be tried again; of a target with several URLs some may have got it.
    """
    config = runtime.config
    rows = runtime.database.read(lambda tx, now: notices.carried(tx, config.app, ids))
    if not rows:
        return {"target": target, "notifications": 0}
    title, text = rule.message([(row.kind, row.title, row.text) for row in rows], config.app)
    types = {_TYPES.get(NoticeKind(row.kind), "failure") for row in rows}
    deliver(config, target, title, text, next(one for one in _WORST if one in types))
    return {"target": target, "notifications": len(rows)}


def send_test(config: Config, target: str) -> int:
    """Send a message that says that it is a test; return to how many URLs.

    :raises NotFound: no such target.
    :raises NotSent: with what went wrong.
    """
    with secrets.watching():
        text = f"This is a test of target {target!r}. Notifications of app {config.app} would come here."
        return deliver(config, target, f"[{config.app}] test", text, "info")


def deliver(config: Config, target: str, title: str, text: str, kind: str) -> int:
    """Send a text to all URLs of a target; return to how many.

    :param kind: Apprise's: info, success, warning or failure.
    :raises NotFound: no such target.
    :raises NotSent: with what went wrong, for the first URL for which something did.
    """
    urls = config.notify_targets.get(target)
    if urls is None:
        raise NotFound(
            "target", target, f"In sched_notify_targets {notify_settings.known(config.notify_targets)}."
        )
    try:
        import apprise
    except ImportError as error:
        raise NotSent(f"target {target!r}: {INSTALL}") from error
    failed = []
    for number, given in enumerate(urls, 1):
        url = str(secrets.resolve(given, config))
        _hide(url)
        named = f"target {target!r}" + (f", URL {number} of {len(urls)}" if len(urls) > 1 else "")
        asset = apprise.AppriseAsset(
            app_id="celery_sched", app_desc=f"celery_sched {__version__}", async_mode=False
        )
        service = apprise.Apprise(asset=asset)
        with _Said() as said:
            known = service.add(url)
            sent = known and service.notify(
                body=text,
                title=title,
                notify_type=apprise.NotifyType(kind),
                body_format=apprise.NotifyFormat.TEXT,
            )
        if not sent:
            what = "it was not sent" if known else "Apprise knows no such URL, or it is not complete"
            failed.append(f"{named}: {what}{said.shown()}")
    if failed:
        raise NotSent(secrets.redact("; ".join(failed)))
    return len(urls)


def _hide(url: str) -> None:
    """Hide a URL, and what is secret in it, from now on: in errors, results and the log."""
    secrets.note(url)
    try:
        parts = urlsplit(url)
        hidden = [parts.password, *(part for part in parts.path.split("/"))]
    except ValueError:  # not in the form of a URL; Apprise will say so
        return
    for text in hidden:
        if text and len(text) >= 8:
            secrets.note(unquote(text))


class _Said(logging.Handler):
    """What Apprise says within the block, at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []

    def __enter__(self) -> _Said:
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what a record says."""
        self._lines.append(record.getMessage())

    def shown(self) -> str:
        """``": a; b"``, or nothing."""
        text = rule.one_line("; ".join(dict.fromkeys(self._lines)), SAID)
        return f": {text}" if text else ""
