"""Redeliver: somebody has deliveries go their way again, or gives them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.model import Delivery, DeliveryStatus, JobId, RunId
from celery_sched.rules.transitions import TERMINAL
from celery_sched.store import deliveries, jobs, runs
from celery_sched.store.again import again
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run

S = DeliveryStatus
RETRIED = (S.DEAD, S.DROPPED)
"""Those that may go their way again."""
DROPPED = (S.PENDING, S.DEAD)
"""Those that may be given up."""


@dataclass(frozen=True)
class Redelivered:
    """The ids of those it was ``done`` with, and why not with the others (id, reason)."""

    done: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def redeliver(tx: Tx, now: datetime, wanted: Sequence[Delivery]) -> Redelivered:
    """Have dead or dropped deliveries go their way again.

    One that a run carried goes with that run, as its next attempt: none ever has two. One without waits.

    Guard: dead or dropped, read under the locks; the run is terminal.
    Locks: the jobs, the runs, then the deliveries.
    If it dies here: all or nothing.
    """
    ids = [one.id for one in wanted]
    known = deliveries.job_ids(tx, ids)
    job_rows = jobs.lock(tx, set(known.values()))
    run_ids = {one.run_id for one in wanted if one.run_id is not None}
    carriers = {RunId(row.id): row for row in runs.lock(tx, run.c.id.in_(run_ids))} if run_ids else {}
    waiting: list[str] = []
    carried: dict[RunId, list[str]] = {}
    refused: list[tuple[str, str]] = []
    for row in deliveries.lock(tx, ids):
        carrier = None if row.run_id is None else carriers.get(RunId(row.run_id))
        if JobId(row.job_id) not in job_rows:
            refused.append((row.id, "its job was deleted"))
        elif row.status not in RETRIED:
            refused.append((row.id, f"it is {row.status}"))
        elif carrier is None:
            waiting.append(row.id)
        elif carrier.status not in TERMINAL:
            refused.append((row.id, f"run {carrier.id} is {carrier.status}"))
        else:
            carried.setdefault(RunId(carrier.id), []).append(row.id)
    again(tx, now, [carriers[run_id] for run_id in sorted(carried)])
    if deliveries.wait_again(tx, waiting) != len(waiting):
        raise RuntimeError("a delivery moved while its row was locked")
    done = [*waiting, *(one for of_run in carried.values() for one in of_run)]
    return Redelivered(tuple(done), tuple(refused))


def drop(tx: Tx, now: datetime, wanted: Sequence[Delivery], reason: str) -> Redelivered:
    """Give up deliveries that wait or are dead.

    Guard: pending or dead, read under the locks.
    Locks: the jobs, then the deliveries.
    If it dies here: all or nothing.
    """
    ids = [one.id for one in wanted]
    jobs.lock(tx, set(deliveries.job_ids(tx, ids).values()))
    done: list[str] = []
    refused: list[tuple[str, str]] = []
    for row in deliveries.lock(tx, ids):
        if row.status in DROPPED:
            done.append(row.id)
        else:
            hint = f"; cancel run {row.run_id}" if row.status == S.TAKEN else ""
            refused.append((row.id, f"it is {row.status}{hint}"))
    if deliveries.drop(tx, now, done, reason, DROPPED) != len(done):
        raise RuntimeError("a delivery moved while its row was locked")
    return Redelivered(tuple(done), tuple(refused))
