"""An occurrence comes while the job may have active runs: does it wait, replace them, or is it skipped?"""

from __future__ import annotations

from dataclasses import dataclass

from celery_sched.model import Misfire, Overlap

REPLACED = "replaced by"
"""How the reason of a run begins that was stopped for a later one."""
FULL = "queue_full"
"""How the reason of an occurrence begins for which no more may wait."""


@dataclass(frozen=True)
class Decision:
    """Whether one more run is queued; if not, why (``reason``)."""

    queue: bool
    reason: str | None = None
    replace: bool = False
    """The job's other active runs are asked to stop; it starts when they are gone."""


def decide(
    overlap: Overlap,
    misfire: Misfire,
    active: int,
    max_queued: int,
    live_run: str | None,
    *,
    waiting_run: str | None = None,
    behind_backfill: bool = False,
) -> Decision:
    """Judge one occurrence of a job that has ``active`` runs that are not finished.

    ``misfire="all"`` implies queueing: catching up would otherwise skip all but the first. The runs of a
    backfill are not among the active ones: while one of them holds the job (``behind_backfill``),
    occurrences wait, they are not skipped, and nothing stops it.

    :param live_run: the active run that is named: the one that is carried out, or the first in turn.
    :param waiting_run: the first one that waits behind it.
    """
    if overlap is Overlap.CONCURRENT or active == 0:
        return Decision(True)
    if misfire is not Misfire.ALL:
        if overlap is Overlap.SKIP and not behind_backfill:
            return Decision(False, f"overlap: run {live_run} is active")
        if overlap is Overlap.QUEUE_ONE and active + behind_backfill > 1:
            return Decision(False, f"queue_one: run {waiting_run} waits already")
        if overlap is Overlap.REPLACE:
            return Decision(True, replace=True)
    if active > max_queued:
        return Decision(False, f"{FULL}: {active} runs of the job are active, max_queued is {max_queued}")
    return Decision(True)
