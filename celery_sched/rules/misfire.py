"""Late occurrences: which run, which are missed, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from celery_sched.model import Misfire
from celery_sched.rules.jitter import Jitter
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
    """When the first occurrence that is not decided yet is due."""
    waits: bool = False
    """No next instant is known before a run has ended (``after``)."""


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
    jitter: Jitter | None = None,
) -> Due:
    """Decide on the occurrences that are due by ``now`` and lie after the mark.

    An occurrence is missed when a later one has come due too, or when it is older than ``grace``; nothing
    older than ``catchup_window`` runs. ``due_at`` is the job's ``next_run_at``: an occurrence, or an instant
    set by hand (``run_immediately``), which then stands for itself. At most ``most`` (1 or more) occurrences
    are decided to run; the others stay due. However many are late, they are not enumerated.
    """
    times = jitter or Jitter(schedule, "", None)
    first: datetime | None = times.occurrence_of(due_at)
    if mark is not None and first is not None and mark >= first:
        first = schedule.next_after(mark)
    until = times.decided(now)
    if first is None or first > until:
        return Due(mark=mark, next_run_at=_due(times, first))
    beyond = now - catchup_window
    if policy is Misfire.ALL:
        due = _every(schedule, first, until, beyond, most)
        return replace(due, next_run_at=_due(times, due.next_run_at))
    latest = latest_in(schedule, first, until) or first
    too_late = latest < beyond
    if policy is Misfire.SKIP:
        too_late = too_late or now - times.due(latest) > (SKIP_GRACE if grace is None else grace)
    missed, gap = _missed(schedule, first, latest, with_latest=too_late)
    return Due(
        run=() if too_late else (latest,),
        missed=missed,
        gap=gap,
        mark=latest,
        next_run_at=_due(times, schedule.next_after(latest)),
    )


def decide_after(
    schedule: Schedule,
    *,
    policy: Misfire,
    grace: timedelta | None,
    catchup_window: timedelta,
    due_at: datetime,
    mark: datetime | None,
    now: datetime,
    active: int,
) -> Due:
    """The same for an ``after`` schedule, which has one occurrence at a time.

    Its next instant comes with the end of a run; while one is active there is nothing to decide.
    """
    if active:
        return Due(mark=mark, waits=True)
    late = now - due_at
    if late > catchup_window or (policy is Misfire.SKIP and late > (SKIP_GRACE if grace is None else grace)):
        return Due(missed=(due_at,), mark=due_at, next_run_at=schedule.next_after(now))
    return Due(run=(due_at,), mark=due_at, waits=True)


def _due(times: Jitter, occurrence: datetime | None) -> datetime | None:
    return None if occurrence is None else times.due(occurrence)


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
