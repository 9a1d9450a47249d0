"""Schedulers and workers: their versions, and whether workers are set as jobs need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from celery import Celery

from celery_sched import __version__
from celery_sched.doctor.findings import PATIENCE, Finding, within
from celery_sched.model import JobDefinition, Node, NodeKind
from celery_sched.runtime import Runtime
from celery_sched.store import nodes as rows

INSPECT = 1.0
"""Seconds in which workers answer who they are."""


def answering(app: Celery) -> dict[str, frozenset[str]]:
    """The workers that answer at this broker, and the queues that each consumes."""
    found: dict[str, frozenset[str]] = {}

    def ask() -> str | None:
        told = app.control.inspect(timeout=INSPECT).active_queues() or {}
        found.update({name: frozenset(queue["name"] for queue in queues) for name, queues in told.items()})
        return None

    within(PATIENCE, ask)
    return dict(found)


def nodes(
    runtime: Runtime,
    app: Celery,
    definitions: Sequence[JobDefinition],
    answers: Mapping[str, frozenset[str]],
) -> list[Finding]:
    def living(tx: Any, now: datetime) -> list[Node]:
        every = rows.every(tx, runtime.config.app)
        return [node for node in every if now - node.last_seen <= runtime.config.lease]

    alive = runtime.database.read(living)
    workers = [node for node in alive if node.kind == NodeKind.WORKER]
    findings = [
        *_versions(alive),
        *_without_gate(app, definitions, answers, workers),
        *(finding for worker in workers for finding in _worker(worker)),
        *_exclusive(app, definitions, workers),
    ]
    if not workers:
        findings.append(Finding("info", "workers", "none is alive: their settings could not be looked at"))
    elif not findings:
        findings.append(Finding("ok", "nodes", f"{len(alive)} alive, all of version {__version__}, set well"))
    return findings


def _versions(alive: Iterable[Node]) -> list[Finding]:
    return [
        Finding(
            "warning",
            "version",
            f"{node.kind.value} {node.name} (pid {node.pid} on {node.host}) runs celery_sched {node.version},"
            f" this is {__version__}: restart it when the new release is installed everywhere",
        )
        for node in alive
        if node.version != __version__
    ]


def _without_gate(
    app: Celery,
    definitions: Sequence[JobDefinition],
    answers: Mapping[str, frozenset[str]],
    workers: Iterable[Node],
) -> list[Finding]:
    """Workers that would run our messages unasked: they consume our queues and are no nodes of ours."""
    queues = set(app.amqp.queues.consume_from) | {str(app.conf.task_default_queue)}
    queues |= {str(one.options["queue"]) for one in definitions if "queue" in one.options}
    gated = {node.name for node in workers if node.facts.get("gate")}
    return [
        Finding(
            "warning",
            "gate",
            f"worker {name} consumes {', '.join(sorted(consumed & queues))} without celery_sched: it would"
            " run jobs unasked. Call celery_sched.setup(app) in its app, or give it other queues.",
        )
        for name, consumed in sorted(answers.items())
        if name not in gated and consumed & queues
    ]


def _exclusive(app: Celery, definitions: Sequence[JobDefinition], workers: Sequence[Node]) -> list[Finding]:
    """Exclusive jobs that a worker would refuse: it consumes their queue and cannot kill what it runs."""
    default = str(app.conf.task_default_queue)
    findings = []
    for one in definitions:
        queue = str(one.options.get("queue", default))
        refusing = [
            node.name
            for node in workers
            if not node.facts.get("kills", True) and queue in node.facts.get("queues", ())
        ]
        if one.exclusive and refusing:
            message = (
                f"job {one.name} is exclusive, and {', '.join(sorted(refusing))} would refuse it: only"
                f" prefork workers can kill what they run. Give it a queue that only those consume, other"
                f" than {queue}."
            )
            findings.append(Finding("warning", "exclusive", message))
    return findings


def _worker(node: Node) -> list[Finding]:
    findings = []
    prefetch = node.facts.get("prefetch", 1)
    if prefetch != 1:
        message = (
            f"worker {node.name} fetches {prefetch or 'all'} messages a process ahead: they wait behind a"
            " hung job beside an idle worker. Set worker_prefetch_multiplier = 1."
        )
        findings.append(Finding("warning", "prefetch", message))
    if not node.facts.get("acks_late", True):
        message = (
            f"worker {node.name} acknowledges early: it fetches the next message while a job runs, and"
            " what it holds dies with it. Set task_acks_late = True."
        )
        findings.append(Finding("warning", "acks_late", message))
    return findings
