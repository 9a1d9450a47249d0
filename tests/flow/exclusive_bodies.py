"""Bodies of exclusive runs, which leave a line with their fencing number for as long as they live."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from itertools import repeat
from pathlib import Path

from celery import shared_task

from celery_sched.context import current

FOLDER = Path(os.environ["FLOW_FOLDER"])


def line() -> None:
    """One more line: the fencing number, this process, and the time of a clock that all processes share."""
    ctx = current.get()
    assert ctx is not None
    file = os.open(FOLDER / "fences", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{ctx.fence} {os.getpid()} {time.monotonic()}\n".encode())
    finally:
        os.close(file)


@shared_task(name="exclusive.writes")
def writes(seconds: float) -> str:
    """A line every 100 ms, for some seconds. SIGTERM does not end it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        line()
        time.sleep(0.1)
    return "written"


@shared_task(name="exclusive.locks")
def locks() -> None:
    """In C code that holds the interpreter's lock for ever: no thread of this process runs again."""
    line()
    deque(repeat(None), maxlen=0)
