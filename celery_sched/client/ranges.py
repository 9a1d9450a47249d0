"""What a backfill is asked for, read and checked: times, how many at a time, what is run again."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_sched.client.base import near
from celery_sched.errors import InvalidValue
from celery_sched.model import JobStatus, Overlap, Reprocess
from celery_sched.rules import readers
from celery_sched.rules.backfill import MOST, MOST_CONCURRENT
from celery_sched.rules.schedules import check_zone
from celery_sched.rules.schedules.zones import EPOCH, instant_of_wall
from celery_sched.rules.upcoming import jitter_of, schedule_of

INSTANT = timedelta(microseconds=1)
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def reprocess(value: Reprocess | str) -> Reprocess:
    """Which occurrences that have run are run again."""
    known = [one.value for one in Reprocess]
    if value not in known:
        raise InvalidValue("reprocess", value, f"one of {', '.join(known)}", near(str(value), known))
    return Reprocess(value)


def check_concurrency(row: Any, value: int) -> None:
    """How many runs of a job (its row) may be unfinished at a time."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or not 1 <= value <= MOST_CONCURRENT:
        raise InvalidValue("max_concurrent", value, f"a whole number from 1 to {MOST_CONCURRENT}")
    if value > 1 and row.overlap != Overlap.CONCURRENT:
        allowed = f"1, as overlap of job {row.name!r} is {row.overlap!r}: one run of it at a time"
        raise InvalidValue("max_concurrent", value, allowed)


def ends(row: Any, first: datetime, last: datetime) -> tuple[datetime, datetime]:
    """The first and the last occurrence in a range that has some."""
    schedule = schedule_of(row)
    begin, end = schedule.next_after(first - INSTANT), schedule.latest_in(first - INSTANT, last)
    if begin is None or end is None:
        raise AssertionError("a range that has occurrences has a first and a last one")
    return begin, end


def unplanned(row: Any, last: datetime) -> int:
    """How many occurrences up to ``last`` an active job (its row) is still to plan: left to its schedule."""
    if row.status != JobStatus.ACTIVE or row.next_run_at is None:
        return 0
    undecided = jitter_of(row).occurrence_of(row.next_run_at)
    return schedule_of(row).count_in(undecided - INSTANT, last) if undecided <= last else 0


def occurrences(
    row: Any, from_at: datetime | str, to_at: datetime | str, now: datetime
) -> tuple[datetime, datetime, int]:
    """The range as instants, checked, and how many occurrences of the job (its row) lie in it."""
    first, last = _instant(row, from_at, "from"), _instant(row, to_at, "to")
    if isinstance(to_at, str) and DAY.fullmatch(to_at.strip()):
        tomorrow = datetime.fromisoformat(to_at.strip()) + timedelta(days=1)
        last = (
            min(now, instant_of_wall(check_zone(row.timezone), tomorrow) - INSTANT) if last <= now else last
        )
    if last < first:
        raise InvalidValue("to", shown(last), f"not before from ({shown(first)})")
    if last > now:
        raise InvalidValue(
            "to",
            shown(last),
            f"not in the future: it is now {shown(now)}",
            "What comes later is run by the schedule.",
        )
    schedule = schedule_of(row)
    if schedule.kind in ("after", "none"):
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"its schedule is {row.schedule!r}: what has no fixed times has none in the past",
            f"To run it once now: sched run {row.name}",
        )
    total = schedule.count_in(first - INSTANT, last)
    if total == 0:
        before = schedule.latest_in(EPOCH, first)
        after = schedule.next_after(last)
        near_by = " and ".join(shown(one) for one in (before, after) if one is not None)
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"no occurrence lies from {shown(first)} to {shown(last)}",
            f"The nearest are {near_by}." if near_by else "",
        )
    if total > MOST:
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"{total} occurrences lie from {shown(first)} to {shown(last)}; at most {MOST} are allowed",
            "Do it in parts.",
        )
    return first, last, total


def _instant(row: Any, value: datetime | str, what: str) -> datetime:
    found = readers.moment(value, what)
    if found is None:
        raise InvalidValue(what, value, "it must be given")
    return found if found.tzinfo is not None else instant_of_wall(check_zone(row.timezone), found)


def shown(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
