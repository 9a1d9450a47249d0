"""Deadlines are watched off the tick: who must have succeeded by now and has not."""

from __future__ import annotations

import logging
import threading
from datetime import datetime

from celery_sched.errors import DatabaseUnavailable
from celery_sched.model import JobId
from celery_sched.runtime import Runtime
from celery_sched.store import deadlines

logger = logging.getLogger("celery_sched.deadlines")
EVERY = 10.0
"""Seconds between two looks."""


class Watcher:
    """A thread that looks for jobs that have missed their ``must_succeed_by``.

    Every scheduler has one; of those that see a job miss its deadline, one says so.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._met: dict[JobId, datetime] = {}
        self._overdue: dict[JobId, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sched-deadlines", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that runs."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            try:
                self.watch()
            except DatabaseUnavailable as error:
                logger.debug("deadlines wait: %s", error)
            except Exception:
                logger.exception("deadlines could not be watched; it is tried again in %g s", EVERY)

    def watch(self) -> list[str]:
        """Look once; return what is told of the jobs that have missed a deadline now."""
        database, app, keep = self._runtime.database, self._runtime.config.app, self._runtime.config.keep_runs
        looked = database.read(lambda tx, now: deadlines.look(tx, now, app, keep, self._met))
        self._met = dict(looked.met)
        for job_id, name in self._overdue.items():
            if job_id not in looked.overdue:
                logger.info("action=deadline job=%s: it is no longer overdue", name)
        self._overdue = dict(looked.overdue)
        told = []
        for job_id, name in looked.suspects.items():
            if self._stop.is_set():
                break
            text = database.run(lambda tx, now, its=job_id: deadlines.judge(tx, now, its, keep))  # type: ignore[misc]
            if text is not None:
                logger.warning("action=deadline %s", text)
                self._overdue[job_id] = name
                told.append(text)
        return told
