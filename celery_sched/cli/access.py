"""From a command to the app's scheduler: its runtime, its client, and who is asking."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli import Failed
from celery_sched.errors import DatabaseUnavailable, SchemaMismatch

if TYPE_CHECKING:
    from celery_sched.client import Client
    from celery_sched.runtime import Runtime


def app_argument(ctx: click.Context) -> str | None:
    """What was given after ``-A``, where that is a text."""
    given = ctx.find_root().params.get("app")
    return given if isinstance(given, str) else None


def app_of(ctx: click.Context) -> Any:
    """The Celery app of ``-A``."""
    if ctx.find_root().params.get("app") is None:
        raise click.UsageError(
            "which app? Write: celery -A APP sched ... (stand-alone: -A celery_sched)", ctx
        )
    return ctx.obj.app


def runtime_of(ctx: click.Context) -> Runtime:
    """Settings and database of the app; nothing is opened. Closed when the command ends."""
    from celery_sched import runtime

    found = runtime.of(app_of(ctx))
    ctx.call_on_close(found.close)
    return found


def sqlite_file(runtime: Runtime) -> Path | None:
    """The file of an SQLite database; None for a server."""
    url = runtime.database.url
    return Path(url.database) if runtime.database.dialect.name == "sqlite" and url.database else None


def check_database(ctx: click.Context, runtime: Runtime) -> None:
    """Stop, with what to do, unless the database is there and has this release's tables.

    SQLite creates a file that it is asked to open, so that is looked for first: no command but ``migrate``
    and ``server`` creates a database.
    """
    from celery_sched.store import schema

    app = app_argument(ctx) or "APP"
    file = sqlite_file(runtime)
    if file is not None and not file.exists():
        raise Failed(
            f"there is no database at {runtime.database.shown}. To make it: celery -A {app} sched migrate"
        )
    try:
        runtime.database.read(lambda tx, now: schema.check(tx, app))
    except SchemaMismatch as error:
        have = f"is at revision {error.found}" if error.found else "has no celery_sched tables"
        raise Failed(
            f"the database {runtime.database.shown} {have}, this release needs {error.expected}. {error.todo}"
        ) from error
    except DatabaseUnavailable as error:
        raise Failed(
            f"{str(error).strip().rstrip('.')}\nIs it running, and is sched_database_url right?"
            f" To look closer: celery -A {app} sched doctor"
        ) from error


def client_of(ctx: click.Context) -> Client:
    """The app's client, with a database that is ready."""
    from celery_sched.client import Client

    runtime = runtime_of(ctx)
    check_database(ctx, runtime)
    return Client(runtime)


def actor() -> str:
    """Who is at the keyboard, for the audit: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def database_now(ctx: click.Context) -> datetime:
    """The database's time: what "in 3m" is measured from, whatever this machine's clock says."""
    return runtime_of(ctx).database.read(lambda tx, now: now)
