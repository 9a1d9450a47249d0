"""The client: past occurrences of a job are run: asked for, looked at, cancelled."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime
from typing import Any

from celery_sched.client import ranges
from celery_sched.client.base import Base, checked_status
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.failpoints import failpoint
from celery_sched.model import (
    Backfill,
    BackfillId,
    BackfillPreview,
    BackfillStatus,
    JobId,
    Reprocess,
    RunId,
)
from celery_sched.rules.backfill import foresee
from celery_sched.rules.transitions import ACTIVE, RunStatus
from celery_sched.rules.upcoming import named, schedule_of
from celery_sched.rules.why.asked import has
from celery_sched.steps.stop import stop
from celery_sched.store import backfills, jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run as run_table

LOOKED = 10_000
"""Runs that a preview looks at one by one."""


class Backfills(Base):
    """What people do with backfills."""

    def backfill(
        self,
        name: str,
        from_at: datetime | str,
        to_at: datetime | str,
        *,
        max_concurrent: int = 1,
        reprocess: Reprocess | str = Reprocess.NONE,
        by: str = "python",
    ) -> Backfill:
        """Have the occurrences of a job in [from_at, to_at] run that never ran; schedulers carry it out.

        :param from_at: an instant, or ISO text; without a zone it is in the job's. ``to_at`` may be a day:
            as much of it as has come.
        :param max_concurrent: how many of its runs may be unfinished at a time.
        :param reprocess: ``failed`` and ``all`` also run those again that ended so, as a new attempt.
        :raises NotFound: no such job.
        :raises InvalidValue: a value that is not allowed, nothing to do, or a running backfill of these
            times; nothing was written.
        """

        def work(tx: Tx, now: datetime) -> Backfill:
            row = self._locked(tx, name)
            reading = ranges.reprocess(reprocess)
            first, last, total = _asked(tx, now, row, from_at, to_at, max_concurrent)
            made = BackfillId(str(uuid.uuid4()))
            values: dict[str, Any] = {
                "from_at": first,
                "to_at": last,
                "max_concurrent": max_concurrent,
                "reprocess": reading.value,
                "total": total,
            }
            backfills.add(
                tx,
                {
                    **values,
                    "id": made,
                    "app": self._config.app,
                    "job_id": row.id,
                    "job": name,
                    "at": first - ranges.INSTANT,
                    "status": BackfillStatus.RUNNING.value,
                    "created_at": now,
                    "created_by": by[:255],
                },
            )
            detail = {**values, "from_at": first.isoformat(), "to_at": last.isoformat(), "backfill": made}
            self._note(tx, now, by, "backfill", name, detail)
            return self._backfill(tx, made)

        return self._database.run(work)

    def preview_backfill(
        self,
        name: str,
        from_at: datetime | str,
        to_at: datetime | str,
        *,
        max_concurrent: int = 1,
        reprocess: Reprocess | str = Reprocess.NONE,
    ) -> BackfillPreview:
        """What a backfill would have to do; it is refused for the same reasons. Nothing is written."""

        def work(tx: Tx, now: datetime) -> BackfillPreview:
            row = self._row(tx, name)
            reading = ranges.reprocess(reprocess)
            first, last, total = _asked(tx, now, row, from_at, to_at, max_concurrent)
            begin, end = ranges.ends(row, first, last)
            standing = _standing(tx, row, begin, end)
            counts: dict[str, int] = {}
            for status, _, count in standing:
                counts[status] = counts.get(status, 0) + count
            seen = foresee(total, standing, ranges.unplanned(row, end), reading)
            return BackfillPreview(
                name, total, begin, end, counts, row.timezone, seen.new, seen.again, seen.left
            )

        return self._database.read(work)

    def get_backfill(self, backfill_id: BackfillId | str) -> Backfill:
        """One backfill. :raises NotFound: no such backfill."""
        return self._database.read(lambda tx, now: self._backfill(tx, BackfillId(backfill_id)))

    def backfills(self, status: BackfillStatus | str | None = None, limit: int = 100) -> list[Backfill]:
        """Backfills, newest first. :raises InvalidValue: no such status."""
        wanted = checked_status(status, BackfillStatus)
        return self._database.read(lambda tx, now: backfills.newest(tx, self._config.app, wanted, limit))

    def cancel_backfill(
        self,
        backfill_id: BackfillId | str,
        *,
        by: str = "python",
        reason: str | None = None,
        running: bool = False,
    ) -> Backfill:
        """End a backfill at once: its runs that have not started are cancelled. One that is over stays so.

        :param running: those that are running are stopped too; else they finish.
        :raises NotFound: no such backfill.
        """
        wanted = BackfillId(backfill_id)

        def work(tx: Tx, now: datetime) -> tuple[list[tuple[str, RunId]], Backfill]:
            known = backfills.get(tx, self._config.app, wanted)
            if known is None:
                raise NotFound("backfill", wanted, "See: sched backfills.")
            jobs.lock(tx, [JobId(known.job_id)])
            backfills.lock(tx, wanted)
            why = f"stopped by {by}: {reason or 'no reason given'}"
            if not backfills.end(tx, now, wanted, BackfillStatus.CANCELLED, why):
                return [], self._backfill(tx, wanted)
            failpoint("backfill:cancelled")
            freed = []
            text = f"backfill {wanted} was cancelled" + (f": {reason}" if reason else "")
            statuses = ACTIVE if running else ACTIVE - {RunStatus.RUNNING}
            mine = run_table.c.backfill_id == wanted
            for row in runs.lock(tx, mine & run_table.c.status.in_([status.value for status in statuses])):
                done = stop(tx, now, RunId(row.id), by, text)
                if done is not None and done.settled and done.status != RunStatus.QUEUED:
                    freed.append((row.pool, RunId(row.id)))
            self._note(
                tx,
                now,
                by,
                "cancel_backfill",
                known.job,
                {"backfill": wanted, "reason": reason, "running": running},
            )
            return freed, self._backfill(tx, wanted)

        freed, found = self._database.run(work)
        for pool in {pool for pool, _ in freed}:
            self._runtime.slots.release(pool, [run_id for name, run_id in freed if name == pool])
        return found

    def _backfill(self, tx: Tx, backfill_id: BackfillId) -> Backfill:
        row = backfills.get(tx, self._config.app, backfill_id)
        if row is None:
            raise NotFound("backfill", backfill_id, "See: sched backfills.")
        return backfills.from_row(row, backfills.count_runs(tx, [backfill_id]).get(backfill_id, {}))


def _standing(tx: Tx, row: Any, first: datetime, last: datetime) -> list[tuple[str, bool, int]]:
    """The runs of a job's occurrences in a range: status, ever started, how many.

    Where its times were changed since, what ran by other times is told apart, up to ``LOOKED`` runs.
    """
    if row.timing_since is not None and row.timing_since >= first:
        found = backfills.each_in(tx, JobId(row.id), first, last, LOOKED + 1)
        if len(found) <= LOOKED:
            schedule = schedule_of(row)
            kept = [(status, ever) for at, status, ever in found if has(schedule, at)]
            return [(status, ever, count) for (status, ever), count in Counter(kept).items()]
    return backfills.standing_in(tx, JobId(row.id), first, last)


def _asked(
    tx: Tx, now: datetime, row: Any, from_at: datetime | str, to_at: datetime | str, max_concurrent: int
) -> tuple[datetime, datetime, int]:
    """The range as instants, and how many occurrences of the job (its row) lie in it; or why it cannot be."""
    with named(row.name):
        schedule_of(row)
    ranges.check_concurrency(row, max_concurrent)
    first, last, total = ranges.occurrences(row, from_at, to_at, now)
    running = backfills.overlapping(tx, JobId(row.id), first, last)
    if running is not None:
        span = f"{ranges.shown(running.from_at)} to {ranges.shown(running.to_at)}"
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"backfill {running.id} of {span} is running and has some of these times",
            f"Wait for it, or end it: sched backfills cancel {running.id}",
        )
    return first, last, total
