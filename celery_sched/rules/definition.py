"""What may stand in a job's definition: the one door for decorators, the client, commands and files."""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition, Misfire, Overlap
from celery_sched.rules import schedules

E = TypeVar("E", bound=StrEnum)

LONGEST_NAME = 200
LARGEST_JSON = 64 * 1024
"""Bytes of ``args``, ``kwargs`` or ``options``: they are copied into every message."""
DEEPEST_JSON = 50
LARGEST_INT = 10**300
MESSAGE_OPTIONS = ("queue", "exchange", "routing_key", "priority", "headers")
OUR_HEADERS = "sched_"


def checked(**given: Any) -> JobDefinition:
    """Check every field and make a definition: durations, policies and JSON in their one form.

    Takes the fields of :class:`JobDefinition`, also in the form in which a definition already has them.

    :raises InvalidValue: naming the job, the field, the value and what is allowed. Nothing else is raised.
    """
    name = given.get("name", "")
    try:
        return _checked(given)
    except InvalidValue as error:
        if error.what == "name":
            raise InvalidValue("the name of a job", error.value, error.allowed, error.hint) from error
        raise InvalidValue(f"job {name!r}: {error.what}", error.value, error.allowed, error.hint) from error


def _checked(given: Mapping[str, Any]) -> JobDefinition:
    unknown = [key for key in given if key not in _FIELDS]
    if "name" in given or not unknown:
        _name(given.get("name"), "name", LONGEST_NAME)
    if unknown:
        refuse_unknown(unknown[0], _FIELDS)
    values = {}
    for key, read in _FIELDS.items():
        if key in given:
            values[key] = read(given[key], key)
        elif key in _REQUIRED:
            raise InvalidValue(key, None, "it must be given")
        elif key in ("args", "kwargs", "options"):
            values[key] = [] if key == "args" else {}
    zone = values.get("timezone", "UTC")
    parsed = schedules.parse(values["schedule"], tz=zone, name=values["name"])
    if parsed.kind == "after":
        allowed = "a cron expression, `every ...`, `once ...`, `rrule:...` or `solar:...`"
        hint = "A fixed delay from the end of the last run can be previewed, but a job cannot have it yet."
        raise InvalidValue("schedule", parsed.text, allowed, hint)
    return JobDefinition(**{**values, "schedule": parsed.text})


