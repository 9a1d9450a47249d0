"""The project's tasks. Each body leaves a line when it begins and when it ends.

So the tests count what really ran, whatever the tables say. The lines go to the file `bodies` in
E2E_FOLDER; a line is appended by one write, so lines of several processes never mix.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from celery import shared_task

from celery_sched import context, job

FOLDER = Path(os.environ["E2E_FOLDER"])
SLEEPER = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(3600)"


def note(what: str, **more: Any) -> None:
    """Append one line about the run whose body this is."""
    run = context.current.get()
    line = {
        "what": what,
        "job": run.job if run else None,
        "run": run.run_id if run else None,
        "attempt": run.attempt if run else None,
        "scheduled_for": run.scheduled_for.isoformat() if run else None,
        "at": time.time(),
        "pid": os.getpid(),
        **more,
    }
    file = os.open(FOLDER / "bodies", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def body(**more: Any) -> Iterator[None]:
    note("start", **more)
    yield
    note("end")


@shared_task
def fast() -> str:
    """Done at once."""
    with body():
        return "done"


@shared_task
def sleep(seconds: float) -> str:
    """Slow, but it ends."""
    with body():
        time.sleep(seconds)
    return "slept"


@shared_task
def fails_first() -> str:
    """Fails the first time, done at once from then on."""
    run = context.current.get()
    with body():
        if run is not None and run.attempt == 1:
            raise RuntimeError("the first attempt fails")
        return "done"


@shared_task
def beat_for(seconds: float) -> str:
    """Sends heartbeats all the time, and ends; what they raise is what it raises."""
    with body():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            context.heartbeat()
            time.sleep(0.1)
    return "beaten"


@shared_task
def hang_after_beats(beats: float) -> None:
    """Sends heartbeats for some seconds, and then never again."""
    with body():
        until = time.monotonic() + beats
        while time.monotonic() < until:
            context.heartbeat()
            time.sleep(0.1)
        note("silent")
        time.sleep(3600)


@shared_task
def hang() -> None:
    """Never ends, nor do the two processes it has started: one beside it, one in a session of its own."""
    children = [
        subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=own).pid for own in (False, True)
    ]
    with body(children=children):
        while True:
            time.sleep(3600)


@shared_task
def take(event: dict[str, Any]) -> str:
    """Takes an event, at once."""
    with taking([event]):
        return "taken"


@shared_task
def take_batch(events: list[dict[str, Any]]) -> str:
    """Takes several."""
    with taking(events):
        return "taken"


@shared_task
def take_slowly(event: dict[str, Any], seconds: float) -> str:
    """Takes an event, and its time."""
    with taking([event]):
        time.sleep(seconds)
    return "taken"


@shared_task
def take_and_hang(event: dict[str, Any]) -> None:
    """Takes an event and never ends."""
    with taking([event]):
        while True:
            time.sleep(3600)


@contextmanager
def taking(events: list[dict[str, Any]]) -> Iterator[None]:
    """A body that notes its events, and the worker it is in."""
    published = min(datetime.fromisoformat(event["published_at"]) for event in events)
    about: dict[str, Any] = {"events": [event["id"] for event in events], "parent": os.getppid()}
    note("start", **about, published_at=published.timestamp())
    yield
    note("end", **about)


@shared_task
def hang_once(name: str) -> str:
    """Never ends the first time, done at once from then on."""
    with body():
        try:
            (FOLDER / f"hung-{name}").touch(exist_ok=False)
        except FileExistsError:
            return "done"
        while True:
            time.sleep(3600)


@job("every 2s", name="ticker", overlap="concurrent", misfire="all", enabled=False)
def tick(ctx: context.Context) -> str:
    """Defined in code; a test that wants it resumes it."""
    with body(fence=ctx.fence):
        return ctx.run_id
