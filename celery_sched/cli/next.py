"""``sched next``: when a schedule is due. Pure but for ``--job``: no database, no broker, no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_sched.cli import preview
from celery_sched.cli.access import client_of, database_now
from celery_sched.cli.definition import read_definition, times_options
from celery_sched.cli.output import instant, json_option, print_json, print_lines, say
from celery_sched.errors import InvalidValue
from celery_sched.model import Job, JobDefinition, JobStatus
from celery_sched.rules.definition import checked
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import Schedule, check_zone
from celery_sched.rules.schedules.zones import EPOCH, instant_of_wall
from celery_sched.rules.upcoming import jitter_for, named

MOST = 10_000
NAMELESS = "preview"


@click.command("next")
@click.argument("schedule", required=False)
@click.option("--job", metavar="NAME", help="Instead of SCHEDULE: a job as it is (reads the database).")
@click.option(
    "--from",
    "start",
    metavar="ISO",
    help="Look strictly after this time (in --tz where it has no zone); now.",
)
@click.option(
    "-n", "count", type=click.IntRange(1, MOST), default=5, show_default=True, help="How many instants."
)
@click.option(
    "--name", default="", metavar="JOB", help="The job's name, which H and the jitter are made from."
)
@times_options
@click.option("--details", is_flag=True, help="Print JSON objects: local time, clock changes, notes.")
@json_option
@click.pass_context
def next_command(
    ctx: click.Context,
    /,
    schedule: str | None,
    job: str | None,
    start: str | None,
    count: int,
    name: str,
    details: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Show when SCHEDULE is due.

    SCHEDULE is a cron expression such as "30 2 * * 1-5" or @daily, "every 5m", "after 5m",
    "once 2026-01-31T09:00:00Z", "rrule:FREQ=DAILY;BYHOUR=9" or "solar:sunset@52.52,13.40".
    """
    fields = read_definition(given)
    if (schedule is None) == (job is None):
        raise click.UsageError("give either a SCHEDULE, or --job NAME", ctx)
    if schedule is not None:
        definition = read_times(schedule, name, fields)
        begin, times = read_start(start, definition.timezone), jitter_for(definition, EPOCH)
        following = preview.upcoming(times.schedule, begin, count)
        found = Found(check_zone(definition.timezone), times, begin, following)
    elif fields or name:
        raise click.UsageError("--job shows a job with the times that it has: give no others", ctx)
    else:
        found = of_job(ctx, str(job), start, count)
    if details:
        print_json([preview.details(one, found.zone) for one in found.shown()])
    elif as_json:
        print_json([instant(when) for when in found.occurrences])
    else:
        print_found(ctx, found, count)
        if schedule is not None and counts_from_its_job(found.times.schedule) and "start_at" not in fields:
            say("Counted from 1970-01-01 00:00 UTC; a job counts from when it is made, or its start_at.")


def counts_from_its_job(schedule: Schedule) -> bool:
    """Whether a schedule's times depend on when its job is made."""
    return schedule.kind == "every" or (schedule.kind == "rrule" and "DTSTART" not in schedule.text.upper())


@dataclass(frozen=True)
class Found:
    """What was looked for: a schedule with its jitter, the instant looked from, what comes after it."""

    zone: ZoneInfo
    times: Jitter
    begin: datetime
    occurrences: Sequence[datetime] = ()
    over: str = "it is never due again."
    """Why there are no more than these."""

    def shown(self) -> list[preview.Shown]:
        """The occurrences with all that is worth a word."""
        return preview.shown(self.times.schedule, self.zone, self.begin, self.occurrences, self.times.due)


def print_found(ctx: click.Context, found: Found, count: int) -> None:
    """The occurrences for people, and why there are fewer than ``count``."""
    over = len(found.occurrences) < count
    last = found.occurrences[-1] if found.occurrences else found.begin
    # of a job that has had its runs the schedule goes on: there is no end to look for
    ended = over and found.times.schedule.next_after(last) is None
    rest = preview.Between([], *(preview.excluded(found.times.schedule, last, None) if ended else ([], 0)))
    if found.occurrences or rest.excluded:
        print_lines(ctx, preview.lines(found.zone, found.shown(), rest))
    if over:
        say(f"After that {found.over}" if found.occurrences else found.over[0].upper() + found.over[1:])


