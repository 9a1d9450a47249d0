"""``sched run`` and ``retry``: runs are asked for, and waited for."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli import Failed, Refused
from celery_sched.cli.access import actor, client_of
from celery_sched.cli.definition import read_json
from celery_sched.cli.output import json_option, print_json, result_value, run_json, say, short
from celery_sched.cli.runs import took
from celery_sched.durations import format_duration, parse_duration
from celery_sched.model import ManualRun, NodeKind, Run
from celery_sched.rules.transitions import TERMINAL, RunStatus

if TYPE_CHECKING:
    from celery_sched.client import Client

SLICE = 1.0
"""Seconds of waiting between two looks at whether a scheduler is alive."""
GRACE = 10.0
"""Seconds that ``--wait`` without a time-out waits for a first scheduler."""
wait_option = click.option(
    "--wait", is_flag=True, help="Wait for the outcome: exit code 0 when it succeeded, else 1."
)
timeout_option = click.option(
    "--timeout", metavar="DURATION", help="With --wait: wait at most this long, then exit with 1."
)


@click.command("run")
@click.argument("job")
@click.option("--args", metavar="JSON", help="Other arguments than the job's, a JSON list.")
@click.option("--kwargs", metavar="JSON", help="Other keyword arguments than the job's, a JSON object.")
@wait_option
@timeout_option
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    job: str,
    args: str | None,
    kwargs: str | None,
    wait: bool,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Run JOB now, beside its schedule."""
    limit = read_timeout(ctx, wait, timeout)
    given = {
        "args": None if args is None else read_json(args, "--args", list, "list"),
        "kwargs": None if kwargs is None else read_json(kwargs, "--kwargs", dict, "object"),
    }
    client = client_of(ctx)
    run = client.run(job, by=actor(), **given)
    for replaced in run.replaces:
        say(f"run {replaced} was stopped for it: it starts when that is gone")
    if not wait:
        if as_json:
            print_json(run_json(run))
        else:
            click.echo(f"{run.id} {run.status}: {standing(run)}")
        if not scheduler_alive(client):
            say(NO_SCHEDULER, colour="yellow")
        return
    say(f"run {run.id} of {job}: {standing(run)}")
    finish(ctx, client, run, limit, as_json)


@click.command("retry")
@click.argument("run")
@wait_option
@timeout_option
@json_option
@click.pass_context
def retry_command(ctx: click.Context, run: str, wait: bool, timeout: str | None, as_json: bool) -> None:
    """Carry out RUN (its id, or the beginning of it) again, however it ended: a new attempt of it."""
    limit = read_timeout(ctx, wait, timeout)
    client = client_of(ctx)
    before = client.find_run(run)
    if before.status not in TERMINAL:
        raise Refused(
            f"run {before.id} is {before.status}: it is not over yet (to stop it: sched cancel {before.id})"
        )
    again = client.retry(before.id, by=actor())
    if wait:
        say(f"run {again.id} of {again.job}: attempt {again.attempt}")
        finish(ctx, client, again, limit, as_json)
        return
    if as_json:
        print_json(run_json(again))
    else:
        click.echo(
            f"{again.id} {again.status}: attempt {again.attempt} of {again.job}; before, it {ended(before)}"
        )
    if not scheduler_alive(client):
        say(NO_SCHEDULER, colour="yellow")


def ended(run: Run) -> str:
    """How a run that is over ended, as a verb."""
    verb = str(run.status).replace("_", " ")
    return f"was {verb}" if run.status in (RunStatus.CANCELLED, RunStatus.LOST, RunStatus.SKIPPED) else verb


def read_timeout(ctx: click.Context, wait: bool, timeout: str | None) -> float | None:
    """``--timeout`` in seconds."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait", ctx)
    return None if timeout is None else parse_duration(timeout, "--timeout").total_seconds()


def finish(ctx: click.Context, client: Client, run: Run, limit: float | None, as_json: bool) -> None:
    """Wait for a run and say how it ended: exit code 1 unless it succeeded."""
    finished = wait_for(client, run, limit)
    print_run(finished, as_json)
    if finished.status != RunStatus.SUCCEEDED:
        ctx.exit(1)


def standing(run: ManualRun) -> str:
    """Whether it starts at once, or what it waits for."""
    return "it starts at the next poll" if run.waits is None else f"it waits {run.waits}"


NO_SCHEDULER = "No scheduler is alive: the run stays queued until one starts (celery -A APP beat -S sched)."


def scheduler_alive(client: Client) -> bool:
    """Whether anybody is there to start a run."""
    return any(node.kind is NodeKind.SCHEDULER for node in client.nodes())


def wait_for(client: Client, run: Run, limit: float | None) -> Run:
    """Wait until the run is finished; say at once when nobody is there to start it.

    :param limit: seconds; None: as long as it takes, but with no scheduler alive only ``GRACE``.
    """
    begun = time.monotonic()
    told = False
    while True:
        alone = not scheduler_alive(client)
        if alone and not told:
            say(NO_SCHEDULER, colour="yellow")
        told = alone
        waited = time.monotonic() - begun
        most = (GRACE if alone else None) if limit is None else limit
        if most is not None and waited >= most:
            current = client.get_run(run.id)
            if current.status in TERMINAL:
                return current
            shown = format_duration(timedelta(seconds=round(waited)))
            raise Failed(
                f"run {run.id} is still {current.status} after {shown};"
                f" it was not stopped (to stop it: sched cancel {run.id})"
            )
        try:
            return client.wait(run.id, timeout=min(SLICE, SLICE if most is None else most - waited))
        except TimeoutError:
            continue
        except KeyboardInterrupt:
            say(f"Not waiting any longer; run {run.id} was not stopped.")
            raise


def print_run(run: Run, as_json: bool) -> None:
    """Say how a run stands."""
    if as_json:
        print_json(run_json(run))
        return
    line = f"{run.id} {run.status}"
    if took(run):
        line += f" in {took(run)}"
    if run.reason:
        line += f": {run.reason}"
    click.echo(short(line, 1000))
    value: Any = result_value(run)
    if value is not None:
        say(f"result: {short(str(value), 1000)}")
    if run.error:
        say(run.error.rstrip(), colour="red")
