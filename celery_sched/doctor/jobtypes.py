"""Job types that cannot be used here, and jobs whose type says that they will fail as it is set here."""

from __future__ import annotations

from collections.abc import Sequence

from celery_sched.doctor.findings import Finding
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.model import JobDefinition
from celery_sched.runtime import Runtime


def types(runtime: Runtime, definitions: Sequence[JobDefinition]) -> list[Finding]:
    """One finding for each that needs attention."""
    found = [
        Finding("warning", "job types", f"the type {one.name!r} of {one.origin} cannot be used: {one.why}")
        for one in registry.broken()
    ]
    for definition in definitions:
        kind = registry.of_task(definition.task)
        if not isinstance(kind, JobType):
            continue
        try:
            said = kind.warnings(kind.read(definition.kwargs), runtime.config)
        except InvalidValue as error:  # written to the table by hand, or by another release
            said = [str(error)]
        # settings here need not be those of the workers
        found += [Finding("info", "job types", f"job {definition.name!r}: {text}") for text in said]
    return found
