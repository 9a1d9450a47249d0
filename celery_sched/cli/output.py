"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

if TYPE_CHECKING:
    from rich.console import Console

    from celery_sched.model import Attempt, Job, Run

WIDTH_OF_FILES = 1000
"""Columns of a table that goes into a file or a pipe: nothing is cut or wrapped, a row is a line."""

Line = tuple[str, str]
"""A text and its style."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


# For programs


def instant(value: datetime) -> str:
    """UTC as ``2026-01-31T09:00:00Z``; with the fraction only when it is not zero."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A value as JSON has it: instants as text, durations in seconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds == int(seconds) else seconds
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(inner) for inner in value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value


def job_json(job: Job) -> dict[str, Any]:
    """A job with its definition beside its statistics, flat."""
    row = plain(job)
    definition = row.pop("definition")
    del row["id"]  # an internal number; a job's name is its identity
    return {"name": definition.pop("name"), "app": row.pop("app"), **definition, **row}


def run_json(run: Run) -> dict[str, Any]:
    """A run; ``result`` as the value that the task returned (text, where it was cut at its limit)."""
    row: dict[str, Any] = plain(run)
    row["result"] = result_value(run)
    return row


def run_view_json(
    run: Run, waits: str | None, earlier: Sequence[Attempt], put_right: Sequence[Run]
) -> dict[str, Any]:
    """A run with what it waits for, its earlier attempts and what puts it right."""
    return {
        **run_json(run),
        "waits": waits,
        "attempts": plain(earlier),
        "put_right_by": [run_json(one) for one in put_right],
    }


def result_value(run: Run) -> Any:
    """What the task returned."""
    if run.result is None:
        return None
    try:
        return json.loads(run.result)
    except ValueError:
        return run.result  # cut at its limit


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


# For people


def say(text: str, *, colour: str | None = None) -> None:
    """Talk: on stderr, so that stdout holds data only."""
    click.secho(clean(text), err=True, fg=colour)


def clean(text: str) -> str:
    """Text without what would steer a terminal: what a job printed must not."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def short(text: str | None, limit: int) -> str:
    """The first line, at most ``limit`` characters."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def console(ctx: click.Context) -> Console:
    """Where tables go: stdout, coloured only on a terminal."""
    from rich.console import Console

    colourless = bool(getattr(ctx.obj, "no_color", False))
    width = None if sys.stdout.isatty() else WIDTH_OF_FILES
    return Console(no_color=colourless or None, width=width, highlight=False, emoji=False)


def print_table(ctx: click.Context, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows below their column names. A cell may be a ``(text, style)`` pair."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns, 1):
        # the first, a name or an id, stays in one piece, so that it can be copied
        table.add_column(column, overflow="fold", no_wrap=place == 1 or column == "status")
    for row in rows:
        cells = [cell if isinstance(cell, tuple) else (cell, "") for cell in row]
        table.add_row(*(Text(clean("" if text is None else str(text)), style=style) for text, style in cells))
    console(ctx).print(table)


def print_lines(ctx: click.Context, lines: Iterable[Line]) -> None:
    """Print lines as they are: never wrapped, so that what stands in one line stays in one."""
    from rich.text import Text

    to = console(ctx)
    for text, style in lines:
        to.print(Text(clean(text), style=style), soft_wrap=True)


STYLES = {
    "active": "green",
    "succeeded": "green",
    "running": "cyan",
    "dispatched": "cyan",
    "queued": "blue",
    "paused": "yellow",
    "skipped": "yellow",
    "cancelled": "yellow",
    "disabled": "dim",
    "expired": "dim",
    "error": "red",
    "failed": "red",
    "timed_out": "red",
    "lost": "red",
}


def coloured(status: str | None) -> tuple[str, str]:
    """A status as a cell."""
    return (status or "", STYLES.get(status or "", ""))


def local(value: datetime | None) -> str:
    """An instant in the zone of this machine, which is named: ``2026-01-31 09:00:00 CET``."""
    return "" if value is None else f"{value.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def in_zone(value: datetime, zone: ZoneInfo) -> str:
    """An instant in a zone, with six digits more where it has a fraction."""
    shown = value.astimezone(zone)
    return f"{shown:%Y-%m-%d %H:%M:%S}{f'{shown:.%f}' if shown.microsecond else ''} {shown:%Z}"


def distance(value: datetime, now: datetime) -> str:
    """How far away an instant is, in its one or two largest units: ``in 3m``, ``2h5m ago``."""
    seconds = round(abs((value - now).total_seconds()))
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount:
            parts.append(f"{amount}{unit}")
        elif parts:
            break  # 2h and 5 s is 2h
        if unit == "d" and amount > 1:
            break
    text = "".join(parts[:2])
    if not text:
        return "now"
    return f"in {text}" if value > now else f"{text} ago"


def local_and_distance(value: datetime | None, now: datetime) -> str:
    """``2026-01-31 09:00:00 CET (in 3m)``."""
    return "" if value is None else f"{local(value)} ({distance(value, now)})"
