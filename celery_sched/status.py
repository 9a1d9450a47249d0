"""How the scheduler as a whole is doing, from one look at the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_sched.config import Config
from celery_sched.model import (
    BackfillId,
    BackfillStatus,
    DeliveryStatus,
    JobStatus,
    Node,
    NodeId,
    NodeKind,
    Overlap,
)
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import (
    apps,
    backfills,
    deliveries,
    events,
    jobs,
    nodes,
    notices,
    on_lost,
    pools,
    queue,
    recent,
    runs,
)
from celery_sched.store.engine import Tx

LONG = timedelta(minutes=1)
"""An event that is not handed out after this is told: that takes a poll."""
SHOWN = 100
"""Most backfills listed."""
ALIVE = 3
"""A node not seen for this many sixths of a lease (schedulers) or thirds (workers) is not alive."""


@dataclass(frozen=True)
class NodeStatus:
    """A process that is alive."""

    id: NodeId
    host: str
    pid: int
    last_seen: datetime
    name: str


@dataclass(frozen=True)
class Filling:
    """A backfill that is running, and how many of its occurrences it is through with."""

    id: BackfillId
    job: str
    finished: int
    total: int


@dataclass(frozen=True)
class Status:
    """How the scheduler as a whole is doing; ``problems`` say what is wrong, in words."""

    schedulers: Sequence[NodeStatus]
    workers: Sequence[NodeStatus]
    inflight: int
    """Slots that are taken, in all pools."""
    max_concurrent_jobs: int
    due: int
    oldest_due_seconds: float
    running: int
    queued: int
    swept: int
    dispatched: int
    at_capacity: int
    lock_lost: int
    late_settlers: int
    drift: int
    """Members of Redis' sets of slots that the last polls of the schedulers had to put right: 0 at rest."""
    drift_total: int
    """The same since they started. What still grows at rest is a fault."""
    backfills: Sequence[Filling]
    events_waiting: int
    """Events that are not handed out yet."""
    deliveries_pending: int
    deliveries_dead: int
    unseen_notifications: int
    healthy: bool
    problems: Sequence[str]


def alive(tx: Tx, now: datetime, config: Config) -> list[Node]:
    """Schedulers and workers that have been seen lately."""
    limits = {NodeKind.SCHEDULER: config.lease * ALIVE / 6, NodeKind.WORKER: config.lease * ALIVE / 3}
    return [node for node in nodes.every(tx, config.app) if now - node.last_seen <= limits[node.kind]]


def look(tx: Tx, now: datetime, config: Config) -> Status:
    """How it is doing, and in words what is wrong."""
    living = alive(tx, now, config)
    counts = runs.count_by_status(tx, config.app)
    row = apps.get(tx, config.app)
    totals = {name: 0 if row is None else getattr(row, name) for name in apps.TOTALS}
    known = pools.every(tx, config.app)
    oldest = jobs.next_due(tx, config.app)
    late = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
    running = counts.get(RunStatus.RUNNING, 0)
    problems = [*_of_processes(config, living, late), *_of_jobs(tx, config, living)]
    problems += _of_queues(tx, now, config, living)
    problems += _left_behind(tx, now, config)
    waiting, published_at = events.standing(tx, config.app)
    if published_at is not None and config.enabled and now - published_at > LONG:
        seconds = (now - published_at).total_seconds()
        problems.append(f"{waiting} event(s) are not handed out, the oldest for {seconds:.0f} s")
    on_their_way = deliveries.counts(tx, config.app)
    unseen, unsent = notices.count_unseen(tx, config.app)
    if unsent:
        problems.append(f"{unsent} notification(s) could not be sent: sched notifications --unseen says why")
    return Status(
        schedulers=[_seen(node) for node in living if node.kind is NodeKind.SCHEDULER],
        workers=[_seen(node) for node in living if node.kind is NodeKind.WORKER],
        inflight=sum(use.taken for use in queue.use_of_pools(tx, config.app).values()),
        max_concurrent_jobs=(
            known[pools.DEFAULT].slots if pools.DEFAULT in known else config.max_concurrent_jobs
        ),
        due=jobs.count_due(tx, config.app, now),
        oldest_due_seconds=late,
        running=running,
        queued=counts.get(RunStatus.QUEUED, 0),
        **totals,
        drift=_sum_of_facts(living, "drift"),
        drift_total=_sum_of_facts(living, "drift_total"),
        backfills=[
            Filling(one.id, one.job, one.finished, one.total)
            for one in backfills.newest(tx, config.app, BackfillStatus.RUNNING, SHOWN)
        ],
        events_waiting=waiting,
        deliveries_pending=on_their_way.get(DeliveryStatus.PENDING, 0),
        deliveries_dead=on_their_way.get(DeliveryStatus.DEAD, 0),
        unseen_notifications=unseen,
        healthy=not problems,
        problems=problems,
    )