def read_times(schedule: str, name: str, fields: Mapping[str, Any]) -> JobDefinition:
    """The times of a job that there is not, checked as a job's are.

    :raises InvalidValue: as for a job, but of one without a name nothing is said.
    """
    fields = dict(fields)
    if fields.get("jitter") and not name:
        raise InvalidValue("--jitter", fields["jitter"], "it is made from the job's name", "Give --name too.")
    if any(term.strip().lower().startswith("ics:") for term in fields.get("exclude", ())):
        from celery_sched.calendar_files import read_files

        fields["exclude"] = read_files(fields["exclude"], Path.cwd())
    try:
        definition = checked(name=name or NAMELESS, task=NAMELESS, schedule=schedule, **fields)
    except InvalidValue as error:
        if name:
            raise
        what = error.what.removeprefix(f"job {NAMELESS!r}: ")
        raise InvalidValue(what, error.value, error.allowed, error.hint) from error
    return replace(definition, name=name)


def of_job(ctx: click.Context, name: str, start: str | None, count: int) -> Found:
    """A job's occurrences, the pending one first; where ``start`` is given, those after that."""
    job = client_of(ctx).get(name)
    definition = job.definition
    if start is not None:
        with named(name):
            times, zone = jitter_for(definition, job.anchor), check_zone(definition.timezone)
        begin = read_start(start, definition.timezone)
        return Found(zone, times, begin, preview.upcoming(times.schedule, begin, count))
    if job.status is not JobStatus.ACTIVE:
        say(f"{name} is {job.status.value}. This is what its schedule says:")
    return coming(job, database_now(ctx), count)


def coming(job: Job, now: datetime, count: int) -> Found:
    """A job's occurrences, the pending one first; of one that is not active, what its schedule says. Pure.

    :raises InvalidValue: its schedule cannot be read any more.
    """
    definition = job.definition
    with named(job.name):
        times = jitter_for(definition, job.anchor)
    zone = check_zone(definition.timezone)
    active = job.status is JobStatus.ACTIVE
    pending = times.occurrence_of(job.next_run_at) if active and job.next_run_at is not None else None
    if times.schedule.kind == "after":
        over = (
            "nothing is known before its run has ended."
            if active
            else f"nothing is known while it is {job.status.value}."
        )
        return Found(zone, times, now, [] if pending is None else [pending], over)
    if times.schedule.kind == "none":
        return Found(zone, times, now, over="it has no times: it runs when an event comes, or by hand.")
    if not active:
        found = preview.upcoming(times.schedule, now, count)
    elif pending is None:
        return Found(zone, times, now)
    else:
        found = [pending, *preview.upcoming(times.schedule, pending, count - 1)]
    if definition.max_runs is not None:
        left = max(definition.max_runs - job.planned_count, 0)
        if left < len(found):
            return Found(zone, times, now, found[:left], f"it has had its {definition.max_runs} runs.")
    return Found(zone, times, now, found)


def read_start(text: str | None, tz: str) -> datetime:
    """The instant of ``--from``; without it this machine's now (a preview decides nothing)."""
    if text is None:
        return datetime.now(UTC)  # noqa: TID251 - there is no database here whose clock could be asked
    try:
        given = datetime.fromisoformat(text.strip())
        return instant_of_wall(check_zone(tz), given) if given.tzinfo is None else given.astimezone(UTC)
    except InvalidValue:
        raise
    except (ValueError, OverflowError) as error:
        allowed = (
            'an ISO 8601 time such as "2026-01-31T09:00:00Z" or, in the zone of --tz, "2026-01-31T09:00"'
        )
        raise InvalidValue("--from", text, allowed) from error
