"""The client: jobs are added, edited, deleted and looked at."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from celery_sched.calendar_files import with_files
from celery_sched.client.base import Base, checked_status
from celery_sched.errors import AlreadyExists, InvalidValue, SchedulerError
from celery_sched.model import Job, JobId, JobStatus, Source
from celery_sched.rules.definition import checked
from celery_sched.steps import define
from celery_sched.store import job_forms, jobs, runs, sensors, subscriptions
from celery_sched.store.engine import Conflict, Tx


class Jobs(Base):
    """What people do with jobs."""

    def add(
        self,
        name: str,
        *,
        task: str,
        schedule: str | Sequence[str] | None = None,
        by: str = "python",
        **policies: Any,
    ) -> Job:
        """Add a job. ``policies`` are the other fields of :class:`~celery_sched.model.JobDefinition`.

        It has a ``schedule``, or events that it subscribes to (``on``), or both.

        An ``ics:PATH`` in ``exclude`` is read here and now, a relative path from the current folder.

        :raises InvalidValue: a field that is not allowed; nothing was written.
        :raises AlreadyExists: a job of that name.
        """
        given = with_files(policies, Path.cwd())
        times = {} if schedule is None else {"schedule": schedule}
        definition = checked(name=name, task=task, **times, **given)

        def work(tx: Tx, now: datetime) -> Job:
            if jobs.get(tx, self._config.app, name) is not None:
                raise AlreadyExists("job", name, "Change it with edit, or choose another name.")
            self._check_pool(tx, definition)
            self._check_targets(definition)
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
        changes = with_files(changes, Path.cwd())

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            old = job_forms.definition_of(row)
            fields = {field: getattr(old, field) for field in job_forms.DEFINITION}
            definition = checked(**{**fields, **changes})
            self._check_pool(tx, definition, old)
            if "notify" in changes:
                self._check_targets(definition)
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

    def reset(self, name: str, fields: Iterable[str] = (), *, by: str = "python") -> Job:
        """Take back what was changed by hand of a job from code: all of it, or these fields.

        :raises InvalidValue: a job that does not come from code, or a field that was not changed.
        :raises NotFound: no such job.
        """

        def work(tx: Tx, now: datetime) -> Job:
            row = self._locked(tx, name)
            if row.code_definition is None:
                raise InvalidValue("job", name, "only what comes from code has something to go back to")
            by_hand = job_forms.operator_fields(row)
            for field in fields:
                if field not in by_hand:
                    changed = ", ".join(by_hand) or "none"
                    raise InvalidValue("field", field, f"those that were changed by hand: {changed}")
            in_code = checked(**row.code_definition)
            wanted = {field: getattr(in_code, field) for field in (tuple(fields) or by_hand)}
            if wanted:
                define.change(tx, now, row, wanted)
                detail = {field: job_forms.json_value(value) for field, value in wanted.items()}
                self._note(tx, now, by, "reset", name, detail)
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
            subscriptions.remove(tx, now, JobId(row.id), f"job {name!r} was deleted")
            sensors.forget(tx, JobId(row.id))
            jobs.remove(tx, JobId(row.id))
            self._note(tx, now, by, "delete", name, job_forms.to_json(job_forms.definition_of(row)))

        self._database.run(work)

    def get(self, name: str) -> Job:
        """One job. :raises NotFound: no such job."""
        return self._database.read(lambda tx, now: self._job(tx, name))

    def list(self, status: JobStatus | str | None = None, *, system: bool = False) -> builtins.list[Job]:
        """All jobs of the app, by name, or those of one status.

        :param system: the scheduler's own too, which carry ``on_lost`` tasks, say.
        :raises InvalidValue: no such status.
        """
        wanted = checked_status(status, JobStatus)
        found = self._database.read(
            lambda tx, now: [
                job_forms.from_row(row) for row in jobs.every(tx, self._config.app, system=system)
            ]
        )
        return [job for job in found if wanted is None or job.status == wanted]
