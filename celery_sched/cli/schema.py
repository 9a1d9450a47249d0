"""``sched migrate`` and ``doctor``: is all that the scheduler needs there?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sched.cli.access import app_argument, app_of, runtime_of, sqlite_file
from celery_sched.cli.output import json_option, plain, print_json, print_table, say
from celery_sched.errors import SchemaMismatch

if TYPE_CHECKING:
    from celery_sched.runtime import Runtime

LEVEL_STYLES = {"ok": "green", "info": "", "warning": "yellow", "error": "red"}


@click.command("migrate")
@click.pass_context
def migrate_command(ctx: click.Context) -> None:
    """Create the tables, or bring them to this release; does nothing when they are."""
    from celery_sched.app import make_folders

    runtime = runtime_of(ctx)
    before, after = migrate(runtime)
    make_folders(app_of(ctx))
    url = runtime.database.shown
    if before == after:
        click.echo(f"{url} is up to date ({after})")
    else:
        click.echo(f"{url}: {before or 'empty'} -> {after}")


def migrate(runtime: Runtime) -> tuple[str | None, str]:
    """Bring the database to this release; the revisions before and after."""
    from celery_sched.store import schema

    file = sqlite_file(runtime)
    before = None
    if file is None or file.exists():
        before = runtime.database.read(lambda tx, now: schema.current(tx))
        if before is not None and before > schema.HEAD:
            raise SchemaMismatch(before, schema.HEAD, runtime.config.app)
    schema.upgrade(runtime.database.url.render_as_string(hide_password=False))
    return before, schema.HEAD


@click.command("doctor")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Check schema, rights, broker, clocks, schedulers and workers; exit code 1 when something is wrong."""
    from celery_sched import doctor

    runtime = runtime_of(ctx)
    file = sqlite_file(runtime)
    if file is not None and not file.exists():
        # opening it would make it, empty
        todo = f"run: celery -A {app_argument(ctx) or 'APP'} sched migrate"
        findings = [
            doctor.Finding("error", "schema", f"there is no database at {runtime.database.shown}; {todo}")
        ]
    else:
        findings = doctor.examine(runtime, app_of(ctx))
    if as_json:
        print_json(plain(findings))
    else:
        rows = [((one.level, LEVEL_STYLES.get(one.level, "")), one.subject, one.message) for one in findings]
        print_table(ctx, ("level", "subject", "what was found"), rows)
    wrong = [one for one in findings if one.level in ("warning", "error")]
    if wrong:
        say(f"{len(wrong)} of {len(findings)} findings need attention.", colour="red")
        ctx.exit(1)