def checked_arguments(args: Any, kwargs: Any) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Arguments for one run by hand, checked as a definition's are; ``None``: the job's own.

    :raises InvalidValue: naming the argument, the value and what is allowed.
    """
    return (
        None if args is None else _args(args, "args"),
        None if kwargs is None else _mapping(kwargs, "kwargs"),
    )


def refuse_unknown(
    name: str, known: Iterable[str], what: str = "field", also: Iterable[str] = ()
) -> NoReturn:
    """Raise InvalidValue for a field that does not exist, with the nearest one that does.

    :param also: names that exist too, but are too many to list.
    """
    names = list(known)
    near = difflib.get_close_matches(name, [*names, *also], 1)
    hint = f"Did you mean {near[0]}?" if near else ""
    raise InvalidValue(what, name, f"there is no such one; there are {', '.join(names)}", hint)


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of a value that JSON gives back unchanged (a tuple becomes a list); else InvalidValue.

    :param where: the value's place, for the message: ``args[0]``.
    """
    if depth > DEEPEST_JSON:
        raise InvalidValue(where, value, f"at most {DEEPEST_JSON} lists or mappings within each other")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > LARGEST_INT:
            raise InvalidValue(where, "of too many digits", "a whole number of at most 300 digits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(where, value, "a number in JSON is finite")
        return value
    if isinstance(value, str):
        return _encodable(value, where)
    if isinstance(value, list | tuple):
        return [plain(part, f"{where}[{at}]", depth + 1) for at, part in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidValue(f"a key of {where}", key, "keys in JSON are texts")
            _encodable(key, f"a key of {where}")
        return {key: plain(part, f"{where}[{key!r}]", depth + 1) for key, part in value.items()}
    allowed = "it must be JSON: None, true, false, numbers, texts, lists and mappings of them"
    raise InvalidValue(where, value, allowed, "Pass an id or a text, and load the object in the task.")


def _encodable(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(what, value, "it holds half of a character (a lone surrogate)") from None
    return str(value)


def _text(value: Any, what: str, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidValue(what, value, "a text")
    if len(value) > longest:
        raise InvalidValue(what, value, f"at most {longest} characters (it has {len(value)})")
    return _encodable(value, what)


def _name(value: Any, what: str, longest: int) -> str:
    allowed = f"1 to {longest} characters, none of them a control character, no blanks at the ends"
    if not isinstance(value, str) or not value or value != value.strip() or _controls(value):
        raise InvalidValue(what, value, allowed)
    return _text(value, what, longest)


def _controls(text: str) -> str:
    """The control characters and line separators in a text."""
    return "".join(char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp"))


def _schedule(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(what, value, schedules.FORMS)
    return _text(value, what, 1000)


def _named(longest: int) -> Callable[[Any, str], str]:
    return lambda value, what: _name(value, what, longest)


def _zone(value: Any, _what: str) -> str:
    return schedules.check_zone(value).key


def _description(value: Any, what: str) -> str:
    text = _text(value, what, 10_000)
    if _controls(text).strip("\r\n\t"):
        raise InvalidValue(what, value, "no control characters but line ends and tabs")
    return text


def _one_of(kind: type[E]) -> Callable[[Any, str], E]:
    def read(value: Any, what: str) -> E:
        names = [member.value for member in kind]
        if isinstance(value, str) and value in names:
            return kind(value)
        near = difflib.get_close_matches(str(value), names, 1)
        raise InvalidValue(
            what, value, f"one of {', '.join(names)}", f"Did you mean {near[0]}?" if near else ""
        )

    return read


def _count(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValue(what, value, f"a whole number from {low} to {high}")
        return value

    return read


def _truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(what, value, "true or false")
    return value


def _optional_duration(value: Any, what: str) -> timedelta | None:
    return None if value is None else parse_duration(value, what)


def _size(value: Any, what: str) -> Any:
    size = len(json.dumps(value))
    if size > LARGEST_JSON:
        hint = "Store the data and pass where it is."
        raise InvalidValue(what, f"of {size} bytes", f"at most {LARGEST_JSON} bytes of JSON", hint)
    return value


def _args(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, "a list of the task's arguments")
    return list(_size(plain(value, what), what))


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, "a mapping of names to values")
    return dict(_size(plain(value, what), what))


def _options(value: Any, what: str) -> dict[str, Any]:
    options = _mapping(value, what)
    for key, option in options.items():
        where = f"{what}[{key!r}]"
        if key not in MESSAGE_OPTIONS:
            refuse_unknown(key, MESSAGE_OPTIONS, "message option")
        if key == "headers":
            for header in _mapping(option, where):
                if header.startswith(OUR_HEADERS):
                    raise InvalidValue(
                        f"{where}: header", header, f"names in {OUR_HEADERS}* are the scheduler's"
                    )
        elif key == "priority":
            _count(0, 255)(option, where)
        else:
            _name(option, where, 255)
    return options


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "name": _named(LONGEST_NAME),
    "task": _named(255),
    "schedule": _schedule,
    "timezone": _zone,
    "args": _args,
    "kwargs": _mapping,
    "options": _options,
    "overlap": _one_of(Overlap),
    "max_queued": _count(1, 100_000),
    "misfire": _one_of(Misfire),
    "misfire_grace": _optional_duration,
    "catchup_window": parse_duration,
    "expires": _optional_duration,
    "max_runtime": _optional_duration,
    "time_limit": _optional_duration,
    "priority": _count(0, 9),
    "pool": _named(100),
    "run_immediately": _truth,
    "enabled": _truth,
    "description": _description,
}
_REQUIRED = tuple(
    field.name
    for field in fields(JobDefinition)
    if field.default is MISSING and field.default_factory is MISSING
)
