"""Which files are new: what was seen before, what is there now, and what has stood still long enough.

A file counts as written when two looks, at least ``settle`` apart, found it with the same size and time. The
times of files are never compared with a clock: they come from other machines, and copying keeps old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

Signature = tuple[int, int]
"""When a file was changed, in nanoseconds as its file system says, and its size in bytes."""
FORGET = timedelta(days=1)
"""How long a file that vanished is remembered: a disk that was away for a while brings back nothing new."""


class Change(StrEnum):
    """What happened to a file."""

    NEW = "new"
    CHANGED = "changed"


@dataclass(frozen=True)
class Sighting:
    """A file as a sensor knows it."""

    known: Signature | None
    """As it was published, or stood there at the first look; None: not yet."""
    waiting: Signature | None = None
    """As it was last seen, where that is something new."""
    since: datetime | None = None
    """Since when it has stood still so."""
    gone_since: datetime | None = None
    """Since when it has not been there."""


@dataclass(frozen=True)
class Merged:
    """What is known after a look, and what is to be published, oldest first."""

    sightings: Mapping[str, Sighting]
    ready: tuple[tuple[str, Signature, Change], ...]
    left: int
    """How many are ready beyond the most that one look may publish."""
    wait: timedelta | None
    """How long until the last of the others has settled, if it stands still; None: nothing is waited for."""


def first(found: Mapping[str, Signature]) -> dict[str, Sighting]:
    """Everything that is there at the first look is known."""
    return {name: Sighting(known=signature) for name, signature in found.items()}


def merged(
    before: Mapping[str, Sighting],
    found: Mapping[str, Signature],
    began: datetime,
    ended: datetime,
    settle: timedelta,
    most: int,
) -> Merged:
    """One look, which began and ended at these times.

    What stood still is counted from the end of the look that saw it first to the beginning of this one, so
    that a slow look makes no file older than it is.
    """
    after: dict[str, Sighting] = {}
    ready: list[tuple[str, Signature, Change]] = []
    waits: list[timedelta] = []
    for name, signature in found.items():
        old = before.get(name, Sighting(None))
        if signature == old.known:
            after[name] = Sighting(known=signature)
            continue
        # a file that was gone and is another one now is new
        known = old.known if old.gone_since is None else None
        since = old.since if old.waiting == signature and old.since is not None else ended
        after[name] = Sighting(known=known, waiting=signature, since=since)
        if not settle or began - since >= settle:
            ready.append((name, signature, Change.NEW if known is None else Change.CHANGED))
        else:
            waits.append(since + settle - ended)
    ready.sort(key=lambda one: (one[1][0], one[0]))
    for name, signature, _ in ready[:most]:
        after[name] = Sighting(known=signature)
    for name, old in before.items():
        gone_since = old.gone_since or ended
        if name not in found and old.known is not None and ended - gone_since < FORGET:
            after[name] = Sighting(known=old.known, gone_since=gone_since)
    return Merged(after, tuple(ready[:most]), max(0, len(ready) - most), max(waits, default=None))
