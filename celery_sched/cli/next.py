"""``sched next``: when a schedule is due. Pure: no database, no broker, no file."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from celery_sched.cli.output import instant, json_option, print_json, print_table, say
from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import Schedule, check_zone, parse
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
@json_option
@click.pass_context
def next_command(
    ctx: click.Context, schedule: str, tz: str, start: str | None, count: int, name: str, as_json: bool
) -> None:
    """Show when SCHEDULE is due.

    SCHEDULE is a cron expression such as "30 2 * * 1-5" or @daily, "every 5m", "after 5m",
    "once 2026-01-31T09:00:00Z", "rrule:FREQ=DAILY;BYHOUR=9" or "solar:sunset@52.52,13.40".
    """
    parsed = parse(schedule, tz=tz, name=name)
    found = upcoming(parsed, read_start(start, tz), count)
    if as_json:
        print_json([instant(when) for when in found])
        return
    zone = check_zone(tz)
    if found:
        rows = [(f"{when.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", instant(when)) for when in found]
        print_table(ctx, (tz, "UTC"), rows)
    if len(found) < count:
        say("It is never due again." if not found else "After that it is never due again.")


def upcoming(schedule: Schedule, start: datetime, count: int) -> list[datetime]:
    """The first ``count`` instants strictly after ``start``; fewer where the schedule ends."""
    found: list[datetime] = []
    last = start
    while len(found) < count:
        following = schedule.next_after(last)
        if following is None:
            break
        found.append(following)
        last = following
    return found


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
