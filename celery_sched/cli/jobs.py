"""``sched jobs``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from celery_sched.cli.access import actor, client_of, database_now
from celery_sched.cli.advice import warn_of_times, warn_of_unknown_task
from celery_sched.cli.definition import (
    NULLABLE_DURATIONS,
    definition_options,
    read_definition,
    with_queue,
)
from celery_sched.cli.files import apply_command, export_command
from celery_sched.cli.jobtypes import type_options, warn_of_type, with_type
from celery_sched.cli.output import (
    coloured,
    distance,
    instant,
    job_json,
    json_option,
    local,
    local_and_distance,
    print_json,
    print_table,
    say,
)
from celery_sched.cli.preview import upcoming
from celery_sched.cli.timeline import print_calendar
from celery_sched.durations import format_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import Job, JobDefinition, JobStatus
from celery_sched.rules.calendars import read_calendar
from celery_sched.rules.schedules import check_zone
from celery_sched.rules.schedules.none import NONE
from celery_sched.rules.upcoming import TIMES, jitter_for, remedy

SHOWN_INSTANTS = 5
HOURS = 24
MOST_HOURS = 31 * 24

status_option = click.option(
    "--status", type=click.Choice([status.value for status in JobStatus]), help="Only jobs of this status."
)
all_option = click.option("--all", "system", is_flag=True, help="The scheduler's own jobs too.")
calendar_option = click.option("--calendar", is_flag=True, help="Draw when they are due in the next hours.")
hours_option = click.option(
    "--hours", type=click.IntRange(1, MOST_HOURS), help="With --calendar: how many hours (24)."
)


@click.group("jobs", invoke_without_command=True)
@status_option
@all_option
@calendar_option
@hours_option
@json_option
@click.pass_context
def jobs_command(
    ctx: click.Context, status: str | None, system: bool, calendar: bool, hours: int | None, as_json: bool
) -> None:
    """List the jobs; show, add, edit and delete one."""
    if ctx.invoked_subcommand is None:
        print_jobs(ctx, status, system, calendar, hours, as_json)


jobs_command.add_command(apply_command)
jobs_command.add_command(export_command)


@jobs_command.command("list")
@status_option
@all_option
@calendar_option
@hours_option
@json_option
@click.pass_context
def list_command(
    ctx: click.Context, status: str | None, system: bool, calendar: bool, hours: int | None, as_json: bool
) -> None:
    """List the jobs."""
    print_jobs(ctx, status, system, calendar, hours, as_json)


def print_jobs(
    ctx: click.Context, status: str | None, system: bool, calendar: bool, hours: int | None, as_json: bool
) -> None:
    """All jobs, or those of one status: as a list, or on a timeline of the next hours."""
    if hours is not None and not calendar:
        raise click.UsageError("--hours is for --calendar: add it", ctx)
    client = client_of(ctx)
    jobs = client.list(JobStatus(status) if status else None, system=system)
    if calendar and (jobs or as_json):
        print_calendar(ctx, jobs, hours or HOURS, as_json)
        return
    if as_json:
        print_json([job_json(job) for job in jobs])
        return
    if not jobs:
        say("There are no jobs." if status is None else f"There are no jobs that are {status}.")
        return
    now = database_now(ctx)
    columns = ("name", "schedule", "zone", "status", "next run", "last", "ok", "failed", "skipped")
    print_table(ctx, columns, [job_row(job, now) for job in jobs])


def job_row(job: Job, now: datetime) -> tuple[object, ...]:
    """A job as a line of the table."""
    definition = job.definition
    status = job.status.value
    if job.locked_by is not None:
        status += " (running)"
    if job.overdue_since is not None and job.status in (JobStatus.ACTIVE, JobStatus.ERROR):
        status += " (overdue)"
    return (
        (job.name, "bold"),
        when(definition),
        definition.timezone,
        (status, coloured(job.status.value)[1]),
        local_and_distance(job.next_run_at, now),
        coloured(job.last_status),
        job.success_count,
        (job.failure_count, "red" if job.failure_count else ""),
        job.skipped_count,
    )


def when(definition: JobDefinition) -> str:
    """When a job runs: its schedule, the topics of its events, or both."""
    topics = "" if definition.on is None else f"on {', '.join(definition.on['topics'])}"
    if definition.schedule == NONE and topics:
        return topics
    return f"{definition.schedule}; {topics}" if topics else definition.schedule


@jobs_command.command("show")
@click.argument("name")
@json_option
@click.pass_context
def show_command(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one job, its next instants too."""
    job = client_of(ctx).get(name)
    try:
        following = next_instants(job, SHOWN_INSTANTS)
    except InvalidValue as error:  # broken since it was planned last: all the rest can be shown
        repair = f"To repair it: {remedy(name, error)}"
        say(f"Warning: {name} will be in error when it is due: {error} {repair}", colour="yellow")
        following = []
    if as_json:
        print_json({**job_json(job), "next": [instant(when) for when in following]})
        return
    now = database_now(ctx)
    print_table(ctx, ("field", "value"), [((key, "bold"), value) for key, value in described(job, now)])
    if following:
        rows = [(local(when), instant(when), distance(when, now)) for when in following]
        print_table(ctx, ("next runs", "UTC", ""), rows)
    else:
        waits = "" if job.definition.on is None else f", and runs {when(job.definition)}"
        say(f"{name} has no next run: it is {job.status.value}{waits}.")


