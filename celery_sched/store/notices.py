"""Statements on notifications: what people are told, where that goes, and how it was sent."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, case, delete, func, insert, select, true, update

from celery_sched.durations import format_duration
from celery_sched.model import (
    JobId,
    NoticeKind,
    NoticeStatus,
    Notification,
    RunId,
    Trigger,
)
from celery_sched.notify_settings import Policy, Wanted
from celery_sched.rules import notices
from celery_sched.rules.notices import BROKEN, New
from celery_sched.rules.transitions import RunStatus
from celery_sched.store.engine import Tx
from celery_sched.store.runs import CHUNK
from celery_sched.store.tables import notification, run

JOB = "sched:notify"
"""The system job whose runs send; nothing is ever told about those."""
TASK = "celery_sched.notify"
OPTION = "sched_notices"
"""The connection's option that holds the app's :class:`~celery_sched.notify_settings.Policy`."""
REASON = 1000
Values = Mapping[str, str]


def policy(tx: Tx) -> Policy:
    """What the app's settings say, as the process knows them that has this connection."""
    found: Policy = tx.get_execution_options().get(OPTION, Policy())
    return found


def told() -> Any:
    """For a select of ``run``: what was told last of the job of one that succeeded: it may be a recovery.

    One look into an index, and no statement: most successes are worth nothing to anybody.
    """
    last = (
        select(notification.c.kind)
        .where(
            notification.c.job_id == run.c.job_id,
            notification.c.kind.in_([*(kind.value for kind in BROKEN), NoticeKind.RECOVERY.value]),
        )
        .order_by(notification.c.id.desc())
        .limit(1)
        .correlate(run)
        .scalar_subquery()
    )
    return case((run.c.status == RunStatus.SUCCEEDED.value, last))


def ended(tx: Tx, now: datetime, rows: Sequence[Row[Any]]) -> None:
    """These runs are over: note what people want to be told of them, and how messages were sent.

    ``rows``: see :func:`celery_sched.store.ends.after`.
    """
    said = policy(tx)
    new: list[dict[str, Any]] = []
    skipped: dict[JobId, tuple[Row[Any], Wanted]] = {}
    for row in rows:
        if row.job == JOB:
            if row.trigger_kind == Trigger.NOTIFY.value:
                _settle(tx, row)
            continue
        wants = notices.wanted(row.job_notify, said.default)
        kind = notices.kind_of(row.status, wants, told=row.told)
        if kind is NoticeKind.SKIPPED:
            skipped[JobId(row.job_id)] = (row, wants)
        elif kind is not None:
            new.append(_row(said, now, kind, wants.to, row.app, row.job_id, row.job, _of_run(row), row.id))
    for job_id, (row, wants) in skipped.items():
        if _too_often(tx, row.app, job_id, row.job, None, wants.skips):
            new.append(_skips(said, now, row.app, job_id, row.job, wants, _of_run(row)))
    _add(tx, new)


def note_skipped(tx: Tx, now: datetime, rows: Iterable[tuple[Any, str]]) -> None:
    """Occurrences of these jobs (their rows, and why) were skipped just now, in this transaction."""
    said = policy(tx)
    new = []
    for row, reason in rows:
        wants = notices.wanted(row.notify, said.default)
        if NoticeKind.SKIPPED not in wants.on:
            continue
        if _too_often(tx, row.app, JobId(row.id), row.name, row.last_run_at, wants.skips):
            new.append(_skips(said, now, row.app, row.id, row.name, wants, _of_job(row, reason)))
    _add(tx, new)


def note_job(tx: Tx, now: datetime, row: Any, kind: NoticeKind, reason: str) -> None:
    """Note something about a job (its row): that it is paused, say; where anybody wants to be told."""
    said = policy(tx)
    wants = notices.wanted(row.notify, said.default)
    if kind in wants.on and row.name != JOB:
        _add(tx, [_row(said, now, kind, wants.to, row.app, row.id, row.name, _of_job(row, reason), None)])


