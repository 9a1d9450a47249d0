"""``sched doctor``: is everything there that the scheduler needs, and set as it needs it?

Every check has a bound in time and ends in findings, never in an exception: what cannot be looked at is a
finding too.
"""

from __future__ import annotations

from datetime import timedelta

from celery import Celery

from celery_sched.doctor import jobtypes, pools, processes, services, targets
from celery_sched.doctor.findings import Finding, guarded
from celery_sched.errors import DatabaseUnavailable, SchemaMismatch
from celery_sched.model import JobDefinition
from celery_sched.runtime import Runtime
from celery_sched.store import job_forms, jobs, schema
from celery_sched.store.engine import SQLAlchemyError

__all__ = ["Finding", "examine"]

CLOCK = timedelta(seconds=1)
"""Difference of clocks from which on it is worth saying (times in logs; the database's clock decides)."""


def examine(runtime: Runtime, app: Celery) -> list[Finding]:
    """Look at the database, the brokers and the nodes of one app. Changes nothing.

    Takes some seconds at most where everything answers, and up to half a minute where nothing does.
    """
    findings = guarded("database", lambda: _schema(runtime))
    usable = all(finding.level == "ok" for finding in findings)
    definitions: list[JobDefinition] = []
    if usable or findings[0].subject == "rights":
        findings += guarded("rights", lambda: _rights(runtime))
    if usable:
        findings += guarded("clock", lambda: _clock(runtime))
        definitions = _definitions(runtime)
        findings += guarded("pools", lambda: pools.concurrency(runtime, definitions))
        findings += guarded("notify", lambda: targets.unknown(runtime, definitions))
    findings += guarded("job types", lambda: jobtypes.types(runtime, definitions))
    broker = guarded("broker", lambda: services.broker(app))
    findings += broker
    findings += guarded("redis", lambda: services.redis_slots(runtime))
    findings += guarded("broker", lambda: services.acknowledgement(runtime, app, definitions))
    if usable:
        answered = processes.answering(app) if broker[0].level == "ok" else {}
        findings += guarded("nodes", lambda: processes.nodes(runtime, app, definitions, answered))
    return findings


def _schema(runtime: Runtime) -> list[Finding]:
    shown = runtime.database.shown
    try:
        runtime.database.read(lambda tx, now: schema.check(tx, runtime.config.app))
    except SchemaMismatch as error:
        return [Finding("error", "schema", str(error))]
    except DatabaseUnavailable as error:
        return [Finding("warning", "database", str(error))]
    except SQLAlchemyError as error:
        return [Finding("warning", "rights", f"the version of the schema cannot be read: {error}")]
    return [Finding("ok", "schema", f"{shown} is at revision {schema.HEAD}")]


def _rights(runtime: Runtime) -> list[Finding]:
    try:
        missing = schema.missing_rights(runtime.database)
    except DatabaseUnavailable as error:
        return [Finding("warning", "rights", f"the database cannot be written to: {error}")]
    if not missing:
        return [Finding("ok", "rights", "SELECT, INSERT, UPDATE and DELETE on every table")]
    # PostgreSQL and MariaDB name the table: a finding a table; a file that is read-only is one finding
    grouped: dict[str, list[tuple[str, str]]] = {}
    for right, table, said in missing:
        grouped.setdefault(said, []).append((right, table))
    return [
        Finding(
            "warning",
            "rights",
            f"the database user may not {', '.join(dict.fromkeys(right for right, _ in those))}"
            f" in {', '.join(dict.fromkeys(table for _, table in those))}: {said}",
        )
        for said, those in grouped.items()
    ]


def _clock(runtime: Runtime) -> list[Finding]:
    ahead = runtime.database.clock_ahead()
    seconds = f"{abs(ahead).total_seconds():.1f} s {'ahead of' if ahead > timedelta(0) else 'behind'}"
    if abs(ahead) > CLOCK:
        message = (
            f"the database's clock is {seconds} this host's. Jobs run by the database's clock;"
            " times in this host's logs differ. Set both by NTP."
        )
        return [Finding("warning", "clock", message)]
    return [Finding("ok", "clock", "this host's clock and the database's agree within 1 s")]


def _definitions(runtime: Runtime) -> list[JobDefinition]:
    rows = runtime.database.read(lambda tx, now: jobs.every(tx, runtime.config.app))
    return [job_forms.definition_of(row) for row in rows]
