"""How far a backfill is: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from celery_sched.cli.output import say
from celery_sched.durations import format_duration
from celery_sched.errors import DatabaseUnavailable
from celery_sched.model import Backfill, BackfillId, BackfillStatus, NodeKind

if TYPE_CHECKING:
    from celery_sched.client import Client

LOOK = 0.5
"""Seconds between two looks."""
LINE = 5.0
"""Seconds between two lines in a pipe."""
LONE = 3.0
"""Seconds between two looks at whether a scheduler is alive."""
REMEMBERED = 120
"""Looks that the rate is made from: the last minute."""
NOBODY = "No scheduler is alive: the backfill waits until one starts (celery -A APP beat -S sched)."

Tell = Callable[[str], None]
Show = Callable[[Backfill, str], None]


def watch(ctx: click.Context, client: Client, backfill_id: BackfillId) -> Backfill:
    """Show how far a backfill is until it has ended. A database that is away for a while is waited for."""
    pace = Pace()
    alone, away, asked = False, False, 0.0
    with shown(ctx) as (show, tell):
        while True:
            try:
                found = client.get_backfill(backfill_id)
                away = False
                if time.monotonic() >= asked and found.status is BackfillStatus.RUNNING:
                    asked = time.monotonic() + LONE
                    nobody = not any(node.kind is NodeKind.SCHEDULER for node in client.nodes())
                    if nobody and not alone:
                        tell(NOBODY)
                    alone = nobody
            except DatabaseUnavailable as error:
                if not away:
                    tell(f"{error}; looking again")
                away = True
            else:
                show(found, pace.say(found))
                if found.status is not BackfillStatus.RUNNING:
                    return found
            time.sleep(LOOK)


class Pace:
    """How fast it is, from what was seen in the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)

    def say(self, found: Backfill) -> str:
        """``2 running, 1 waiting, 3 failed, 4.2/s, 5m left``."""
        self._seen.append((time.monotonic(), found.finished))
        failed = [f"{found.failed} failed"] if found.failed else []
        if found.status is not BackfillStatus.RUNNING:
            return ", ".join([f"{found.succeeded} succeeded", *failed])
        said = [f"{found.in_flight} running", *([f"{found.queued} waiting"] if found.queued else []), *failed]
        rate = self.rate()
        if rate > 0:
            said.append(f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min")
            left = timedelta(seconds=round(max(0, found.total - found.finished) / rate))
            said.append(f"{format_duration(left)} left")
        return ", ".join(said)

    def rate(self) -> float:
        """Occurrences a second."""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else 0.0


def shown(ctx: click.Context) -> AbstractContextManager[tuple[Show, Tell]]:
    """Where it is shown: on stderr, as stdout is for data."""
    return bar(ctx) if sys.stderr.isatty() else lines()


@contextmanager
def lines() -> Iterator[tuple[Show, Tell]]:
    """A line every few seconds, when something has changed, and at the end."""
    last: list[float | str] = [float("-inf"), ""]

    def show(found: Backfill, said: str) -> None:
        line = f"{found.job}: {found.finished} of {found.total}, {said}"
        over = found.status is not BackfillStatus.RUNNING
        if over or (time.monotonic() - float(last[0]) >= LINE and line != last[1]):
            last[:] = [time.monotonic(), line]
            say(line)

    yield show, say


@contextmanager
def bar(ctx: click.Context) -> Iterator[tuple[Show, Tell]]:
    """A bar that moves."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(
        stderr=True, no_color=bool(getattr(ctx.obj, "no_color", False)) or None, highlight=False, emoji=False
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, said="")

        def show(found: Backfill, said: str) -> None:
            progress.update(
                task, description=found.job, total=found.total, completed=found.finished, said=said
            )

        yield show, lambda text: console.print(text, style="yellow", markup=False)
