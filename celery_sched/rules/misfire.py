"""Late occurrences: which run, which are missed, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_sched.model import Misfire
from celery_sched.rules.schedules import Schedule, between, count_in, latest_in

MOST_CATCH_UP = 1000
"""Most missed occurrences that ``misfire="all"`` makes good; the rest is a recorded gap."""
SKIP_GRACE = timedelta(seconds=60)
"""Default ``misfire_grace`` of ``misfire="skip"``."""
SHOWN = 10
"""Missed occurrences that get a row of their own; older ones are counted in one gap."""
MISSED = "missed"
TOO_OLD = "missed: older than catchup_window"
TOO_MANY = f"missed: more than {MOST_CATCH_UP} to catch up"
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Gap:
    """Occurrences that are not run: the first, the last, how many, why."""

    first: datetime
    last: datetime
    count: int
    reason: str


@dataclass(frozen=True)
class Due:
    """What one job's due occurrences come to. Each is in exactly one of run, missed, gap, or stays due."""

    run: tuple[datetime, ...] = ()
    """To be run, oldest first."""
    missed: tuple[datetime, ...] = ()
    """Not run, each recorded with a row of its own, oldest first."""
    gap: Gap | None = None
    """Not run, recorded as a counted range; older than all of ``run`` and ``missed``."""
    mark: datetime | None = None
    """The new high-water mark: everything up to here is decided."""
    next_run_at: datetime | None = None
    """The first occurrence that is not decided yet."""


def decide(
    schedule: Schedule,
    *,
    policy: Misfire,
    grace: timedelta | None,
    catchup_window: timedelta,
    due_at: datetime,
    mark: datetime | None,
    now: datetime,
    most: int,
) -> Due:
    """Decide on the occurrences in [``due_at``, ``now``] that lie after the mark.

    An occurrence is missed when a later one has come due too, or when it is older than ``grace``; nothing
    older than ``catchup_window`` runs. ``due_at`` is the job's ``next_run_at``: an occurrence, or an instant
    set by hand (``run_immediately``), which then stands for itself. At most ``most`` (1 or more) occurrences
    are decided to run; the others stay due. However many are late, they are not enumerated.
    """
    first = due_at if mark is None or mark < due_at else schedule.next_after(mark)
    if first is None or first > now:
        return Due(mark=mark, next_run_at=first)
    beyond = now - catchup_window
    if policy is Misfire.ALL:
        return _every(schedule, first, now, beyond, most)
    latest = latest_in(schedule, first, now) or first
    too_late = latest < beyond
    if policy is Misfire.SKIP:
        too_late = too_late or now - latest > (SKIP_GRACE if grace is None else grace)
    missed, gap = _missed(schedule, first, latest, with_latest=too_late)
    return Due(
        run=() if too_late else (latest,),
        missed=missed,
        gap=gap,
        mark=latest,
        next_run_at=schedule.next_after(latest),
    )


def _missed(
    schedule: Schedule, first: datetime, latest: datetime, *, with_latest: bool
) -> tuple[tuple[datetime, ...], Gap | None]:
    """The missed occurrences in [first, latest]: the newest as rows, the others as a counted range."""
    total = count_in(schedule, first, latest) + (1 if with_latest else 0)  # `first` is not counted, is missed
    if total <= SHOWN:
        every = [first, *between(schedule, first, latest, SHOWN)]
        return tuple(every[:total]), None
    newest: list[datetime] = [latest] if with_latest else []
    at = latest
    while len(newest) < SHOWN:
        at = latest_in(schedule, first, at - _INSTANT) or first
        newest.append(at)
    last = latest_in(schedule, first, at - _INSTANT) or first
    return tuple(reversed(newest)), Gap(first, last, total - SHOWN, MISSED)


def _every(schedule: Schedule, first: datetime, now: datetime, beyond: datetime, most: int) -> Due:
    """All occurrences, oldest first, within the window and the cap; what lies before is a gap."""
    start, reason = first, TOO_OLD
    if first < beyond:
        found = schedule.next_after(beyond - _INSTANT)
        if found is None or found > now:
            last = latest_in(schedule, first, now) or first
            gap = Gap(first, last, 1 + count_in(schedule, first, last), reason)
            return Due(gap=gap, mark=last, next_run_at=schedule.next_after(last))
        start = found
    if 1 + count_in(schedule, start, now) > MOST_CATCH_UP:
        start, reason = _nth_before(schedule, start, now, MOST_CATCH_UP), TOO_MANY
    older = None
    if start > first:
        last = latest_in(schedule, first, start - _INSTANT) or first
        older = Gap(first, last, 1 + count_in(schedule, first, last), reason)
    run = (start, *between(schedule, start, now, most - 1))
    return Due(run=run, gap=older, mark=run[-1], next_run_at=schedule.next_after(run[-1]))


def _nth_before(schedule: Schedule, start: datetime, now: datetime, n: int) -> datetime:
    """The ``n``-th occurrence back from ``now``, where more than ``n`` lie after ``start`` (by bisection)."""
    low, high = start, now  # (low, now] holds n or more, (high, now] fewer
    while high - low > _INSTANT:
        middle = low + (high - low) / 2
        if count_in(schedule, middle, now) >= n:
            low = middle
        else:
            high = middle
    return high
