"""The client: past occurrences of a job are run: asked for, looked at, cancelled."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_sched.client.base import Base, checked_status, near
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.failpoints import failpoint
from celery_sched.model import (
    Backfill,
    BackfillId,
    BackfillPreview,
    BackfillStatus,
    JobId,
    Overlap,
    Reprocess,
    RunId,
)
from celery_sched.rules import readers
from celery_sched.rules.backfill import MOST, MOST_CONCURRENT
from celery_sched.rules.schedules import Schedule, check_zone
from celery_sched.rules.schedules.zones import instant_of_wall
from celery_sched.rules.transitions import ACTIVE, RunStatus
from celery_sched.rules.upcoming import schedule_of
from celery_sched.steps.stop import stop
from celery_sched.store import backfills, jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.tables import run as run_table

INSTANT = timedelta(microseconds=1)
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


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
        reading = _reprocess(reprocess)
        if (
            isinstance(max_concurrent, bool)
            or not isinstance(max_concurrent, int)
            or not 1 <= max_concurrent <= MOST_CONCURRENT
        ):
            raise InvalidValue(
                "max_concurrent", max_concurrent, f"a whole number from 1 to {MOST_CONCURRENT}"
            )

        def work(tx: Tx, now: datetime) -> Backfill:
            row = self._locked(tx, name)
            if max_concurrent > 1 and row.overlap != Overlap.CONCURRENT:
                raise InvalidValue(
                    "max_concurrent",
                    max_concurrent,
                    f"1, as overlap of job {name!r} is {row.overlap!r}: one run of it at a time",
                )
            first, last, total = _range(row, from_at, to_at, now)
            running = backfills.overlapping(tx, JobId(row.id), first, last)
            if running is not None:
                raise InvalidValue(
                    "the backfill of job",
                    name,
                    f"backfill {running.id}, from {running.from_at.isoformat()} to"
                    f" {running.to_at.isoformat()}, is running and has some of these times",
                    f"Wait for it, or stop it: sched backfills cancel {running.id}",
                )
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
                    "at": first - INSTANT,
                    "status": BackfillStatus.RUNNING.value,
                    "created_at": now,
                    "created_by": by[:255],
                },
            )
            detail = {**values, "from_at": first.isoformat(), "to_at": last.isoformat(), "backfill": made}
            self._note(tx, now, by, "backfill", name, detail)
            return self._backfill(tx, made)

        return self._database.run(work)

    def preview_backfill(self, name: str, from_at: datetime | str, to_at: datetime | str) -> BackfillPreview:
        """What a backfill would have to do; it is refused for the same reasons. Nothing is written."""

        def work(tx: Tx, now: datetime) -> BackfillPreview:
            self._job(tx, name)
            row = jobs.get(tx, self._config.app, name)
            first, last, total = _range(row, from_at, to_at, now)
            schedule = schedule_of(row)
            begin = schedule.next_after(first - INSTANT)
            end = schedule.latest_in(first - INSTANT, last)
            if row is None or begin is None or end is None:
                raise AssertionError("there is an occurrence: it was counted")
            return BackfillPreview(
                name, total, begin, end, runs.count_occurrences(tx, JobId(row.id), begin, end)
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


def _reprocess(value: Reprocess | str) -> Reprocess:
    known = [one.value for one in Reprocess]
    if value not in known:
        raise InvalidValue("reprocess", value, f"one of {', '.join(known)}", near(str(value), known))
    return Reprocess(value)


def _range(
    row: Any, from_at: datetime | str, to_at: datetime | str, now: datetime
) -> tuple[datetime, datetime, int]:
    """The range as instants, checked, and how many occurrences of the job (its row) lie in it."""
    first, last = _instant(row, from_at, "from"), _instant(row, to_at, "to")
    if isinstance(to_at, str) and DAY.fullmatch(to_at.strip()):
        tomorrow = datetime.fromisoformat(to_at.strip()) + timedelta(days=1)
        last = (
            min(now, instant_of_wall(check_zone(row.timezone), tomorrow) - INSTANT) if last <= now else last
        )
    if last < first:
        raise InvalidValue("to", _shown(last), f"not before from ({_shown(first)})")
    if last > now:
        raise InvalidValue(
            "to",
            _shown(last),
            f"not in the future: it is now {_shown(now)}",
            "What comes later is run by the schedule.",
        )
    schedule: Schedule = schedule_of(row)
    if schedule.kind == "after":
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"its schedule is {row.schedule!r}: what has no fixed times has none in the past",
            f"To run it once now: sched run {row.name}",
        )
    total = schedule.count_in(first - INSTANT, last)
    if total == 0:
        before = schedule.latest_in(datetime(1970, 1, 1, tzinfo=UTC), first)
        after = schedule.next_after(last)
        near_by = " and ".join(_shown(one) for one in (before, after) if one is not None)
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"no occurrence lies from {_shown(first)} to {_shown(last)}",
            f"The nearest are {near_by}." if near_by else "",
        )
    if total > MOST:
        raise InvalidValue(
            "the backfill of job",
            row.name,
            f"{total} occurrences lie from {_shown(first)} to {_shown(last)}; at most {MOST} are allowed",
            "Do it in parts.",
        )
    return first, last, total


def _instant(row: Any, value: datetime | str, what: str) -> datetime:
    found = readers.moment(value, what)
    if found is None:
        raise InvalidValue(what, value, "it must be given")
    return found if found.tzinfo is not None else instant_of_wall(check_zone(row.timezone), found)


def _shown(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
