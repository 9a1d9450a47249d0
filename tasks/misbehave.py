"""Two jobs that misbehave on demand, to see what a scheduler does about them. Off until run by hand:

celery -A celery_sched sched run slow
celery -A celery_sched sched run hung
"""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress

from celery_sched import job


@job("0 0 * * *", name="slow", enabled=False, description="Sleeps 25 s, then succeeds")
def slow(seconds: float = 25) -> dict[str, float]:
    """Take ``seconds``, doing nothing."""
    threading.Event().wait(seconds)
    return {"slept": seconds}


@job("0 0 * * *", name="hung", enabled=False, description="Never ends, ignores SIGTERM, has a child process")
def hung() -> None:
    """Hang as badly as a job can: deaf to SIGTERM, and with a child that is deaf too and outlives it."""
    with suppress(ValueError):  # signals belong to the main thread: a thread pool's job cannot be deaf
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "infinity"]):  # inherits the deafness
        threading.Event().wait()
