"""What may stand in a job's definition: the one door for decorators, the client, commands and files."""

from __future__ import annotations

import difflib
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import DayMode, Dst, JobDefinition, Misfire, OnExcluded, Overlap
from celery_sched.rules import schedules
from celery_sched.rules.schedules.zones import EPOCH, instant_of_wall
from celery_sched.rules.upcoming import schedule_for

E = TypeVar("E", bound=StrEnum)

LONGEST_NAME = 200
LARGEST_JSON = 64 * 1024
"""Bytes of ``args``, ``kwargs`` or ``options``: they are copied into every message."""
DEEPEST_JSON = 50
LARGEST_CALENDARS = 256 * 1024
"""Bytes of ``exclude``: it is read whenever the job is planned."""
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
        elif key in ("args", "kwargs", "options", "exclude"):
            values[key] = [] if key in ("args", "exclude") else {}
    zone = schedules.check_zone(values.get("timezone", "UTC"))
    for key in ("start_at", "end_at"):
        at = values.get(key)
        if at is not None and at.tzinfo is None:  # in the zone of the job, as `once`
            values[key] = instant_of_wall(zone, at)
    definition = JobDefinition(**values)
    schedule = schedule_for(definition, EPOCH)
    _check_times(definition)
    return replace(definition, schedule=schedule.text)


def _check_times(definition: JobDefinition) -> None:
    """What the fields of a job's times say together."""
    start, end = definition.start_at, definition.end_at
    if start is not None and end is not None and end < start:
        raise InvalidValue("end_at", end.isoformat(), f"not before start_at ({start.isoformat()})")
    if not definition.exclude:
        return
    from celery_sched.rules.schedules.excluding import too_frequent_to_move  # TODO top

    bare = schedule_for(replace(definition, exclude=()), EPOCH)
    begin = (start or EPOCH) - timedelta(microseconds=1)
    if definition.on_excluded is OnExcluded.NEXT_BUSINESS_DAY and too_frequent_to_move(bare, begin):
        allowed = "next_business_day is for schedules that are due at most 24 times a day"
        hint = "Such a schedule is due again on that day anyway: use skip."
        raise InvalidValue("on_excluded", definition.on_excluded.value, allowed, hint)
    if bare.next_after(begin) is not None and schedule_for(definition, EPOCH).next_after(begin) is None:
        raise InvalidValue("exclude", list(definition.exclude), "these calendars exclude every occurrence")


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
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        value = " | ".join(value)
    if not isinstance(value, str):
        raise InvalidValue(what, value, schedules.FORMS)
    return _text(value, what, 1000)


def _moment(value: Any, what: str) -> datetime | None:
    """An instant; without a zone it is a time of the job's zone, which is known only later."""
    if value is None:
        return None
    allowed = 'an ISO 8601 time such as "2026-01-31T09:00:00Z" or, in the zone of the job, "2026-01-31T09:00"'
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return at if at.tzinfo is None else at.astimezone(UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue(what, value, allowed) from error


def _calendars(value: Any, what: str) -> list[Any]:
    if isinstance(value, str | Mapping):
        value = [value]
    if not value:
        return []
    from celery_sched.rules import calendars  # TODO top

    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, f"a list of calendars; {calendars.FORMS}")
    terms = [calendars.canonical(term) for term in value]
    size = len(json.dumps(terms))
    if size > LARGEST_CALENDARS:
        hint = "Exclude with fewer events: past ones are left out already."
        raise InvalidValue(what, f"of {size} bytes", f"at most {LARGEST_CALENDARS} bytes", hint)
    return terms


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


def _optional_count(low: int, high: int) -> Callable[[Any, str], int | None]:
    return lambda value, what: None if value is None else _count(low, high)(value, what)


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
    "dst": _one_of(Dst),
    "day_mode": _one_of(DayMode),
    "start_at": _moment,
    "end_at": _moment,
    "max_runs": _optional_count(1, 2_000_000_000),
    "jitter": _optional_duration,
    "exclude": _calendars,
    "on_excluded": _one_of(OnExcluded),
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
