"""What a job's function is told about its run, and how it says that it is alive."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_sched.errors import SchedulerError

EVENTS = ("event", "events")
"""Arguments that a run which an event started has beside the job's own."""


@dataclass(frozen=True)
class Context:
    """Given to a job's function that has a parameter ``ctx``; also :func:`current`.

    ``fence`` is the fencing number: it only grows, per job, with each new claim. Send it along to outside
    systems so that they can refuse a holder that is no longer current.
    """

    run_id: str
    job: str
    scheduled_for: datetime
    attempt: int
    fence: int
    is_lost: Callable[[], bool] = field(repr=False)
    beat: Callable[[], None] = field(repr=False)
    log: logging.Logger = field(repr=False)
    hops: int = 0
    """How many jobs published and were run for events on the way to this run."""
    publisher: Callable[..., int | None] | None = field(default=None, repr=False)

    @property
    def lost(self) -> bool:
        """Whether this run's lease is known to be gone: stop writing to the outside."""
        return self.is_lost()

    def check_held(self) -> None:
        """:raises SchedulerError: this run's lease is gone: somebody else may be carrying it out by now."""
        if self.lost:
            raise SchedulerError(f"the lease of run {self.run_id} is gone: it publishes nothing any more")

    def heartbeat(self) -> bool:
        """Say that the run makes progress; return whether its lease may still be trusted.

        From the first call on the run may be silent for its ``heartbeat_timeout``, and ``max_runtime`` bounds
        it no longer (``time_limit`` does). It writes to memory only, so call it as often as you like, from
        any thread; it raises nothing.
        """
        self.beat()
        return not self.lost

    def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        key: str | None = None,
        dedupe_key: str | None = None,
        session: Any = None,
    ) -> int | None:
        """Publish an event, see :func:`celery_sched.publish`: its id, or None where it is known already.

        The body of a run may begin again after a crash: what must be published once has a ``dedupe_key``
        (with ``run_id`` in it).
        """
        if self.publisher is None:
            raise RuntimeError("a context that no worker has made publishes nothing")
        self.check_held()
        about = {"key": key, "dedupe_key": dedupe_key, "session": session}
        return self.publisher(topic, payload, **about, hops=self.hops + 1, run_id=self.run_id)


current: ContextVar[Context | None] = ContextVar("celery_sched_context", default=None)


def heartbeat() -> bool:
    """:meth:`Context.heartbeat` of the run that is being carried out; outside of one it does nothing."""
    ctx = current.get()
    return True if ctx is None else ctx.heartbeat()


def wanted_by(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """These arguments, without the events of the run where the function has no parameter for them.

    So any task can be run when an event comes, whether or not it asks which.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of something in C: nobody knows
        return dict(kwargs)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {
        key: value for key, value in kwargs.items() if key not in EVENTS or takes_any or key in parameters
    }
