"""Tell: what people want to be told becomes messages, one run a target; off the tick."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery_sched import notify_settings
from celery_sched.config import Config
from celery_sched.failpoints import failpoint
from celery_sched.model import JobId, NoticeKind, NoticeStatus, RunId, Trigger
from celery_sched.rules import notices as rule
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import jobs, notices, pools, runs, system_jobs
from celery_sched.store.engine import Tx

BATCH = 500
"""Notifications decided on in one transaction."""
MOST = 1000
"""Notifications that one message carries: their ids are in its arguments."""
POOL, SLOTS = "notifications", 2
"""So that a slow mail server holds no slot of anybody's job."""
RETRIES = 8
RETRY_DELAY, RETRY_MAX_DELAY = timedelta(seconds=30), timedelta(minutes=30)
"""A mail server may be away for two hours and a half."""
TIME_LIMIT = timedelta(minutes=2)


@dataclass(frozen=True)
class Told:
    """``messages`` made (run, target, when it goes), notifications ``added`` to those that wait."""

    messages: tuple[tuple[RunId, str, datetime], ...] = ()
    added: int = 0
    listed: int = 0
    repeats: int = 0
    unknown: tuple[str, ...] = ()
    """Names of targets that are not in ``sched_notify_targets``."""
    more: bool = False


@dataclass
class _Message:
    """One run that sends, as long as nothing has claimed it."""

    id: RunId
    target: str
    at: datetime
    carries: list[int]
    made: bool
    added: list[int] = field(default_factory=list)


def tell(tx: Tx, now: datetime, config: Config) -> Told:
    """Decide on new notifications: repeats are only listed, others are given to one message a target.

    A message is a run of the system job ``sched:notify``. Soon after another one it waits: for what else
    there is to tell (``sched_notify_gather``), and for ``sched_notify_rate``. What comes meanwhile goes with
    it, so a failure of everything is one message or two, and what is above the rate is late, not lost.

    Guard: status new, under the rows' locks; a message that is added to: queued and attempt 1, under its
    job's lock, which every claim takes.
    Locks: the job ``sched:notify`` (skip locked: another scheduler does it), then the notifications (skip
    locked), then the messages' runs.
    If it dies here: nothing was written; the next scheduler decides the same.
    """
    job_row = None
    if any(one.targets for one in notices.new(tx, config.app, BATCH)):
        job_row = _job(tx, now, config)
        if not jobs.lock(tx, [JobId(job_row.id)], skip_locked=True):
            return Told()
    new = notices.lock_new(tx, config.app, BATCH)
    if job_row is None:  # what came just now and goes somewhere is left to the next look
        new = [one for one in new if not one.targets]
    if not new:
        return Told()
    sifted = rule.sift(new, _told(tx, config, new), config.notify_dedupe)
    known = {target for target in sifted.by_target if target in config.notify_targets}
    by_target = {target: ids for target, ids in sifted.by_target.items() if target in known}
    messages = [] if job_row is None else _messages(tx, now, config, JobId(job_row.id), by_target)
    decided: dict[int, dict[str, Mapping[str, Any]]] = {key: {} for key in sifted.listed}
    run_of: dict[int, str] = {}
    for message in messages:
        for key in message.added:
            decided.setdefault(key, {})[message.target] = {
                "status": NoticeStatus.SENDING.value,
                "run": message.id,
            }
            run_of[key] = message.id
    unknown = sorted(set(sifted.by_target) - known)
    for target in unknown:
        reason = f"it is not in sched_notify_targets: {notify_settings.known(config.notify_targets)}"
        for key in sifted.by_target[target]:
            decided.setdefault(key, {})[target] = {"status": NoticeStatus.FAILED.value, "reason": reason}
    notices.direct(tx, decided, run_of)
    notices.suppress(tx, sifted.repeats)
    failpoint("tell:decided")
    if messages:
        _write(tx, now, config, job_row, messages)
    return Told(
        messages=tuple((one.id, one.target, one.at) for one in messages if one.made),
        added=sum(len(one.added) for one in messages if not one.made),
        listed=len(sifted.listed),
        repeats=len(sifted.repeats),
        unknown=tuple(unknown),
        more=len(new) == BATCH,
    )


def _job(tx: Tx, now: datetime, config: Config) -> Any:
    return system_jobs.ensure(
        tx,
        now,
        config.app,
        notices.JOB,
        task=notices.TASK,
        pool=POOL,
        retries=RETRIES,
        retry_delay=RETRY_DELAY,
        retry_max_delay=RETRY_MAX_DELAY,
        requeue=True,  # twice is better than never
        time_limit=TIME_LIMIT,
        notify={"on": []},
        description="Sends notifications: a run a message.",
    )


def _told(tx: Tx, config: Config, new: Sequence[rule.New]) -> Mapping[str, datetime]:
    """When the same was told last, as far back as it matters."""
    keys = {one.key for one in new if one.kind in rule.REPEATING}
    keys |= {rule.dedupe_key(NoticeKind.RECOVERY, one.job_id) for one in new if one.job_id is not None}
    since = min(one.at for one in new) - config.notify_dedupe
    return notices.told_since(tx, config.app, keys, since)


def _messages(
    tx: Tx, now: datetime, config: Config, job_id: JobId, by_target: Mapping[str, Sequence[int]]
) -> list[_Message]:
    """The messages that take these: one that waits, or a new one; another one where that is full."""
    if not by_target:
        return []
    planned: dict[str, list[datetime]] = {target: [] for target in by_target}
    waiting: dict[str, _Message] = {}
    since = now - max(config.notify_rate.per, config.notify_gather)
    for row in notices.messages(tx, job_id, since):
        target, carries = (row.kwargs or {}).get("target"), (row.kwargs or {}).get("notifications")
        if target not in planned or not isinstance(carries, list):
            continue
        planned[target].append(row.scheduled_for)
        if row.status == RunStatus.QUEUED and row.attempt == 1 and len(carries) < MOST:
            waiting[target] = _Message(RunId(row.id), target, row.scheduled_for, list(carries), made=False)
    found = []
    for target, ids in by_target.items():
        left = list(ids)
        message = waiting.get(target)
        while left:
            if message is None:
                at = rule.message_at(planned[target], now, config.notify_rate, config.notify_gather)
                planned[target].append(at)
                message = _Message(RunId(str(uuid.uuid4())), target, at, [], made=True)
            room = MOST - len(message.carries)
            message.added = left[:room]
            message.carries += message.added
            found.append(message)
            left, message = left[room:], None
    return found


def _write(tx: Tx, now: datetime, config: Config, job_row: Any, messages: Sequence[_Message]) -> None:
    made = []
    for one in messages:
        kwargs = {"target": one.target, "notifications": one.carries}
        if not one.made:
            if not notices.load(tx, one.id, kwargs):
                raise RuntimeError(f"message {one.id} was claimed although its job is locked")
            continue
        made.append(
            {
                **runs.from_job(job_row, now),
                "id": one.id,
                "trigger_kind": Trigger.NOTIFY.value,
                "scheduled_for": one.at,
                "ready_at": one.at,
                "status": RunStatus.QUEUED.value,
                "args": [],
                "kwargs": kwargs,
            }
        )
    runs.add(tx, made)
    if made:
        pools.ensure(tx, config.app, POOL, SLOTS)