def _seen(node: Node) -> NodeStatus:
    return NodeStatus(node.id, node.host, node.pid, node.last_seen, node.name)


def _sum_of_facts(living: Sequence[Node], name: str) -> int:
    return sum(int(node.facts.get(name, 0)) for node in living if node.kind is NodeKind.SCHEDULER)


def _of_processes(config: Config, living: Sequence[Node], late: float) -> Iterator[str]:
    if not any(node.kind is NodeKind.SCHEDULER for node in living):
        yield "no scheduler is alive: start one with `celery -A APP beat -S sched`"
    if not any(node.kind is NodeKind.WORKER for node in living):
        yield "no worker is alive: start one with `celery -A APP worker`"
    if not config.enabled:
        yield "sched_enabled is off: nothing is planned, claimed or swept"
    elif late > max(10.0, 5 * config.poll_interval.total_seconds()):
        yield f"the oldest due job has waited for {late:.0f} s"


def _of_jobs(tx: Tx, config: Config, living: Sequence[Node]) -> Iterator[str]:
    known = pools.every(tx, config.app)
    consumed = {name for node in living for name in node.facts.get("queues", ())}
    rows = jobs.standing(tx, config.app)
    replacing = [row.name for row in rows if row.overlap == Overlap.REPLACE]
    for name in recent.always_replaced(tx, config.app, replacing):
        yield (
            f"job {name!r} never ends: its last {recent.REPLACED_RUNS} runs were replaced by later ones. Its"
            " runs take longer than the time between two of them"
        )
    for row in rows:
        if row.status == JobStatus.ERROR:
            yield f"job {row.name!r} is in error: {row.status_reason}"
        limit = row.pause_on_failure
        if row.status == JobStatus.PAUSED and limit is not None and row.failures_in_row >= limit:
            yield f"job {row.name!r} is paused: {row.status_reason}"
        if row.overdue_since is not None and row.status in (JobStatus.ACTIVE, JobStatus.ERROR):
            yield (
                f"job {row.name!r} is overdue: no run of it had succeeded by"
                f" {row.overdue_since:%Y-%m-%d %H:%M:%S} UTC (must_succeed_by is {row.must_succeed_by})"
            )
        if row.status != JobStatus.ACTIVE:
            continue
        wanted = row.options.get("queue")
        if consumed and wanted is not None and wanted not in consumed:
            yield f"job {row.name!r} goes to queue {wanted!r}, which no worker consumes"
        pool = known.get(row.pool)
        if pool is None and (known or row.pool != pools.DEFAULT):
            yield f"job {row.name!r} has pool {row.pool!r}, which does not exist: it never runs"
        elif pool is not None and row.weight > pool.slots > 0:
            yield (
                f"job {row.name!r} has weight {row.weight}, and its pool {row.pool!r} has {pool.slots} slots:"
                " it never runs"
            )


def _of_queues(tx: Tx, now: datetime, config: Config, living: Sequence[Node]) -> Iterator[str]:
    for name, active, most in queue.full_jobs(tx, config.app):
        yield (
            f"job {name!r} has {active} runs that are not finished, max_queued is {most}: its occurrences are"
            " skipped (queue_full). Its runs take longer than the time between two of them"
        )
    waiting = queue.unreceived(tx, config.app, now - config.lease)
    if waiting and any(node.kind is NodeKind.WORKER for node in living):
        names = ", ".join(sorted({job for job, _ in waiting}))
        yield (
            f"{len(waiting)} published run(s) wait for a worker for over {config.lease.total_seconds():g} s "
            f"(jobs: {names}): does a worker consume their queue?"
        )


def _left_behind(tx: Tx, now: datetime, config: Config) -> Iterator[str]:
    for row in on_lost.failed(tx, now, config.app):
        yield (
            f"what run {row.parent_id} of job {row.job!r} left behind was not put right: its on_lost task"
            f" {row.task} failed (run {row.id}). To try it again: sched retry {row.id}"
        )
