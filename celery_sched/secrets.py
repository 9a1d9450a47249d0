"""Secrets by reference: ``secret:NAME`` is looked up on the worker, and what was looked up is never shown.

A text that is ``secret:NAME`` as a whole stands for that secret; within a text it is ``${secret:NAME}``.
The value comes from the environment variable ``CELERY_SCHED_SECRET_<NAME>`` of the worker, else from the file
``<sched_secrets_dir>/<NAME>`` (without the line end at its end). Databases, messages and pages hold
references.

Every value that was looked up is replaced by ``***`` in what a run leaves: its result, its error, its log.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

from celery_sched.config import SECRET_PREFIX, Config
from celery_sched.errors import InvalidValue, SchedulerError

logger = logging.getLogger("celery_sched.secrets")
R = TypeVar("R")
HIDDEN = "***"
SHORTEST = 4
"""Characters that a secret has at least: shorter ones would be found, and replaced, everywhere."""
LONGEST = 64 * 1024
SHORTEST_LINE = 8
"""Lines of a secret with several (a key in PEM) that are long enough to be secret by themselves."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_PREFIX = "secret:"
_WITHIN = re.compile(r"\$\{secret:([^}]*)\}")
_WORLD_READABLE = 0o004


class MissingSecret(SchedulerError):
    """A secret that is referred to and is not on this worker."""


class _Known:
    """Values to hide, in all the forms in which they may turn up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forms: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        """Hide a value from now on."""
        with self._lock:
            forms = {*self.forms, *_forms(value)}
            if len(forms) > len(self.forms):
                # the longest first: a secret that is part of another must not leave the rest of it
                self.forms = tuple(sorted(forms, key=len, reverse=True))
                self._pattern = re.compile("|".join(map(re.escape, self.forms)))

    def hide(self, text: str) -> str:
        """``text`` without the values."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)


_of_run: ContextVar[_Known | None] = ContextVar("celery_sched_secrets", default=None)
_of_process = _Known()
"""For the log, which other threads write to and which goes on after a run."""
_told: set[Path] = set()


def is_reference(value: object) -> bool:
    """Whether a text is, or has within, a reference to a secret."""
    return isinstance(value, str) and (value.startswith(_PREFIX) or _WITHIN.search(value) is not None)


def refers(value: Any) -> bool:
    """Whether a JSON value has a reference to a secret anywhere."""
    return any(is_reference(text) for text in _texts(value))


def check(value: Any, what: str) -> None:
    """Check the form of every reference in a JSON value.

    :raises InvalidValue: one that names no secret.
    """
    for text in _texts(value):
        found = [text[len(_PREFIX) :]] if text.startswith(_PREFIX) else _WITHIN.findall(text)
        for name in found:
            if not NAME.fullmatch(name):
                allowed = "secret:NAME, or ${secret:NAME} within a text; a name has letters, digits, _ . -"
                raise InvalidValue(what, text, allowed)


def resolve(value: Any, config: Config, environ: Mapping[str, str] | None = None) -> Any:
    """A JSON value with its references replaced by what they stand for; keys of mappings stay.

    Only on a worker, inside a run: from here on the values are hidden in what the run leaves.

    :raises MissingSecret: naming the secret, and where it was looked for.
    """
    environ = os.environ if environ is None else environ
    if isinstance(value, str):
        if not is_reference(value):
            return value
        check(value, "the reference to a secret")
        if value.startswith(_PREFIX):
            return _look_up(value[len(_PREFIX) :], config, environ)
        return _WITHIN.sub(lambda found: _look_up(found[1], config, environ), value)
    if isinstance(value, Mapping):
        return {key: resolve(part, config, environ) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(part, config, environ) for part in value]
    return value


def note(value: str) -> None:
    """Hide a value that was made of secrets (a password in a URL, a header of two of them)."""
    if len(value) < SHORTEST:
        return
    known = _of_run.get()
    if known is not None:
        known.add(value)
    _of_process.add(value)
    _watch_the_log()


def redact(text: str, *, cut_before: bool = False, cut_after: bool = False) -> str:
    """``text`` without the secrets of the run that is being carried out.

    :param cut_before: something was cut off before ``text``: it may begin with the end of a secret.
    :param cut_after: something was cut off after it: it may end with the beginning of one.
    """
    known = _of_run.get()
    if known is None:
        return text
    text = known.hide(text)
    for form in known.forms:
        for size in range(len(form) - 1, SHORTEST - 1, -1):
            if cut_before and text.startswith(form[-size:]):
                text = HIDDEN + text[size:]
            if cut_after and text.endswith(form[:size]):
                text = text[:-size] + HIDDEN
    return text


