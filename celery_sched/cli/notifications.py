"""``sched notifications``: what people were told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli.access import actor, client_of, database_now
from celery_sched.cli.output import (
    coloured,
    distance,
    instant,
    json_option,
    local_and_distance,
    plain,
    print_json,
    print_table,
    say,
    short,
)
from celery_sched.model import NoticeStatus, Notification, RunId

if TYPE_CHECKING:
    from celery_sched.client import Client

UNSEEN = "new"
"""Marks what nobody has seen."""


def options(function: click.decorators.FC) -> click.decorators.FC:
    """What the list may be narrowed by."""
    for option in (
        json_option,
        click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most shown."),
        click.option("--job", metavar="NAME", help="Only of this job."),
        click.option("--unseen", is_flag=True, help="Only what nobody has marked as seen."),
    ):
        function = option(function)
    return function


@click.group("notifications", invoke_without_command=True)
@options
@click.pass_context
def notifications_command(
    ctx: click.Context, unseen: bool, job: str | None, limit: int, as_json: bool
) -> None:
    """List what people were told, newest first; show one, mark as seen, try a target."""
    if ctx.invoked_subcommand is None:
        print_notifications(ctx, unseen, job, limit, as_json)


@notifications_command.command("list")
@options
@click.pass_context
def list_command(ctx: click.Context, unseen: bool, job: str | None, limit: int, as_json: bool) -> None:
    """List what people were told."""
    print_notifications(ctx, unseen, job, limit, as_json)


def print_notifications(ctx: click.Context, unseen: bool, job: str | None, limit: int, as_json: bool) -> None:
    """The list."""
    found = client_of(ctx).notifications(unseen=unseen, job=job, limit=limit)
    if as_json:
        print_json(plain(found))
        return
    if not found:
        say("There is nothing that nobody has seen." if unseen else "There are no notifications.")
        return
    now = database_now(ctx)
    rows = [
        (
            *(str(one.id), distance(one.created_at, now), (one.title, "bold" if one.seen_at is None else "")),
            *(coloured(one.status.value), ", ".join(sorted(one.targets)), short(one.reason, 80)),
            UNSEEN if is_unseen(one) else "",
        )
        for one in found
    ]
    print_table(ctx, ("id", "when", "what", "status", "to", "why", ""), rows)


def is_unseen(one: Notification) -> bool:
    """Whether it is among what ``--unseen`` lists."""
    return one.seen_at is None and one.status.value != "suppressed"


@notifications_command.command("show")
@click.argument("notification_id", metavar="ID", type=int)
@json_option
@click.pass_context
def show_command(ctx: click.Context, notification_id: int, as_json: bool) -> None:
    """Show the text of one, and how it was sent to each target."""
    client = client_of(ctx)
    one = client.get_notification(notification_id)
    if as_json:
        print_json(plain(one))
        return
    now = database_now(ctx)
    lines: list[tuple[str, object]] = [
        ("title", one.title),
        ("kind", one.kind.value),
        ("job", one.job),
        ("run", one.about_run),
        ("when", local_and_distance(one.created_at, now)),
        ("status", one.status.value),
        ("why", one.reason),
        ("seen", "" if one.seen_at is None else instant(one.seen_at)),
    ]
    for name, sent in sorted(one.targets.items()):
        lines.append((f"to {name}", sent_how(client, sent)))
    print_table(ctx, ("field", "value"), [((key, "bold"), value) for key, value in lines if value])
    click.echo()
    click.echo(one.text)


def sent_how(client: Client, sent: Mapping[str, Any]) -> str:
    """How it went to one target: ``sent (run ...)``, ``failed: no such target``; the last failure so far."""
    run = f" (run {sent['run']})" if sent.get("run") else ""
    reason = f": {sent['reason']}" if sent.get("reason") else ""
    if run and sent["status"] == NoticeStatus.SENDING:
        tried = client.attempts(RunId(sent["run"]))
        if tried:
            last = tried[-1]
            why = (last.error or last.reason or "").strip().rpartition("\n")[2]
            reason = f": attempt {last.attempt} {last.status}: {short(why, 200)}"
    return f"{sent['status']}{run}{reason}"


@notifications_command.command("seen")
@click.argument("ids", metavar="[ID...]", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that there are now.")
@click.pass_context
def seen_command(ctx: click.Context, ids: tuple[int, ...], everything: bool) -> None:
    """Mark some as seen, or all."""
    if bool(ids) == everything:
        raise click.UsageError("give the ID of one or more, or --all", ctx)
    count = client_of(ctx).see_notifications(None if everything else list(ids), by=actor())
    click.echo(f"{count} marked as seen")


@notifications_command.command("test")
@click.argument("target")
@click.pass_context
def test_command(ctx: click.Context, target: str) -> None:
    """Send a test to TARGET now, from here, and say what happens.

    Secrets that it refers to are looked up here; workers have an environment of their own.
    """
    count = client_of(ctx).test_target(target)
    click.echo(f"sent a test to {target} ({count} URL{'' if count == 1 else 's'})")
