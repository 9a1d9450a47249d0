"""The client: many jobs at once, as a file has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.client.base import Base
from celery_sched.errors import AlreadyExists
from celery_sched.model import JobDefinition, Source
from celery_sched.steps import define
from celery_sched.store import job_forms, jobs
from celery_sched.store.engine import Tx


@dataclass(frozen=True)
class Applied:
    """Names of jobs by what happened to them; ``changed`` with the fields that are new."""

    added: tuple[str, ...] = ()
    changed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unchanged: tuple[str, ...] = ()


class Files(Base):
    """What people do with files of jobs."""

    def apply(
        self, definitions: Sequence[JobDefinition], *, dry_run: bool = False, by: str = "python"
    ) -> Applied:
        """Add these jobs, or make them what they are here; others stay as they are. All or none.

        A definition is a job's whole one: what it does not name is the default. Use
        :func:`celery_sched.job_files.read_jobs` for a file.

        :param dry_run: write nothing, only say what would be.
        :raises InvalidValue: a pool, or a target of notifications, that there is not.
        :raises AlreadyExists: a job of that name comes from code, where it is to be changed.
        """

        def work(tx: Tx, now: datetime) -> Applied:
            known = {row.name: row for row in jobs.lock_all(tx, self._config.app)}
            added: list[str] = []
            changed: list[tuple[str, tuple[str, ...]]] = []
            unchanged: list[str] = []
            for definition in definitions:
                row = known.get(definition.name)
                self._check_pool(tx, definition)
                self._check_targets(definition)
                if row is None:
                    added.append(definition.name)
                    if not dry_run:
                        define.create(tx, now, self._config, definition, Source.OPERATOR)
                        detail = job_forms.to_json(definition)
                        self._note(tx, now, by, "add", definition.name, detail)
                    continue
                old, new = job_forms.to_json(job_forms.definition_of(row)), job_forms.to_json(definition)
                names = tuple(name for name in job_forms.DEFINITION if old[name] != new[name])
                if not names:
                    unchanged.append(definition.name)
                    continue
                if row.source == Source.CODE:
                    hint = "It comes from code: change it there, or with edit, or give this one another name."
                    raise AlreadyExists("job", definition.name, hint)
                changed.append((definition.name, names))
                if not dry_run:
                    define.change(tx, now, row, {name: getattr(definition, name) for name in names})
                    detail = {name: new[name] for name in names}
                    self._note(tx, now, by, "edit", definition.name, detail)
            return Applied(tuple(added), tuple(changed), tuple(unchanged))

        return self._database.run(work)
