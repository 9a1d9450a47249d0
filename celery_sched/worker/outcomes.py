"""What Celery's tracer returned, as the outcome of a run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from billiard import einfo
from celery import states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.saferepr import saferepr
from celery.utils.serialization import get_pickleable_exception
from kombu.exceptions import EncodeError
from kombu.utils.json import dumps

from celery_sched import secrets
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome

RESULT_LIMIT = 64 * 1024
"""Longest result kept whole, in bytes of JSON."""
SHORTENED = 10_000
"""Characters kept of a longer one: even if each must be escaped, the limit holds."""


@dataclass(frozen=True)
class Asked:
    """The attempt ended with a retry that the task asked Celery for."""

    retry: Retry
    reason: str
    error: str


def of(traced: Any) -> Outcome | Asked:
    """How an attempt ended, without the values of secrets that it has looked up."""
    outcome = _of(traced)
    reason, error = _redacted(outcome.reason), _redacted(outcome.error)
    if isinstance(outcome, Asked):
        return replace(outcome, reason=reason or "", error=error or "")
    return replace(outcome, reason=reason, error=error, result=_redacted_json(outcome.result))


def _redacted(text: str | None) -> str | None:
    return None if text is None else secrets.redact(text)


def _redacted_json(text: str | None) -> str | None:
    clean = _redacted(text)
    if clean is None or clean == text:
        return text
    try:
        json.loads(clean)
    except ValueError:  # what was replaced began within an escape
        return json.dumps(secrets.HIDDEN)
    return clean


def _of(traced: Any) -> Outcome | Asked:
    if traced.info is None:
        return Outcome(RunStatus.SUCCEEDED, result_text(secrets.redact_json(traced.retval)), None, None)
    state, error = traced.info.state, traced.info.retval
    if state == states.RETRY and isinstance(error, Retry):
        cause = error.exc if isinstance(error.exc, BaseException) else None
        said = "its task asked Celery for a retry" + (f": {text_of(cause)}" if cause is not None else "")
        return Asked(error, said, error_text(error, traced.retval))
    if state == states.IGNORED:
        return Outcome(RunStatus.SUCCEEDED, None, None, "ignored")
    if state == states.REJECTED:
        said = f"the task rejected its message: {text_of(error)}"
        return Outcome(RunStatus.FAILED, None, said, "rejected", names_of(error))
    return Outcome(RunStatus.FAILED, None, error_text(error, traced.retval), None, names_of(error))


def portable(traced: Any) -> Any:
    """``traced`` in a form that a child can send: what the parent cannot unpickle breaks its whole pool.

    Celery sees to that itself, but for ``Reject`` and ``Ignore``, which may hold any exception: a ``Reject``
    with the broker's is what ``self.retry()`` raises when its message cannot be sent.
    """
    if traced.info is None or traced.info.state not in (states.REJECTED, states.IGNORED):
        return traced
    error: Any = traced.info.retval
    if get_pickleable_exception(error) is error:
        return traced
    rejected = traced.info.state == states.REJECTED
    plain = Reject(text_of(error), error.requeue) if rejected else Ignore(text_of(error))
    return traced._replace(retval=info_of(plain))


def result_text(value: Any) -> str:
    """``value`` as JSON; its repr (a JSON string) where it is no JSON; shortened where it is too long."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(saferepr(value, SHORTENED), ensure_ascii=False)
    if len(text.encode("utf-8", "backslashreplace")) <= RESULT_LIMIT:
        return text
    return json.dumps(text[:SHORTENED] + " ... shortened", ensure_ascii=False)


def error_text(error: BaseException, info: Any) -> str:
    """``Type: message`` and the traceback."""
    trace = str(getattr(info, "traceback", "") or "").rstrip()
    return f"{text_of(error)}\n{_named(trace, error)}".rstrip()


def _named(trace: str, error: BaseException) -> str:
    """A traceback that ends with the error's own class.

    Celery passes on an error that cannot be pickled as the first of its bases that can, and says that one's
    name: whoever reads it would give it to `retry_on`.
    """
    own, *bases = names_of(error)
    message = text_of(error).removeprefix(f"{type(error).__name__}: ")
    before, found, after = trace.rpartition(f": {message}")
    lines, _, name = before.rpartition("\n")
    if not found or after or name not in bases:
        return trace
    return f"{lines}\n{own}: {message}"


def text_of(error: BaseException) -> str:
    """``Type: message``, whatever the exception's own ``__str__`` does."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its message cannot be shown: {type(broken).__name__})"
    name = type(error).__name__
    return f"{name}: {message}" if message else name


class OutOfMemory(Exception):
    """A run ran out of memory. Not a ``MemoryError``: that one stops Celery's whole worker."""


def names_of(error: BaseException) -> tuple[str, ...]:
    """The full names of an exception's class and of its bases; those of builtins without a module."""
    kinds: list[type] = list(type(error).__mro__[:-1])
    if isinstance(error, OutOfMemory):  # what it stands for
        kinds += MemoryError.__mro__[:-1]
    full = (f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.") for kind in kinds)
    return tuple(dict.fromkeys(full))


def unwrapped(info: Any) -> BaseException:
    """The exception in what a child sent."""
    error: BaseException = info.exception
    # ExceptionWithTraceback, in which a traceback travels
    return error.exc if hasattr(error, "exc") and hasattr(error, "tb") else error


def info_of(error: BaseException) -> Any:
    """The form in which Celery passes an exception on."""
    try:
        raise error
    except type(error):
        caught: Any = sys.exc_info()
        return einfo.ExceptionInfo(caught, internal=True)


def ignored() -> Any:
    """What a tracer returns when nothing was to be done: the message is acknowledged, no result kept."""
    error = Ignore()
    return trace_ok_t(info_of(error), TraceInfo(states.IGNORED, error), 0.0, None)


def failed(error: BaseException) -> Any:
    """What a tracer returns for a task that raised."""
    return trace_ok_t(info_of(error), TraceInfo(states.FAILURE, error), 0.0, None)


def storable(value: Any) -> Any:
    """``value`` as plain JSON that Celery reads back as it was (kombu marks dates, UUIDs and decimals).

    :raises EncodeError: it cannot be.
    """
    try:
        return json.loads(dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(str(error)) from error


def retry_at(retry: Retry, now: datetime, app: Any) -> datetime:
    """When Celery's own retry is due: ``when`` is a number of seconds, an instant, or nothing."""
    when: Any = retry.when
    if when is None:
        return now
    if isinstance(when, datetime):
        return when if when.tzinfo is not None else when.replace(tzinfo=app.timezone)
    return now + timedelta(seconds=float(when))
