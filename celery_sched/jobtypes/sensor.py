"""What sensors share: they look at the outside, publish what is new, and remember what they have seen.

A sensor is an ordinary job of a schedule: each run looks once. The events and the memory are written in one
transaction, and only by the holder of the run: what was published is not published again, whatever dies.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from celery_sched import runtime, secrets
from celery_sched.jobtypes import options
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import option
from celery_sched.model import RunId
from celery_sched.rules.topics import topic
from celery_sched.store import sensors
from celery_sched.store.engine import Database, Tx
from celery_sched.store.sensors import Holder, News, Seen

LONGEST_KEY = 200


class Start(StrEnum):
    """What a sensor that looks for the first time takes as new."""

    NOW = "now"
    BEGINNING = "beginning"


@dataclass(frozen=True, kw_only=True)
class SensorConfig:
    """The fields of every sensor."""

    topic: str = option(options.Form("topic", topic), "the topic that events are published on", secret=False)
    start: Start = option(
        options.one_of(Start),
        "what is there at the first look: `now` takes it as known, `beginning` publishes it",
        "now",
    )


C = TypeVar("C", bound=SensorConfig)


class Memory:
    """What the job has seen, and the only way to change that: together with events."""

    def __init__(self, database: Database, ctx: JobContext, config: SensorConfig, of: Sequence[Any]) -> None:
        """``of``: what the memory is about; where that was something else, nothing is remembered."""
        self._database, self._topic, self._of = database, config.topic, list(of)
        self._holder = Holder(RunId(ctx.run_id), ctx.attempt, ctx.fence)
        self._seen = database.read(lambda tx, now: sensors.read(tx, self._holder))

    @property
    def value(self) -> Any:
        """What was seen; None: this job has never looked at this."""
        stored = self._seen.value
        known = isinstance(stored, dict) and stored.get("of") == self._of
        return stored.get("value") if known else None

    def clock(self) -> datetime:
        """The database's now."""
        return self._database.read(lambda tx, now: now)

    def move(self, value: Any, news: Sequence[News]) -> None:
        """Publish the news and remember ``value``, both or neither.

        :raises SeenElsewhere: the run is not ours any more, or another one was faster; nothing was written.
        """
        if value == self.value and not news:
            return
        hidden = [News(secrets.redact_json(one.payload), one.key) for one in news]
        stored = {"of": self._of, "value": value}

        def work(tx: Tx, now: datetime) -> Seen:
            return sensors.move(tx, now, self._holder, self._seen, stored, self._topic, hidden)

        self._seen = self._database.run(work)


class Sensor(JobType[C]):
    """A type that looks for work."""

    def run(self, config: C, ctx: JobContext) -> Any:
        """Look, publish, remember."""
        return self.sense(config, ctx, runtime.of(ctx.app).database)

    @abstractmethod
    def sense(self, config: C, ctx: JobContext, database: Database) -> dict[str, Any]:
        """The same with the database of the scheduler given."""


def key_of(text: str) -> str | None:
    """A text as the key of an event; a long one as its digest."""
    if not text:
        return None
    return text if len(text) <= LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()
