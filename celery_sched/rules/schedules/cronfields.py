"""Reading cron text into the fields it allows.

The meaning is Debian's crontab(5); the extensions (L, LW, nW, d#k, dL, seconds sixth, year seventh) are
croniter's. (Quartz's own layout and numbers are read in quartz.py.) What is not exactly understood is
refused: a half understood schedule runs at wrong times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import cronterms
from celery_sched.rules.schedules.cronterms import Field, Kind

# Whether a day that satisfies one of the two day fields is enough (cron) or both must match (Celery).
DayMode = Literal["or", "and"]

LONGEST_TEXT = 1000
LAYOUT = (
    "cron text has 5 fields (minute hour day-of-month month day-of-week), "
    "a 6th for seconds and a 7th for the year"
)

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class CronFields:
    """What the fields allow. Days of the week are 0 = Sunday .. 6; ``years`` None means every year."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    years: tuple[int, ...] | None
    days: frozenset[int]
    from_last: frozenset[int]  # days before the last one: 0 is L
    workdays_from_last: frozenset[int]  # the Mon-Fri day nearest to that day: 0 is LW
    nearest_workdays: frozenset[int]  # nW
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]  # (weekday, k) of d#k
    last_weekdays: frozenset[int]  # dL
    either_day: bool  # R3: a day that satisfies one of the two day fields is enough
    wildcard: bool  # R5: the minute or hour field begins with a star


def read_fields(text: str, name: str, day_mode: DayMode = "or") -> CronFields:
    """Read 5, 6 or 7 fields or a macro; ``name`` is what ``H`` hashes. Raises InvalidValue.

    With ``day_mode`` "and" both day fields must match, whatever they begin with.
    """
    if len(text) > LONGEST_TEXT:
        raise InvalidValue("schedule", text, f"cron text has at most {LONGEST_TEXT} characters")
    words = _expand_macro(text).lower().split()
    if not 5 <= len(words) <= 7:
        raise InvalidValue("schedule", text, f"{LAYOUT}; this has {len(words)}")
    if "?" in text:
        hint = f"Write quartz: before such an expression. Without it {LAYOUT}, and any day is *."
        raise InvalidValue("schedule", text, "? belongs to Quartz, whose fields are in another order", hint)
    minute, hour, day, month, weekday = words[:5]
    second = words[5] if len(words) > 5 else "0"
    year = words[6] if len(words) > 6 else "*"

    def read(kind: Kind, field: str) -> Field:
        return Field(kind, field, text, name)

    days, weekdays = read(cronterms.DAY_OF_MONTH, day), read(cronterms.DAY_OF_WEEK, weekday)
    return CronFields(
        seconds=tuple(sorted(read(cronterms.SECOND, second).values)),
        minutes=tuple(sorted(read(cronterms.MINUTE, minute).values)),
        hours=tuple(sorted(read(cronterms.HOUR, hour).values)),
        months=frozenset(read(cronterms.MONTH, month).values),
        years=None if year == "*" else tuple(sorted(read(cronterms.YEAR, year).values)),
        days=frozenset(days.values),
        from_last=frozenset(days.from_last),
        workdays_from_last=frozenset(days.workdays_from_last),
        nearest_workdays=frozenset(days.nearest),
        weekdays=frozenset(map(cronterms.DAY_OF_WEEK.weekday, weekdays.values)),
        nth_weekdays=frozenset(weekdays.nth),
        last_weekdays=frozenset(weekdays.last),
        either_day=day_mode == "or" and not day.startswith("*") and not weekday.startswith("*"),
        wildcard=minute.startswith("*") or hour.startswith("*"),
    )


def _expand_macro(text: str) -> str:
    if not text.startswith("@"):
        return text
    macro = text.lower()
    if macro in MACROS:
        return MACROS[macro]
    if macro == "@reboot":
        allowed = "a job in a database outlives reboots, so @reboot names no instant"
        raise InvalidValue(
            "schedule", text, allowed, "Start such work from the system's own service manager."
        )
    raise InvalidValue("schedule", text, f"the macros are {', '.join(sorted(MACROS))}")
