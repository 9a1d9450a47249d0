"""A scheduler is known to the others: its node row, the note that a pass was made, outages noticed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from celery_sched.beat.look import Look, look
from celery_sched.failpoints import failpoint
from celery_sched.model import Node
from celery_sched.runtime import Runtime
from celery_sched.steps.sweep import outage
from celery_sched.store import apps, nodes, pools
from celery_sched.store.engine import Tx

logger = logging.getLogger("celery_sched.beat")


class Presence:
    """Says hello at most once per sixth of the lease, so that an idle poll writes nothing.

    ``facts`` is asked each time: what this scheduler has to say of itself.
    """

    def __init__(self, runtime: Runtime, identity: Node, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._runtime, self._config, self._identity = runtime, runtime.config, identity
        self._facts = facts
        self._clocks: tuple[datetime, float] | None = None
        self._at = float("-inf")

    def forget(self) -> None:
        """Say hello at the next poll: a scheduler turned by hand has a clock of its own."""
        self._at = float("-inf")
        self._clocks = None

    def check(self, seen: Look) -> Look:
        """Say hello when it is time, or after a jump of the clock; return what is to be seen then."""
        every = (self._config.lease / 6).total_seconds()
        known = seen.app is not None and seen.registered
        if known and time.monotonic() - self._at < every and not self._jumped(seen.now):
            return seen
        return self._say_hello(self._jumped(seen.now))

    def leave(self) -> None:
        """Take this scheduler off the list of nodes."""
        self._runtime.database.run(lambda tx, now: nodes.leave(tx, self._identity.id))

    def _jumped(self, now: datetime) -> bool:
        """Whether the database's clock and a monotonic one have drifted apart by half a lease."""
        if self._clocks is None:
            return False
        then, at = self._clocks
        moved = (now - then).total_seconds() - (time.monotonic() - at)
        return abs(moved) > (self._config.lease / 2).total_seconds()

    def _say_hello(self, jumped: bool) -> Look:
        """Register or refresh this node, note the pass, and judge whether there was an outage."""
        config, identity = self._config, self._identity

        def work(tx: Tx, now: datetime) -> tuple[bool, Look]:
            apps.ensure(tx, config.app)
            pools.ensure(tx, config.app, pools.DEFAULT, config.max_concurrent_jobs)
            facts = dict(self._facts())
            if nodes.seen(tx, now, identity.id, facts) is None:
                nodes.register(tx, now, replace(identity, facts=facts))
            row = apps.get(tx, config.app)
            if row is None:
                raise RuntimeError(f"the row of app {config.app!r} vanished")
            judged = outage(tx, now, config, row, jumped)
            failpoint("hello:judged")
            apps.passed(tx, now, config.app)
            return judged.begun, look(tx, now, config, identity.id)

        begun, fresh = self._runtime.database.run(work)
        self._at = time.monotonic()
        self._clocks = (fresh.now, self._at)
        if begun and fresh.app is not None:
            logger.info(
                "no scheduler passed for a while (or the clock jumped): workers get a lease to renew, until "
                "%s UTC, before runs without a sign of life are settled",
                f"{fresh.app.sweep_not_before:%H:%M:%S}",
            )
        return fresh
