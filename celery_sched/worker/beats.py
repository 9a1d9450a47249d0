"""Heartbeats on their way from the board to the database: which are new, and when they are to be written."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from celery_sched.model import RunId, RunKey
from celery_sched.worker.board import NEVER, Board, Place, encoded


@dataclass(frozen=True)
class _Written:
    """What the database knows: the heartbeat, when it was written, and how long the next one may wait."""

    beat_at: float
    at: float
    every: float


class Beats:
    """The first heartbeat of a body is written at once, later ones now and then, the last one of them.

    Used by the keeper's thread only.
    """

    def __init__(self, board: Board, longest: float) -> None:
        """``longest``: seconds after which a new heartbeat is written at the latest."""
        self._board, self._longest = board, longest
        self._written: dict[bytes, _Written] = {}

    def due_at(self) -> float:
        """When the next write is due; with the ordinary renewals, all that is new is written anyway."""
        return min((self._due_at(place) for place in self._board.places()), default=NEVER)

    def due(self, live: Iterable[RunKey]) -> list[RunKey]:
        """The runs whose new heartbeat is to be written now."""
        now = time.monotonic()
        due = {place.key for place in self._board.places() if self._due_at(place) <= now}
        return [key for key in live if encoded(key) in due]

    def unwritten(self, keys: Iterable[RunKey]) -> dict[RunId, float]:
        """The new heartbeats of these runs: when they were sent."""
        places = {place.key: place for place in self._board.places() if self._is_new(place)}
        found = ((key.id, places.get(encoded(key))) for key in keys)
        return {run_id: place.beat_at for run_id, place in found if place is not None}

    def wrote(self, key: RunKey, beat_at: float, timeout: timedelta | None) -> None:
        """The database knows it now, or refused it; ``timeout``: how long the run may be silent."""
        every = self._longest if timeout is None else min(self._longest, timeout.total_seconds() / 3)
        self._written[encoded(key)] = _Written(beat_at, time.monotonic(), every)

    def forget(self, live: Collection[RunKey]) -> None:
        """Only runs whose message is here matter."""
        here = {encoded(key) for key in live}
        self._written = {key: written for key, written in self._written.items() if key in here}

    def _is_new(self, place: Place) -> bool:
        if not place.beat_at or place.told or place.trusted_until == 0.0:
            return False  # a run that is being ended is not kept alive
        known = self._written.get(place.key)
        return known is None or place.beat_at > known.beat_at

    def _due_at(self, place: Place) -> float:
        if not self._is_new(place):
            return NEVER
        known = self._written.get(place.key)
        return 0.0 if known is None else known.at + known.every