def _too_often(tx: Tx, app: str, job_id: JobId, name: str, last_run_at: datetime | None, most: int) -> bool:
    """Whether the last ``most`` runs of a job were all skipped, and that was not told since one ran."""
    newest = (
        select(run.c.status)
        .where(run.c.app == app, run.c.job == name)
        .order_by(run.c.queued_at.desc(), run.c.scheduled_for.desc())
        .limit(most)
    )
    statuses = list(tx.execute(newest).scalars())
    if len(statuses) < most or set(statuses) != {RunStatus.SKIPPED.value}:
        return False
    key = notices.dedupe_key(NoticeKind.SKIPPED, job_id)
    last = tx.execute(
        select(func.max(notification.c.created_at)).where(
            notification.c.app == app, notification.c.dedupe_key == key
        )
    ).scalar()
    if last is None:
        return True
    if last_run_at is None:
        ran = select(func.max(run.c.finished_at)).where(
            run.c.job_id == job_id, run.c.status.not_in([RunStatus.SKIPPED.value])
        )
        last_run_at = tx.execute(ran).scalar()
    return last_run_at is not None and last_run_at > last


def _skips(
    said: Policy, now: datetime, app: str, job_id: int, name: str, wants: Wanted, values: Values
) -> dict[str, Any]:
    reason = f"{wants.skips} occurrences in a row were skipped, the last one: {values['reason']}"
    given = {**values, "reason": reason}
    return _row(said, now, NoticeKind.SKIPPED, wants.to, app, job_id, name, given, None)


def _row(
    said: Policy,
    now: datetime,
    kind: NoticeKind,
    to: Sequence[str],
    app: str,
    job_id: int,
    name: str,
    values: Values,
    about_run: str | None,
) -> dict[str, Any]:
    title, text = notices.words(said, kind, {**values, "kind": kind.value})
    return {
        "app": app,
        "kind": kind.value,
        "job_id": job_id,
        "job": name,
        "about_run": about_run,
        "title": title,
        "text": text,
        "targets": {target: {"status": NoticeStatus.NEW.value} for target in to},
        "dedupe_key": notices.dedupe_key(kind, job_id),
        "status": NoticeStatus.NEW.value,
        "created_at": now,
    }


def _of_run(row: Any) -> Values:
    """What a template may name, of a run that ended."""
    took = "" if row.started_at is None else format_duration(row.finished_at - row.started_at)
    return {
        "app": row.app,
        "job": row.job,
        "task": row.task,
        "description": row.job_description or "",
        "run": row.id,
        "trigger": row.trigger_kind,
        "status": row.status,
        "reason": row.reason or "",
        "error": notices.end_of(row.error),
        "attempt": str(row.attempt),
        "worker": row.worker_name or "",
        "scheduled_for": _instant(row.scheduled_for),
        "started_at": _instant(row.started_at),
        "finished_at": _instant(row.finished_at),
        "duration": took,
    }


def _of_job(row: Any, reason: str) -> Values:
    return {
        "app": row.app,
        "job": row.name,
        "task": row.task,
        "description": row.description,
        "status": row.status,
        "reason": reason,
    }


