"""``celery -A APP sched ...``: a command group a file.

Every ``celery`` command imports this module (the ``celery.commands`` plugins are all loaded), so it imports
no other part of the scheduler; a command's file is imported when that command is run.

Exit codes: 0 done; 1 failed, or not healthy; 2 usage, or a value that is refused (then stdout is empty).
Data goes to stdout, talk to stderr.

Flower has no plugin hook: as this module is imported by ``celery -A APP flower`` too, it is here that Flower
gets our pages, before it starts.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from celery_sched.errors import AlreadyExists, InvalidConfig, InvalidValue, NotFound, SchedulerError

COMMANDS = {
    "backfill": "backfill",
    "backfills": "backfill",
    "cancel": "control",
    "deliveries": "events",
    "doctor": "schema",
    "events": "events",
    "jobs": "jobs",
    "jobtypes": "jobtypes",
    "migrate": "schema",
    "next": "next",
    "notifications": "notifications",
    "pause": "control",
    "pools": "pools",
    "publish": "events",
    "resume": "control",
    "retry": "run",
    "run": "run",
    "runs": "runs",
    "server": "server",
    "status": "nodes",
    "stop": "nodes",
    "why": "why",
}
"""Command -> the module of this package that holds it, in a variable ``<command>_command``."""

REFUSED = (AlreadyExists, InvalidConfig, InvalidValue, NotFound)


class Failed(click.ClickException):
    """Something did not work: exit code 1."""

    exit_code = 1


class Refused(click.ClickException):
    """A value that is not allowed: exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """The commands by name; each one's module is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, for help."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"celery_sched.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with the nearest names."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(
                f"no such command {args[0]!r}.{did_you_mean(args[0], sorted(COMMANDS))}", ctx
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what people did wrong, or what is away, is a message and never a traceback."""
        try:
            return super().invoke(ctx)
        except REFUSED as error:
            raise Refused(str(error)) from error
        except SchedulerError as error:
            raise Failed(str(error)) from error
        except OSError as error:
            if error.filename is None:  # not about a file: a closed pipe is click's to deal with
                raise
            raise Failed(
                f"{error.filename}: {error.strerror}. Commands need to read and write there; sched_home"
                " (CELERY_SCHED_HOME) and sched_database_url say where the scheduler keeps its files."
            ) from error
        except Exception as error:
            # told by its name: `sched next` does not pay for the import of a database toolkit
            if not type(error).__module__.startswith("sqlalchemy"):
                raise
            said = getattr(error, "orig", None) or error
            raise Failed(
                f"the database refused it: {said}. `celery -A APP sched doctor` names missing rights."
            ) from error


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name; empty when none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


@click.group(cls=Commands)
def sched() -> None:
    """Jobs, runs and schedulers of celery_sched."""


# Not `import`: the dashboard speaks the same JSON as the commands, so it imports from this package.
if "flower" in sys.argv and find_spec("flower") is not None:
    import_module("celery_sched.dashboard").install()
