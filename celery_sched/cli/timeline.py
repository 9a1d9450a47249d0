"""``sched jobs --calendar``: what is due in the next hours, drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
from rich.cells import cell_len

from celery_sched.cli import drawing
from celery_sched.cli.access import database_now
from celery_sched.cli.output import Line, clean, distance, instant, plain, print_json, print_lines, short
from celery_sched.errors import InvalidValue
from celery_sched.model import Job, JobStatus
from celery_sched.rules.schedules import Schedule, check_zone
from celery_sched.rules.upcoming import jitter_for

T = TypeVar("T")
MOST_OCCURRENCES = 1000
"""Occurrences of a job that ``--json`` lists; ``count`` has them all."""
WIDTH_OF_FILES = 100


@dataclass(frozen=True)
class Outlook:
    """When a job is due: ``first``, then as ``schedule`` says, at most ``most`` times."""

    job: Job
    first: datetime | None
    schedule: Schedule | None
    most: int | None
    problem: str | None = None
    """Why its schedule cannot be asked."""


def print_calendar(ctx: click.Context, jobs: Sequence[Job], hours: int, as_json: bool) -> None:
    """Draw the next hours of jobs, or list their occurrences."""
    now = database_now(ctx)
    known = [outlook(job) for job in jobs]
    if as_json:
        until = now + timedelta(hours=hours)
        occurrences = remembering(lambda one: occurrences_of(one, now, until))
        print_json([calendar_json(one, occurrences) for one in known])
        return
    zone, zone_name = machine_zone()
    encoding = sys.stdout.encoding or "ascii"
    signs = drawing.signs_for(encoding)
    # a name that this output cannot show is written in escapes rather than not at all
    names = [clean(job.name).encode(encoding, "backslashreplace").decode(encoding) for job in jobs]
    width = shutil.get_terminal_size((WIDTH_OF_FILES, 24)).columns
    within = drawing.frame(zone, now, hours, width, max(map(cell_len, names)))
    print_lines(ctx, lines(list(zip(names, known, strict=True)), within, zone_name, width, signs))


def remembering(ask: Callable[[Outlook], T]) -> Callable[[Outlook], T]:
    """The same question, asked once for all jobs of one schedule: a thousand jobs often have a few."""
    known: dict[Any, T] = {}

    def remembered(one: Outlook) -> T:
        key = (one.schedule, one.first, one.most)
        try:
            hash(key)
        except TypeError:  # a calendar of events
            return ask(one)
        if key not in known:
            known[key] = ask(one)
        return known[key]

    return remembered


def outlook(job: Job) -> Outlook:
    """When a job is due; nothing of one that is not active."""
    definition = job.definition
    if job.status is not JobStatus.ACTIVE or job.next_run_at is None:
        return Outlook(job, None, None, None)
    most = None if definition.max_runs is None else max(definition.max_runs - job.planned_count, 0)
    try:
        jitter = jitter_for(definition, job.anchor)
        first = jitter.occurrence_of(job.next_run_at)
        # a delay from the end of the last run: what follows is not known before that
        following = None if jitter.schedule.kind == "after" else jitter.schedule
    except Exception as error:  # a zone that vanished, a calendar's bug: one job's schedule stops no other's
        return Outlook(job, None, None, None, problem=str(error))
    return Outlook(job, first, following, most)


def lines(
    jobs: Sequence[tuple[str, Outlook]],
    within: drawing.Frame,
    zone_name: str,
    width: int,
    signs: drawing.Signs,
) -> Iterator[Line]:
    """The ruler, a line per job, last the jobs that are not due in the window. With each job its name."""

    def cut(text: str) -> str:
        return text if cell_len(text) <= width else drawing.fitted(text, width, signs)

    yield cut(drawing.legend(within, zone_name, signs)), "dim"
    for text in drawing.ruler(within, width, signs):
        yield cut(text), "bold"
    rest: list[tuple[tuple[bool, datetime, str], str]] = []
    counts = remembering(lambda one: drawing.counts(one.schedule, one.first, within, one.most))
    for name, one in jobs:
        problem = one.problem
        try:
            found = counts(one)
        except Exception as error:  # as above
            found, problem = [], str(error)
        if sum(found):
            yield drawing.line(name, found, within, signs), ""
        else:
            words = f"{drawing.fitted(name, within.names, signs)} {remark(one, problem, within.now, width)}"
            rest.append(((one.first is None, one.first or within.now, name), words))
    for _, words in sorted(rest):
        yield cut(words), "dim"


def remark(one: Outlook, problem: str | None, now: datetime, width: int) -> str:
    """Why a job is not due in the window."""
    job = one.job
    if problem is not None:
        return f"its schedule cannot be asked: {short(problem, width)}"
    if job.status is not JobStatus.ACTIVE:
        reason = f": {short(job.status_reason, width)}" if job.status_reason else ""
        return f"{job.status.value}{reason}"
    return "no next run" if one.first is None else f"next {distance(one.first, now)}"


def calendar_json(
    one: Outlook, occurrences: Callable[[Outlook], tuple[list[datetime], int]]
) -> dict[str, Any]:
    """A job's occurrences in the window, for programs."""
    listed: list[datetime] = []
    count, problem = 0, one.problem
    try:
        listed, count = occurrences(one)
    except Exception as error:  # as above
        problem = str(error)
    return {
        "job": one.job.name,
        "status": one.job.status.value,
        "next_run_at": plain(one.job.next_run_at),
        "occurrences": [instant(when) for when in listed],
        "count": count,
        "problem": problem,
    }


def occurrences_of(one: Outlook, now: datetime, until: datetime) -> tuple[list[datetime], int]:
    """The first occurrences in now <= t < until (and one that is overdue), and how many there are."""
    first = one.first
    if first is None or first >= until or one.most == 0:
        return [], 0
    if one.schedule is None:
        return [first], 1
    after = max(first, now - drawing.INSTANT)
    count = 1 + one.schedule.count_in(after, until - drawing.INSTANT)
    count = count if one.most is None else min(count, one.most)
    following = drawing.occurrences(one.schedule, after, until)
    return [first, *islice(following, min(count, MOST_OCCURRENCES) - 1)], count


def machine_zone() -> tuple[ZoneInfo, str]:
    """The zone of this machine and what to call it: TZ, else what /etc/localtime is; UTC if neither."""
    named = os.environ.get("TZ", "").removeprefix(":")
    file = Path(named or "/etc/localtime")
    try:
        if named and not file.is_absolute():
            return check_zone(named), named
        name = str(file.resolve()).rpartition("zoneinfo/")[2]
        if not name.startswith("/"):
            return check_zone(name), name
        with file.open("rb") as source:
            return ZoneInfo.from_file(source), str(file)
    except (InvalidValue, OSError, ValueError):
        return ZoneInfo("UTC"), "UTC"  # also for a rule as "CET-1CEST": then the ruler says UTC
