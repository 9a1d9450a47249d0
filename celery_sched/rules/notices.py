"""What people are told of: which ends of runs, in what words, what is a repeat, and when a message may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from celery_sched import notify_settings
from celery_sched.durations import format_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import NoticeKind, NoticeStatus
from celery_sched.notify_settings import Policy, Rate, Wanted
from celery_sched.rules.transitions import RunStatus

BROKEN = frozenset({NoticeKind.FAILURE, NoticeKind.LOST, NoticeKind.DEADLINE})
"""After one of these the next success is a recovery."""
REPEATING = frozenset({NoticeKind.SUCCESS, NoticeKind.FAILURE, NoticeKind.LOST, NoticeKind.SKIPPED})
"""Kinds that are the same news when they come again soon; the others come once, by what they mean."""
LONGEST_TITLE = 255
LINES = 20
"""The last lines of an error that a text has, and
:data:`LONGEST_ERROR` characters of them."""
LONGEST_ERROR = 4000
NAMED = 50
"""Notifications that a message of several names."""

_KINDS = {
    RunStatus.FAILED: NoticeKind.FAILURE,
    RunStatus.TIMED_OUT: NoticeKind.FAILURE,
    RunStatus.LOST: NoticeKind.LOST,
    RunStatus.SKIPPED: NoticeKind.SKIPPED,
    RunStatus.SUCCEEDED: NoticeKind.SUCCESS,
}
_SAID = {
    NoticeKind.SUCCESS: "succeeded",
    NoticeKind.FAILURE: "failed",
    NoticeKind.LOST: "was lost",
    NoticeKind.RECOVERY: "succeeded again",
    NoticeKind.SKIPPED: "is skipped again and again",
    NoticeKind.DEADLINE: "has not succeeded in time",
    NoticeKind.PAUSED: "is paused",
}
_COUNTED = {
    NoticeKind.SUCCESS: "succeeded",
    NoticeKind.FAILURE: "failed",
    NoticeKind.LOST: "lost",
    NoticeKind.RECOVERY: "recovered",
    NoticeKind.SKIPPED: "skipped too often",
    NoticeKind.DEADLINE: "past their deadline",
    NoticeKind.PAUSED: "paused",
}


def wanted(given: Any, default: Wanted) -> Wanted:
    """What a job wants, from its column; what cannot be read (plain SQL wrote it) counts as nothing said."""
    try:
        return notify_settings.of(notify_settings.wanted(given, "notify"), default)
    except InvalidValue:
        return default


def kind_of(status: str, wants: Wanted, *, told: str | None) -> NoticeKind | None:
    """What to tell of a run that ended so, if anything.

    :param told: the last of :data:`BROKEN` and ``recovery`` that was told of its job.
    """
    kind = _KINDS.get(RunStatus(status))
    if kind is NoticeKind.SUCCESS and told in BROKEN and NoticeKind.RECOVERY in wants.on:
        return NoticeKind.RECOVERY
    return kind if kind in wants.on else None


def dedupe_key(kind: str, job_id: int) -> str:
    """Notifications with the same key within ``sched_notify_dedupe`` are repeats."""
    return f"{kind}:{job_id}"


def words(policy: Policy, kind: NoticeKind, values: Mapping[str, str]) -> tuple[str, str]:
    """Title and text of a notification; ``values``: :data:`~celery_sched.notify_settings.FIELDS`."""
    template = notify_settings.template_for(policy.templates, values.get("task", ""), kind)
    title = f"{values['job']} {_SAID[kind]}"
    if template.title is not None:
        title = notify_settings.rendered(template.title, values)
    text = _text(kind, values)
    if template.text is not None:
        text = notify_settings.rendered(template.text, values)
    return one_line(title, LONGEST_TITLE), text


def one_line(text: str, longest: int) -> str:
    """A text in one line, shortened at its end."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def end_of(error: str | None) -> str:
    """The last lines of an error: they say most."""
    lines = (error or "").rstrip().splitlines()
    text = "\n".join(lines[-LINES:])
    shown = text[-LONGEST_ERROR:]
    return shown if len(lines) <= LINES and shown == text else f"...\n{shown}"


