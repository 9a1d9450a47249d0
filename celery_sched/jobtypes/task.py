"""The job type `task`: a Celery task, whose arguments may come from a query.

For a task with fixed arguments a job names the task itself. This type is for arguments that are known only
when the job runs: a row of a query is the task's keyword arguments, or many rows are one of them. The task is
called within this run, on this worker: its result is the run's, and a retry that it asks Celery for is a
failure of the run, which the job's own retries take care of.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from celery_sched import context
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import connections
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import FILLED, LIST, MAPPING, NAME, count, duration, one_of, option
from celery_sched.rules.jobtypes import PREFIX
from celery_sched.store.elsewhere import Statements


class Rows(StrEnum):
    """How rows become arguments."""

    KWARGS = "kwargs"
    ROWS = "rows"


class WrongRows(SchedulerError):
    """A query gave more rows than the job expects."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task and its arguments."""

    task: str = option(NAME, "the task's name, as workers know it", secret=False)
    args: list[Any] = option(LIST, "its arguments", [])
    kwargs: Mapping[str, Any] = option(MAPPING, "its keyword arguments", {})
    connection: str | None = option(
        NAME, "name of one of the worker's `sched_connections`", None, secret=False
    )
    query: str | None = option(
        FILLED,
        f"a query for more keyword arguments; `:name` stands for a parameter, also {connections.EVERY_JOB}",
        None,
        secret=False,
    )
    parameters: Mapping[str, Any] = option(connections.PARAMETERS, "values for `:name` in the query", {})
    pass_rows: Rows = option(
        one_of(Rows),
        "`kwargs`: one row, whose columns are keyword arguments; `rows`: all rows, a list of mappings, as "
        "the argument `rows`. Without any row the task is not called",
        "kwargs",
    )
    max_rows: int = option(count(1, 10_000), "more rows fail the run", 1000)
    query_timeout: timedelta = option(duration("1d"), "for the query", "1m")


class TaskCall(JobType[TaskConfig]):
    """A call of a task."""

    name = "task"
    description = "calls a Celery task, with arguments from a SQL query at run time"
    config = TaskConfig

    def check(self, config: TaskConfig) -> None:
        """A query has a connection; a type's own task is no task to call."""
        if (config.connection is None) != (config.query is None):
            there, missing = ("query", "connection") if config.connection is None else ("connection", "query")
            raise InvalidValue(f"{self.name}: {missing}", None, f"with {there} it must be given, too")
        if config.task.startswith(PREFIX) and config.task != f"{PREFIX}ping":
            hint = f"Make a job of the type {config.task.removeprefix(PREFIX)!r}."
            raise InvalidValue(f"{self.name}: task", config.task, "a task of your own", hint)

    def warnings(self, config: TaskConfig, settings: Config) -> list[str]:
        """A connection that is not set here."""
        return [] if config.connection is None else connections.unknown(config.connection, settings)

    def run(self, config: TaskConfig, ctx: JobContext) -> Any:
        """Ask for the arguments, call."""
        called = _task(config.task, ctx.app)
        kwargs = dict(config.kwargs)
        if config.query is not None:
            rows = _rows(config, ctx)
            if not rows:
                ctx.log.info("the query gave no row: %s was not called", config.task)
                return {"called": False, "why": "the query gave no row"}
            kwargs |= {"rows": rows} if config.pass_rows is Rows.ROWS else rows[0]
        if ctx.event is not None:
            event = {"events" if isinstance(ctx.event, list) else "event": ctx.event}
            kwargs |= context.wanted_by(called.run, event)
        began = time.monotonic()
        result = called(*config.args, **kwargs)
        return {"called": True, "result": result, "seconds": round(time.monotonic() - began, 3)}


def _task(name: str, app: Any) -> Any:
    if name not in app.tasks:
        known = sorted(one for one in app.tasks if not one.startswith("celery."))
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else ""
        raise InvalidValue("task: task", name, "a task that this worker has", hint)
    return app.tasks[name]


def _rows(config: TaskConfig, ctx: JobContext) -> list[dict[str, Any]]:
    url = connections.url_of(str(config.connection), ctx.settings, "task: connection")
    most = 1 if config.pass_rows is Rows.KWARGS else config.max_rows
    parameters = connections.given(config.parameters, ctx)
    done = Statements(
        url, [str(config.query)], parameters, most + 1, config.query_timeout, longest=None
    ).run()[0]
    if done.columns is None:
        raise InvalidValue("task: query", config.query, "it gives rows")
    if len(done.kept) > most:
        hint = " Add LIMIT, or set pass_rows=rows." if config.pass_rows is Rows.KWARGS else " See max_rows."
        raise WrongRows(f"the query gave more than {most} row{'s' if most > 1 else ''}.{hint}")
    return [dict(zip(done.columns, row, strict=True)) for row in done.kept]
