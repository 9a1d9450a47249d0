"""``sched jobs apply`` and ``sched jobs export``: jobs in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from celery_sched.cli.access import actor, client_of
from celery_sched.cli.output import json_option, plain, print_json, say
from celery_sched.job_files import read_jobs, shown
from celery_sched.model import JobDefinition, Source
from celery_sched.store import job_forms


@click.command("apply")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
@click.pass_context
def apply_command(ctx: click.Context, files: Sequence[Path], dry_run: bool, as_json: bool) -> None:
    """Add or change the jobs that FILE (TOML, JSON or YAML) defines; all of them, or none.

    A file says all of a job: what it does not name is the default. Jobs that no file names stay as they are.
    """
    definitions: dict[str, JobDefinition] = {}
    for file in files:
        for definition in read_jobs(file):
            if definition.name in definitions:
                raise click.UsageError(f"job {definition.name!r} is in more than one of the files", ctx)
            definitions[definition.name] = definition
    done = client_of(ctx).apply(list(definitions.values()), dry_run=dry_run, by=actor())
    if as_json:
        print_json(plain(done) | {"changed": {name: list(fields) for name, fields in done.changed}})
        return
    would = "would be " if dry_run else ""
    for name in done.added:
        click.echo(f"{would}added {name}")
    for name, fields in done.changed:
        click.echo(f"{would}changed {name}: {', '.join(fields)}")
    click.echo(f"{len(done.added)} added, {len(done.changed)} changed, {len(done.unchanged)} unchanged")


@click.command("export")
@click.argument("names", nargs=-1, metavar="[JOB]...")
@click.pass_context
def export_command(ctx: click.Context, names: Sequence[str]) -> None:
    """Print jobs as a file that `apply` reads (JSON): those named, or all that do not come from code."""
    client = client_of(ctx)
    every = () if names else client.list()
    found = [client.get(name) for name in names] or [job for job in every if job.source is not Source.CODE]
    if len(every) > len(found):
        say(f"{len(every) - len(found)} jobs that come from code are left out: name those you want.")
    definitions = [job.definition for job in found]
    print_json({"jobs": [shown(one, job_forms.to_json(one)) for one in definitions]})
