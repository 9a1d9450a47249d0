"""How the fields of a job's definition are read: each from what people give to the one form it has."""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from string import Formatter
from typing import Any, NoReturn, TypeVar

from celery_sched.durations import format_duration, parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.rules import calendars, schedules

E = TypeVar("E", bound=StrEnum)

LONGEST_NAME = 200
SYSTEM_PREFIX = "sched:"
"""How the names of the scheduler's own jobs begin."""
LARGEST_JSON = 64 * 1024
"""Bytes of ``args``, ``kwargs`` or ``options``: they are copied into every message."""
DEEPEST_JSON = 50
LARGEST_CALENDARS = 256 * 1024
"""Bytes of ``exclude``: it is read whenever the job is planned."""
LARGEST_INT = 10**300
MESSAGE_OPTIONS = ("queue", "exchange", "routing_key", "priority", "headers")
OUR_HEADERS = "sched_"
TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
FIRST_YEAR, LAST_YEAR = 1971, 2999


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


def a_text(value: Any, what: str, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidValue(what, value, "a text")
    if len(value) > longest:
        raise InvalidValue(what, value, f"at most {longest} characters (it has {len(value)})")
    return _encodable(value, what)


def a_name(value: Any, what: str, longest: int) -> str:
    allowed = f"1 to {longest} characters, none of them a control character, no blanks at the ends"
    if not isinstance(value, str) or not value or value != value.strip() or _controls(value):
        raise InvalidValue(what, value, allowed)
    return a_text(value, what, longest)


def job_name(value: Any, what: str) -> str:
    """A name that people may give a job."""
    name = a_name(value, what, LONGEST_NAME)
    if name.startswith(SYSTEM_PREFIX):
        allowed = f"names that begin with {SYSTEM_PREFIX!r} are those of the scheduler's own jobs"
        raise InvalidValue(what, value, allowed, "Choose another name.")
    return name


def _controls(text: str) -> str:
    """The control characters and line separators in a text."""
    return "".join(char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp"))


def schedule(value: Any, what: str) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        value = " | ".join(value)
    if not isinstance(value, str):
        raise InvalidValue(what, value, schedules.FORMS)
    return a_text(value, what, 1000)


def moment(value: Any, what: str) -> datetime | None:
    """An instant; without a zone it is a time of the job's zone, which is known only later."""
    if value is None:
        return None
    allowed = 'an ISO 8601 time such as "2026-01-31T09:00:00Z" or, in the zone of the job, "2026-01-31T09:00"'
    try:
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())  # what TOML and YAML make of 2026-01-31
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise InvalidValue(what, value, allowed) from error
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise InvalidValue(what, value, f"a time in the years {FIRST_YEAR} to {LAST_YEAR}")
    return at if at.tzinfo is None else at.astimezone(UTC)


def calendar_terms(value: Any, what: str) -> list[Any]:
    if isinstance(value, str | Mapping):
        value = [value]
    if not value:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, f"a list of calendars; {calendars.FORMS}")
    terms = [calendars.canonical(term) for term in value]
    size = len(json.dumps(terms))
    if size > LARGEST_CALENDARS:
        hint = "Exclude with fewer events: past ones are left out already."
        raise InvalidValue(what, f"of {size} bytes", f"at most {LARGEST_CALENDARS} bytes", hint)
    return terms


def exception_names(value: Any, what: str) -> list[str]:
    """Names such as ``ConnectionError`` or ``requests.exceptions.Timeout``; classes are named as they are."""
    values = [value] if isinstance(value, str | type) else value
    if not isinstance(values, list | tuple) or len(values) > 100:
        raise InvalidValue(what, value, "a list of at most 100 names of exceptions")
    names = [f"{one.__module__}.{one.__qualname__}" if isinstance(one, type) else one for one in values]
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidValue(what, name, 'the name of an exception, such as "requests.exceptions.Timeout"')
        a_text(name, what, 255)
    return [str(name).removeprefix("builtins.") for name in names]


def optional_named(longest: int) -> Callable[[Any, str], str | None]:
    return lambda value, what: None if value is None else a_name(value, what, longest)


def named(longest: int) -> Callable[[Any, str], str]:
    return lambda value, what: a_name(value, what, longest)


def zone(value: Any, _what: str) -> str:
    return schedules.check_zone(value).key


def description(value: Any, what: str) -> str:
    text = a_text(value, what, 10_000)
    if _controls(text).strip("\r\n\t"):
        raise InvalidValue(what, value, "no control characters but line ends and tabs")
    return text


def one_of(kind: type[E]) -> Callable[[Any, str], E]:
    def read(value: Any, what: str) -> E:
        names = [member.value for member in kind]
        if isinstance(value, str) and value in names:
            return kind(value)
        near = difflib.get_close_matches(str(value), names, 1)
        raise InvalidValue(
            what, value, f"one of {', '.join(names)}", f"Did you mean {near[0]}?" if near else ""
        )

    return read


def count(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValue(what, value, f"a whole number from {low} to {high}")
        return value

    return read


def truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(what, value, "true or false")
    return value


def deadline(value: Any, what: str) -> str | None:
    """A time of day (``"06:00"``), or an age (``"25h"``) in its one form."""
    if value is None:
        return None
    if isinstance(value, time):
        value = f"{value:%H:%M}"  # what TOML makes of 06:00:00
    if isinstance(value, str) and TIME_OF_DAY.fullmatch(value):
        return value
    try:
        return format_duration(parse_duration(value, what))
    except InvalidValue as error:
        allowed = 'a time of day ("06:00", in the job\'s zone), or an age such as "25h"'
        raise InvalidValue(what, value, allowed) from error


def key_template(value: Any, what: str) -> str | None:
    """A text with the names of keyword arguments, or the places of others, in braces."""
    if value is None:
        return None
    template = a_name(value, what, 200)
    allowed = 'a template such as "customer:{customer_id}" or "{0}", over the arguments of the task'
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidValue(what, value, allowed, f"It cannot be read: {error}.") from error
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not (name.isidentifier() or name.isdecimal())):
            raise InvalidValue(what, value, allowed)
    return template


def optional_duration(value: Any, what: str) -> timedelta | None:
    return None if value is None else parse_duration(value, what)


def optional_count(low: int, high: int) -> Callable[[Any, str], int | None]:
    return lambda value, what: None if value is None else count(low, high)(value, what)


def _size(value: Any, what: str) -> Any:
    size = len(json.dumps(value))
    if size > LARGEST_JSON:
        hint = "Store the data and pass where it is."
        raise InvalidValue(what, f"of {size} bytes", f"at most {LARGEST_JSON} bytes of JSON", hint)
    return value


def args(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, "a list of the task's arguments")
    return list(_size(plain(value, what), what))


def mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, "a mapping of names to values")
    return dict(_size(plain(value, what), what))


def options(value: Any, what: str) -> dict[str, Any]:
    options = mapping(value, what)
    for key, option in options.items():
        where = f"{what}[{key!r}]"
        if key not in MESSAGE_OPTIONS:
            refuse_unknown(key, MESSAGE_OPTIONS, "message option")
        if key == "headers":
            for header in mapping(option, where):
                if header.startswith(OUR_HEADERS):
                    raise InvalidValue(
                        f"{where}: header", header, f"names in {OUR_HEADERS}* are the scheduler's"
                    )
        elif key == "priority":
            count(0, 255)(option, where)
        else:
            a_name(option, where, 255)
    return options
