"""The named connections of a worker (``sched_connections``), and parameters of statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_sched import secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.base import JobContext
from celery_sched.jobtypes.options import Form
from celery_sched.rules import readers
from celery_sched.store import elsewhere


def url_of(name: str, settings: Config, what: str) -> str:
    """The URL of a connection, its secret looked up; its password is hidden from now on.

    :raises InvalidValue: no such connection on this worker.
    """
    if name not in settings.connections:
        known = ", ".join(sorted(settings.connections)) or "none"
        raise InvalidValue(what, name, f"a connection in this worker's sched_connections; there are: {known}")
    url = str(secrets.resolve(settings.connections[name], settings))
    password = elsewhere.password_of(url)
    if password is not None:
        secrets.note(password)
    return url


def unknown(name: str, settings: Config) -> list[str]:
    """A warning where a connection is not known here."""
    if name in settings.connections:
        return []
    return [f"sched_connections has no {name!r} here: runs fail on workers where it has none either"]


def read_parameters(value: Any, what: str) -> dict[str, Any]:
    """Names and values of parameters."""
    found = readers.mapping(value, what)
    for name in found:
        if not name.isidentifier():
            raise InvalidValue(what, name, "names of letters, digits and _")
    return found


def given(parameters: Mapping[str, Any], ctx: JobContext) -> dict[str, Any]:
    """The parameters of a job, and those that every job has."""
    return {
        "sched_run_id": ctx.run_id,
        "sched_job": ctx.job,
        "sched_scheduled_for": ctx.scheduled_for,
        "sched_attempt": ctx.attempt,
        "sched_fence": ctx.fence,
        **parameters,
    }


PARAMETERS = Form("mapping", read_parameters)
EVERY_JOB = "`:sched_run_id`, `:sched_job`, `:sched_scheduled_for`, `:sched_attempt` and `:sched_fence`"