def redact_json(value: Any) -> Any:
    """:func:`redact` for every text in a JSON value, keys too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_json(key): redact_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(part) for part in value]
    return value


@contextmanager
def watching() -> Iterator[None]:
    """Within the block, the values that are looked up are known to :func:`redact`. May be nested."""
    if _of_run.get() is not None:
        yield
        return
    reset = _of_run.set(_Known())
    try:
        yield
    finally:
        _of_run.reset(reset)


def kept(body: Callable[..., R]) -> Callable[..., R]:
    """Decorate a task's function: Celery sees neither its result nor its exception with a secret in it.

    The gate redacts what is stored of a run, but Celery stores its own result, and logs the exception, before
    the gate sees them.
    """

    @functools.wraps(body)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        with watching():
            try:
                result: R = redact_json(body(*args, **kwargs))
            except Exception as error:
                clean = _clean(error)
                if clean is error:
                    raise
                raise clean from None
            return result

    return wrapped


def _clean(error: Exception) -> Exception:
    """An exception that shows no secret: itself where it shows none, or its texts can be changed."""
    known = _of_run.get()
    if known is None or not _shows(known, error):
        return error
    for one in _chain(error):
        one.args = tuple(redact_json(list(one.args)))
        for name, value in list(getattr(one, "__dict__", {}).items()):
            if isinstance(value, str | list | tuple | Mapping):
                one.__dict__[name] = redact_json(value)
    if not _shows(known, error):
        return error
    said = "".join(traceback.format_exception_only(error)).strip()
    return SchedulerError(redact(said))


def _shows(known: _Known, error: BaseException) -> bool:
    text = "".join(traceback.format_exception(error)) + repr(error)
    return known.hide(text) != text


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one not in found:
            found.append(one)
            todo += [one.__cause__, one.__context__]
            todo += getattr(one, "exceptions", ())
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _look_up(name: str, config: Config, environ: Mapping[str, str]) -> str:
    variable = SECRET_PREFIX + name
    file = None if config.secrets_dir is None else config.secrets_dir / name
    value = environ.get(variable)
    if value is None and file is not None:
        value = _read(file)
    if value is None:
        places = f"the environment variable {variable}" + (f" and the file {file}" if file else "")
        hint = "" if file else " sched_secrets_dir names a folder of files, too."
        raise MissingSecret(f"there is no secret {name!r} on this worker: looked for {places}.{hint}")
    if not SHORTEST <= len(value) <= LONGEST:
        raise MissingSecret(
            f"the secret {name!r} has {len(value)} characters: {SHORTEST} to {LONGEST} are allowed (a "
            "shorter one could not be told from other text, to hide it)."
        )
    note(value)
    return value


def _read(file: Path) -> str | None:
    try:
        readable_by_all = bool(file.stat().st_mode & _WORLD_READABLE)
        value = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise MissingSecret(f"the file {file} of a secret cannot be read: {type(error).__name__}") from None
    if readable_by_all and file not in _told:
        _told.add(file)
        logger.warning("the secret in %s can be read by every user of this machine: chmod o-r", file)
    return value.removesuffix("\n").removesuffix("\r")


def _forms(value: str) -> set[str]:
    """How a value is written where it turns up: as it is, in a URL, in JSON, in a repr, in base64."""
    lines = [line for line in value.splitlines() if len(line) >= SHORTEST_LINE]
    found = set()
    for text in {value, value.strip(), *lines}:
        found |= {text, quote(text), quote(text, safe=""), quote_plus(text), repr(text)[1:-1]}
        found |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        encoded = base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
        found |= {encoded, encoded.rstrip("="), encoded.replace("+", "-").replace("/", "_")}
    return {text for text in found if len(text) >= SHORTEST}


_log_lock = threading.Lock()
_log_watched = False


def _watch_the_log() -> None:
    """From the first secret of a process on, its log records are looked through, whoever writes them."""
    global _log_watched
    with _log_lock:
        if _log_watched:
            return
        _log_watched = True
        make = logging.getLogRecordFactory()

        def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
            return _hidden(make(*args, **kwargs))

        logging.setLogRecordFactory(made)


def _hidden(record: logging.LogRecord) -> logging.LogRecord:
    try:
        said = record.getMessage()
    except Exception:  # somebody's wrong arguments: logging itself says so, and shows them
        said = f"{record.msg} {record.args!r}"
    clean = _of_process.hide(said)
    if clean != said:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        clean = _of_process.hide(text)
        if clean != text:
            record.exc_text = clean
    return record
