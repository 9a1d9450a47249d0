"""A sensor's job on a real database, each of whose runs is carried out here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import select

from celery_sched.context import Context
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import job_context
from celery_sched.jobtypes.sensor import Sensor
from celery_sched.model import Dispatch
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import schema
from celery_sched.store.tables import event, sensor
from tests.store.world import APP, Bench

JOB = "watch"


class Watch:
    """One sensor. ``kwargs`` are its configuration."""

    def __init__(self, bench: Bench, type_name: str, overlap: str = "skip", **kwargs: Any) -> None:
        found = registry.find(type_name)
        assert isinstance(found, Sensor), found
        self.bench, self.kind, self.kwargs = bench, found, {"topic": "seen", **kwargs}
        task, schedule = f"celery_sched.{type_name}", "every 1d"
        bench.client.add(JOB, task=task, schedule=schedule, kwargs=self.kwargs, overlap=overlap)

    def begun(self) -> Dispatch:
        """The next run, claimed and started."""
        run = self.bench.again(JOB)
        self.bench.start(run.key)
        return run

    def context(self, run: Dispatch) -> Context:
        """What the body of a run is told."""
        given: dict[str, Any] = {
            "run_id": run.key.id,
            "job": JOB,
            "scheduled_for": self.bench.clock(),
            "attempt": run.key.attempt,
            "fence": run.fence,
            "is_lost": lambda: False,
            "beat": lambda: None,
            "log": logging.getLogger(f"celery_sched.job.{JOB}"),
        }
        return Context(**given)

    def sensed(self, run: Dispatch, **changes: Any) -> Any:
        """What the body of a run returns."""
        config = self.kind.read({**self.kwargs, **changes})
        ctx = job_context(self.context(run), self.bench.config, Celery(APP, set_as_current=False), None)
        return self.kind.sense(config, ctx, self.bench.database)

    def look(self, **changes: Any) -> Any:
        """One whole run, and its result; ``changes``: other values of the configuration from now on."""
        self.kwargs |= changes
        run = self.begun()
        try:
            found = self.sensed(run)
        except BaseException:
            self.bench.finish(run.key, RunStatus.FAILED)
            raise
        self.bench.finish(run.key)
        return found

    def events(self) -> list[Any]:
        """The payloads of all events, in their order."""
        return self.bench.database.read(
            lambda tx, now: [row.payload for row in tx.execute(select(event).order_by(event.c.id))]
        )

    def news(self) -> list[Any]:
        """The payloads of the events since the last call."""
        every = self.events()
        found, self._told = every[getattr(self, "_told", 0) :], len(every)
        return found

    def version(self) -> int:
        """How often what was seen has moved."""
        return int(
            self.bench.database.read(lambda tx, now: tx.execute(select(sensor.c.version)).scalar_one())
        )


def make_bench(folder: Path, *, real: bool = False, **settings: Any) -> Bench:
    """A bench on SQLite; ``real``: with the real clock."""
    url = f"sqlite:///{folder / 'sched.sqlite3'}"
    schema.upgrade(url)
    return Bench(url, folder, real=real, **settings)