def _instant(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _add(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        tx.execute(insert(notification), list(rows))


# Sending


def any_new(tx: Tx, app: str) -> bool:
    """Whether there is a notification that nobody has decided on."""
    return (
        tx.execute(
            select(notification.c.id)
            .where(notification.c.app == app, notification.c.status == NoticeStatus.NEW.value)
            .limit(1)
        ).first()
        is not None
    )


_DECIDED_ON = tuple(
    notification.c[name] for name in ("id", "kind", "job_id", "dedupe_key", "created_at", "targets")
)


def new(tx: Tx, app: str, limit: int) -> list[New]:
    """The oldest of those, not locked."""
    return [_new(row) for row in tx.execute(_oldest(app, limit))]


def lock_new(tx: Tx, app: str, limit: int) -> list[New]:
    """The oldest of those, locked; what others have locked is left to them."""
    rows = tx.execute(_oldest(app, limit).with_for_update(skip_locked=True))
    return sorted((_new(row) for row in rows), key=lambda one: one.id)


def _oldest(app: str, limit: int) -> Any:
    return (
        select(*_DECIDED_ON)
        .where(notification.c.app == app, notification.c.status == NoticeStatus.NEW.value)
        .order_by(notification.c.created_at, notification.c.id)
        .limit(limit)
    )


def _new(row: Any) -> New:
    return New(row.id, row.kind, row.job_id, row.dedupe_key, row.created_at, tuple(_targets(row)))


def told_since(tx: Tx, app: str, keys: Collection[str], since: datetime) -> dict[str, datetime]:
    """When each of these was last told (or listed) since then; what was a repeat, or failed, was not told."""
    known = [NoticeStatus.SENDING.value, NoticeStatus.SENT.value, NoticeStatus.LISTED.value]
    found: dict[str, datetime] = {}
    for part in _parts(sorted(keys)):
        rows = tx.execute(
            select(notification.c.dedupe_key, func.max(notification.c.created_at).label("at"))
            .where(
                notification.c.app == app,
                notification.c.dedupe_key.in_(part),
                notification.c.created_at >= since,
                notification.c.status.in_(known),
            )
            .group_by(notification.c.dedupe_key)
        )
        found |= {row.dedupe_key: row.at for row in rows}
    return found


def suppress(tx: Tx, reasons: Mapping[int, str]) -> None:
    """These (locked by the caller) repeat what was told."""
    by_reason: dict[str, list[int]] = {}
    for key, reason in reasons.items():
        by_reason.setdefault(reason, []).append(key)
    for reason, ids in by_reason.items():
        for part in _parts(ids):
            _write(tx, part, status=NoticeStatus.SUPPRESSED.value, reason=reason)


def direct(tx: Tx, decided: Mapping[int, Mapping[str, Mapping[str, Any]]], run_of: Mapping[int, str]) -> None:
    """Write where these (locked by the caller) go: target -> ``status``, and its ``run`` or ``reason``."""
    alike: dict[str, list[int]] = {}
    for key, targets in decided.items():
        alike.setdefault(json.dumps([targets, run_of.get(key)], sort_keys=True), []).append(key)
    for text, ids in alike.items():
        targets, run_id = json.loads(text)
        status, reason = notices.status_of(targets)
        for part in _parts(ids):
            _write(
                tx,
                part,
                targets=targets,
                status=status.value,
                reason=None if reason is None else reason[:REASON],
                run_id=run_id,
            )


def _write(tx: Tx, ids: Collection[int], **values: Any) -> None:
    matched = tx.execute(update(notification).where(notification.c.id.in_(ids)).values(**values)).rowcount
    if matched != len(ids):
        raise RuntimeError(f"{matched} of {len(ids)} locked notifications matched")


def messages(tx: Tx, job_id: JobId, since: datetime) -> Sequence[Any]:
    """The runs that send, or sent, since then: what they carry, and when they were to go."""
    return tx.execute(
        select(run.c.id, run.c.kwargs, run.c.scheduled_for, run.c.status, run.c.attempt)
        .where(
            run.c.job_id == job_id, run.c.trigger_kind == Trigger.NOTIFY.value, run.c.scheduled_for >= since
        )
        .order_by(run.c.scheduled_for, run.c.id)
    ).all()


def load(tx: Tx, run_id: RunId, kwargs: Mapping[str, Any]) -> bool:
    """Give a message (its job is locked by the caller) more to carry; false when it has gone."""
    match = (run.c.id == run_id, run.c.status == RunStatus.QUEUED.value, run.c.attempt == 1)
    return tx.execute(update(run).where(*match).values(kwargs=dict(kwargs))).rowcount == 1


def _settle(tx: Tx, row: Any) -> None:
    """A message (its job is locked by the caller) was sent, or never will be, and so was what it carries."""
    carried = (row.kwargs or {}).get("notifications", ())
    target = (row.kwargs or {}).get("target")
    sent = row.status == RunStatus.SUCCEEDED
    outcome: dict[str, Any] = {
        "status": (NoticeStatus.SENT if sent else NoticeStatus.FAILED).value,
        "run": row.id,
    }
    if not sent:
        said = (row.error or "").strip().rpartition("\n")[2] or row.reason or row.status
        outcome["reason"] = notices.one_line(said, 500)
    for part in _parts(list(carried)):
        rows = tx.execute(
            select(notification)
            .where(notification.c.id.in_(part))
            .order_by(notification.c.id)
            .with_for_update()
        ).all()
        decided = {one.id: {**_targets(one), target: outcome} for one in rows if target in _targets(one)}
        direct(tx, decided, {one.id: row.id for one in rows})


def _targets(row: Any) -> Mapping[str, Mapping[str, Any]]:
    return row.targets if isinstance(row.targets, dict) else {}


def _parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))


