"""The options of a job's definition, and what was given with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from celery_sched.errors import InvalidValue

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLES: dict[type, str] = {list: """'[1, "two"]'""", dict: """'{"city": "Berlin"}'"""}
NULLABLE_DURATIONS = (
    *("misfire_grace", "expires", "max_runtime", "time_limit", "soft_time_limit", "heartbeat_timeout"),
    "jitter",
)
NULLABLE = (
    *(*NULLABLE_DURATIONS, "start_at", "end_at", "max_runs", "pause_on_failure"),
    *("on_lost", "must_succeed_by", "on", "publishes", "concurrency_key", "notify"),
)
LISTS = ("exclude", "retry_on", "give_up_on")

TIMES_OPTIONS = (
    click.option("--tz", "timezone", metavar="ZONE", help="Time zone of the schedule (UTC)."),
    click.option("--dst", metavar="POLICY", help="When clocks change: vixie (as cron; default), literal."),
    click.option(
        "--day-mode", metavar="MODE", help="Cron's two day fields, both given: or (as cron; default), and."
    ),
    click.option("--start-at", metavar="ISO", help="Not due before this time, or none."),
    click.option("--end-at", metavar="ISO", help="Not due after this time, or none."),
    click.option(
        "--exclude",
        multiple=True,
        metavar="CALENDAR",
        help='Not due then: "dates:2026-12-24", "weekly:sat,sun", "holidays:DE-BE", "ics:FILE"; may be'
        " given several times; none.",
    ),
    click.option(
        "--on-excluded", metavar="POLICY", help="Excluded occurrences: skip (default), next_business_day."
    ),
    click.option("--jitter", metavar="DURATION", help="Due up to this much later, or none."),
)
"""The options of a job's times, which the preview has too."""

DEFINITION_OPTIONS = (
    *TIMES_OPTIONS,
    click.option("--max-runs", metavar="N", help="After this many runs it is expired, or none."),
    click.option("--args", metavar="JSON", help="The task's arguments, a JSON list: '[1, \"two\"]'."),
    click.option("--kwargs", metavar="JSON", help="The task's keyword arguments, a JSON object."),
    click.option(
        "--overlap",
        metavar="POLICY",
        help="While a run is active: skip (default), queue, queue_one, replace, concurrent.",
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
    click.option("--soft-time-limit", metavar="DURATION", help="SoftTimeLimitExceeded in the task, or none."),
    click.option(
        "--heartbeat-timeout", metavar="DURATION", help="Longest pause between two heartbeats, or none."
    ),
    click.option("--retries", type=int, help="How often a failed, timed out or lost run is tried again (0)."),
    click.option("--backoff", metavar="HOW", help="How pauses grow: exponential (default), linear, fixed."),
    click.option("--retry-delay", metavar="DURATION", help="The pause before the first retry (10s)."),
    click.option("--retry-max-delay", metavar="DURATION", help="The longest pause (1h)."),
    click.option(
        "--retry-jitter/--no-retry-jitter", default=None, help="Pauses are shortened by up to half."
    ),
    click.option("--retry-on", multiple=True, metavar="EXCEPTION", help="Retry on these only; none: on all."),
    click.option("--give-up-on", multiple=True, metavar="EXCEPTION", help="Never retry on these; none."),
    click.option("--requeue/--no-requeue", default=None, help="A lost run is queued again at once."),
    click.option("--pause-on-failure", metavar="N", help="Pause after N failed runs in a row, or none."),
    click.option("--exclusive/--no-exclusive", default=None, help="Never two runs, even for a moment."),
    click.option("--on-lost", metavar="TASK", help="Puts right what a run cut short left behind, or none."),
    click.option(
        "--must-succeed-by", metavar="WHEN", help='Alert without a success by "06:00", or for "25h"; none.'
    ),
    click.option(
        "--on",
        metavar="TOPICS",
        help='Runs for events: "orders.new", "orders.*,bills.new", or JSON as in docs/events.md; none.',
    ),
    click.option("--publishes", metavar="TOPIC", help="Each success publishes its result there; none."),
    click.option("--priority", type=int, help="0 (last) to 9 (first); 5."),
    click.option("--pool", metavar="NAME", help="The pool whose slots its runs take (default)."),
    click.option("--weight", type=int, help="How many slots a run takes (1)."),
    click.option(
        "--concurrency-key",
        metavar="TEMPLATE",
        help='Over the arguments, "customer:{customer_id}": --key-limit runs of one key at a time; none.',
    ),
    click.option("--key-limit", type=int, help="Most runs of one key in flight (1)."),
    click.option(
        "--notify",
        metavar="WHOM",
        help='Targets to tell ("ops", "ops,boss"), JSON such as \'{"on": ["failure"], "to": ["ops"]}\', off'
        " (nothing is told), or none (as the settings say).",
    ),
    click.option("--queue", metavar="NAME", help="The Celery queue, or none for the task's own."),
    click.option("--run-immediately/--no-run-immediately", default=None, help="First run at once."),
    click.option("--enabled/--disabled", default=None, help="Whether it is planned."),
    click.option("--description", metavar="TEXT", help="What it is for."),
)


def times_options(function: F) -> F:
    """The options of a job's times."""
    for option in reversed(TIMES_OPTIONS):
        function = option(function)
    return function


def definition_options(function: F) -> F:
    """The options of a job's definition, which ``add`` and ``edit`` share."""
    for option in reversed(DEFINITION_OPTIONS):
        function = option(function)
    return function


def read_definition(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, as the client takes them (which checks them)."""
    fields = {name: value for name, value in given.items() if value is not None and value != ()}
    for name, kind, what in (("args", list, "list"), ("kwargs", dict, "object")):
        if name in fields:
            fields[name] = read_json(fields[name], f"--{name}", kind, what)
    for name in NULLABLE:
        if str(fields.get(name, "")).lower() == "none":
            fields[name] = None
    for name in ("max_runs", "pause_on_failure"):
        if fields.get(name) is not None:
            try:
                fields[name] = int(fields[name])
            except ValueError as error:
                option = f"--{name.replace('_', '-')}"
                raise InvalidValue(option, fields[name], "a whole number, or none") from error
    if fields.get("notify") is not None:
        fields["notify"] = read_notify(fields["notify"])
    if fields.get("on") is not None:
        fields["on"] = read_on(fields["on"])
    for name in LISTS:
        if name in fields:
            terms = list(fields[name])
            fields[name] = [] if [term.lower() for term in terms] == ["none"] else terms
    return fields


def read_notify(text: str) -> Any:
    """``off``, names of targets with commas between them, or JSON."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            allowed = """names of targets, or JSON such as '{"on": ["failure"], "to": ["ops"]}'"""
            raise InvalidValue("--notify", text, allowed, f"It cannot be read: {error}.") from error
    return "off" if text.strip().lower() == "off" else [name.strip() for name in text.split(",")]


def read_on(text: str) -> Any:
    """Topics with commas between them, or JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return [name.strip() for name in text.split(",")]
    try:
        return json.loads(text)
    except ValueError as error:
        allowed = """topics, or JSON such as '{"topics": ["orders.*"], "deliver": "latest"}'"""
        raise InvalidValue("--on", text, allowed, f"It cannot be read: {error}.") from error


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
