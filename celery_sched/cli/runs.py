"""``sched runs``: runs are listed, and one is shown with its attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from celery_sched.cli.access import client_of, database_now
from celery_sched.cli.output import (
    coloured,
    json_option,
    local,
    local_and_distance,
    print_json,
    print_lines,
    print_table,
    run_json,
    run_view_json,
    say,
    short,
)
from celery_sched.durations import format_duration
from celery_sched.model import Attempt, Run
from celery_sched.rules.transitions import RunStatus

job_option = click.option("--job", metavar="NAME", help="Only runs of this job.")
status_option = click.option(
    "--status", type=click.Choice([status.value for status in RunStatus]), help="Only runs of this status."
)
limit_option = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many."
)


@click.group("runs", invoke_without_command=True)
@job_option
@status_option
@limit_option
@json_option
@click.pass_context
def runs_command(ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """List runs, newest first; show one."""
    if ctx.invoked_subcommand is None:
        print_runs(ctx, job, status, limit, as_json)


@runs_command.command("list")
@job_option
@status_option
@limit_option
@json_option
@click.pass_context
def list_command(ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """List runs, newest first."""
    print_runs(ctx, job, status, limit, as_json)


def print_runs(ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """The newest runs, of one job or one status."""
    runs = client_of(ctx).runs(job=job, status=RunStatus(status) if status else None, limit=limit)
    if as_json:
        print_json([run_json(run) for run in runs])
        return
    if not runs:
        say("There are no such runs." if job or status else "There are no runs yet.")
        return
    columns = ("id", "job", "status", "scheduled for", "took", "remark")
    print_table(ctx, columns, [run_row(run) for run in runs])


def run_row(run: Run) -> tuple[object, ...]:
    """A run as a line of the table."""
    return (
        run.id,
        (run.job, "bold"),
        coloured(run.status),
        local(run.scheduled_for),
        took(run),
        remark(run),
    )


def remark(run: Run) -> str:
    """Its attempt where it is not the first, and why it ended so; ``sched runs --json`` has the rest."""
    attempt = "" if run.attempt == 1 else f"attempt {run.attempt} "
    return attempt + short(run.reason or run.error, 80)


def took(run: Run) -> str:
    """How long the body ran, to the hundredth of a second; empty until it is over."""
    if run.started_at is None or run.finished_at is None:
        return ""
    return format_duration(timedelta(seconds=round((run.finished_at - run.started_at).total_seconds(), 2)))


@runs_command.command("show")
@click.argument("run")
@json_option
@click.pass_context
def show_command(ctx: click.Context, run: str, as_json: bool) -> None:
    """Show everything about one run (its id, or the beginning of it), its earlier attempts too."""
    client = client_of(ctx)
    found = client.find_run(run)
    earlier = client.attempts(found.id)
    waits = client.waits_for(found.id)
    put_right = client.put_right_by(found.id)
    if as_json:
        print_json(run_view_json(found, waits, earlier, put_right))
        return
    now = database_now(ctx)
    lines = [*described(found, now), *([("waits", waits)] if waits else [])]
    lines += [("put right by", f"run {one.id} ({one.task}): {one.status}") for one in put_right]
    print_table(ctx, ("field", "value"), [((key, "bold"), text) for key, text in lines])
    if earlier:
        columns = ("attempt", "status", "worker", "started", "ended", "why")
        print_table(ctx, columns, attempt_rows(found, earlier))
    for title, text in (("result", found.result), ("error", found.error)):
        if text:
            print_lines(ctx, [(f"{title}:", "bold"), (text.rstrip(), "red" if title == "error" else "")])


def described(run: Run, now: datetime) -> list[tuple[str, object]]:
    """Every field of a run as people read it; what takes lines of its own apart."""
    lines: list[tuple[str, object]] = []
    for key, value in run_json(run).items():
        own = getattr(run, key)
        if key in ("result", "error"):
            continue
        if isinstance(own, datetime):
            text: object = local_and_distance(own, now)
        else:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
        lines.append((key, text))
        if key == "finished_at" and took(run):
            lines.append(("took", took(run)))
    return lines


def attempt_rows(run: Run, earlier: Sequence[Attempt]) -> list[tuple[object, ...]]:
    """The attempts of a run as lines of a table; the last is the one that the run's row tells of."""
    rows: list[tuple[object, ...]] = [
        (
            one.attempt,
            coloured(one.status),
            one.worker,
            local(one.started_at),
            local(one.ended_at),
            short(one.reason or one.error, 200),
        )
        for one in earlier
    ]
    why = short(run.reason or run.error, 200)
    if run.status == RunStatus.QUEUED:
        why = f"it may begin from {local(run.ready_at)} on"
    rows.append(
        (
            run.attempt,
            coloured(run.status),
            run.worker,
            local(run.started_at),
            local(run.finished_at),
            why,
        )
    )
    return rows
