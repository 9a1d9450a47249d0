"""Start: the body of an attempt may begin, once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from celery_sched.config import Config
from celery_sched.model import JobId, NodeId, RunKey, Trigger
from celery_sched.rules import limits
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import beats, jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import Settlement, settle
from celery_sched.store.tables import run


class Verdict(StrEnum):
    """``yours``: run the body. ``early``: deliver again in a second. ``drop``: not this message's to run."""

    YOURS = "yours"
    EARLY = "early"
    DROP = "drop"


@dataclass(frozen=True)
class Started:
    """The verdict, why, and what the body is told. ``now`` is the database's."""

    verdict: Verdict
    why: str
    now: datetime
    job: str = ""
    scheduled_for: datetime | None = None
    fence: int = 0
    lease_expires_at: datetime | None = None
    deadline_at: datetime | None = None
    hops: int = 0
    exclusive: bool = False
    of_event: bool = False


def start(tx: Tx, now: datetime, config: Config, key: RunKey, node: NodeId, worker_name: str) -> Started:
    """Take the right to run this attempt's body.

    Guard: id, token, attempt, dispatched, no stop request, not past ``expires``.
    Locks: the run (and first the job's row, where an outdated run is settled).
    If it dies here: the lease expires and the sweep settles the run as lost.
    """
    row = beats.with_limits(tx, [key.id]).get(key.id)
    if row is None:
        return Started(Verdict.DROP, "there is no such run", now)
    deadline = limits.of(config, row).deadline(now)
    # of an exclusive run, the lease leaves the time for a kill at the deadline
    lease = now + config.lease if row.exclusive else min(now + config.lease, deadline)
    matched = runs.transition(
        tx,
        RunStatus.RUNNING,
        sources={RunStatus.DISPATCHED},
        match=runs.held_by([key])
        & run.c.stop_requested_at.is_(None)
        & (run.c.expires_at.is_(None) | (run.c.expires_at > now)),
        values={
            "started_at": now,
            "worker": node,
            "worker_name": worker_name,
            "deadline_at": deadline,
            "beat_at": None,  # the last one was another attempt's
            "lease_expires_at": lease,
        },
    )
    if matched == 0:
        return _refused(tx, now, key, row)
    return Started(
        Verdict.YOURS,
        "",
        now,
        row.job,
        row.scheduled_for,
        row.fence,
        lease_expires_at=lease,
        deadline_at=deadline,
        hops=row.hops,
        exclusive=bool(row.exclusive),
        of_event=row.trigger_kind == Trigger.EVENT,
    )


def _refused(tx: Tx, now: datetime, key: RunKey, row: Any) -> Started:
    if row.token != key.token:
        return Started(Verdict.DROP, f"its claim is no longer current (the run is {row.status})", now)
    if row.status == RunStatus.RUNNING and key.attempt == row.attempt + 1:
        return Started(Verdict.EARLY, "the attempt before it has not ended yet", now)
    if row.status == RunStatus.RUNNING or key.attempt != row.attempt:
        return Started(Verdict.DROP, f"attempt {row.attempt} is {row.status} on {row.worker_name}", now)
    if row.stop_requested_at is not None:
        return Started(Verdict.DROP, f"it was stopped by {row.stop_requested_by}", now)
    if row.expires_at is not None and row.expires_at <= now:
        jobs.lock(tx, [JobId(row.job_id)])
        settle(
            tx,
            now,
            [Settlement(key, JobId(row.job_id), RunStatus.SKIPPED, "expired: it could not start in time")],
            sources={RunStatus.DISPATCHED},
        )
        return Started(Verdict.DROP, "it expired before it could start", now)
    return Started(Verdict.DROP, "another worker took it in the same moment", now)
