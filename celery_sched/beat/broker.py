"""The broker as the polls of one scheduler share it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery_sched.model import Dispatch
from celery_sched.steps.publish import Published, Publisher

logger = logging.getLogger("celery_sched.beat")


class Broker:
    """Connected publishers, each used by one poll at a time. ``away``: the last try to connect failed."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._idle: list[Publisher] = []
        self._talking = 0
        self.away = False

    def borrow(self) -> Publisher | None:
        """A publisher that is connected; ``None`` while the broker is away, or another poll waits for it.

        A broker that swallows bytes holds up one poll, not both: the other one goes on to sweep and plan.
        """
        with self._lock:
            if self._talking:
                return None
            publisher = self._idle.pop() if self._idle else Publisher(self._app)
        with self._call():
            why = publisher.connect()
        if why is None:
            if self.away:
                logger.warning("the broker is back")
            self.away = False
            return publisher
        if not self.away:
            logger.error("the broker cannot be used, due runs wait: %s", why)
        self.away = True
        return None

    def publish(self, publisher: Publisher, dispatches: Sequence[Dispatch]) -> Published:
        """Send runs with a borrowed publisher."""
        with self._call():
            return publisher.publish(dispatches)

    def give_back(self, publisher: Publisher) -> None:
        """A poll has done with it."""
        with self._lock:
            self._idle.append(publisher)

    def close(self) -> None:
        """Close the connections that no poll uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for publisher in idle:
            publisher.close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._lock:
            self._talking += 1
        try:
            yield
        finally:
            with self._lock:
                self._talking -= 1
