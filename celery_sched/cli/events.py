"""``sched publish``, ``events`` and ``deliveries``: what is published, and its way to the jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli import Refused
from celery_sched.cli.access import actor, client_of, database_now
from celery_sched.cli.output import (
    distance,
    json_option,
    local_and_distance,
    plain,
    print_json,
    print_table,
    say,
    short,
)
from celery_sched.errors import InvalidValue
from celery_sched.model import DeliveryStatus

if TYPE_CHECKING:
    from celery_sched.client import Client
    from celery_sched.steps.redeliver import Redelivered

COLOURS = {"delivered": "green", "dead": "red", "taken": "cyan", "dropped": "yellow"}
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most this many."
)


@click.command("publish")
@click.argument("topic")
@click.option("--payload", metavar="JSON", help="What the event says: any JSON, at most 64 KiB.")
@click.option("--key", metavar="TEXT", help="What it is about: of one key only the latest may count.")
@click.option("--dedupe-key", metavar="TEXT", help="Published once, however often it is tried.")
@json_option
@click.pass_context
def publish_command(
    ctx: click.Context,
    topic: str,
    payload: str | None,
    key: str | None,
    dedupe_key: str | None,
    as_json: bool,
) -> None:
    """Publish an event on TOPIC: the jobs that subscribe to it (--on) run."""
    value = None if payload is None else read_payload(payload)
    event_id = client_of(ctx).publish(topic, value, key=key, dedupe_key=dedupe_key)
    if as_json:
        print_json({"id": event_id, "topic": topic, "published": event_id is not None})
    elif event_id is None:
        click.echo(f"{topic}: an event with the dedupe key {dedupe_key!r} is there already")
    else:
        click.echo(f"published {event_id} on {topic}")


def read_payload(text: str) -> Any:
    """JSON, as it was typed."""
    try:
        return json.loads(text)
    except ValueError as error:
        allowed = """it is JSON, such as '{"order": 7}' or '"a text"'"""
        raise InvalidValue("--payload", text, allowed, f"It cannot be read: {error}.") from error


@click.command("events")
@click.option("--topic", metavar="TOPIC", help='Only of this topic, or of a pattern ("orders.*").')
@click.option("--waiting", is_flag=True, help="Only those that are not handed out yet.")
@limit_option
@json_option
@click.pass_context
def events_command(ctx: click.Context, topic: str | None, waiting: bool, limit: int, as_json: bool) -> None:
    """List events, newest first, and what became of them."""
    found = client_of(ctx).events(topic, waiting=waiting, limit=limit)
    if as_json:
        print_json([plain(event) for event in found])
        return
    if not found:
        say("There are no events." if not waiting else "No event waits.")
        return
    now = database_now(ctx)
    rows = [
        (
            (event.id, "bold"),
            short(event.topic, 60),  # plain SQL may put anything there
            short(event.key, 60),
            "" if event.published_at is None else distance(event.published_at, now),
            told(event.deliveries) if event.fanned_out_at is not None else "waits",
            short(json.dumps(event.payload, ensure_ascii=False), 60),
        )
        for event in found
    ]
    print_table(ctx, ("id", "topic", "key", "published", "deliveries", "payload"), rows)


def told(deliveries: Any) -> str:
    """``2 delivered, 1 dead``."""
    return ", ".join(f"{count} {status}" for status, count in sorted(deliveries.items())) or "none"


job_option = click.option("--job", metavar="NAME", help="Only those of this job.")
status_option = click.option(
    "--status", type=click.Choice([status.value for status in DeliveryStatus]), help="Only of this status."
)


@click.group("deliveries", invoke_without_command=True)
@job_option
@status_option
@limit_option
@json_option
@click.pass_context
def deliveries_command(
    ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool
) -> None:
    """List deliveries, newest first; retry and drop them."""
    if ctx.invoked_subcommand is None:
        print_deliveries(ctx, job, status, limit, as_json)


@deliveries_command.command("list")
@job_option
@status_option
@limit_option
@json_option
@click.pass_context
def list_command(ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """List deliveries, newest first."""
    print_deliveries(ctx, job, status, limit, as_json)


def print_deliveries(
    ctx: click.Context, job: str | None, status: str | None, limit: int, as_json: bool
) -> None:
    """Events on their way to jobs, and those that are there, or will never be."""
    found = client_of(ctx).deliveries(job, status, limit)
    if as_json:
        print_json([plain(one) for one in found])
        return
    if not found:
        say("There are no deliveries." if status is None else f"There are no deliveries that are {status}.")
        return
    now = database_now(ctx)
    rows = [
        (
            one.id,
            one.job or ("deleted", "dim"),
            one.topic,
            one.event_id,
            (one.status.value, COLOURS.get(one.status.value, "")),
            local_and_distance(one.created_at, now),
            one.run_id,
            short(one.reason, 80),
        )
        for one in found
    ]
    columns = ("id", "job", "topic", "event", "status", "made", "run", "reason")
    print_table(ctx, columns, rows)


@deliveries_command.command("retry")
@click.argument("deliveries", metavar="DELIVERY...", nargs=-1)
@click.option("--job", metavar="NAME", help="All dead deliveries of this job.")
@json_option
@click.pass_context
def retry_command(ctx: click.Context, deliveries: Sequence[str], job: str | None, as_json: bool) -> None:
    """Have each DELIVERY (its id, or the beginning of it) that is dead or dropped go its way again."""
    client = client_of(ctx)
    ids = _ids(ctx, client, deliveries, job)
    done = client.retry_deliveries(ids, job=job, by=actor())
    _told(done, "goes its way again", job, as_json)


@deliveries_command.command("drop")
@click.argument("deliveries", metavar="DELIVERY...", nargs=-1)
@click.option("--job", metavar="NAME", help="All deliveries of this job that wait or are dead.")
@click.option("--reason", metavar="TEXT", help="Why; kept, and shown.")
@json_option
@click.pass_context
def drop_command(
    ctx: click.Context, deliveries: Sequence[str], job: str | None, reason: str | None, as_json: bool
) -> None:
    """Give up each DELIVERY (its id, or the beginning of it) that waits or is dead."""
    client = client_of(ctx)
    ids = _ids(ctx, client, deliveries, job)
    done = client.drop_deliveries(ids, job=job, reason=reason, by=actor())
    _told(done, "is dropped", job, as_json)


def _ids(ctx: click.Context, client: Client, given: Sequence[str], job: str | None) -> list[str]:
    if bool(given) == (job is not None):
        raise click.UsageError("name one DELIVERY or more, or give --job", ctx)
    return [client.find_delivery(one).id for one in given]


def _told(done: Redelivered, what: str, job: str | None, as_json: bool) -> None:
    refused = "; ".join(f"delivery {one}: {reason}" for one, reason in done.refused)
    if done.refused and not done.done:
        raise Refused(refused)
    if as_json:
        print_json({"done": list(done.done), "refused": dict(done.refused)})
        return
    if refused:
        say(refused, colour="yellow")
    if not done.done:
        say(f"Job {job} has no such delivery.")
    for one in done.done:
        click.echo(f"{one} {what}")
