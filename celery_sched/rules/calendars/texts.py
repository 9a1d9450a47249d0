"""From the term of an exclusion calendar to the calendar: one door for decorator, CLI, files and database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars import dates, holidays, weekly
from celery_sched.rules.calendars.base import Calendar
from celery_sched.rules.calendars.ics import ics, stored

KINDS = ("dates", "weekly", "holidays", "ics")
FORMS = f'an exclusion calendar is {dates.FORM}, {weekly.FORM}, {holidays.FORM} or "ics:PATH" (a file)'


def read_calendar(term: str | Mapping[str, Any], zone: ZoneInfo) -> Calendar:
    """Read a term, or what ``calendar_files`` made of an ``ics:PATH``. ``zone`` is the job's.

    Raises InvalidValue with what is wrong and what is allowed. Cached, so that calendars remember the years
    they were asked about and an equal term gives the same object.
    """
    if isinstance(term, str):
        return _read_text(term.strip(), zone)
    if isinstance(term, Mapping):
        try:
            return _read_stored(json.dumps(dict(term)), zone)
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue("exclusion calendar", term, FORMS) from error
    raise InvalidValue("exclusion calendar", term, FORMS)


def canonical(term: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """The checked form that is stored: one spelling for what means the same. Raises InvalidValue."""
    text = read_calendar(term, ZoneInfo("UTC")).text
    return text if isinstance(term, str) else stored(term)


@lru_cache(maxsize=4096)
def _read_text(text: str, zone: ZoneInfo) -> Calendar:
    kind, colon, body = text.partition(":")
    match kind.strip().lower():
        case "dates":
            return dates.dates(text, body)
        case "weekly":
            return weekly.weekly(text, body)
        case "holidays":
            return holidays.holidays(text, body)
        case "ics":
            allowed = "its file is read where the job is defined, in the decorator or by the command"
            raise InvalidValue("exclusion calendar", text, allowed, "Here only what was read can be given.")
    near = get_close_matches(kind.strip().lower(), KINDS, n=1)
    hint = f"Did you mean {near[0]}:{body}?" if near and colon else ""
    raise InvalidValue("exclusion calendar", text, FORMS, hint)


@lru_cache(maxsize=64)
def _read_stored(text: str, zone: ZoneInfo) -> Calendar:
    return ics(json.loads(text), zone)
