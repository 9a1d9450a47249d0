"""``sched pools``: named sets of slots."""

from __future__ import annotations

import click

from celery_sched.cli.access import actor, client_of
from celery_sched.cli.output import json_option, plain, print_json, print_table, say


@click.group("pools", invoke_without_command=True)
@json_option
@click.pass_context
def pools_command(ctx: click.Context, as_json: bool) -> None:
    """List the pools; resize one."""
    if ctx.invoked_subcommand is None:
        print_pools(ctx, as_json)


@pools_command.command("list")
@json_option
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> None:
    """List the pools."""
    print_pools(ctx, as_json)


def print_pools(ctx: click.Context, as_json: bool) -> None:
    """Every pool of the app with its slots."""
    pools = client_of(ctx).pools()
    if as_json:
        print_json(plain(pools))
    elif pools:
        print_table(ctx, ("pool", "slots"), [((pool.name, "bold"), pool.slots) for pool in pools])
    else:
        say("There are no pools yet: the first scheduler makes `default`.")


@pools_command.command("resize")
@click.argument("name")
@click.argument("slots", type=click.IntRange(min=0))
@json_option
@click.pass_context
def resize_command(ctx: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Set how many runs of pool NAME may be active at once; what is active goes on."""
    client = client_of(ctx)
    old = {pool.name: pool.slots for pool in client.pools()}.get(name)
    client.resize_pool(name, slots, by=actor())
    if as_json:
        print_json({"name": name, "slots": slots, "old_slots": old})
    else:
        click.echo(f"pool {name}: {old} -> {slots} slots")
