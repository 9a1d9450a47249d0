"""``sched status`` and ``stop``: schedulers and workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from celery_sched.cli import Failed, did_you_mean
from celery_sched.cli.access import actor, client_of, database_now
from celery_sched.cli.output import distance, json_option, plain, print_json, print_table, say
from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Node, NodeId, NodeKind

if TYPE_CHECKING:
    from celery_sched.client import Client

POLL = 0.25
"""Seconds between two looks at which nodes are still there."""


@click.command("status")
@json_option
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Show schedulers, workers and what is in flight; exit code 1 when something is wrong."""
    status = client_of(ctx).status()
    if as_json:
        print_json(plain(status))
    else:
        now = database_now(ctx)
        nodes = [("scheduler", node) for node in status.schedulers] + [
            ("worker", node) for node in status.workers
        ]
        rows = [
            (kind, node.name, node.host, node.pid, distance(node.last_seen, now), (node.id, "dim"))
            for kind, node in nodes
        ]
        if rows:
            print_table(ctx, ("node", "name", "host", "pid", "last seen", "id"), rows)
            click.echo()
        overdue = f", the oldest for {status.oldest_due_seconds:.0f} s" if status.oldest_due_seconds else ""
        click.echo(f"in flight   {status.inflight} of {status.max_concurrent_jobs}")
        click.echo(f"runs        {status.running} running, {status.queued} queued")
        click.echo(f"due         {status.due}{overdue}")
        if status.unseen_notifications:
            count = status.unseen_notifications
            click.echo(f"unseen      {count} notifications (sched notifications --unseen)")
        click.echo(f"events      {status.events_waiting} waiting")
        dead = status.deliveries_dead
        click.echo(
            f"deliveries  {status.deliveries_pending} pending, "
            + click.style(f"{dead} dead", fg="yellow" if dead else None)
            + (" (sched deliveries --status dead)" if dead else "")
        )
        for one in status.backfills:
            click.echo(f"backfill    {one.job}: {one.finished} of {one.total} ({one.id})")
        click.echo(
            f"totals      {status.dispatched} dispatched, {status.swept} swept,"
            f" {status.at_capacity} at capacity, {status.lock_lost} locks lost,"
            f" {status.late_settlers} late settlers"
        )
        if status.drift_total:
            click.echo(
                f"drift       {status.drift} slots in Redis put right by the last polls,"
                f" {status.drift_total} since the schedulers started"
            )
        if status.healthy:
            click.secho("healthy", fg="green")
        else:
            click.secho("not healthy", fg="red", bold=True)
            for problem in status.problems:
                click.secho(f"  - {problem}", fg="red")
    if not status.healthy:
        ctx.exit(1)


@click.command("stop")
@click.argument("node", required=False)
@click.option("--all", "everyone", is_flag=True, help="Every scheduler and worker of the app.")
@click.option("--wait", is_flag=True, help="Wait until they have left: exit code 0, or 1 when they have not.")
@click.option(
    "--max-wait", metavar="DURATION", default="30s", show_default=True, help="Wait at most this long."
)
@click.pass_context
def stop_command(ctx: click.Context, node: str | None, everyone: bool, wait: bool, max_wait: str) -> None:
    """Stop a scheduler or worker: it plans and claims nothing more, then ends.

    NODE is its id, the beginning of its id, or its name, as `sched status` shows them.
    """
    if (node is None) != everyone:
        raise click.UsageError("name one NODE, or give --all", ctx)
    limit = parse_duration(max_wait, "--max-wait").total_seconds()
    client = client_of(ctx)
    nodes = client.nodes()
    leaving = nodes if node is None else [find_node(nodes, node)]
    if not leaving:
        say("There is nothing to stop: no scheduler and no worker is alive.")
        return
    deadline = time.monotonic() + limit
    # schedulers first: a worker has drained when nobody claims for it any more
    for kind in (NodeKind.SCHEDULER, NodeKind.WORKER):
        asked = [one for one in leaving if one.kind is kind]
        for one in asked:
            client.stop_nodes(one.id, by=actor())
            click.echo(f"asked {one.kind.value} {one.id} ({one.host}, pid {one.pid}) to stop")
        if wait and asked:
            wait_until_gone(client, {one.id: one for one in asked}, deadline, limit)
    if wait:
        click.echo("stopped")


def find_node(nodes: Sequence[Node], wanted: str) -> Node:
    """The node of that id, beginning of an id, or name."""
    exact = [node for node in nodes if wanted in (node.id, node.name)]
    found = exact or [node for node in nodes if node.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not found:
        names = [name for node in nodes for name in (node.id, node.name)]
        near = did_you_mean(wanted, names).strip()
        raise NotFound("scheduler or worker", wanted, near or "See: sched status.")
    raise InvalidValue("NODE", wanted, f"{len(found)} nodes begin so", "Give the whole id: see sched status.")


def wait_until_gone(client: Client, leaving: dict[NodeId, Node], deadline: float, limit: float) -> None:
    """Return when all have left; fail, naming those that have not, at the deadline (``limit`` seconds)."""
    while True:
        left = [node for node in client.nodes() if node.id in leaving]
        if not left:
            return
        rest = deadline - time.monotonic()
        if rest <= 0:
            names = ", ".join(f"{node.kind.value} {node.id} ({node.host}, pid {node.pid})" for node in left)
            raise Failed(f"still there after {limit:g} s: {names}. They stop when what they do is done.")
        time.sleep(min(POLL, rest))
