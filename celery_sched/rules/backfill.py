"""A backfill comes to an occurrence of the past: is it run, run again, or left as it is?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from celery_sched.model import Reprocess
from celery_sched.rules.transitions import ACTIVE, FAILURES, RunStatus

MOST = 1_000_000
"""Most occurrences of one backfill."""
MOST_CONCURRENT = 1000
PRIORITY = -1
"""Of its runs: behind every other run of the job and of the pool (jobs have 0 to 9)."""


UNPLANNED = "unplanned"
"""An occurrence that has come and that an active job's schedule is to plan yet: not a backfill's."""


class Choice(StrEnum):
    """What happens to one occurrence."""

    NEW = "new"
    AGAIN = "again"
    LEFT = "left"


def choose(status: str | None, ever_started: bool, reprocess: Reprocess) -> Choice:
    """Judge an occurrence by its run (``status`` None: it has none).

    One that was skipped (missed, overlap, too late), or cancelled before it started, never ran: it is run
    whatever ``reprocess`` says, as a new attempt of the same run, as that is what a backfill is for.
    """
    if status is None:
        return Choice.NEW
    found = RunStatus(status)
    if found in ACTIVE:
        return Choice.LEFT
    if found is RunStatus.SKIPPED or (found is RunStatus.CANCELLED and not ever_started):
        return Choice.AGAIN
    if reprocess is Reprocess.ALL:
        return Choice.AGAIN
    if reprocess is Reprocess.FAILED and (found in FAILURES or found is RunStatus.CANCELLED):
        return Choice.AGAIN
    return Choice.LEFT


@dataclass(frozen=True)
class Foreseen:
    """How many occurrences would be run, run again, and left, these by status."""

    new: int
    again: int
    left: dict[str, int]


def foresee(
    total: int, standing: Iterable[tuple[str, bool, int]], unplanned: int, reprocess: Reprocess
) -> Foreseen:
    """What a backfill of ``total`` occurrences comes to.

    :param standing: status, whether the body ever started, and how many occurrences have such a run.
    :param unplanned: how many have none and are left to the schedule.
    """
    again, left = 0, {UNPLANNED: unplanned} if unplanned else {}
    new = total - unplanned
    for status, started, count in standing:
        new -= count
        if choose(status, started, reprocess) is Choice.AGAIN:
            again += count
        else:
            left[status] = left.get(status, 0) + count
    return Foreseen(max(new, 0), again, left)
