"""Prune: old rows are deleted in small batches, off the tick."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from celery_sched.errors import DatabaseUnavailable
from celery_sched.runtime import Runtime
from celery_sched.store import audit, backfills, events, gaps, nodes, notices, runs, subscriptions

logger = logging.getLogger("celery_sched.prune")
BATCH = 500
EVERY = 300.0
"""Seconds between two rounds."""
FIRST = 10.0
NODES_KEPT = timedelta(hours=1)
"""How long a process that vanished is still listed."""


class Pruner:
    """A thread that deletes finished runs older than ``sched_keep_runs``, and what else is out of date."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sched-prune", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch that runs."""
        self._stop.set()

    def _run(self) -> None:
        pause = FIRST
        while not self._stop.wait(pause):
            pause = EVERY
            try:
                count = prune(self._runtime, self._stop)
                if count:
                    logger.info("action=prune runs=%d", count)
            except DatabaseUnavailable as error:
                logger.debug("pruning waits: %s", error)
            except Exception:
                logger.exception("pruning failed; it is tried again in %g s", EVERY)


def prune(runtime: Runtime, stop: threading.Event | None = None) -> int:
    """Delete what is out of date, in batches of one short transaction each; return how many runs."""
    config, database = runtime.config, runtime.database
    database.run(lambda tx, now: nodes.forget(tx, config.app, now - NODES_KEPT))
    database.run(lambda tx, now: subscriptions.drop_orphans(tx, now, config.app))
    deleted = []
    for delete, kept in (
        *((table.prune, config.keep_runs) for table in (runs, gaps, audit, backfills)),
        (events.prune, config.keep_events),
        (notices.prune, config.keep_notifications),
    ):
        deleted.append(0)
        while stop is None or not stop.is_set():
            count = database.run(
                lambda tx, now, delete=delete, kept=kept: delete(tx, config.app, now - kept, BATCH)  # type: ignore[misc]
            )
            deleted[-1] += count
            if count < BATCH:
                break
    return deleted[0]
