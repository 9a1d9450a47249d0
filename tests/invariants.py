"""What must always hold, read off the tables (design, section 9). At rest: also what Redis counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from sqlalchemy import select

from celery_sched.rules.misfire import MISSED
from celery_sched.rules.retry import MOST_REQUEUES
from celery_sched.rules.transitions import FAILURES, FINISHED_RUNS, HELD, TERMINAL, RunStatus
from celery_sched.store.attempts import MOST_KEPT, RETRY
from celery_sched.store.engine import Database
from celery_sched.store.tables import attempt, delivery, gap, job, pool, run

SKIPPED, SUCCEEDED = RunStatus.SKIPPED, RunStatus.SUCCEEDED


def check(
    database: Database, *, cap: bool = True, pruned: bool = False, redis_url: str | None = None
) -> None:
    """Raise ``AssertionError`` with everything that is wrong.

    :param cap: compare with the pools' slots (not after a pool was made smaller).
    :param pruned: finished runs were deleted, so that statistics count more than there is.
    :param redis_url: nothing is under way any more; the sets in there must be the held runs.
    """
    wrong = list(violations(database, cap=cap, pruned=pruned, redis_url=redis_url))
    assert [] == wrong, "\n".join(wrong)


def violations(
    database: Database, *, cap: bool = True, pruned: bool = False, redis_url: str | None = None
) -> Iterator[str]:
    """Each thing that is wrong, in words."""
    # one transaction of one snapshot, else a run that moves meanwhile is seen half here and half there
    with database.engine.connect().execution_options(**_snapshot(database)) as tx:
        tables = [tx.execute(select(table)).all() for table in (job, run, gap, pool, attempt, delivery)]
    jobs, runs, gaps, pools, attempts, deliveries = tables
    yield from _deliveries(runs, deliveries, pruned)
    exclusive = {row.id for row in jobs if row.exclusive}
    for row in runs:
        yield from _run(row, row.job_id in exclusive)
        yield from _attempts(row, [found for found in attempts if found.run_id == row.id])
    known = {row.id for row in runs}
    for found in attempts:
        if found.run_id not in known:
            yield f"attempt {found.attempt} of run {found.run_id}: its run is gone"
    for row in jobs:
        mine = [found for found in runs if found.job_id == row.id]
        yield from _lock(row, mine)
        yield from _occurrences(row, mine)
        # what came while a job was paused, or over, is on record too, and not counted as skipped
        missed = [found for found in gaps if found.job_id == row.id and found.reason.startswith(MISSED)]
        yield from _statistics(row, mine, sum(found.count for found in missed), pruned)
    held: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in runs:
        if row.status in HELD:
            held[row.app, row.pool][row.id] = row.weight
    for row in pools:
        taken = held[row.app, row.name]
        if cap and sum(taken.values()) > row.slots:
            yield f"pool {row.name!r}: runs hold {sorted(taken.values())} of its {row.slots} slots"
        if redis_url is not None:
            counted = _members(redis_url, row.app, row.name)
            if counted != taken:
                yield f"pool {row.name!r}: Redis has {counted}, the rows {taken}"
    if cap:
        yield from _keys(jobs, [row for row in runs if row.status in HELD])


def _snapshot(database: Database) -> dict[str, Any]:
    if database.dialect.row_locks:
        return {"isolation_level": "REPEATABLE READ"}
    return {"sched_write": False}


def _keys(jobs: Sequence[Any], held: list[Any]) -> Iterator[str]:
    """Of no concurrency key are more in flight than the job of one of them allows."""
    limits = {row.id: row.key_limit for row in jobs}
    of_key: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in held:
        if row.weight < 1:
            yield f"run {row.id} of {row.job!r} holds {row.weight} slots"
        if row.concurrency_key is not None:
            of_key[row.app, row.concurrency_key].append(row)
    for (_app, key), rows in of_key.items():
        most = max(limits.get(row.job_id, 1) for row in rows)
        if len(rows) > most:
            yield f"key {key!r}: {len(rows)} runs are in flight, {most} may be"


def _run(row: Any, exclusive: bool) -> Iterator[str]:
    name = f"run {row.id} of {row.job!r} ({row.status})"
    held, over = row.status in HELD, row.status in TERMINAL
    if over != (row.finished_at is not None):
        yield f"{name}: finished_at is {row.finished_at}"
    if held != (row.token is not None) or held != (row.lease_expires_at is not None):
        yield f"{name}: token {row.token}, lease {row.lease_expires_at}"
    if row.holds_job is not None and (not held or row.holds_job != row.job_id):
        yield f"{name}: holds_job is {row.holds_job}"
    if held and (row.fence is None or row.dispatched_at is None):
        yield f"{name}: fence {row.fence}, dispatched_at {row.dispatched_at}"
    if row.status == RunStatus.RUNNING:
        if None in (row.started_at, row.worker, row.deadline_at):
            yield f"{name}: started_at {row.started_at}, worker {row.worker}, deadline {row.deadline_at}"
        elif row.lease_expires_at > row.deadline_at and not exclusive:
            yield f"{name}: its lease outlasts its deadline"
    if row.attempt < 1 or row.publish_count < 0 or row.retries < 0:
        yield f"{name}: attempt {row.attempt}, publishes {row.publish_count}, retries {row.retries}"


def _attempts(row: Any, attempts: list[Any]) -> Iterator[str]:
    """What is kept of the attempts before the current one, or the last one: each once, in order."""
    name = f"run {row.id} of {row.job!r} ({row.status}, attempt {row.attempt})"
    kept = sorted(attempts, key=lambda found: found.attempt)
    numbers = [found.attempt for found in kept]
    first = numbers[0] if len(numbers) >= MOST_KEPT else 1
    if numbers != list(range(first, row.attempt)):
        yield f"{name}: attempts {numbers} are kept"
    for found in kept:
        if found.status != RETRY and found.status not in TERMINAL:
            yield f"{name}: attempt {found.attempt} ended as {found.status!r}"
        if found.started_at is not None and not found.started_at <= found.ended_at:
            yield f"{name}: attempt {found.attempt} went from {found.started_at} to {found.ended_at}"
    ends = [found.ended_at for found in kept]
    starts = [*(found.started_at for found in kept[1:]), row.started_at]
    for end, start in zip(ends, starts, strict=False):
        if start is not None and start < end:
            yield f"{name}: an attempt started at {start}, before the one before it ended, at {end}"
    if not 0 <= row.retried + row.requeued <= len(kept) or row.requeued > MOST_REQUEUES:
        yield f"{name}: retried {row.retried}, requeued {row.requeued}, {len(kept)} attempts are kept"


def _deliveries(runs: Any, deliveries: Any, pruned: bool) -> Iterator[str]:
    """A delivery has one run at most, and stands as that does."""
    known = {row.id: row for row in runs}
    carrying = {row.run_id for row in deliveries}
    for row in runs:
        if row.trigger_kind == "event" and row.status not in TERMINAL and row.id not in carrying:
            yield f"run {row.id} of {row.job!r} ({row.status}) carries nothing"
    for row in deliveries:
        name = f"delivery {row.id} of event {row.event_id} ({row.status})"
        carrier = known.get(row.run_id)
        if (row.finished_at is None) != (row.status in ("pending", "taken")):
            yield f"{name}: finished_at is {row.finished_at}"
        if row.status == "pending" and row.run_id is not None:
            yield f"{name}: run {row.run_id}"
        if row.status == "taken" and (carrier is None or carrier.status in TERMINAL):
            yield f"{name}: its run is {carrier and carrier.status}"
        if carrier is not None and row.status in ("delivered", "dead"):
            wanted = {SUCCEEDED} if row.status == "delivered" else FAILURES
            if carrier.status not in wanted:
                yield f"{name}: its run is {carrier.status}"
        if carrier is None and row.status == "delivered" and not pruned:
            yield f"{name}: it has no run"


def _lock(row: Any, runs: list[Any]) -> Iterator[str]:
    name = f"job {row.name!r}"
    held = [found for found in runs if found.status in HELD]
    if row.overlap != "concurrent":
        if len(held) > 1:
            yield f"{name} ({row.overlap}) has {len(held)} held runs"
        for found in held:
            if found.holds_job is None:
                yield f"{name}: run {found.id} does not hold it"
    holders = [(found.id, found.token) for found in held if found.holds_job is not None]
    lock = [] if row.lock_token is None else [(row.locked_by, row.lock_token)]
    if holders != lock:
        yield f"{name}: its lock is {lock}, its holders are {holders}"
    fences = Counter(found.fence for found in runs if found.fence is not None)
    if any(count > 1 for count in fences.values()) or max(fences, default=0) > row.fence:
        yield f"{name}: fence {row.fence}, its runs have {dict(fences)}"


def _occurrences(row: Any, runs: list[Any]) -> Iterator[str]:
    planned = [found for found in runs if found.trigger_kind == "schedule"]
    for instant, count in Counter(found.scheduled_for for found in planned).items():
        if count > 1:
            yield f"job {row.name!r}: {count} runs for {instant}"
        if row.last_scheduled_for is None or instant > row.last_scheduled_for:
            yield f"job {row.name!r}: a run for {instant}, but its mark is {row.last_scheduled_for}"


def _statistics(row: Any, runs: list[Any], in_gaps: int, pruned: bool) -> Iterator[str]:
    name = f"job {row.name!r}"
    stated = (row.run_count, row.success_count, row.failure_count, row.skipped_count)
    if min(stated) < 0 or row.run_count != row.success_count + row.failure_count:
        yield f"{name}: run, success, failure, skipped counts are {stated}"
    if not 0 <= row.failures_in_row <= row.failure_count:
        yield f"{name}: {row.failures_in_row} failures in a row, {row.failure_count} in all"
    by_status = Counter(found.status for found in runs)
    counted = (
        sum(by_status[status] for status in FINISHED_RUNS),
        by_status[SUCCEEDED],
        sum(by_status[status] for status in FAILURES),
        by_status[SKIPPED] + in_gaps,
    )
    if not pruned and stated != counted:
        yield f"{name}: counts are {stated}, the rows say {counted}"


def _members(url: str, app: str, name: str) -> dict[str, int]:
    """Run -> the slots that it takes, as Redis has it; what has a weight and no slot is told too."""
    base = f"celery_sched:{{{app}:{name}}}"
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        found: Any = connection.zrange(f"{base}:inflight", 0, -1)
        weights: Any = connection.hgetall(f"{base}:weights")
    of_nobody = {f"{member} (gone)": int(weight) for member, weight in weights.items() if member not in found}
    return {member: int(weights.get(member, 1)) for member in found} | of_nobody
