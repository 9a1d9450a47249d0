"""The client: jobs are paused and resumed, runs are stopped; one of them, some, or all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from celery_sched.client.base import Base
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import BackfillId, BackfillStatus, Job, JobId, JobStatus, Run, RunId
from celery_sched.rules.upcoming import named
from celery_sched.steps import define
from celery_sched.store import backfills, jobs, runs
from celery_sched.store.engine import Tx
from celery_sched.store.stopping import Stopped, stop_runs, unfinished
from celery_sched.store.tables import run as run_table

BATCH = 100
"""Jobs paused or resumed in one transaction, where all of them are."""
ALL_PAUSED = "all jobs paused by "
"""How the reason of a job begins that was paused with all others: what ``resume_all`` looks for."""


class Running(StrEnum):
    """What a pause does with the job's runs that are not finished."""

    KEEP = "keep"
    CANCEL = "cancel"


@dataclass(frozen=True)
class PausedJob(Job):
    """A job that was paused, and its runs that were stopped with it."""

    stopped: tuple[RunId, ...] = ()


@dataclass(frozen=True)
class Paused:
    """The names of the ``jobs`` that are paused now and were active, and the runs that were ``stopped``."""

    jobs: tuple[str, ...] = ()
    stopped: tuple[Stopped, ...] = ()


