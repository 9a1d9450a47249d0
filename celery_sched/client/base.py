"""What all parts of the client share: the app's database, and finding things by name within a transaction."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Job, JobDefinition, Run, RunId
from celery_sched.runtime import Runtime
from celery_sched.store import audit, job_forms, jobs, pools, runs
from celery_sched.store.engine import Tx
from celery_sched.store.stopping import Stopped, freed_slots
from celery_sched.store.tables import run as run_table

SHORTEST = 4
"""Characters of a run's id that are enough, where no other run's begins so."""
NAMED = 5
"""Runs that are named where several are meant."""


class Base:
    """One app's runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._database = runtime.database

    def _job(self, tx: Tx, name: str) -> Job:
        return job_forms.from_row(self._row(tx, name))

    def _row(self, tx: Tx, name: str) -> Any:
        row = jobs.get(tx, self._config.app, name)
        if row is None:
            known = list(jobs.names(tx, self._config.app))
            # a job without a name of its own is called by its task: module and function
            found = [full for full in known if full.endswith(f".{name}")]
            hint = f"Did you mean {found[0]!r}?" if found else near(name, known)
            raise NotFound(
                "job", name, hint or "See: sched jobs. Jobs in code come with a scheduler's start."
            )
        return row

    def _locked(self, tx: Tx, name: str) -> Any:
        return jobs.lock(tx, [self._job(tx, name).id])[self._job(tx, name).id]

    def _run(self, tx: Tx, run_id: RunId) -> Run:
        found = runs.newest(
            tx, self._config.app, job_name=None, status=None, limit=1, match=run_table.c.id == run_id
        )
        if not found:
            raise NotFound("run", run_id, "See: sched runs.")
        return found[0]

    def find_run(self, text: str) -> Run:
        """The run of that id, or the only one whose id begins so: what people type or copy.

        :raises NotFound: no such run.
        :raises InvalidValue: less than :data:`SHORTEST` characters, or several runs, which are named.
        """
        wanted = text.strip().lower()
        if len(wanted) < SHORTEST:
            allowed = f"a run's id, or its beginning: at least {SHORTEST} characters"
            raise InvalidValue("RUN", text, allowed, "See: sched runs.")
        found = self._database.read(
            lambda tx, now: runs.beginning(tx, self._config.app, wanted, limit=NAMED + 1)
        )
        if not found:
            raise NotFound("run", text, "See: sched runs.")
        if len(found) > 1:
            named = [f"{run.id} ({run.job}, {run.status})" for run in found[:NAMED]]
            more = ", and more" if len(found) > NAMED else ""
            raise InvalidValue("RUN", text, f"several runs begin so: {', '.join(named)}{more}")
        return found[0]

    def _release(self, stopped: Iterable[Stopped]) -> None:
        """Give back the slots of runs that were stopped, once that is committed."""
        for pool, run_ids in freed_slots(stopped).items():
            self._runtime.slots.release(pool, run_ids)

    def _check_pool(self, tx: Tx, definition: JobDefinition, old: JobDefinition | None = None) -> None:
        """That there is a job's pool, and that a run fits into it; what was so (``old``) may stay."""
        name, weight = definition.pool, definition.weight
        if name == pools.DEFAULT and weight == 1:
            return
        # locked: nobody deletes it, or makes it smaller, meanwhile
        slots = pools.lock(tx, self._config.app, [name]).get(name)
        if slots is None and name != pools.DEFAULT:
            known = list(pools.every(tx, self._config.app))
            allowed = f"one of the pools there are: {', '.join(sorted({pools.DEFAULT, *known}))}"
            raise InvalidValue("pool", name, allowed, near(name, known))
        same = old is not None and (old.pool, old.weight) == (name, weight)
        if slots is not None and weight > max(slots, 1) and not same:
            raise InvalidValue(
                f"job {definition.name!r}: weight",
                weight,
                f"at most the {slots} slots of its pool {name!r}: its runs would never start",
                f"To change the pool: sched pools resize {name} {weight}",
            )

    def _check_targets(self, definition: JobDefinition) -> None:
        """That there are the targets that a job notifies, where the settings of this process have any."""
        known = sorted(self._config.notify_targets)
        for name in (definition.notify or {}).get("to", ()) if known else ():
            if name not in known:
                allowed = f"a target of sched_notify_targets: there are {', '.join(known)}"
                raise InvalidValue(f"job {definition.name!r}: notify", name, allowed, near(name, known))

    def _note(
        self, tx: Tx, now: datetime, by: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        audit.add(tx, now, self._config.app, by, action, subject, detail)


def near(name: str, known: Iterable[str]) -> str:
    """``Did you mean ...?`` or nothing."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean {found[0]!r}?" if found else ""


def checked_status(value: str | None, kind: type[StrEnum]) -> str | None:
    """A status to look for, checked: a misspelt one would find nothing, without a word."""
    if value is None or value in list(kind):
        return value
    known = [status.value for status in kind]
    raise InvalidValue("status", value, f"one of {', '.join(known)}", near(str(value), known))
