"""A body that shows when it is there: it writes all the time, and does not end when it is asked to."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import shared_task

from celery_sched.context import current

FOLDER = Path(os.environ["FLOW_FOLDER"])


@shared_task(name="tick.hangs")
def hangs(seconds: float) -> None:
    """Writes its run, its process and the time every 10 ms."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx = current.get()
    assert ctx is not None
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(FOLDER / "ticks", "a") as file:
            file.write(f"{ctx.run_id} {os.getpid()} {time.monotonic():.6f}\n")
        time.sleep(0.01)
