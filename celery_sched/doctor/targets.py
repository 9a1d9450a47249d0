"""Jobs that notify targets which are not there: what is to be told of them could not be sent."""

from __future__ import annotations

from collections.abc import Sequence

from celery_sched import notify_settings
from celery_sched.doctor.findings import Finding
from celery_sched.model import JobDefinition
from celery_sched.runtime import Runtime


def unknown(runtime: Runtime, definitions: Sequence[JobDefinition]) -> list[Finding]:
    """One finding for each such target, by the settings of this process: schedulers should have the same."""
    known = runtime.config.notify_targets
    jobs_of: dict[str, list[str]] = {}
    for one in definitions:
        for name in (one.notify or {}).get("to", ()):
            if name not in known:
                jobs_of.setdefault(name, []).append(repr(one.name))
    found = []
    for target, names in sorted(jobs_of.items()):
        jobs = f"{'job' if len(names) == 1 else 'jobs'} {', '.join(sorted(names))}"
        text = (
            f"{jobs} would tell {target!r}, which is not in sched_notify_targets here:"
            f" {notify_settings.known(known)}. Add it there, or edit notify."
        )
        found.append(Finding("warning", "notify", text))
    return found
