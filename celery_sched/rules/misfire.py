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


@dataclass(frozen=True)
class Gap:
    """Occurrences that are not run: the first, the last, how many, why."""

    first: datetime
    last: datetime
    count: int
    reason: str


@dataclass(frozen=True)
class Due:
    """What one job's due occurrences come to."""

    run: tuple[datetime, ...] = ()
    """To be run, oldest first."""
    missed: tuple[datetime, ...] = ()
    """Not run, each recorded with a row of its own, oldest first."""
    gap: Gap | None = None
    """Not run, recorded as a counted range."""
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

    An occurrence is missed when a later one has come due too, or when it is older than ``grace``.
    ``due_at`` is the job's ``next_run_at``: an occurrence, or an instant set by hand (``run_immediately``),
    which then stands for itself. At most ``most`` occurrences are decided to run; the others stay due.
    """
    since = due_at - timedelta(microseconds=1)
    if mark is not None and mark > since:
        since = mark
        first = schedule.next_after(since)
    else:
        first = due_at
    if first is None or first > now:
        return Due(mark=mark, next_run_at=first)
    if policy is Misfire.ALL:
        return _all(schedule, first, now, catchup_window, most)
    latest = latest_in(schedule, first, now) or first
    following = schedule.next_after(latest)
    limit = grace if grace is not None else (SKIP_GRACE if policy is Misfire.SKIP else None)
    too_late = policy is Misfire.SKIP and limit is not None and now - latest > limit
    missed, gap = _missed(schedule, first, latest, with_last=too_late, window_from=now - catchup_window)
    if policy is Misfire.ONCE and latest < now - catchup_window:
        missed, gap = _missed(schedule, first, latest, with_last=True, window_from=now - catchup_window)
        too_late = True
    return Due(run=() if too_late else (latest,), missed=missed, gap=gap, mark=latest, next_run_at=following)


def _missed(
    schedule: Schedule, first: datetime, latest: datetime, *, with_last: bool, window_from: datetime
) -> tuple[tuple[datetime, ...], Gap | None]:
    """Split the missed occurrences in [first, latest] into rows (the newest) and a counted range."""
    earlier = 0 if first == latest else count_in(schedule, first, latest)  # those after `first`
    total = earlier + (1 if with_last else 0)  # `first` itself in, `latest` out unless with_last
    if total == 0:
        return (), None
    if total <= SHOWN:
        every = [first, *between(schedule, first, latest, SHOWN + 1)]
        return tuple(every if with_last else every[:-1]), None
    newest: list[datetime] = [latest] if with_last else []
    at = latest
    while len(newest) < SHOWN:
        before = latest_in(schedule, first, at - timedelta(microseconds=1))
        if before is None:
            break
        newest.append(before)
        at = before
    last = latest_in(schedule, first, at - timedelta(microseconds=1)) or first
    return tuple(reversed(newest)), Gap(first, last, total - len(newest), "missed")


def _all(schedule: Schedule, first: datetime, now: datetime, catchup_window: timedelta, most: int) -> Due:
    """Every occurrence, oldest first, within the window and the cap; what lies before is a gap."""
    start = first
    beyond = now - catchup_window
    if start < beyond:
        start = schedule.next_after(beyond - timedelta(microseconds=1)) or first
    total = 1 + count_in(schedule, start, now)
    if total > MOST_CATCH_UP:
        start = _nth_before(schedule, start, now, MOST_CATCH_UP)
    gap = None
    if start > first:
        last = latest_in(schedule, first, start - timedelta(microseconds=1)) or first
        gap = Gap(first, last, 1 + count_in(schedule, first, last), "missed: more than can be caught up")
    run = [start, *between(schedule, start, now, most - 1)] if start <= now else []
    mark = run[-1] if run else (gap.last if gap else None)
    following = schedule.next_after(mark) if mark is not None else schedule.next_after(now)
    return Due(run=tuple(run), gap=gap, mark=mark, next_run_at=following)


def _nth_before(schedule: Schedule, start: datetime, now: datetime, n: int) -> datetime:
    """The occurrence from which on exactly ``n`` remain up to ``now`` (bisection over instants)."""
    low, high = start, now  # count in (low, now] >= n, count in (high, now] < n
    while high - low > timedelta(microseconds=1):
        middle = low + (high - low) / 2
        if count_in(schedule, middle, now) >= n:
            low = middle
        else:
            high = middle
    return schedule.next_after(low) or start
