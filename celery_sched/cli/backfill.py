"""``sched backfill`` and ``backfills``: occurrences of the past are run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli import Refused, did_you_mean
from celery_sched.cli.access import actor, app_argument, client_of
from celery_sched.cli.output import coloured, in_zone, json_option, local, plain, print_json, print_table, say
from celery_sched.cli.progress import NOBODY, watch
from celery_sched.cli.run import scheduler_alive
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Backfill, BackfillPreview, BackfillStatus, Reprocess
from celery_sched.rules.backfill import MOST_CONCURRENT
from celery_sched.rules.schedules import check_zone

if TYPE_CHECKING:
    from celery_sched.client import Client


@click.command("backfill")
@click.argument("job")
@click.option("--from", "start", metavar="ISO", required=True, help="The first time; in the job's time zone.")
@click.option(
    "--to", "end", metavar="ISO", required=True, help="The last time, inclusive; a day: as much as has come."
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(1, MOST_CONCURRENT),
    default=1,
    show_default=True,
    help="At most so many of its runs at a time (overlap 'concurrent').",
)
@click.option(
    "--reprocess",
    type=click.Choice([one.value for one in Reprocess]),
    default=Reprocess.NONE.value,
    show_default=True,
    help="Which of those that have run are run again, as a new attempt.",
)
@click.option("--detach", is_flag=True, help="Do not wait for the end.")
@click.option("--dry-run", is_flag=True, help="Only say what there would be to do.")
@json_option
@click.pass_context
def backfill_command(
    ctx: click.Context,
    job: str,
    start: str,
    end: str,
    max_concurrent: int,
    reprocess: str,
    detach: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run the occurrences of JOB in a range of the past that never ran.

    Schedulers carry it out, behind everything else; it goes on without this command, and after a crash. Exit
    code 1 when runs of it failed.
    """
    client = client_of(ctx)
    options: dict[str, Any] = {"max_concurrent": max_concurrent, "reprocess": reprocess}
    preview = client.preview_backfill(job, start, end, **options)
    if dry_run:
        if as_json:
            print_json(plain(preview))
        else:
            for line in described(preview, max_concurrent, "would run", "leave"):
                click.echo(line)
        return
    made = client.backfill(job, start, end, by=actor(), **options)
    for line in described(preview, max_concurrent, "runs", "leaves"):
        say(line)
    if detach:
        print_backfill(made, as_json)
        if not scheduler_alive(client):
            say(NOBODY, colour="yellow")
        return
    follow(ctx, client, made, as_json)


@click.group("backfills", invoke_without_command=True)
@json_option
@click.pass_context
def backfills_command(ctx: click.Context, as_json: bool) -> None:
    """List backfills; watch or cancel one."""
    if ctx.invoked_subcommand is None:
        print_backfills(ctx, None, as_json)


@backfills_command.command("list")
@click.option(
    "--status", type=click.Choice([one.value for one in BackfillStatus]), help="Only those of this status."
)
@json_option
@click.pass_context
def list_command(ctx: click.Context, status: str | None, as_json: bool) -> None:
    """List backfills, newest first."""
    print_backfills(ctx, status, as_json)


@backfills_command.command("watch")
@click.argument("backfill")
@json_option
@click.pass_context
def watch_command(ctx: click.Context, backfill: str, as_json: bool) -> None:
    """Show how far BACKFILL (its id, or the beginning of it) is, until it has ended."""
    client = client_of(ctx)
    follow(ctx, client, find(client, backfill), as_json)


@backfills_command.command("cancel")
@click.argument("backfill")
@click.option("--running", is_flag=True, help="Stop its runs that are running too; else they finish.")
@click.option("--reason", metavar="TEXT", help="Why; kept with it and its runs.")
@json_option
@click.pass_context
def cancel_command(
    ctx: click.Context, backfill: str, running: bool, reason: str | None, as_json: bool
) -> None:
    """End BACKFILL (its id, or the beginning of it), with its runs that have not started."""
    client = client_of(ctx)
    found = find(client, backfill)
    if found.status is not BackfillStatus.RUNNING:
        raise Refused(f"backfill {found.id} is {found.status.value} already: there is nothing to cancel")
    print_backfill(client.cancel_backfill(found.id, by=actor(), reason=reason, running=running), as_json)


def find(client: Client, wanted: str) -> Backfill:
    """The backfill of that id, or beginning of an id."""
    known = client.backfills(limit=10_000)
    found = [one for one in known if wanted and one.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not found:
        near = did_you_mean(wanted, [one.id for one in known]).strip()
        raise NotFound("backfill", wanted, near or "See: sched backfills.")
    raise InvalidValue("BACKFILL", wanted, f"{len(found)} backfills begin so", "See: sched backfills.")


def described(preview: BackfillPreview, max_concurrent: int, runs: str, leaves: str) -> list[str]:
    """What is going to be done, in words."""
    many = "1 occurrence" if preview.total == 1 else f"{preview.total} occurrences"
    zone = check_zone(preview.timezone)
    span = f"at {in_zone(preview.first, zone)}"
    if preview.total > 1:
        span = f"from {in_zone(preview.first, zone)} to {in_zone(preview.last, zone)}"
    left = ", ".join(f"{status} {count}" for status, count in sorted(preview.left.items()))
    kept = f"{sum(preview.left.values())}{f' ({left})' if left else ''}"
    return [
        f"{preview.job}: {many}, {span}, {max_concurrent} at a time",
        f"{runs} {preview.new} new, {preview.again} again, {leaves} {kept}",
    ]


def follow(ctx: click.Context, client: Client, made: Backfill, as_json: bool) -> None:
    """Watch it to its end; Ctrl-C ends the watching only."""
    try:
        done = watch(ctx, client, made.id)
    except KeyboardInterrupt:
        app = app_argument(ctx) or "APP"
        say(
            f"\nThe backfill goes on. To watch it: celery -A {app} sched backfills watch {made.id}"
            f"\nTo end it: celery -A {app} sched backfills cancel {made.id}"
        )
        ctx.exit(1)
    print_backfill(done, as_json)
    if done.failed or done.status is not BackfillStatus.DONE:
        ctx.exit(1)


def backfill_json(found: Backfill) -> dict[str, Any]:
    """A backfill, with how many of its occurrences it is through with."""
    row: dict[str, Any] = plain(found)
    return {**row, "finished": found.finished}


def print_backfill(found: Backfill, as_json: bool) -> None:
    """Say how a backfill stands."""
    if as_json:
        print_json(backfill_json(found))
        return
    counts = {
        "succeeded": found.succeeded,
        "failed": found.failed,
        "cancelled": found.cancelled,
        "left as they were": found.left,
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    line = f"{found.id} {found.status.value}: {found.finished} of {found.total}" + (
        f", {said}" if said else ""
    )
    click.echo(line + (f" ({found.reason})" if found.reason else ""))


def print_backfills(ctx: click.Context, status: str | None, as_json: bool) -> None:
    """Every backfill that is still on record."""
    found = client_of(ctx).backfills(status)
    if as_json:
        print_json([backfill_json(one) for one in found])
        return
    if not found:
        say("There are no such backfills." if status else "There are no backfills.")
        return
    rows = [
        (
            one.id,
            (one.job, "bold"),
            coloured(one.status.value),
            f"{one.finished} of {one.total}",
            one.failed or "",
            local(one.from_at),
            local(one.to_at),
            one.created_by,
        )
        for one in found
    ]
    print_table(ctx, ("id", "job", "status", "finished", "failed", "from", "to", "by"), rows)
