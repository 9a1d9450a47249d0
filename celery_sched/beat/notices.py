"""Notices: what people want to be told is given to messages, off the tick."""

from __future__ import annotations

import logging
import threading

from celery_sched.errors import DatabaseUnavailable
from celery_sched.failpoints import failpoint
from celery_sched.runtime import Runtime
from celery_sched.steps.tell import Told, tell
from celery_sched.store import notices

logger = logging.getLogger("celery_sched.notify")
EVERY = 1.0
"""Seconds between two looks: one plain read each, that of an index."""


class Teller:
    """A thread that makes messages of what is new."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stop = threading.Event()
        self._unknown: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="sched-notices", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction that runs."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            try:
                for told in tell_all(self._runtime, self._stop):
                    self._report(told)
            except DatabaseUnavailable as error:
                logger.debug("notifications wait: %s", error)
            except Exception:
                logger.exception("notifications wait; it is tried again in %g s", EVERY)

    def _report(self, told: Told) -> None:
        for run_id, target, at in told.messages:
            logger.info("message to %r goes at %s UTC (run %s)", target, f"{at:%H:%M:%S}", run_id)
        for target in told.unknown:
            if target not in self._unknown:
                self._unknown.add(target)
                logger.error("jobs want to notify %r, which is not in sched_notify_targets", target)


def tell_all(runtime: Runtime, stop: threading.Event | None = None) -> list[Told]:
    """Decide on all that is new, in short transactions; what was decided in each."""
    found: list[Told] = []
    if not runtime.config.enabled:
        return found
    while stop is None or not stop.is_set():
        if not runtime.database.read(lambda tx, now: notices.any_new(tx, runtime.config.app)):
            break
        found.append(runtime.database.run(lambda tx, now: tell(tx, now, runtime.config)))
        failpoint("tell:committed")
        if not found[-1].more:
            break
    return found
