"""Mark: what became of a publish. The run rows are the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from celery_sched.config import Config
from celery_sched.model import Dispatch, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.settle import put_back
from celery_sched.store.tables import run


def mark_published(tx: Tx, now: datetime, config: Config, sent: Sequence[Dispatch]) -> int:
    """Confirmed by the broker: ``published_at``, and the lease becomes ``sched_start_timeout``.

    Guard: id, token, attempt, dispatched and not received (a late mark does not undo a receipt).
    Locks: runs.
    If it dies here: the claim's lease expires, the run is published again, the start drops the duplicate.
    """
    if not sent:
        return 0
    by_lease: dict[datetime, list[RunKey]] = {}
    for dispatch in sent:
        # the queue wait of a Celery retry begins at its eta
        begins = now if dispatch.eta is None else max(now, dispatch.eta)
        by_lease.setdefault(begins + config.start_timeout, []).append(dispatch.key)
    matched = 0
    for lease, keys in by_lease.items():
        matched += runs.transition(
            tx,
            RunStatus.DISPATCHED,
            sources={RunStatus.DISPATCHED},
            match=runs.held_by(keys) & run.c.received_at.is_(None),
            values={
                "published_at": now,
                "publish_count": run.c.publish_count + 1,
                "lease_expires_at": lease,
            },
        )
    return matched


def mark_unsent(tx: Tx, now: datetime, failed: Sequence[Dispatch]) -> int:
    """Certainly not sent: back to ``queued``, lock and slot freed, attempt kept.

    Guard: id, token, attempt, dispatched, not published, not received.
    Locks: jobs, then runs.
    If it dies here: the claim's lease expires and the run is published again.
    """
    jobs.lock(tx, [dispatch.job_id for dispatch in failed])
    return put_back(tx, [(dispatch.job_id, dispatch.key) for dispatch in failed])
