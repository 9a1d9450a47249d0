"""``sched pause``, ``resume`` and ``cancel``: jobs and runs are made to stop, and go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from celery_sched.cli import Refused
from celery_sched.cli.access import actor, client_of
from celery_sched.cli.jobs import print_job
from celery_sched.cli.output import job_json, json_option, print_json, run_json, say, short
from celery_sched.model import Run
from celery_sched.rules.transitions import ACTIVE, TERMINAL

if TYPE_CHECKING:
    from celery_sched.client import Client

every_job = click.option("--all", "everything", is_flag=True, help="Every job of the app.")
reason_option = click.option("--reason", metavar="TEXT", help="Why; kept, and shown.")


@click.command("pause")
@click.argument("job", required=False)
@every_job
@click.option(
    "--running",
    type=click.Choice(["keep", "cancel"]),
    default="keep",
    show_default=True,
    help="Its runs that are not finished: they go on, those that wait too; or all of them are stopped.",
)
@reason_option
@json_option
@click.pass_context
def pause_command(
    ctx: click.Context, job: str | None, everything: bool, running: str, reason: str | None, as_json: bool
) -> None:
    """Plan no more runs of JOB, or with --all of any job that is active."""
    _one_or_all(ctx, job, everything)
    client = client_of(ctx)
    told = f": {short(reason, 200)}" if reason else ""
    if job is None:
        done = client.pause_all(reason, running=running, by=actor())
        stopped = [client.get_run(one.run_id) for one in done.stopped]
        if as_json:
            print_json({"paused": list(done.jobs), "stopped": [run_json(run) for run in stopped]})
            return
        click.echo(f"paused {len(done.jobs)} job(s){told}")
        say("To go on: sched resume --all. It resumes these jobs, none that was paused before.")
        _print_stopped(client, stopped)
        return
    paused = client.pause(job, reason, running=running, by=actor())
    if as_json:
        print_json(job_json(paused))
        return
    click.echo(f"paused {paused.name}{told}")
    if running == "cancel":
        _print_stopped(client, [client.get_run(run_id) for run_id in paused.stopped])
    elif left := _unfinished(client, job):
        say(f"{len(left)} run(s) of it go on; to stop them too: sched pause {job} --running cancel")


@click.command("resume")
@click.argument("job", required=False)
@every_job
@json_option
@click.pass_context
def resume_command(ctx: click.Context, job: str | None, everything: bool, as_json: bool) -> None:
    """Plan runs of JOB again, from now on; with --all of the jobs that `pause --all` paused."""
    _one_or_all(ctx, job, everything)
    client = client_of(ctx)
    if job is not None:
        print_job(ctx, "resumed", client.resume(job, by=actor()), as_json)
        return
    names = client.resume_all(by=actor())
    if as_json:
        print_json(names)
        return
    click.echo(f"resumed {len(names)} job(s)")
    left = [other.name for other in client.list(status="paused")]
    if left:
        say(f"Paused by themselves, and still so: {', '.join(left[:10])}{', ...' if len(left) > 10 else ''}")


@click.command("cancel")
@click.argument("runs", metavar="RUN...", nargs=-1)
@click.option("--job", metavar="NAME", help="All runs of this job that are not finished, and its backfills.")
@reason_option
@json_option
@click.pass_context
def cancel_command(
    ctx: click.Context, runs: Sequence[str], job: str | None, reason: str | None, as_json: bool
) -> None:
    """Stop each RUN (its id, or the beginning of it).

    One that has not started is over at once, else its worker stops it.
    --json prints one run as an object, several (or those of --job) as a list.
    """
    if bool(runs) == (job is not None):
        raise click.UsageError("name one RUN or more, or give --job", ctx)
    client = client_of(ctx)
    if job is not None:
        stopped = client.cancel_job(job, by=actor(), reason=reason)
        if not stopped:
            say(f"Job {job} has no run that is not finished: there was nothing to stop.")
    else:
        meant = {run.id: run for run in map(client.find_run, runs)}
        wanted = list(meant)
        over = [run for run in meant.values() if run.status in TERMINAL]
        if len(over) == len(wanted):
            named = "; ".join(f"run {run.id} is {run.status} already" for run in over)
            raise Refused(f"{named}: there is nothing to stop")
        for run in over:
            say(f"run {run.id} is {run.status} already", colour="yellow")
        done = {run.id for run in over}
        stopped = [run for run in client.cancel_runs(wanted, by=actor(), reason=reason) if run.id not in done]
    if not as_json:
        _print_stopped(client, stopped)
    elif len(runs) == 1:
        print_json(run_json(stopped[0]))
    else:
        print_json([run_json(run) for run in stopped])


def _one_or_all(ctx: click.Context, job: str | None, everything: bool) -> None:
    if (job is None) != everything:
        raise click.UsageError("name one JOB, or give --all", ctx)


def _unfinished(client: Client, job: str) -> list[Run]:
    """Those of a job, 1,000 of each status at most."""
    return [run for status in sorted(ACTIVE) for run in client.runs(job, status, limit=1000)]


def _print_stopped(client: Client, stopped: Sequence[Run]) -> None:
    threads = {node.name for node in client.nodes() if node.facts.get("kills") is False}
    for run in stopped:
        if run.status in TERMINAL:
            click.echo(f"{run.id} {run.status}")
        elif run.worker in threads:
            click.echo(
                f"{run.id} {run.status}: it was asked to stop, but worker {run.worker} runs it in a thread, "
                "which cannot be killed: it goes on until it ends by itself or looks at ctx.lost. "
                "Its lock and its slot come back within a lease"
            )
        else:
            click.echo(f"{run.id} {run.status}: it was asked to stop, its worker stops it within a lease")
