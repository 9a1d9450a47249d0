"""Shared memory of a worker's main process and its children: which of them is in which run's body.

A child writes before and after the body of a run, and the time of its job's last heartbeat; the main process
reads before it kills: a kill must hit that body and never the child's next task. The other way round the
main process writes how long the lease may be trusted, which the child shows to its job as ``ctx.lost``, and
that it has told the body to end.

Made before the children are forked, so that they inherit it. Instants are seconds of the system-wide
monotonic clock; those up to which a lease is trusted are of `trust.clock`.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from celery_sched.model import RunKey

SLOTS = 4096
_PLACE = struct.Struct("<BBBBI48sdddd")
_TOLD, _TIMER, _KEY = 2, 3, 8
_TRUST, _DEADLINE, _BEAT, _KILL = 7, 8, 9, 10
"""Which double of a row: written one machine word at a time, so that nobody reads half of one."""
_IDLE, _IN_BODY, _OVER = 0, 1, 2
NEVER = float("inf")


@dataclass(frozen=True)
class Place:
    """A body being run: where it is noted, by which process, and until when."""

    index: int
    pid: int
    leads_group: bool
    """Whether the process has a process group of its own, which holds what its job started."""
    key: bytes
    trusted_until: float
    deadline: float
    beat_at: float = 0.0
    """The last heartbeat; 0: none."""
    told: bool = False
    """The main process has told the body to end: it kills the process afterwards, and settles the run."""
    over: bool = False
    """The body was told to end, and has: its process waits to be killed."""
    kill_at: float = NEVER
    """When an exclusive body is killed unless its lease is renewed; of another one: never."""
    timer: bool = False
    """The process killed itself: nobody had renewed the lease of its exclusive body."""

    @property
    def exclusive(self) -> bool:
        """Whether its job is exclusive."""
        return self.kill_at < NEVER


def encoded(key: RunKey) -> bytes:
    """Token and attempt: no two claims and no two attempts share them."""
    return f"{key.token}:{key.attempt}".encode()[:48].ljust(48, b"\0")


class Board:
    """A table of :class:`Place`, one row per child (prefork) or per running thread (threads, solo)."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._memory = mmap.mmap(-1, slots * _PLACE.size)
        self._doubles = memoryview(self._memory).cast("d")
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """A row for a thread of the main process; give it back with :meth:`give`."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give(self, index: int) -> None:
        with self._lock:
            self._free.append(index)

    # what the process does that runs the body

    def enter(
        self,
        index: int | None,
        key: RunKey,
        trusted_until: float,
        deadline: float,
        kill_at: float = NEVER,
    ) -> None:
        """This process begins the body of a run. Index ``None`` or past the end: it cannot be noted."""
        if index is None or not self.has(index):
            return
        pid = os.getpid()
        leads = int(os.getpgid(0) == pid)
        # idle first, in use last: a process stopped in between has no half-written row
        self._memory[index * _PLACE.size] = _IDLE
        _PLACE.pack_into(
            self._memory,
            index * _PLACE.size,
            *(_IDLE, leads, 0, 0, pid, encoded(key), trusted_until, deadline, 0.0, kill_at),
        )
        self._memory[index * _PLACE.size] = _IN_BODY

    def leave(self, index: int | None) -> bool:
        """The body is over: from now on this process must not be killed for that run.

        ``True``: it was told to end before that. Then it is about to be killed, with what it started, and
        must do nothing more.
        """
        if index is None or not self.has(index):
            return False
        base = index * _PLACE.size
        # in this order: it is told only while it stands still in its body, so never after this line
        self._memory[base] = _OVER
        if self._memory[base + _TOLD]:
            return True
        self._memory[base] = _IDLE
        return False

    def beat(self, index: int | None, key: RunKey) -> None:
        """A heartbeat of the body: two looks and one word of memory, whatever goes on elsewhere."""
        if index is None or not self.has(index):
            return
        base = index * _PLACE.size
        # a thread that its body left behind must not beat for the next one
        if self._memory[base] == _IN_BODY and self._memory[base + _KEY : base + _KEY + 48] == encoded(key):
            self._doubles[base // 8 + _BEAT] = time.monotonic()

    def kill_at(self, index: int) -> float:
        """When this process's exclusive body is killed, as the main process last wrote it."""
        return self._doubles[index * _PLACE.size // 8 + _KILL]

    def note_timer(self, index: int) -> None:
        """Note that this process kills itself, so that the main process knows why."""
        self._memory[index * _PLACE.size + _TIMER] = 1

    # what the main process does

    def find(self, key: RunKey) -> Place | None:
        """The process that is in the body of that attempt, if one is."""
        wanted = encoded(key)
        position = self._memory.find(wanted)
        while position >= 0:
            index, offset = divmod(position, _PLACE.size)
            if offset == _KEY and (place := self.at(index)) is not None and place.key == wanted:
                return place
            position = self._memory.find(wanted, position + 1)
        return None

    def at(self, index: int) -> Place | None:
        """What a row says, unless it is idle."""
        state, leads, told, timer, pid, key, trusted, deadline, beat, kill_at = _PLACE.unpack_from(
            self._memory, index * _PLACE.size
        )
        if state == _IDLE or (state == _OVER and not told):
            return None
        over = state == _OVER
        return Place(
            *(index, pid, bool(leads), key, trusted, deadline, beat),
            told=bool(told),
            over=over,
            kill_at=kill_at,
            timer=bool(timer),
        )

    def places(self) -> Iterator[Place]:
        """All bodies being run."""
        for index in range(self._slots):
            if self._memory[index * _PLACE.size] != _IDLE and (place := self.at(index)) is not None:
                yield place

    def tell(self, place: Place) -> None:
        """Note that a body is told to end. Only while its process stands still in that body."""
        self._memory[place.index * _PLACE.size + _TOLD] = 1

    def trust(self, key: RunKey, until: float, deadline: float | None = None) -> None:
        """Tell a body how long its lease may be trusted and, if known, its new deadline.

        An exclusive one is killed at that time.
        """
        place = self.find(key)
        if place is None:
            return
        row = place.index * _PLACE.size // 8
        self._doubles[row + _TRUST] = until
        if place.exclusive:
            self._doubles[row + _KILL] = until
        if deadline is not None:
            self._doubles[row + _DEADLINE] = deadline

    def distrust(self, key: RunKey) -> None:
        """Tell a body that it shall end: its lease is to be trusted no longer, and no deadline concerns it.

        When an exclusive one is killed at the latest stays as it is.
        """
        place = self.find(key)
        if place is not None:
            row = place.index * _PLACE.size // 8
            self._doubles[row + _TRUST] = 0.0
            self._doubles[row + _DEADLINE] = NEVER

    def trusted_until(self, key: RunKey) -> float:
        """Until when the lease of a body may be trusted; 0 when no process is in it."""
        place = self.find(key)
        return 0.0 if place is None else place.trusted_until

    def has(self, index: int | None) -> bool:
        """Whether a body can be noted there: a pool may be larger than the board."""
        return index is not None and 0 <= index < self._slots
