"""``sched next``: when a schedule is due. Pure: no database, no broker, no file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import click

from celery_sched.cli import preview
from celery_sched.cli.output import clean, console, instant, json_option, print_json, say
from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import check_zone, parse
from celery_sched.rules.schedules.zones import instant_of_wall

MOST = 10_000


@click.command("next")
@click.argument("schedule")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="Time zone of the schedule.")
@click.option(
    "--from",
    "start",
    metavar="ISO",
    help="Look strictly after this time (in --tz where it has no zone); now.",
)
@click.option(
    "-n", "count", type=click.IntRange(1, MOST), default=5, show_default=True, help="How many instants."
)
@click.option(
    "--name", default="", metavar="JOB", help="The job's name, which H in a cron expression hashes."
)
@click.option(
    "--dst", metavar="POLICY", default="vixie", help="When the clocks change: vixie (default), literal."
)
@click.option(
    "--day-mode",
    metavar="MODE",
    default="or",
    help="Both day fields of a cron expression: or (default), and.",
)
@click.option("--details", is_flag=True, help="Print JSON objects: local time, clock changes, notes.")
@json_option
@click.pass_context
def next_command(
    ctx: click.Context,
    schedule: str,
    tz: str,
    start: str | None,
    count: int,
    name: str,
    dst: str,
    day_mode: str,
    details: bool,
    as_json: bool,
) -> None:
    """Show when SCHEDULE is due.

    SCHEDULE is a cron expression such as "30 2 * * 1-5" or @daily, "every 5m", "after 5m",
    "once 2026-01-31T09:00:00Z", "rrule:FREQ=DAILY;BYHOUR=9" or "solar:sunset@52.52,13.40".
    """
    parsed = parse(schedule, tz=tz, name=name, dst=dst, day_mode=day_mode)
    begin = read_start(start, tz)
    found = preview.upcoming(parsed, begin, count)
    if as_json and not details:
        print_json([instant(when) for when in found])
        return
    zone = check_zone(tz)
    known = preview.shown(parsed, zone, begin, found, lambda at: at)
    if details:
        print_json([preview.details(one, zone) for one in known])
        return
    if known:
        print_lines(ctx, preview.lines(zone, known))
    if len(found) < count:
        say("It is never due again." if not found else "After that it is never due again.")


def print_lines(ctx: click.Context, lines: Iterable[preview.Line]) -> None:
    """Print lines as they are: never wrapped, so that what belongs together stays in one line."""
    from rich.text import Text

    to = console(ctx)
    for text, style in lines:
        to.print(Text(clean(text), style=style), soft_wrap=True)


def read_start(text: str | None, tz: str) -> datetime:
    """The instant of ``--from``; without it this machine's now (a preview decides nothing)."""
    if text is None:
        return datetime.now(UTC)  # noqa: TID251 - there is no database here whose clock could be asked
    try:
        given = datetime.fromisoformat(text.strip())
        return instant_of_wall(check_zone(tz), given) if given.tzinfo is None else given.astimezone(UTC)
    except InvalidValue:
        raise
    except (ValueError, OverflowError) as error:
        allowed = (
            'an ISO 8601 time such as "2026-01-31T09:00:00Z" or, in the zone of --tz, "2026-01-31T09:00"'
        )
        raise InvalidValue("--from", text, allowed) from error
