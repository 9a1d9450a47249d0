"""``sched why``: what happened to an occurrence of a job, or why nothing did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_sched.cli.access import app_argument, client_of
from celery_sched.cli.output import STYLES, console, json_option, plain, print_json, run_json
from celery_sched.errors import NotFound
from celery_sched.rules.why import Outcome, Why

if TYPE_CHECKING:
    from celery_sched.client import Client

_STYLES = {
    Outcome.RAN: "succeeded",
    Outcome.RUNNING: "running",
    Outcome.WAITING: "queued",
    Outcome.FUTURE: "queued",
    Outcome.MISSED: "error",
    Outcome.ERROR: "error",
    Outcome.NOT_STARTED: "error",
    Outcome.UNPLANNED: "error",
    Outcome.UNRECORDED: "error",
}


@click.command("why")
@click.argument("job", metavar="JOB|RUN")
@click.argument("time", metavar="[TIME]", required=False)
@json_option
@click.pass_context
def why_command(ctx: click.Context, job: str, time: str | None, as_json: bool) -> None:
    """Say what happened to JOB at TIME (now), or why nothing did; or what became of one run.

    RUN is its id, or the beginning of it. TIME is a time in the job's zone such as 2026-01-31T09:00, or 09:00
    (today), or now; or one with a zone of its own: 2026-01-31T08:00:00Z.
    """
    client = client_of(ctx)
    found = client.why(job, time or "now") if time or _is_job(client, job) else _of_run(client, job)
    if as_json:
        print_json(why_json(found))
        return
    print_why(ctx, found)


def _is_job(client: Client, name: str) -> bool:
    try:
        client.get(name)
    except NotFound:
        return False
    return True


def _of_run(client: Client, text: str) -> Why:
    try:
        return client.why_run(client.find_run(text).id)
    except NotFound as error:
        raise NotFound("job or run", text, "See: sched jobs, sched runs.") from error


def why_json(found: Why) -> dict[str, Any]:
    """The answer for programs."""
    return {**plain(found), "run": None if found.run is None else run_json(found.run)}


def print_why(ctx: click.Context, found: Why) -> None:
    """The answer for people."""
    from rich.text import Text

    from celery_sched.cli.output import clean

    style = STYLES.get(_STYLES.get(found.outcome, "skipped"), "")
    to = console(ctx)
    heading = f"{found.outcome.value.replace('_', ' ')}: {found.job} at {found.about}"
    to.print(Text(clean(heading), style=f"bold {style}"), soft_wrap=True)
    for text in (*found.notes, found.text):
        to.print(Text(clean(text)))
    if found.next_steps:
        to.print(Text("Next:", style="dim"))
    app = app_argument(ctx) or "APP"
    for step in found.next_steps:
        to.print(Text(clean(f"  celery -A {app} {step}")), soft_wrap=True)
