"""Which of the waiting runs of a pool the free slots are for, where runs take more than one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from celery_sched.model import JobId, RunId


@dataclass(frozen=True)
class Candidate:
    """A queued run that may be claimed, slots apart."""

    run_id: RunId
    job_id: JobId
    weight: int = 1
    """Slots that it takes."""
    overdue: bool = False
    """It has let others go first for long enough (:func:`~celery_sched.rules.turn.overdue`)."""


@dataclass(frozen=True)
class Held:
    """A dispatched or running run: it has ``weight`` slots of ``pool``; its lease ends at ``until``."""

    pool: str
    run_id: RunId
    until: datetime
    weight: int = 1


class Room:
    """The free slots of a pool, while its candidates are asked one after the other, the best first.

    One that does not fit is passed over, so that it does not keep lighter ones from slots that are of no use
    to it; once it is overdue, nothing behind it is taken until it fits, so that they do not keep it waiting
    for ever. One that can never fit, because the pool is too small, holds up nobody.
    """

    def __init__(self, free: int, slots: int) -> None:
        self.free = free
        self.closed = False
        """Nobody else is taken: what is free is kept for one that is overdue."""
        self._slots = slots

    @property
    def is_spent(self) -> bool:
        """Nobody gets anything any more."""
        return self.closed or self.free <= 0

    def takes(self, weight: int, *, overdue: bool) -> bool:
        """Whether the next candidate gets its slots now."""
        if self.closed or weight > self._slots:
            return False
        if weight <= self.free:
            self.free -= weight
            return True
        self.closed = overdue
        return False


def fit(candidates: Iterable[Candidate], free: int, slots: int) -> tuple[Candidate, ...]:
    """Those of the candidates (best first) that get ``free`` of a pool's ``slots`` now."""
    room = Room(free, slots)
    return tuple(one for one in candidates if room.takes(one.weight, overdue=one.overdue))
