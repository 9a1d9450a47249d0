"""Run statuses and the one table of allowed transitions.

The diagram in ``docs/architecture.md`` is generated from :data:`ALLOWED`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run stands. ``queued`` may be claimed from ``ready_at`` on."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


S = RunStatus
ACTIVE = frozenset({S.QUEUED, S.DISPATCHED, S.RUNNING})
"""Not finished: what overlap looks at."""
HELD = frozenset({S.DISPATCHED, S.RUNNING})
"""Has a token, a lease and a slot."""
TERMINAL = frozenset(S) - ACTIVE
FAILURES = frozenset({S.FAILED, S.TIMED_OUT, S.LOST})
FINISHED_RUNS = FAILURES | {S.SUCCEEDED}
"""Counted in ``run_count``; skipped and cancelled are not."""

ALLOWED: dict[RunStatus, frozenset[RunStatus]] = {
    # claimed; cancelled before it was claimed; too old to start (expires)
    S.QUEUED: frozenset({S.DISPATCHED, S.CANCELLED, S.SKIPPED}),
    # started; put back (failed publish, a retry); published again under the same token; settled unstarted
    S.DISPATCHED: frozenset(
        {S.RUNNING, S.QUEUED, S.DISPATCHED, S.FAILED, S.LOST, S.CANCELLED, S.TIMED_OUT, S.SKIPPED}
    ),
    # settled; back to queued for the job's retry; back to dispatched for Celery's own retry; renewed
    S.RUNNING: frozenset(
        {S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.LOST, S.CANCELLED, S.QUEUED, S.DISPATCHED, S.RUNNING}
    ),
    # only by `sched retry` and reprocess, as a new attempt
    S.SUCCEEDED: frozenset({S.QUEUED}),
    S.FAILED: frozenset({S.QUEUED}),
    S.TIMED_OUT: frozenset({S.QUEUED}),
    S.LOST: frozenset({S.QUEUED}),
    S.CANCELLED: frozenset({S.QUEUED}),
    S.SKIPPED: frozenset({S.QUEUED}),
}


def check(sources: Iterable[RunStatus], target: RunStatus) -> None:
    """Raise ``ValueError`` unless every source may become ``target``: a bug in the caller."""
    for source in sources:
        if target not in ALLOWED[source]:
            raise ValueError(f"a run never goes from {source.value} to {target.value}")


def diagram() -> str:
    """The table as a Mermaid state diagram (for the docs)."""
    lines = ["stateDiagram-v2", "    [*] --> queued", "    [*] --> skipped"]
    for source, targets in ALLOWED.items():
        lines += [f"    {source.value} --> {target.value}" for target in sorted(targets)]
    return "\n".join(lines)
