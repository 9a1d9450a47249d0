"""Sweep: expired leases are settled, or their runs queued or published again, whatever is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import Dispatch, JobId, RunId, RunKey, Token
from celery_sched.rules import limits
from celery_sched.rules.limits import Limits
from celery_sched.rules.transitions import HELD, RunStatus
from celery_sched.store import apps, jobs, runs
from celery_sched.store.again import Ended, end
from celery_sched.store.engine import Row, Tx
from celery_sched.store.settle import Settlement, settle, settle_waiting, stop_text
from celery_sched.store.tables import run

BATCH = 200
"""Most runs settled in one pass: a fleet that hangs as a whole never delays dispatch."""
MOST_PUBLISHES = 3
"""Confirmed publishes of an attempt that never started, after which its run is lost."""


@dataclass(frozen=True)
class Swept:
    """``settled`` runs (run row, status, reason) and ``republish``, under the same tokens.

    Those of the settled that are tried again are queued, and the reason says when.
    """

    settled: tuple[tuple[Row, RunStatus, str], ...] = ()
    republish: tuple[Dispatch, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class Outage:
    """Whether the sweep must wait, so that workers that were alive all along renew first."""

    held_until: datetime | None
    begun: bool = False


def outage(tx: Tx, now: datetime, config: Config, row: Row, clock_jumped: bool) -> Outage:
    """After a pause of all passes, or a jump of the database's clock, hold the sweep back for one lease.

    A pause within a hold begins another one: what was left of the first may be too short for a worker that is
    still stuck in a call. A jump within a hold does not: each scheduler would note it on its own, in turn.

    Guard: compare-and-set on ``sweep_not_before``. One that lies further ahead than a lease was written by a
    clock that was put right since.
    Locks: the app's row.
    If it dies here: nothing was written; the next pass sees the same pause.
    """
    seen = row.sweep_not_before
    until = now + config.lease
    paused = row.last_pass_at is not None and now - row.last_pass_at > config.lease / 2
    if paused:  # why occurrences were missed
        apps.was_down(tx, now, config.app, row.last_pass_at)
    if seen is not None and now < seen <= until and not paused:
        return Outage(seen)
    # an app that never passed has nothing in flight; and passes are written while a hold is pending too, so
    # that no second one follows by itself
    ahead = seen is not None and seen > until
    if not (paused or clock_jumped or ahead):
        return Outage(None)
    if apps.hold_sweep(tx, now, config.app, seen, until):
        return Outage(until, begun=True)
    fresh = apps.get(tx, config.app)
    return Outage(None if fresh is None else fresh.sweep_not_before)


def sweep(tx: Tx, now: datetime, config: Config) -> Swept:
    """Settle or queue again runs whose lease is over, in a constant number of statements.

    Guard: status, token, attempt **and** lease_expires_at < now, read again under the row locks.
    Locks: jobs, then runs (both skip locked).
    If it dies here: nothing was written; the next pass does the same.
    """
    job_rows, rows = _lock(tx, runs.expired(config.app, now))
    ended: list[Ended] = []
    settled: list[tuple[Row, RunStatus, str]] = []
    republish: list[Dispatch] = []
    for row in rows:
        verdict = judge(row, now, limits.of(config, job_rows[JobId(row.job_id)]))
        if verdict is None:
            republish.append(runs.dispatch_of(row, job_rows[JobId(row.job_id)], _key(row), row.fence))
            continue
        status, reason = verdict
        settlement = Settlement(_key(row), JobId(row.job_id), status, reason, _error(status, reason))
        ended.append(Ended(row, settlement))
        settled.append((row, status, reason))
    guard = run.c.lease_expires_at < now
    again = end(tx, now, job_rows, ended, guard=guard).again
    settled = [(row, status, reason + _again(row, again.get(row.id), now)) for row, status, reason in settled]
    failpoint("sweep:settled")
    if republish:
        matched = runs.transition(
            tx,
            RunStatus.DISPATCHED,
            sources={RunStatus.DISPATCHED},
            match=runs.held_by([dispatch.key for dispatch in republish]) & guard,
            values={
                "lease_expires_at": now + config.lease,
                "published_at": None,
                "received_by": None,
                "received_at": None,
            },
        )
        if matched != len(republish):
            raise RuntimeError(f"{matched} of {len(republish)} locked runs matched while sweeping")
    return Swept(tuple(settled), tuple(republish), more=len(rows) == BATCH)


def sweep_outdated(tx: Tx, now: datetime, config: Config) -> Swept:
    """Settle runs that did not start within their job's ``expires`` as ``skipped``.

    Guard: queued or dispatched and expires_at <= now, read again under the row locks.
    Locks: jobs, then runs (both skip locked).
    If it dies here: nothing was written; the start refuses such a run too.
    """
    _, rows = _lock(tx, runs.outdated(config.app, now))
    reason = "expired: it could not start in time"
    settle_waiting(
        tx, now, [row for row in rows if row.status == RunStatus.QUEUED], RunStatus.SKIPPED, reason
    )
    held = [row for row in rows if row.status != RunStatus.QUEUED]
    settle(
        tx,
        now,
        [Settlement(_key(row), JobId(row.job_id), RunStatus.SKIPPED, reason=reason) for row in held],
        sources={RunStatus.DISPATCHED},
        guard=run.c.expires_at <= now,
    )
    return Swept(tuple((row, RunStatus.SKIPPED, reason) for row in rows), more=len(rows) == BATCH)


def _lock(tx: Tx, match: Any) -> tuple[Mapping[JobId, Row], Sequence[Row]]:
    """Some runs that match, and their jobs, locked; what others have locked is left to the next pass."""
    found = runs.first_ids(tx, match, BATCH)
    job_rows = jobs.lock(tx, [job_id for _, job_id in found], skip_locked=True)
    mine = [run_id for run_id, job_id in found if job_id in job_rows]
    # the predicate again, under the locks: a renewal may have come between
    return job_rows, runs.lock(tx, run.c.id.in_(mine) & match, skip_locked=True) if mine else ()


def judge(row: Any, now: datetime, bounds: Limits) -> tuple[RunStatus, str] | None:
    """What becomes of a run whose lease is over; ``None``: publish it again, under the same token.

    :param bounds: its job's, which say what an overdue run exceeded.
    """
    if row.status not in HELD:
        raise ValueError(f"run {row.id} is {row.status}: it has no lease")
    if row.stop_requested_at is not None:
        return (
            RunStatus.CANCELLED,
            stop_text(row),
        )
    ago = _seconds(now - row.lease_expires_at)
    if row.status == RunStatus.RUNNING:
        if row.deadline_at is not None and row.deadline_at <= now:
            why = bounds.why_over(row.started_at, row.deadline_at, row.beat_at)
            return RunStatus.TIMED_OUT, f"{why} on {row.worker_name}"
        return RunStatus.LOST, (
            f"its worker {row.worker_name} gave no sign of life: the lease ended {ago} s ago"
        )
    if row.publish_count >= MOST_PUBLISHES:
        return RunStatus.LOST, (
            f"never started: published {row.publish_count} times, and no worker started it"
        )
    return None


def _again(row: Any, ready_at: datetime | None, now: datetime) -> str:
    """That it is tried again, and when."""
    return "" if ready_at is None else f"; attempt {row.attempt + 1} begins in {_seconds(ready_at - now)} s"


def _error(status: RunStatus, reason: str) -> str | None:
    return None if status is RunStatus.CANCELLED else reason


def _key(row: Any) -> RunKey:
    return RunKey(RunId(row.id), Token(row.token), row.attempt)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.1f}"