def _text(kind: NoticeKind, values: Mapping[str, str]) -> str:
    lines = [f"Job {values['job']} of app {values['app']} {_SAID[kind]}."]
    if values.get("reason"):
        lines.append(values["reason"])
    named = (
        ("task", "Task"),
        ("run", "Run"),
        ("attempt", "Attempt"),
        ("scheduled_for", "Due"),
        ("started_at", "Started"),
        ("finished_at", "Ended"),
        ("duration", "Took"),
        ("worker", "Worker"),
        ("description", "About"),
    )
    lines += ["", *(f"{shown}: {values[name]}" for name, shown in named if values.get(name))]
    if values.get("error"):
        lines += ["", values["error"]]
    return "\n".join(lines)


# What is sent, and when


@dataclass(frozen=True)
class New:
    """A notification that nobody has decided on yet."""

    id: int
    kind: str
    job_id: int | None
    key: str
    at: datetime
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Sifted:
    """Repeats with the reason, and the rest by target; those in ``listed`` have none."""

    repeats: Mapping[int, str] = field(default_factory=dict)
    by_target: Mapping[str, Sequence[int]] = field(default_factory=dict)
    listed: Sequence[int] = ()


def sift(new: Sequence[New], told: Mapping[str, datetime], window: timedelta) -> Sifted:
    """Part what is news from what repeats it.

    The same kind of the same job within the window is a repeat, unless the job recovered in between: then
    people believe that all is well.

    :param new: by id.
    :param told: dedupe key -> when that was told last, recoveries too.
    """
    told = dict(told)
    repeats: dict[int, str] = {}
    by_target: dict[str, list[int]] = {}
    listed: list[int] = []
    for one in new:
        last = told.get(one.key)
        recovered = None if one.job_id is None else told.get(dedupe_key(NoticeKind.RECOVERY, one.job_id))
        if (
            one.kind in REPEATING
            and last is not None
            and one.at - last < window
            and not (recovered is not None and recovered >= last)
        ):
            repeats[one.id] = (
                f"repeats what was told {format_duration(_whole(one.at - last))} before "
                f"(sched_notify_dedupe is {format_duration(window)})"
            )
            continue
        told[one.key] = one.at
        for target in one.targets:
            by_target.setdefault(target, []).append(one.id)
        if not one.targets:
            listed.append(one.id)
    return Sifted(repeats, by_target, listed)


def _whole(span: timedelta) -> timedelta:
    return max(timedelta(0), timedelta(seconds=int(span.total_seconds())))


def message_at(planned: Sequence[datetime], now: datetime, rate: Rate, gather: timedelta) -> datetime:
    """When the next message to a target may go: not before ``gather`` is over, and never above the rate.

    :param planned: when its earlier messages were to go.
    """
    times = sorted(planned)
    at = now if not times else max(now, times[-1] + gather)
    if len(times) >= rate.count:
        # the rate-th last one leaves the window
        at = max(at, times[-rate.count] + rate.per)
    return at


def message(found: Sequence[tuple[str, str, str]], app: str) -> tuple[str, str]:
    """Title and text of what one message tells: (kind, title, text) of its notifications, oldest first."""
    if len(found) == 1:
        _, title, text = found[0]
        return f"[{app}] {title}", text
    counts = Counter(kind for kind, _, _ in found)
    said = ", ".join(f"{counts[kind]} {_COUNTED[kind]}" for kind in NoticeKind if counts[kind])
    lines = [f"- {title}" for _, title, _ in found[:NAMED]]
    if len(found) > NAMED:
        lines.append(f"- and {len(found) - NAMED} more: celery -A APP sched notifications")
    return f"[{app}] {len(found)} notifications: {said}", "\n".join(lines)


def status_of(targets: Mapping[str, Mapping[str, Any]]) -> tuple[NoticeStatus, str | None]:
    """Where a notification as a whole stands, and why: under way while one target is, failed if one is."""
    statuses = {one.get("status") for one in targets.values()}
    for status in (NoticeStatus.NEW, NoticeStatus.SENDING):
        if status in statuses:
            return status, None
    if NoticeStatus.FAILED in statuses:
        failed = {name: one for name, one in targets.items() if one.get("status") == NoticeStatus.FAILED}
        return NoticeStatus.FAILED, "; ".join(
            f"{name}: {one.get('reason') or 'no reason given'}" for name, one in sorted(failed.items())
        )
    return (NoticeStatus.SENT, None) if targets else (NoticeStatus.LISTED, None)
