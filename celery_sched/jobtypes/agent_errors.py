"""What an error of a chat completion endpoint means: later, another model, or never."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

SHOWN = 300
"""Characters of an answer that an error quotes."""
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]+)?"
BUSY = frozenset(
    {
        *("resource_exhausted", "rate_limit_exceeded", "rate_limit_error", "too_many_requests"),
        *("unavailable", "overloaded", "overloaded_error", "server_error", "internal", "internal_error"),
        *("deadline_exceeded", "timeout", "aborted"),
    }
)
"""Names in an error's ``status``, ``code`` or ``type`` that mean: later, or elsewhere."""
UNKNOWN_MODEL = frozenset(
    {"model_not_found", "invalid_model", "unknown_model", "not_found", "not_found_error"}
)


class Next(StrEnum):
    """What follows an attempt that brought no answer."""

    AGAIN = "again"
    """The same may work later, or with another model."""
    OTHER_MODEL = "other model"
    """This model never."""
    GIVE_UP = "give up"
    """The request itself is refused."""


class Failed(Exception):
    """An attempt brought no answer. The text says why, ``next`` what may follow."""

    def __init__(self, text: str, then: Next, status: int | None = None, retry_after: float = 0.0) -> None:
        self.next, self.status, self.retry_after = then, status, retry_after
        super().__init__(text)


def of_error(status: int, body: bytes, headers: Mapping[str, str]) -> Failed:
    """What an answer that is an error means; names of headers in lower case."""
    try:
        found = error_of(json.loads(body))
    except (ValueError, RecursionError):
        found = None
    return failed(status, found, body.decode("utf-8", "replace"), _pause(headers))


def error_of(value: Any) -> Mapping[str, Any] | None:
    """The error in an answer, whatever its HTTP status; some servers put it into a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    error = value.get("error") if isinstance(value, Mapping) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, Mapping) and error else None


def failed(status: int, error: Mapping[str, Any] | None, body: str, pause: float = 0.0) -> Failed:
    """What an answer means that says ``error`` in ``body``; ``pause``: seconds that it asks for."""
    names = [error[name] for name in ("status", "code", "type") if error.get(name)] if error else []
    numbers = [int(name) for name in map(str, names) if re.fullmatch("[1-5][0-9]{2}", name)]
    code = status if status >= 400 else (numbers or [status])[0]
    words = {str(name).lower() for name in names}
    if words & BUSY or code in (408, 425, 429) or code >= 500 or 429 in numbers:
        then = Next.AGAIN
    elif words & UNKNOWN_MODEL or code == 404:
        then = Next.OTHER_MODEL
    elif status < 300 and code < 400:
        then = Next.AGAIN  # an error that says nothing of its kind
    else:
        then = Next.GIVE_UP
    said = (error or {}).get("message")
    named = " ".join(str(name) for name in names if str(name) != str(status))
    shown = f"HTTP {status}" + (f" {named}" if named else "") + f": {quoted(str(said or body))}"
    return Failed(shown, then, status, max(pause, _delay(error)))


def _pause(headers: Mapping[str, str]) -> float:
    """``Retry-After`` in seconds; a date counts from the answer's own ``Date``, not from our clock."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    try:
        until, since = (parsedate_to_datetime(value) for value in (text, headers.get("date", "")))
        return max(0.0, (until - since).total_seconds())
    except (ValueError, TypeError):  # no date, or one with a zone and one without
        return 0.0


def _delay(error: Mapping[str, Any] | None) -> float:
    """The ``retryDelay`` ("34s") that comes in the details of RESOURCE_EXHAUSTED."""
    details = (error or {}).get("details")
    given = [
        str(part.get("retryDelay", ""))
        for part in (details if isinstance(details, list) else ())
        if isinstance(part, Mapping)
    ]
    return max((float(text[:-1]) for text in given if re.fullmatch(f"{_NUMBER}s", text)), default=0.0)


def quoted(text: str) -> str:
    """A text for an error: one line, not too long."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