def described(job: Job, now: datetime) -> list[tuple[str, object]]:
    """Every field of a job as people read it."""
    definition = job.definition
    lines: list[tuple[str, object]] = []
    for key, value in job_json(job).items():
        own = getattr(definition, key, getattr(job, key, None))
        if isinstance(own, datetime):
            text: object = f"{local(own)} ({distance(own, now)})"
        elif key == "exclude":
            text = calendars(definition)
        elif key in (*NULLABLE_DURATIONS, "catchup_window"):
            text = "" if own is None else format_duration(own)
        elif isinstance(value, (dict, list, bool)):
            text = json.dumps(value, ensure_ascii=False)
        else:
            text = value
        lines.append((key, text))
    return lines


def calendars(definition: JobDefinition) -> str:
    """What a job excludes, as it was typed; as it is stored where it cannot be read."""
    try:
        zone = check_zone(definition.timezone)
        return ", ".join(read_calendar(term, zone).text for term in definition.exclude)
    except InvalidValue:  # the job is in error, which says why, and this command is how people look at it
        return json.dumps(definition.exclude, ensure_ascii=False)


def next_instants(job: Job, count: int) -> list[datetime]:
    """The next instants of a job that is planned; none for one that is not."""
    first = job.next_run_at
    if first is None or job.status is not JobStatus.ACTIVE:
        return []
    times = jitter_for(job.definition, job.anchor)
    following = upcoming(times.schedule, times.occurrence_of(first), count - 1)
    if times.schedule.kind == "after":
        return [first]  # what follows is known when that run has ended
    return [first, *(times.due(occurrence) for occurrence in following)]


@jobs_command.command("add")
@click.argument("name")
@click.option("--task", metavar="TASK", help="The Celery task's name; or give --type.")
@type_options
@click.option(
    "--schedule",
    metavar="S",
    help='"*/5 * * * *", "every 5m", "once ISO", "rrule:...", "solar:..."; not needed with --on.',
)
@definition_options
@json_option
@click.pass_context
def add_command(ctx: click.Context, /, name: str, as_json: bool, queue: str | None, **given: Any) -> None:
    """Add a job."""
    fields = read_definition(given)
    with_type(fields, None)
    if "task" not in fields:
        raise click.UsageError("which task? Give --task, or --type and --set (see: sched jobtypes)", ctx)
    if queue is not None:
        fields["options"] = with_queue({}, queue)
    job = client_of(ctx).add(name, by=actor(), **fields)
    warn_of_unknown_task(ctx, job.definition.task)
    warn_of_type(ctx, job)
    warn_of_times(job)
    print_job(ctx, "added", job, as_json)


@jobs_command.command("edit")
@click.argument("name")
@click.option("--task", metavar="TASK", help="The Celery task's name.")
@type_options
@click.option("--schedule", metavar="S", help="When it is due.")
@definition_options
@json_option
@click.pass_context
def edit_command(ctx: click.Context, /, name: str, as_json: bool, queue: str | None, **given: Any) -> None:
    """Change some of a job's definition; what is not named stays."""
    fields = read_definition(given)
    if not fields and queue is None:
        raise click.UsageError("nothing to change: name at least one option, such as --schedule", ctx)
    client = client_of(ctx)
    with_type(fields, client.get(name).definition)
    if queue is not None:
        fields["options"] = with_queue(client.get(name).definition.options, queue)
    job = client.edit(name, by=actor(), **fields)
    if "task" in fields:
        warn_of_unknown_task(ctx, job.definition.task)
    if fields.keys() & {"task", "kwargs"}:
        warn_of_type(ctx, job)
    if fields.keys() & set(TIMES):
        warn_of_times(job)
    print_job(ctx, "changed", job, as_json)


def print_job(ctx: click.Context, what: str, job: Job, as_json: bool) -> None:
    """Say what was done to a job."""
    if as_json:
        print_json(job_json(job))
        return
    following = local_and_distance(job.next_run_at, database_now(ctx))
    tail = f"next run {following}" if following else f"no next run ({job.status.value})"
    if job.definition.schedule == NONE and job.definition.on is not None:
        tail = f"runs {when(job.definition)} ({job.status.value})"
    click.echo(f"{what} {job.name}: {tail}")


@jobs_command.command("reset")
@click.argument("name")
@click.option("--field", "fields", multiple=True, metavar="FIELD", help="Only this field; several times.")
@json_option
@click.pass_context
def reset_command(ctx: click.Context, name: str, fields: tuple[str, ...], as_json: bool) -> None:
    """Let a job from code be as code has it again: what was changed by hand follows code from now on."""
    print_job(ctx, "reset", client_of(ctx).reset(name, fields, by=actor()), as_json)


@jobs_command.command("delete")
@click.argument("name")
@click.pass_context
def delete_command(ctx: click.Context, name: str) -> None:
    """Delete a job; the history of its runs stays until it is pruned."""
    client_of(ctx).delete(name, by=actor())
    click.echo(f"deleted {name}")
