"""The job type `sql`: statements on a named connection, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import connections
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import NAME, TRUTH, Form, count, duration, option, texts
from celery_sched.rules import readers, sqltext
from celery_sched.store.elsewhere import Done, Statements

LARGEST_FILE = 1024 * 1024


def read_file(value: Any, what: str) -> str:
    """A relative path that does not leave its folder."""
    name = readers.a_name(value, what, 500)
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidValue(what, value, "a path relative to sched_sql_folder that stays in it")
    return str(path)


@dataclass(frozen=True, kw_only=True)
class SqlConfig:
    """Statements and where they are sent."""

    connection: str = option(NAME, "name of one of the worker's `sched_connections`", secret=False)
    statement: tuple[str, ...] = option(
        Form("text or list of texts", texts),
        "a statement, or a list of them, done in turn; `:name` stands for a parameter",
        [],
        secret=False,
    )
    file: str | None = option(
        Form("path", read_file),
        "instead: a file in the worker's `sched_sql_folder`, read when the job runs; several statements are "
        "separated by `;`",
        None,
        secret=False,
    )
    parameters: Mapping[str, Any] = option(
        connections.PARAMETERS,
        "values for `:name` in statements, bound and never written into them; every job has "
        + connections.EVERY_JOB,
        {},
    )
    transaction: bool = option(
        TRUTH, "all in one transaction: nothing is kept when one statement fails; else each by itself", True
    )
    timeout: timedelta = option(duration("7d"), "for all of it; then the server ends the statement", "5m")
    keep_rows: int = option(count(0, 1000), "first rows of each query that are kept in the result", 0)


class Sql(JobType[SqlConfig]):
    """Statements."""

    name = "sql"
    description = "runs SQL statements on a named database connection"
    config = SqlConfig

    def check(self, config: SqlConfig) -> None:
        """Statements or a file, and nothing empty."""
        if bool(config.statement) == (config.file is not None):
            both = "both" if config.statement else None
            raise InvalidValue(f"{self.name}: statement", both, "either statement or file is given")
        for statement in config.statement:
            if not sqltext.statements(statement):
                raise InvalidValue(f"{self.name}: statement", statement, "a statement that is not empty")

    def warnings(self, config: SqlConfig, settings: Config) -> list[str]:
        """A connection or a folder that is not set here."""
        found = connections.unknown(config.connection, settings)
        if config.file is not None and settings.sql_folder is None:
            found.append("sched_sql_folder is not set here: runs fail on workers where it is not set either")
        return found

    def run(self, config: SqlConfig, ctx: JobContext) -> Any:
        """Do them."""
        began = time.monotonic()
        url = connections.url_of(config.connection, ctx.settings, f"{self.name}: connection")
        statements = config.statement if config.file is None else _in_file(config.file, ctx.settings)
        parameters = connections.given(config.parameters, ctx)
        done = Statements(
            url, statements, parameters, config.keep_rows, config.timeout, config.transaction
        ).run()
        return {
            "rows": sum(one.rows or 0 for one in done),
            "statements": [_told(one) for one in done],
            "seconds": round(time.monotonic() - began, 3),
        }


def _in_file(name: str, settings: Config) -> list[str]:
    """The statements in a file.

    :raises InvalidValue: no such file in the folder, or no statement in it.
    """
    what = "sql: file"
    if settings.sql_folder is None:
        raise InvalidValue(what, name, "sched_sql_folder is set on this worker")
    folder = settings.sql_folder.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder):  # a link within the folder that leads out of it
        raise InvalidValue(what, name, f"a file within {folder}")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InvalidValue(what, name, f"at most {LARGEST_FILE} bytes")
        found = sqltext.statements(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(what, name, f"a file in {folder} that can be read: {error}") from error
    if not found:
        raise InvalidValue(what, name, "it holds a statement")
    return found


def _told(done: Done) -> dict[str, Any]:
    told: dict[str, Any] = {"rows": done.rows}
    if done.columns is not None:
        told["columns"] = list(done.columns)
        if done.kept:
            told["first"] = [list(row) for row in done.kept]
    return told
