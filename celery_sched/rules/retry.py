"""An attempt ended badly: is its run tried again, and after which pause?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from celery_sched.model import Backoff, JobDefinition, RunId
from celery_sched.rules.transitions import FAILURES, RunStatus

MOST_REQUEUES = 3
"""Lost attempts in a row that ``requeue`` does not count: else a job that kills its worker never ends."""


@dataclass(frozen=True)
class Again:
    """The run is tried again."""

    after: timedelta
    retried: int
    """How many of the job's ``retries`` it has used then."""
    requeued: int
    """How many lost attempts were not counted then, since one ended otherwise."""


@dataclass(frozen=True)
class GiveUp:
    """The run ends as its attempt did; why, or empty where there is nothing to say."""

    reason: str = ""


def decide(
    definition: JobDefinition,
    status: RunStatus,
    exceptions: Sequence[str],
    *,
    run_id: RunId,
    attempt: int,
    retried: int,
    requeued: int,
) -> Again | GiveUp:
    """Judge an attempt that ended as ``status``.

    What timed out or was lost has no exception: ``retry_on`` and ``give_up_on`` say nothing about it.

    :param exceptions: full names of the exception's class and its bases; those of builtins without a module.
    :param retried: how many of the job's ``retries`` the run has used.
    :param requeued: how many lost attempts were not counted, since one ended otherwise.
    """
    if status not in FAILURES:
        return GiveUp()
    if status is RunStatus.LOST and definition.requeue and requeued < MOST_REQUEUES:
        return Again(timedelta(0), retried, requeued + 1)
    if definition.retries == 0:
        in_row = requeued + 1 if status is RunStatus.LOST else 0
        return GiveUp(f"lost {in_row} times in a row" if in_row > 1 else "")
    if status is RunStatus.FAILED:
        unwanted = _refused(definition, exceptions)
        if unwanted:
            return GiveUp(unwanted)
    if retried >= definition.retries:
        return GiveUp(f"given up after {retried} {'retry' if retried == 1 else 'retries'}")
    in_row = requeued if status is RunStatus.LOST else 0
    return Again(pause(definition, retried + 1, run_id, attempt), retried + 1, in_row)


def pause(definition: JobDefinition, number: int, run_id: RunId, attempt: int) -> timedelta:
    """How long the ``number``-th retry waits: the same on every node, and at most ``retry_max_delay``."""
    first, longest = definition.retry_delay.total_seconds(), definition.retry_max_delay.total_seconds()
    match definition.backoff:
        case Backoff.FIXED:
            seconds = first
        case Backoff.LINEAR:
            seconds = first * number
        case Backoff.EXPONENTIAL:
            seconds = first * 2.0 ** min(number - 1, 1000)
    seconds = min(seconds, longest)
    if definition.retry_jitter:  # shorter, so that the maximum holds
        seconds *= 1 - _fraction(f"{run_id}:{attempt}") / 2
    return timedelta(seconds=seconds)


def matches(names: Sequence[str], exceptions: Sequence[str]) -> str | None:
    """The first of ``names`` (with or without a module) that is one of ``exceptions``."""
    for name in names:
        if any(full == name or full.endswith(f".{name}") for full in exceptions):
            return name
    return None


def _refused(definition: JobDefinition, exceptions: Sequence[str]) -> str | None:
    """Why its exception is not tried again, if it is not."""
    unwanted = matches(definition.give_up_on, exceptions)
    if unwanted is not None:
        return f"not tried again: give_up_on names {unwanted}"
    if definition.retry_on and matches(definition.retry_on, exceptions) is None:
        return f"not tried again: retry_on names only {', '.join(definition.retry_on)}"
    return None


def _fraction(text: str) -> float:
    """A number from 0 to below 1 that depends on the text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2.0**48
