"""``sched pools``: named sets of slots."""

from __future__ import annotations

import click

from celery_sched.cli.access import actor, client_of
from celery_sched.cli.output import json_option, plain, print_json, print_table, say
from celery_sched.client.pools import PoolUse


@click.group("pools", invoke_without_command=True)
@json_option
@click.pass_context
def pools_command(ctx: click.Context, as_json: bool) -> None:
    """List the pools and how they are used; show, create, resize and delete one."""
    if ctx.invoked_subcommand is None:
        print_pools(ctx, as_json)


@pools_command.command("list")
@json_option
@click.pass_context
def list_command(ctx: click.Context, as_json: bool) -> None:
    """List the pools."""
    print_pools(ctx, as_json)


def print_pools(ctx: click.Context, as_json: bool) -> None:
    """Every pool of the app: its slots, those that are taken, and the runs that are queued."""
    pools = client_of(ctx).pools_in_use()
    if as_json:
        print_json(plain(pools))
    elif pools:
        rows = [
            ((pool.name, "bold"), pool.slots, pool.taken, pool.waiting, pool.heaviest or "") for pool in pools
        ]
        print_table(ctx, ("pool", "slots", "taken", "queued", "heaviest"), rows)
        for pool in pools:
            warn(pool)
    else:
        say("There are no pools yet: the first scheduler makes `default`.")


@pools_command.command("resize")
@click.argument("name")
@click.argument("slots", type=click.IntRange(min=0))
@json_option
@click.pass_context
def resize_command(ctx: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Set how many slots pool NAME has; what is active goes on."""
    client = client_of(ctx)
    old = {pool.name: pool.slots for pool in client.pools()}.get(name)
    client.resize_pool(name, slots, by=actor())
    if as_json:
        print_json({"name": name, "slots": slots, "old_slots": old})
    else:
        click.echo(f"pool {name}: {old} -> {slots} slots")
    warn(client.get_pool(name))


@pools_command.command("create")
@click.argument("name")
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    required=True,
    help="How many there are; a run takes its job's weight of them, 1 by default.",
)
@json_option
@click.pass_context
def create_command(ctx: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Make pool NAME, for jobs to name (sched jobs edit JOB --pool NAME)."""
    made = client_of(ctx).create_pool(name, slots, by=actor())
    if as_json:
        print_json(plain(made))
    else:
        click.echo(f"pool {made.name}: {made.slots} slots")


@pools_command.command("delete")
@click.argument("name")
@click.pass_context
def delete_command(ctx: click.Context, name: str) -> None:
    """Delete pool NAME, which no job uses any more."""
    client_of(ctx).delete_pool(name, by=actor())
    click.echo(f"deleted pool {name}")


@pools_command.command("show")
@click.argument("name")
@json_option
@click.pass_context
def show_command(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show the slots of pool NAME, what holds and what waits for them, and its jobs."""
    use = client_of(ctx).get_pool(name)
    if as_json:
        print_json(plain(use))
        return
    click.echo(f"slots      {use.slots}")
    click.echo(f"taken      {use.taken}, by {use.in_flight} run(s)")
    click.echo(f"queued     {use.waiting}")
    if use.heaviest:
        click.echo(f"heaviest   {use.heaviest} slot(s) a run")
    click.echo(f"jobs       {', '.join(use.jobs) or 'none'}")
    warn(use)


def warn(use: PoolUse) -> None:
    """Say which jobs need more slots than a pool has."""
    if use.too_heavy:
        names = ", ".join(use.too_heavy)
        say(
            f"pool {use.name} has {use.slots} slots, too few for a run of: {names}. They never start;"
            f" the largest weight is {use.heaviest}.",
            colour="yellow",
        )
