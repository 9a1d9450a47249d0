"""The client: runs are asked for, waited for and looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_sched.client.base import Base, checked_status
from celery_sched.errors import InvalidValue, RunRefused
from celery_sched.model import JobId, ManualRun, Misfire, Overlap, Run, RunId
from celery_sched.rules import keys
from celery_sched.rules import overlap as overlap_rule
from celery_sched.rules.definition import checked_arguments
from celery_sched.rules.transitions import TERMINAL, RunStatus
from celery_sched.rules.why import Why
from celery_sched.steps.manual import manual
from celery_sched.store import history, jobs, runs, waiting
from celery_sched.store.engine import Row, Tx
from celery_sched.store.stopping import Stopped, stop_runs, unfinished
from celery_sched.why import look_why

LOOK = 0.2
"""Seconds between two looks at a run that is waited for."""


class Runs(Base):
    """What people do with runs."""

    def run(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        by: str = "python",
    ) -> ManualRun:
        """Queue a run of a job now, beside its schedule, whatever its status; see :meth:`wait`.

        What comes back says whether it starts at once, what it waits for, and which runs it replaces.

        :raises NotFound: no such job.
        :raises InvalidValue: arguments that JSON cannot hold, or that lack what the job's ``concurrency_key``
            is made of; nothing was written.
        :raises RunRefused: ``overlap`` does not allow it; ``live_run`` is the run in the way.
        """
        given = checked_arguments(args, kwargs)

        def work(tx: Tx, now: datetime) -> tuple[tuple[Stopped, ...], ManualRun]:
            row = self._locked(tx, name)
            job_id = JobId(row.id)
            # locked before it is asked what is active: what is stopped below has not moved since
            others: Sequence[Row] = ()
            if row.overlap == Overlap.REPLACE:
                others = runs.lock(tx, unfinished([job_id], regular=True))
            active = runs.active_by_job(tx, [job_id]).get(job_id, runs.Active())
            decision = overlap_rule.decide(
                Overlap(row.overlap),
                Misfire.ONCE,
                active.count,
                row.max_queued,
                active.one,
                waiting_run=active.waiting,
                behind_backfill=active.behind_backfill,
            )
            _check_key(row, *given)
            if not decision.queue:
                raise RunRefused(name, f"{decision.reason} (overlap is {row.overlap!r})", active.one)
            run_id = manual(tx, now, row, *given)
            reason = f"{overlap_rule.REPLACED} a run by hand (run {run_id})"
            stopped = stop_runs(tx, now, others if decision.replace else (), by, reason)
            replaces = tuple(one.run_id for one in stopped)
            detail = {"run": run_id, **({"replaces": list(replaces)} if replaces else {})}
            self._note(tx, now, by, "run", name, detail)
            waits, waits_for = waiting.of(tx, now, row, run_id)
            found = vars(self._run(tx, run_id))
            return stopped, ManualRun(**found, waits=waits, waits_for=waits_for, replaces=replaces)

        stopped, found = self._database.run(work)
        self._release(stopped)
        return found

    def wait(self, run_id: RunId, timeout: float | timedelta | None = None) -> Run:
        """Wait until a run is finished and return it.

        :param timeout: seconds, or for ever.
        :raises NotFound: no such run.
        :raises TimeoutError: it was not finished in time; it goes on.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            found = self.get_run(run_id)
            if found.status in TERMINAL:
                return found
            rest = LOOK if deadline is None else deadline - time.monotonic()
            if rest <= 0:
                raise TimeoutError(f"run {run_id} is still {found.status} after {seconds:g} s; it goes on")
            time.sleep(min(LOOK, rest))

    def get_run(self, run_id: RunId) -> Run:
        """One run. :raises NotFound: no such run."""
        return self._database.read(lambda tx, now: self._run(tx, run_id))

    def runs(
        self, job: str | None = None, status: RunStatus | str | None = None, limit: int = 100
    ) -> list[Run]:
        """Runs, newest first.

        :raises NotFound: no job and no run of that name.
        :raises InvalidValue: no such status, or a limit below 1.
        """
        wanted = checked_status(status, RunStatus)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue("limit", limit, "a whole number from 1 on")

        def work(tx: Tx, now: datetime) -> list[Run]:
            app = self._config.app
            found = runs.newest(tx, app, job_name=job, status=wanted, limit=limit)
            if not (found or job is None or runs.newest(tx, app, job_name=job, status=None, limit=1)):
                self._job(tx, job)
            return found

        return self._database.read(work)

    def waits_for(self, run_id: RunId) -> str | None:
        """What a queued run whose time has come waits for, in words; ``None``: for nothing, or it is none.

        :raises NotFound: no such run.
        """

        def work(tx: Tx, now: datetime) -> str | None:
            found = self._run(tx, run_id)
            job = jobs.get(tx, self._config.app, found.job)
            if found.status != RunStatus.QUEUED or found.ready_at > now or job is None:
                return None
            return waiting.of(tx, now, job, run_id)[0]

        return self._database.read(work)

    def why_run(self, run_id: RunId) -> Why:
        """What happened to a run, and what it waits for.

        :raises NotFound: no such run.
        """

        def work(tx: Tx, now: datetime) -> Why:
            found = self._run(tx, run_id)
            return look_why(tx, now, self._config, found.job, found.scheduled_for, run_id)

        return self._database.read(work)

    def why(self, job: str, at: str | datetime) -> Why:
        """What happened to a job at a time, or why nothing did.

        :param at: an instant, or a time in the job's zone such as ``2026-01-31T09:00``.
        :raises NotFound: no such job, and no run of one of that name.
        :raises InvalidValue: a time that cannot be read.
        """

        def work(tx: Tx, now: datetime) -> Why:
            if not history.exists(tx, self._config.app, job):
                self._job(tx, job)
            return look_why(tx, now, self._config, job, at)

        return self._database.read(work)


def _check_key(row: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """That a run of a job (its row) with these arguments has what its key is made of."""
    try:
        keys.key_of(
            row.concurrency_key, row.args if args is None else args, row.kwargs if kwargs is None else kwargs
        )
    except InvalidValue as error:
        what = f"job {row.name!r}: {error.what}"
        raise InvalidValue(what, error.value, error.allowed, error.hint) from error
