"""From the text of a schedule to the schedule: one door for decorator, CLI, files and database."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.after import After
from celery_sched.rules.schedules.base import Schedule, as_utc
from celery_sched.rules.schedules.cron import Dst, cron, quartz
from celery_sched.rules.schedules.cronfields import LONGEST_TEXT, DayMode
from celery_sched.rules.schedules.every import Every
from celery_sched.rules.schedules.none import NONE, NoTimes
from celery_sched.rules.schedules.once import Once
from celery_sched.rules.schedules.rrule import rrule
from celery_sched.rules.schedules.solar import solar
from celery_sched.rules.schedules.union import MOST_MEMBERS, union
from celery_sched.rules.schedules.zones import EPOCH, check_zone, instant_of_wall

SHORTEST = timedelta(seconds=1)
_ZONED = re.compile(r"(?:CRON_)?TZ=(\S+)\s*(.*)", re.IGNORECASE | re.DOTALL)
"""How crontabs and other schedulers name a zone."""
FORMS = (
    'a schedule is a cron expression such as "30 2 * * 1-5" or @daily, "every 5m" (fixed rate), '
    '"after 5m" (delay from the end of the last run), "once 2026-01-01T09:00:00Z", '
    '"rrule:FREQ=WEEKLY;BYDAY=MO" (RFC 5545), "solar:sunset@52.52,13.40", "quartz:0 0 9 ? * MON-FRI", '
    'several of these with | between, or "none": it runs when an event comes, or by hand'
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
    ``H`` hashes; ``anchor`` gives ``every`` its phase and is the DTSTART of an ``rrule`` without one
    (None: the Unix epoch stands in, and a rule that is empty only because of it is not refused); ``dst`` is
    "vixie" or "literal"; ``day_mode`` "or" or "and": whether one of a cron expression's two day fields is
    enough.
    Schedules with ``|`` between them are a union.
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
    reader = _Reader(zone.key, name, anchor, cast("Dst", dst), cast("DayMode", day_mode))
    text = text.strip()
    if text.lower() == NONE:
        return NoTimes()
    if (prefixed := _ZONED.match(text)) is not None:
        zoned, rest = prefixed.groups()
        hint = f"Give the zone beside the schedule {rest!r}: --tz {zoned} (in code timezone={zoned!r})."
        raise InvalidValue("schedule", text, "a time zone does not belong into its text", hint)
    return reader.union(text) if "|" in text else reader.one(text)


@dataclass(frozen=True, slots=True)
class _Reader:
    """What a text is read with; the arguments of ``parse``."""

    tz: str
    name: str
    anchor: datetime | None
    dst: Dst
    day_mode: DayMode

    def union(self, text: str) -> Schedule:
        parts = [part.strip() for part in text.split("|")]
        if len(text) > LONGEST_TEXT:
            raise InvalidValue("schedule", text, f"it has at most {LONGEST_TEXT} characters")
        if len(parts) > MOST_MEMBERS:
            raise InvalidValue("schedule", text, f"at most {MOST_MEMBERS} schedules are joined by |")
        members = []
        for place, part in enumerate(parts, 1):
            where = f"{part!r}, schedule {place} of {len(parts)} in it"
            if not part:
                raise InvalidValue("schedule", text, f"a place beside | is empty: schedule {place}")
            try:
                members.append(self.one(part))
            except InvalidValue as error:
                raise InvalidValue("schedule", text, f"{where}: {error.allowed}", error.hint) from error
        return union(text, members)

    def one(self, text: str) -> Schedule:
        prefix, _, body = text.partition(":")
        match prefix.rstrip().lower():
            case "rrule":
                return rrule(text, body, tz=self.tz, anchor=self.anchor, dst=self.dst)
            case "solar":
                return solar(text, body)
            case "quartz":
                return quartz(text, body, tz=self.tz, name=self.name, dst=self.dst)
        word, *others = text.split(maxsplit=1)
        rest = "".join(others)
        match word.lower():
            case "every":
                return Every(text, _period(text, rest), EPOCH if self.anchor is None else as_utc(self.anchor))
            case "after":
                return After(text, _period(text, rest))
            case "once":
                return Once(text, _once(text, rest, self.tz))
            case "@every":
                raise InvalidValue("schedule", text, FORMS, f'Write "every {rest or "5m"}".')
        if not text.startswith("@") and (":" in word or (word[0].isalpha() and len(text.split()) < 5)):
            raise InvalidValue("schedule", text, FORMS)
        return cron(text, tz=self.tz, name=self.name, dst=self.dst, day_mode=self.day_mode)


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
