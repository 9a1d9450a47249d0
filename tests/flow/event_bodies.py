"""Bodies of the tests of events."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import shared_task

import celery_sched
from celery_sched import context, job

FOLDER = Path(os.environ["FLOW_FOLDER"])


def note(text: str) -> None:
    """Leave a mark that a test can read: what, this process, and when by a clock that all share."""
    with open(FOLDER / "marks", "a") as marks:
        marks.write(f"{text} {os.getpid()} {time.monotonic()}\n")


@shared_task(name="events.waits")
def waits(event: dict[str, Any]) -> str:
    """Is carried out until a file is there."""
    note(f"begins:{event['payload']}")
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    note(f"ends:{event['payload']}")
    return str(event["payload"])


@shared_task(name="events.asks_nothing", bind=True, max_retries=1)
def asks_nothing(self: Any, n: int) -> int:
    """Takes no event; fails at first, and asks Celery for a retry."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return n


@job(on="unused", name="publishing")
def publishes(ctx: celery_sched.Context, event: dict[str, Any]) -> Any:
    """Publishes by its context, and by the public function, which finds the run it is in."""
    first = ctx.publish("second", event["payload"], dedupe_key=ctx.run_id)
    assert context.current.get() is ctx
    return [first, celery_sched.publish("third", {"from": ctx.run_id}, key="k")]
