"""From the text of a schedule to the schedule: one door for decorator, CLI, files and database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.after import After
from celery_sched.rules.schedules.base import Schedule, as_utc
from celery_sched.rules.schedules.cron import Dst, cron
from celery_sched.rules.schedules.cronfields import DayMode
from celery_sched.rules.schedules.every import Every
from celery_sched.rules.schedules.once import Once
from celery_sched.rules.schedules.rrule import rrule
from celery_sched.rules.schedules.solar import solar
from celery_sched.rules.schedules.zones import EPOCH, check_zone, instant_of_wall

SHORTEST = timedelta(seconds=1)
FORMS = (
    'a schedule is a cron expression such as "30 2 * * 1-5" or @daily, "every 5m" (fixed rate), '
    '"after 5m" (delay from the end of the last run), "once 2026-01-01T09:00:00Z", '
    '"rrule:FREQ=WEEKLY;BYDAY=MO" (RFC 5545) or "solar:sunset@52.52,13.40"'
)


def parse(
    text: str,
    *,
    tz: str = "UTC",
    name: str = "",
    anchor: datetime | None = None,
    dst: str = "vixie",
    day_mode: str = "or",
) -> Schedule:
    """Read a schedule. Raises InvalidValue with what is wrong and what to write instead.

    ``tz`` is the zone of cron fields, rules and of a ``once`` without one; ``name`` is the job's name, which
    ``H`` hashes; ``anchor`` (default: the Unix epoch) gives ``every`` its phase and is the DTSTART of an
    ``rrule`` without one; ``dst`` is "vixie" or "literal"; ``day_mode`` "or" or "and" says whether one of a
    cron expression's two day fields is enough.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue("schedule", text, FORMS)
    zone = check_zone(tz)
    if dst not in ("vixie", "literal"):
        allowed = '"vixie" (as Debian cron) or "literal" (each wall time once, none made up) are possible'
        raise InvalidValue("dst", dst, allowed)
    if day_mode not in ("or", "and"):
        allowed = (
            '"or" (as cron: one of the two day fields is enough) or "and" (both must match) are possible'
        )
        raise InvalidValue("day_mode", day_mode, allowed)
    text = text.strip()
    prefix, _, body = text.partition(":")
    match prefix.rstrip().lower():
        case "rrule":
            start = EPOCH if anchor is None else as_utc(anchor)
            return rrule(text, body, tz=zone.key, anchor=start, dst=cast("Dst", dst))
        case "solar":
            return solar(text, body)
    word, *others = text.split(maxsplit=1)
    rest = "".join(others)
    match word.lower():
        case "every":
            return Every(text, _period(text, rest), EPOCH if anchor is None else as_utc(anchor))
        case "after":
            return After(text, _period(text, rest))
        case "once":
            return Once(text, _once(text, rest, zone.key))
        case "@every":
            raise InvalidValue("schedule", text, FORMS, f'Write "every {rest or "5m"}".')
    if not text.startswith("@") and (":" in word or (word[0].isalpha() and len(text.split()) < 5)):
        raise InvalidValue("schedule", text, FORMS)
    return cron(text, tz=tz, name=name, dst=cast("Dst", dst), day_mode=cast("DayMode", day_mode))


def _period(text: str, rest: str) -> timedelta:
    period = parse_duration(rest, f"the duration of schedule {text!r}:")
    if period < SHORTEST:
        # A pass of the scheduler reads, locks and writes rows: below a second it would only fall behind.
        hint = "For faster work let one run loop."
        raise InvalidValue("schedule", text, "the shortest interval is 1 second", hint)
    return period


def _once(text: str, rest: str, tz: str) -> datetime:
    try:
        at = datetime.fromisoformat(rest)
        return instant_of_wall(check_zone(tz), at) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        allowed = (
            'once takes an ISO 8601 time such as "once 2026-01-01T09:00:00Z" '
            'or, in the zone of the job, "once 2026-01-01T09:00"'
        )
        raise InvalidValue("schedule", text, allowed) from error