class Control(Base):
    """What people do to make jobs and runs stop, and go on."""

    def pause(
        self,
        name: str,
        reason: str | None = None,
        *,
        running: Running | str = Running.KEEP,
        by: str = "python",
    ) -> PausedJob:
        """Stop planning a job.

        :param running: ``keep``: its runs go on, those that wait too. ``cancel``: all that are not finished
            are stopped, and its backfills are cancelled, in the same transaction.
        :raises NotFound: no such job.
        :raises InvalidValue: another value for ``running``.
        """
        how = _running(running)

        def work(tx: Tx, now: datetime) -> tuple[tuple[Stopped, ...], PausedJob]:
            row = self._locked(tx, name)
            stopped: tuple[Stopped, ...] = ()
            detail: dict[str, Any] = {"reason": reason}
            # one that was paused with all others is now paused by itself: resume_all leaves it alone
            to_pause = row.status != JobStatus.PAUSED or (row.status_reason or "").startswith(ALL_PAUSED)
            if to_pause:
                define.pause(tx, now, row, reason or f"paused by {by}")
            if how is Running.CANCEL:
                stopped = self._stop_all(tx, now, [JobId(row.id)], by, _because("the job was paused", reason))
                detail |= {"running": how.value, "stopped": len(stopped)}
            if to_pause or stopped:
                self._note(tx, now, by, "pause", name, detail)
            ids = tuple(one.run_id for one in stopped)
            return stopped, PausedJob(**vars(self._job(tx, name)), stopped=ids)

        stopped, job = self._database.run(work)
        self._release(stopped)
        return job

    def resume(self, name: str, *, by: str = "python") -> Job:
        """Plan a job again, from now on: time spent paused is not missed. :raises NotFound: no such job."""

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            if row.status != JobStatus.ACTIVE:
                self._resume(tx, now, row, by)
            return self._job(tx, name)

        return self._database.run(work)

    def pause_all(
        self, reason: str | None = None, *, running: Running | str = Running.KEEP, by: str = "python"
    ) -> Paused:
        """Pause every active job; those that are paused, disabled, expired or in error stay as they are.

        A hundred jobs in one transaction; a job that is added meanwhile or later is active.

        :param running: ``cancel`` stops the runs of all jobs, whatever the jobs' status. The scheduler's own
            jobs go on: people are told, and what a stopped run leaves behind is put right.
        """
        how = _running(running)
        text = _because(f"{ALL_PAUSED}{by}", reason)

        def work(tx: Tx, now: datetime, ids: Collection[JobId]) -> Paused:
            rows = jobs.lock(tx, ids)
            active = [row for row in rows.values() if row.status == JobStatus.ACTIVE]
            for row in active:
                define.pause(tx, now, row, text)
                self._note(tx, now, by, "pause", row.name, {"reason": reason, "all": True})
            stopped: tuple[Stopped, ...] = ()
            if how is Running.CANCEL:
                stopped = self._stop_all(tx, now, ids, by, _because("all jobs were paused", reason))
                self._note_stopped(tx, now, by, stopped, reason)
            return Paused(tuple(row.name for row in active), stopped)

        done: list[Paused] = []
        for ids in self._batches():
            done.append(self._database.run(lambda tx, now, ids=ids: work(tx, now, ids)))  # type: ignore[misc]
            self._release(done[-1].stopped)
        return Paused(
            tuple(sorted(name for part in done for name in part.jobs)),
            tuple(one for part in done for one in part.stopped),
        )

    def resume_all(self, *, by: str = "python") -> list[str]:
        """Resume the jobs that :meth:`pause_all` paused, no others; return their names."""

        def work(tx: Tx, now: datetime, ids: Collection[JobId]) -> list[str]:
            wanted = [
                row
                for row in jobs.lock(tx, ids).values()
                if row.status == JobStatus.PAUSED and (row.status_reason or "").startswith(ALL_PAUSED)
            ]
            for row in wanted:
                self._resume(tx, now, row, by)
            return [row.name for row in wanted]

        return sorted(
            name
            for ids in self._batches()
            for name in self._database.run(lambda tx, now, ids=ids: work(tx, now, ids))  # type: ignore[misc]
        )

    def cancel(self, run_id: RunId, *, by: str = "python", reason: str | None = None) -> Run:
        """Ask a run to end. One that has not started ends at once; a running one is killed by its worker.

        A finished run is left as it is. :raises NotFound: no such run.
        """
        return self.cancel_runs([run_id], by=by, reason=reason)[0]

    def cancel_runs(
        self, run_ids: Iterable[RunId], *, by: str = "python", reason: str | None = None
    ) -> list[Run]:
        """The same with several, all or none.

        :raises NotFound: one of them is not there; nothing was written.
        """
        wanted = list(dict.fromkeys(run_ids))

        def work(tx: Tx, now: datetime) -> tuple[tuple[Stopped, ...], list[Run]]:
            known = runs.find(tx, wanted)
            for run_id in wanted:
                if run_id not in known or known[run_id].app != self._config.app:
                    raise NotFound("run", run_id, "See: sched runs.")
            jobs.lock(tx, {JobId(row.job_id) for row in known.values()})
            stopped = stop_runs(tx, now, runs.lock(tx, run_table.c.id.in_(wanted)), by, reason)
            self._note_stopped(tx, now, by, stopped, reason)
            return stopped, self._runs(tx, wanted)

        stopped, found = self._database.run(work)
        self._release(stopped)
        return found

    def cancel_job(self, name: str, *, by: str = "python", reason: str | None = None) -> list[Run]:
        """Stop all runs of a job that are not finished, and cancel its backfills; the schedule goes on.

        :raises NotFound: no such job.
        """

        def work(tx: Tx, now: datetime) -> tuple[tuple[Stopped, ...], list[Run]]:
            row = self._locked(tx, name)
            stopped = self._stop_all(tx, now, [JobId(row.id)], by, reason)
            self._note_stopped(tx, now, by, stopped, reason)
            return stopped, self._runs(tx, [one.run_id for one in stopped])

        stopped, found = self._database.run(work)
        self._release(stopped)
        return found

    def _resume(self, tx: Tx, now: datetime, row: Any, by: str) -> None:
        with named(row.name):
            define.resume(tx, now, row)
        self._note(tx, now, by, "resume", row.name, {"was": row.status, "reason": row.status_reason})

    def _batches(self) -> list[Sequence[JobId]]:
        """The ids of people's jobs of the app, in the order in which they are locked."""
        rows = self._database.read(lambda tx, now: jobs.every(tx, self._config.app))
        ids = sorted(JobId(row.id) for row in rows)
        return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]

    def _stop_all(
        self, tx: Tx, now: datetime, ids: Collection[JobId], by: str, reason: str | None
    ) -> tuple[Stopped, ...]:
        """Stop all that is not finished of jobs (locked by the caller): a backfill would only make more."""
        text = f"stopped by {by}: {reason or 'no reason given'}"
        for row in backfills.lock_running(tx, ids):
            backfills.end(tx, now, BackfillId(row.id), BackfillStatus.CANCELLED, text)
            detail = {"backfill": row.id, "reason": reason, "running": True}
            self._note(tx, now, by, "cancel_backfill", row.job, detail)
        return stop_runs(tx, now, runs.lock(tx, unfinished(ids)), by, reason)

    def _note_stopped(
        self, tx: Tx, now: datetime, by: str, stopped: Iterable[Stopped], reason: str | None
    ) -> None:
        for one in stopped:
            self._note(tx, now, by, "cancel", f"run:{one.run_id}", {"reason": reason, "was": one.status})

    def _runs(self, tx: Tx, run_ids: Iterable[RunId]) -> list[Run]:
        return [self._run(tx, run_id) for run_id in run_ids]


def _running(value: Running | str) -> Running:
    if value not in list(Running):
        raise InvalidValue("running", value, "keep or cancel")
    return Running(value)


def _because(what: str, reason: str | None) -> str:
    return f"{what}: {reason}" if reason else what
