"""What may stand in a job's definition: the one door for decorators, the client, commands and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from datetime import timedelta
from typing import Any

from celery_sched import notify_settings
from celery_sched.durations import format_duration, parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import Backoff, DayMode, Dst, JobDefinition, Misfire, OnExcluded, Overlap
from celery_sched.rules import deadlines, keys, readers, schedules, subscriptions, topics
from celery_sched.rules.jobtypes import check as check_type
from celery_sched.rules.schedules.excluding import too_frequent_to_move
from celery_sched.rules.schedules.none import NONE
from celery_sched.rules.schedules.zones import EPOCH, instant_of_wall
from celery_sched.rules.upcoming import schedule_for

EVENT_DEFAULTS: Mapping[str, Any] = {"schedule": NONE, "retries": 5}
"""What holds for a job that subscribes to events, and does not say."""


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
        readers.job_name(given.get("name"), "name")
    if unknown:
        readers.refuse_unknown(unknown[0], _FIELDS)
    if given.get("on") is not None:
        given = {**EVENT_DEFAULTS, **given}
    values = {}
    for key, read in _FIELDS.items():
        if key in given:
            values[key] = read(given[key], key)
        elif key in _REQUIRED:
            hint = "Or give the events that it runs for (on)." if key == "schedule" else ""
            raise InvalidValue(key, None, "it must be given", hint)
        elif key in _LISTS:
            values[key] = []
        elif key in ("kwargs", "options"):
            values[key] = {}
    zone = schedules.check_zone(values.get("timezone", "UTC"))
    for key in ("start_at", "end_at"):
        at = values.get(key)
        if at is not None and at.tzinfo is None:  # in the zone of the job, as `once`
            values[key] = instant_of_wall(zone, at)
    definition = JobDefinition(**values)
    schedule = schedule_for(definition)
    _check_times(definition)
    _check_limits(definition)
    _check_deadline(definition, schedule.kind)
    if schedule.kind != NONE:  # of a job without times, whoever runs it gives the arguments
        keys.key_of(definition.concurrency_key, definition.args, definition.kwargs)
    check_type(definition.task, definition.args, definition.kwargs)
    return replace(definition, schedule=schedule.text)


def _check_times(definition: JobDefinition) -> None:
    """What the fields of a job's times say together."""
    start, end = definition.start_at, definition.end_at
    if start is not None and end is not None and end < start:
        raise InvalidValue("end_at", end.isoformat(), f"not before start_at ({start.isoformat()})")
    if not definition.exclude:
        return
    bare = schedule_for(replace(definition, exclude=()))
    begin = (start or EPOCH) - timedelta(microseconds=1)
    if definition.on_excluded is OnExcluded.NEXT_BUSINESS_DAY and too_frequent_to_move(bare, begin):
        allowed = "next_business_day is for schedules that are due at most 24 times a day"
        hint = "Such a schedule is due again on that day anyway: use skip."
        raise InvalidValue("on_excluded", definition.on_excluded.value, allowed, hint)
    if bare.next_after(begin) is not None and schedule_for(definition).next_after(begin) is None:
        raise InvalidValue("exclude", list(definition.exclude), "these calendars exclude every occurrence")


def _check_deadline(definition: JobDefinition, kind: str) -> None:
    """A time of day says which occurrence must have succeeded, so there must be occurrences to know of."""
    by = definition.must_succeed_by
    if by is not None and deadlines.is_time_of_day(by) and kind in deadlines.UNKNOWN_TIMES:
        allowed = (
            f"an age such as '25h': when a job with the schedule {definition.schedule!r} runs, nobody knows"
        )
        raise InvalidValue("must_succeed_by", by, allowed)


def _check_limits(definition: JobDefinition) -> None:
    """What the limits and the retries say together."""
    soft, hard = definition.soft_time_limit, definition.time_limit
    if soft is not None and hard is not None and soft >= hard:
        allowed = f"less than time_limit ({format_duration(hard)})"
        raise InvalidValue("soft_time_limit", format_duration(soft), allowed)
    if definition.overlap is Overlap.REPLACE and definition.misfire is Misfire.ALL:
        allowed = "with overlap 'replace' it is once or skip: in a catch-up each run would replace the last"
        raise InvalidValue("misfire", definition.misfire.value, allowed, "Or choose overlap='queue'.")
    if definition.overlap is Overlap.REPLACE and definition.on is not None:
        allowed = "not with events (on): each would stop the run of the one before, which nobody repeats"
        hint = "For the latest event only: on={..., 'deliver': 'latest'}."
        raise InvalidValue("overlap", definition.overlap.value, allowed, hint)
    if definition.exclusive and definition.overlap is Overlap.CONCURRENT:
        allowed = "an exclusive job has one run at a time"
        raise InvalidValue("overlap", definition.overlap.value, allowed, "Or take exclusive out.")
    first, longest = definition.retry_delay, definition.retry_max_delay
    if definition.retries and first > longest:
        allowed = f"at most retry_max_delay ({format_duration(longest)})"
        raise InvalidValue("retry_delay", format_duration(first), allowed)


def checked_arguments(args: Any, kwargs: Any) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Arguments for one run by hand, checked as a definition's are; ``None``: the job's own.

    :raises InvalidValue: naming the argument, the value and what is allowed.
    """
    return (
        None if args is None else readers.args(args, "args"),
        None if kwargs is None else readers.mapping(kwargs, "kwargs"),
    )


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "name": readers.job_name,
    "task": readers.named(255),
    "schedule": readers.schedule,
    "timezone": readers.zone,
    "dst": readers.one_of(Dst),
    "day_mode": readers.one_of(DayMode),
    "start_at": readers.moment,
    "end_at": readers.moment,
    "max_runs": readers.optional_count(1, 2_000_000_000),
    "jitter": readers.optional_duration,
    "exclude": readers.calendar_terms,
    "on_excluded": readers.one_of(OnExcluded),
    "args": readers.args,
    "kwargs": readers.mapping,
    "options": readers.options,
    "overlap": readers.one_of(Overlap),
    "max_queued": readers.count(1, 100_000),
    "misfire": readers.one_of(Misfire),
    "misfire_grace": readers.optional_duration,
    "catchup_window": parse_duration,
    "expires": readers.optional_duration,
    "max_runtime": readers.optional_duration,
    "time_limit": readers.optional_duration,
    "soft_time_limit": readers.optional_duration,
    "heartbeat_timeout": readers.optional_duration,
    "retries": readers.count(0, 1000),
    "backoff": readers.one_of(Backoff),
    "retry_delay": parse_duration,
    "retry_max_delay": parse_duration,
    "retry_jitter": readers.truth,
    "retry_on": readers.exception_names,
    "give_up_on": readers.exception_names,
    "requeue": readers.truth,
    "pause_on_failure": readers.optional_count(1, 1000),
    "exclusive": readers.truth,
    "on_lost": readers.optional_named(255),
    "must_succeed_by": readers.deadline,
    "on": subscriptions.canonical,
    "publishes": topics.optional_topic,
    "priority": readers.count(0, 9),
    "pool": readers.named(100),
    "weight": readers.count(1, 1000),
    "concurrency_key": readers.key_template,
    "key_limit": readers.count(1, 1000),
    "notify": notify_settings.wanted,
    "run_immediately": readers.truth,
    "enabled": readers.truth,
    "description": readers.description,
}
_LISTS = ("args", "exclude", "retry_on", "give_up_on")
_REQUIRED = tuple(
    field.name
    for field in fields(JobDefinition)
    if field.default is MISSING and field.default_factory is MISSING
)
