"""An occurrence comes while the job may have active runs: does it start, wait, or is it skipped?"""

from __future__ import annotations

from dataclasses import dataclass

from celery_sched.model import Misfire, Overlap


@dataclass(frozen=True)
class Decision:
    """Whether one more run is queued; if not, why (``reason``)."""

    queue: bool
    reason: str | None = None


def decide(
    overlap: Overlap,
    misfire: Misfire,
    active: int,
    max_queued: int,
    live_run: str | None,
    *,
    behind_backfill: bool = False,
) -> Decision:
    """Judge one occurrence of a job that has ``active`` runs that are not finished.

    ``misfire="all"`` implies queueing: catching up would otherwise skip all but the first. The runs of a
    backfill are not among the active ones: while one of them holds the job (``behind_backfill``),
    occurrences wait, they are not skipped.
    """
    if overlap is Overlap.CONCURRENT or active == 0:
        return Decision(True)
    if overlap is Overlap.SKIP and misfire is not Misfire.ALL and not behind_backfill:
        return Decision(False, f"overlap: run {live_run} is active")
    if active > max_queued:
        return Decision(False, f"queue_full: {active} runs of the job are active, max_queued is {max_queued}")
    return Decision(True)
