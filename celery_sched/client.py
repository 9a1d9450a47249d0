"""What people and programs do: add, edit, pause, run, cancel, look.

Everything is checked before anything is written. ``celery_sched.client`` is the client of the current app.
"""

from __future__ import annotations

import builtins
import difflib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from celery_sched import runtime as runtimes
from celery_sched.errors import AlreadyExists, InvalidValue, NotFound, RunRefused, SchedulerError
from celery_sched.model import (
    Job,
    JobDefinition,
    JobId,
    JobStatus,
    Misfire,
    Node,
    NodeId,
    Overlap,
    Pool,
    Run,
    RunId,
    Source,
)
from celery_sched.rules import overlap as overlap_rule
from celery_sched.rules.definition import checked, checked_arguments
from celery_sched.rules.transitions import TERMINAL, RunStatus
from celery_sched.runtime import Runtime
from celery_sched.status import Status, alive, look
from celery_sched.steps import define
from celery_sched.steps.manual import manual
from celery_sched.steps.stop import stop
from celery_sched.store import audit, job_forms, jobs, nodes, pools, runs
from celery_sched.store.engine import Conflict, Tx
from celery_sched.store.tables import run as run_table

LOOK = 0.2
"""Seconds between two looks at a run that is waited for."""


class Client:
    """What one app's people may do. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._database = runtime.database

    # -- jobs --------------------------------------------------------------------------------------

    def add(self, name: str, *, task: str, schedule: str, by: str = "python", **policies: Any) -> Job:
        """Add a job. ``policies`` are the other fields of :class:`~celery_sched.model.JobDefinition`.

        :raises InvalidValue: a field that is not allowed; nothing was written.
        :raises AlreadyExists: a job of that name.
        """
        definition = checked(name=name, task=task, schedule=schedule, **policies)

        def work(tx: Tx, now: datetime) -> Job:
            if jobs.get(tx, self._config.app, name) is not None:
                raise AlreadyExists("job", name, "Change it with edit, or choose another name.")
            self._check_pool(tx, definition)
            define.create(tx, now, self._config, definition, Source.OPERATOR)
            self._note(tx, now, by, "add", name, job_forms.to_json(definition))
            return self._job(tx, name)

        try:
            return self._database.run(work)
        except Conflict as error:
            raise AlreadyExists("job", name, "It was added in the same moment.") from error

    def edit(self, name: str, /, *, by: str = "python", **changes: Any) -> Job:
        """Change some fields of a job. The next instant is computed from the later of now and the last one.

        :raises InvalidValue: a field that is not allowed; nothing was written.
        :raises NotFound: no such job.
        """
        if "name" in changes:
            raise InvalidValue("name", changes["name"], "a job keeps its name", "Add a new job instead.")

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            old = job_forms.definition_of(row)
            fields = {field: getattr(old, field) for field in job_forms.DEFINITION}
            definition = checked(**{**fields, **changes})
            self._check_pool(tx, definition)
            changed = {
                field: getattr(definition, field)
                for field in changes
                if getattr(definition, field) != getattr(old, field)
            }
            if changed:
                define.change(tx, now, row, changed)
                detail = {field: job_forms.json_value(value) for field, value in changed.items()}
                self._note(tx, now, by, "edit", name, detail)
            return self._job(tx, name)

        return self._database.run(work)

    def delete(self, name: str, *, by: str = "python") -> None:
        """Delete a job; its finished runs stay until they are pruned.

        :raises NotFound: no such job.
        :raises SchedulerError: it has runs that are not finished: cancel them first.
        """

        def work(tx: Tx, now: datetime) -> None:
            row = self._locked(tx, name)
            active = runs.active_by_job(tx, [JobId(row.id)]).get(JobId(row.id))
            if active is not None:
                such = "" if active.one is None else f", such as {active.one}"
                raise SchedulerError(
                    f"job {name!r} has {active.count + active.backfill} run(s) that are not finished{such}: "
                    "cancel them first, or wait"
                )
            jobs.remove(tx, JobId(row.id))
            self._note(tx, now, by, "delete", name, job_forms.to_json(job_forms.definition_of(row)))

        self._database.run(work)

    def get(self, name: str) -> Job:
        """One job. :raises NotFound: no such job."""
        return self._database.read(lambda tx, now: self._job(tx, name))

    def list(self, status: JobStatus | str | None = None) -> builtins.list[Job]:
        """All jobs of the app, by name, or those of one status. :raises InvalidValue: no such status."""
        wanted = _status(status, JobStatus)
        found = self._database.read(
            lambda tx, now: [job_forms.from_row(row) for row in jobs.every(tx, self._config.app)]
        )
        return [job for job in found if wanted is None or job.status == wanted]

    def pause(self, name: str, reason: str | None = None, *, by: str = "python") -> Job:
        """Stop planning a job; runs that exist go on. :raises NotFound: no such job."""

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            if row.status != JobStatus.PAUSED:
                define.pause(tx, now, row, reason or f"paused by {by}")
                self._note(tx, now, by, "pause", name, {"reason": reason})
            return self._job(tx, name)

        return self._database.run(work)

    def resume(self, name: str, *, by: str = "python") -> Job:
        """Plan a job again, from now on: time spent paused is not missed. :raises NotFound: no such job."""

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            if row.status != JobStatus.ACTIVE:
                define.resume(tx, now, row)
                self._note(tx, now, by, "resume", name, {"was": row.status, "reason": row.status_reason})
            return self._job(tx, name)

        return self._database.run(work)

    # -- runs --------------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        by: str = "python",
    ) -> Run:
        """Queue a run of a job now, beside its schedule, whatever its status; see :meth:`wait`.

        :raises NotFound: no such job.
        :raises InvalidValue: arguments that JSON cannot hold; nothing was written.
        :raises RunRefused: ``overlap`` does not allow it; ``live_run`` is the run in the way.
        """
        given = checked_arguments(args, kwargs)

        def work(tx: Tx, now: datetime) -> Run:
            row = self._locked(tx, name)
            active = runs.active_by_job(tx, [JobId(row.id)]).get(JobId(row.id), runs.Active())
            decision = overlap_rule.decide(
                Overlap(row.overlap),
                Misfire.ONCE,
                active.count,
                row.max_queued,
                active.one,
                behind_backfill=active.behind_backfill,
            )
            if not decision.queue:
                raise RunRefused(name, f"{decision.reason} (overlap is {row.overlap!r})", active.one)
            run_id = manual(tx, now, row, *given)
            self._note(tx, now, by, "run", name, {"run": run_id})
            return self._run(tx, run_id)

        return self._database.run(work)

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

    def cancel(self, run_id: RunId, *, by: str = "python", reason: str | None = None) -> Run:
        """Ask a run to end. One that has not started ends at once; a running one is killed by its worker.

        A finished run is left as it is. :raises NotFound: no such run.
        """

        def work(tx: Tx, now: datetime) -> tuple[bool, Run]:
            done = stop(tx, now, run_id, by, reason)
            if done is None:
                raise NotFound("run", run_id, "See: sched runs.")
            if done.settled or done.requested:
                self._note(tx, now, by, "cancel", f"run:{run_id}", {"reason": reason, "was": done.status})
            return done.settled, self._run(tx, run_id)

        settled, found = self._database.run(work)
        if settled:
            self._runtime.slots.release(found.pool, [run_id])
        return found

    def get_run(self, run_id: RunId) -> Run:
        """One run. :raises NotFound: no such run."""
        return self._database.read(lambda tx, now: self._run(tx, run_id))

    def runs(
        self, job: str | None = None, status: RunStatus | str | None = None, limit: int = 100
    ) -> builtins.list[Run]:
        """Runs, newest first.

        :raises NotFound: no job and no run of that name.
        :raises InvalidValue: no such status, or a limit below 1.
        """
        wanted = _status(status, RunStatus)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue("limit", limit, "a whole number from 1 on")

        def work(tx: Tx, now: datetime) -> builtins.list[Run]:
            app = self._config.app
            found = runs.newest(tx, app, job_name=job, status=wanted, limit=limit)
            if not (found or job is None or runs.newest(tx, app, job_name=job, status=None, limit=1)):
                self._job(tx, job)
            return found

        return self._database.read(work)

    # -- the whole ---------------------------------------------------------------------------------

    def status(self) -> Status:
        """How it is doing, from one look at the database."""
        return self._database.read(lambda tx, now: look(tx, now, self._config))

    def nodes(self) -> builtins.list[Node]:
        """Schedulers and workers that are alive."""
        return self._database.read(lambda tx, now: alive(tx, now, self._config))

    def stop_nodes(self, node_id: NodeId | None = None, *, by: str = "python") -> None:
        """Ask one node, or all of the app, to stop: schedulers drain, workers finish what runs.

        :raises NotFound: no such node.
        """

        def work(tx: Tx, now: datetime) -> None:
            living = [node.id for node in alive(tx, now, self._config)]
            if node_id is not None and node_id not in [node.id for node in nodes.every(tx, self._config.app)]:
                raise NotFound("node", node_id, "See: sched status.")
            for one in living if node_id is None else [node_id]:
                nodes.request_stop(tx, now, one)
                self._note(tx, now, by, "stop", f"node:{one}", {})

        self._database.run(work)

    def pools(self) -> builtins.list[Pool]:
        """All pools of the app, by name."""
        return self._database.read(lambda tx, now: list(pools.every(tx, self._config.app).values()))

    def resize_pool(self, name: str, slots: int, *, by: str = "python") -> Pool:
        """Change a pool's slots while everything runs.

        :raises InvalidValue: not a whole number from 0 to 100000.
        :raises NotFound: no such pool.
        """
        if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= 100_000:
            raise InvalidValue("slots", slots, "a whole number from 0 to 100000")

        def work(tx: Tx, now: datetime) -> Pool:
            old = pools.resize(tx, self._config.app, name, slots)
            if old is None:
                known = list(pools.every(tx, self._config.app))
                raise NotFound("pool", name, near(name, known) or f"There are: {', '.join(known) or 'none'}.")
            self._note(tx, now, by, "resize", f"pool:{name}", {"old": old, "new": slots})
            return Pool(self._config.app, name, slots)

        return self._database.run(work)

    # -- within a transaction ----------------------------------------------------------------------

    def _job(self, tx: Tx, name: str) -> Job:
        row = jobs.get(tx, self._config.app, name)
        if row is None:
            known = list(jobs.names(tx, self._config.app))
            # a job without a name of its own is called by its task: module and function
            found = [full for full in known if full.endswith(f".{name}")]
            hint = f"Did you mean {found[0]!r}?" if found else near(name, known)
            raise NotFound(
                "job", name, hint or "See: sched jobs. Jobs in code come with a scheduler's start."
            )
        return job_forms.from_row(row)

    def _locked(self, tx: Tx, name: str) -> Any:
        return jobs.lock(tx, [self._job(tx, name).id])[self._job(tx, name).id]

    def _run(self, tx: Tx, run_id: RunId) -> Run:
        found = runs.newest(
            tx, self._config.app, job_name=None, status=None, limit=1, match=run_table.c.id == run_id
        )
        if not found:
            raise NotFound("run", run_id, "See: sched runs.")
        return found[0]

    def _check_pool(self, tx: Tx, definition: JobDefinition) -> None:
        known = list(pools.every(tx, self._config.app))
        if definition.pool != pools.DEFAULT and definition.pool not in known:
            allowed = f"one of the pools there are: {', '.join(sorted({pools.DEFAULT, *known}))}"
            raise InvalidValue("pool", definition.pool, allowed, near(definition.pool, known))

    def _note(
        self, tx: Tx, now: datetime, by: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        audit.add(tx, now, self._config.app, by, action, subject, detail)


def near(name: str, known: Iterable[str]) -> str:
    """``Did you mean ...?`` or nothing."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean {found[0]!r}?" if found else ""


def _status(value: str | None, kind: type[StrEnum]) -> str | None:
    """A status to look for, checked: a misspelt one would find nothing, without a word."""
    if value is None or value in builtins.list(kind):
        return value
    known = [status.value for status in kind]
    raise InvalidValue("status", value, f"one of {', '.join(known)}", near(str(value), known))


class _Current:
    """The client of Celery's current app, found at each use: ``client.add(...)``."""

    def __getattr__(self, name: str) -> Any:
        from celery._state import get_current_app

        return getattr(Client(runtimes.of(get_current_app())), name)


client: Client = _Current()  # type: ignore[assignment]
