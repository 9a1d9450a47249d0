"""The options of a job's definition, and what was given with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from celery_sched.errors import InvalidValue

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLES: dict[type, str] = {list: """'[1, "two"]'""", dict: """'{"city": "Berlin"}'"""}
NULLABLE_DURATIONS = ("misfire_grace", "expires", "max_runtime", "time_limit")

DEFINITION_OPTIONS = (
    click.option("--tz", "timezone", metavar="ZONE", help="Time zone of the schedule (UTC)."),
    click.option("--args", metavar="JSON", help="The task's arguments, a JSON list: '[1, \"two\"]'."),
    click.option("--kwargs", metavar="JSON", help="The task's keyword arguments, a JSON object."),
    click.option(
        "--overlap", metavar="POLICY", help="While a run is active: skip (default), queue, concurrent."
    ),
    click.option("--max-queued", type=int, help="With overlap queue: most runs that may wait (1000)."),
    click.option("--misfire", metavar="POLICY", help="Occurrences found late: once (default), all, skip."),
    click.option(
        "--misfire-grace", metavar="DURATION", help="An occurrence older than this is late, or none."
    ),
    click.option("--catchup-window", metavar="DURATION", help="How far back late occurrences count (365d)."),
    click.option(
        "--expires", metavar="DURATION", help="A run that cannot start within this is skipped, or none."
    ),
    click.option("--max-runtime", metavar="DURATION", help="A run that lasts longer is stopped, or none."),
    click.option("--time-limit", metavar="DURATION", help="Hard limit, whatever the job reports, or none."),
    click.option("--priority", type=int, help="0 (last) to 9 (first); 5."),
    click.option("--pool", metavar="NAME", help="The pool whose slots its runs take (default)."),
    click.option("--queue", metavar="NAME", help="The Celery queue, or none for the task's own."),
    click.option("--run-immediately/--no-run-immediately", default=None, help="First run at once."),
    click.option("--enabled/--disabled", default=None, help="Whether it is planned."),
    click.option("--description", metavar="TEXT", help="What it is for."),
)


def definition_options(function: F) -> F:
    """The options of a job's definition, which ``add`` and ``edit`` share."""
    for option in reversed(DEFINITION_OPTIONS):
        function = option(function)
    return function


def read_definition(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, as the client takes them (which checks them)."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name, kind, what in (("args", list, "list"), ("kwargs", dict, "object")):
        if name in fields:
            fields[name] = read_json(fields[name], f"--{name}", kind, what)
    for name in NULLABLE_DURATIONS:
        if str(fields.get(name, "")).lower() == "none":
            fields[name] = None
    return fields


def read_json(text: str, what: str, kind: type, called: str) -> Any:
    """A JSON list or object; anything else is refused with what was wrong."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidValue(
            what, text, f"it is a JSON {called}, such as {EXAMPLES[kind]}", f"It cannot be read: {error}."
        ) from error
    if not isinstance(value, kind):
        raise InvalidValue(what, text, f"it is a JSON {called}, such as {EXAMPLES[kind]}")
    return value


def with_queue(options: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """Message options with this queue; ``none`` takes it out."""
    rest = {key: value for key, value in options.items() if key != "queue"}
    return rest if queue.lower() == "none" else {**rest, "queue": queue}
