"""Jobs whose runs never start, and those that share a key with different limits."""

from __future__ import annotations

from collections.abc import Sequence

from celery_sched.doctor.findings import Finding
from celery_sched.model import JobDefinition, Pool
from celery_sched.runtime import Runtime
from celery_sched.store import pools


def concurrency(runtime: Runtime, definitions: Sequence[JobDefinition]) -> list[Finding]:
    """What weights and concurrency keys come to. Says nothing of what is as it should be."""
    known = runtime.database.read(lambda tx, now: pools.every(tx, runtime.config.app))
    return [*_too_heavy(known, definitions), *_unequal_limits(definitions)]


def _too_heavy(known: dict[str, Pool], definitions: Sequence[JobDefinition]) -> list[Finding]:
    found = []
    for one in definitions:
        slots = known[one.pool].slots if one.pool in known else 0
        if one.weight > slots > 0:
            text = (
                f"job {one.name!r} has weight {one.weight}, and its pool {one.pool!r} has {slots} slots: its"
                f" runs never start (sched pools resize {one.pool} {one.weight}, or a smaller weight)"
            )
            found.append(Finding("warning", "pools", text))
    return found


def _unequal_limits(definitions: Sequence[JobDefinition]) -> list[Finding]:
    of_template: dict[str, list[JobDefinition]] = {}
    for one in definitions:
        if one.concurrency_key is not None:
            of_template.setdefault(one.concurrency_key, []).append(one)
    found = []
    for template, sharing in of_template.items():
        if len({one.key_limit for one in sharing}) > 1:
            limits = ", ".join(f"{one.name!r}: {one.key_limit}" for one in sharing)
            text = f"jobs of the key {template!r} have different limits ({limits}): each looks at its own"
            found.append(Finding("warning", "keys", text))
    return found