# The list


def carried(tx: Tx, app: str, ids: Sequence[int]) -> Sequence[Row[Any]]:
    """What a message carries: kind, title and text, oldest first; what was pruned is left out."""
    rows: list[Row[Any]] = []
    for part in _parts(list(ids)):
        rows += tx.execute(
            select(notification).where(notification.c.app == app, notification.c.id.in_(part))
        ).all()
    return sorted(rows, key=lambda row: row.id)


def newest(
    tx: Tx, app: str, *, unseen: bool, job_name: str | None, limit: int, ids: Sequence[int] | None = None
) -> list[Notification]:
    """The list, newest first."""
    statement = select(notification).where(notification.c.app == app, _unseen() if unseen else true())
    if job_name is not None:
        statement = statement.where(notification.c.job == job_name)
    if ids is not None:
        statement = statement.where(notification.c.id.in_(ids))
    rows = tx.execute(
        statement.order_by(notification.c.created_at.desc(), notification.c.id.desc()).limit(limit)
    )
    return [from_row(row) for row in rows]


def count_unseen(tx: Tx, app: str) -> tuple[int, int]:
    """How many nobody has seen, and how many of those could not be sent."""
    failed = case((notification.c.status == NoticeStatus.FAILED.value, 1), else_=0)
    count, failures = tx.execute(
        select(func.count(), func.coalesce(func.sum(failed), 0)).where(notification.c.app == app, _unseen())
    ).one()
    return int(count), int(failures)


def see(tx: Tx, now: datetime, app: str, ids: Sequence[int] | None) -> int:
    """Note that somebody has seen these, or all; return how many were new to them."""
    match = [notification.c.app == app, notification.c.seen_at.is_(None), notification.c.created_at <= now]
    if ids is not None:
        match.append(notification.c.id.in_(ids))
    return tx.execute(update(notification).where(*match).values(seen_at=now)).rowcount


def _unseen() -> Any:
    return notification.c.seen_at.is_(None) & (notification.c.status != NoticeStatus.SUPPRESSED.value)


def from_row(row: Any) -> Notification:
    """A notification as people see it."""
    return Notification(
        id=row.id,
        app=row.app,
        kind=NoticeKind(row.kind),
        job=row.job,
        about_run=row.about_run,
        title=row.title,
        text=row.text,
        targets=_targets(row),
        status=NoticeStatus(row.status),
        reason=row.reason,
        created_at=row.created_at,
        seen_at=row.seen_at,
    )


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some notifications that were made before ``before``; return how many."""
    old = select(notification.c.id).where(notification.c.app == app, notification.c.created_at < before)
    ids = list(tx.execute(old.order_by(notification.c.created_at).limit(limit)).scalars())
    return tx.execute(delete(notification).where(notification.c.id.in_(ids))).rowcount if ids else 0
