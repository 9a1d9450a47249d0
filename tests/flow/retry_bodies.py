"""Bodies of the retry tests: each behaves by the number of its attempt."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import shared_task

from celery_sched.context import current

FOLDER = Path(os.environ["FLOW_FOLDER"])


def begin(name: str) -> int:
    """Leave a mark; return the number of this attempt."""
    ctx = current.get()
    assert ctx is not None
    with open(FOLDER / "marks", "a") as marks:
        marks.write(f"{name} {os.getpid()} {ctx.attempt}\n")
    return ctx.attempt


class Refused(ConnectionError):
    """One of ours, below one of Python's."""


@shared_task(name="retry.until")
def until(attempt: int) -> int:
    """Fails before that attempt."""
    reached = begin("until")
    if reached < attempt:
        raise Refused(f"attempt {reached}")
    return reached


@shared_task(name="retry.ends")
def ends(how: str) -> str:
    """Ends its first attempt like that, and succeeds afterwards."""
    if begin("ends") > 1:
        return how
    match how:
        case "exit":
            os._exit(3)
        case "memory":
            raise MemoryError("as asked")
        case "kill worker":
            os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
    return "never"


@shared_task(name="retry.mixed", bind=True, max_retries=1)
def mixed(self: Any, value: int) -> tuple[int, int, int]:
    """Asks Celery for a retry with another argument at attempts 1 and 3, and fails at attempt 2."""
    attempt = begin("mixed")
    if attempt in (1, 3):
        raise self.retry(args=[value + 1], countdown=0)
    if attempt == 2:
        raise ValueError("in between")
    return value, attempt, self.request.retries
