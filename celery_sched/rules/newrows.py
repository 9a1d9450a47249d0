"""Which rows are new: where a sensor's cursor stands, and which rows near it were published.

Rows do not become visible in the order of their numbers: a transaction that took number 5 may commit after
the one that took 6, and a cursor at 6 would pass over 5 for ever. So the cursor stays behind for a while
(``look_back``), and the rows from it on that were published are remembered.

Values are never compared here but for equality: their order is the database's (collations differ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Published:
    """A row that was published, or was there at the first look."""

    identity: str
    cursor: Any
    """Its value in the cursor's column."""
    seen_at: datetime


@dataclass(frozen=True)
class Place:
    """Rows from ``floor`` on are looked at (None: all), and of these ``recent`` were published."""

    floor: Any
    recent: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Found:
    """A row as it is there: what tells it from others, and its value in the cursor's column."""

    identity: str
    cursor: Any


@dataclass(frozen=True)
class Advanced:
    """After a look: the new place, and which of the rows found are new (their numbers)."""

    place: Place
    new: tuple[int, ...]
    left: bool
    """There were more new rows than one look may publish."""


def duplicate(rows: Sequence[Found]) -> str | None:
    """An identity that two of the rows have: one of them would be lost."""
    seen: set[str] = set()
    for row in rows:
        if row.identity in seen:
            return row.identity
        seen.add(row.identity)
    return None


def advanced(
    place: Place,
    rows: Sequence[Found],
    began: datetime,
    ended: datetime,
    look_back: timedelta,
    most: int,
) -> Advanced:
    """One look, which began and ended at these times.

    ``rows``: those from the floor on, in the database's order, more than ``most`` of them new if there are.
    """
    known = {one.identity: one for one in place.recent}
    here: list[Published] = []
    new: list[int] = []
    left = False
    for at, row in enumerate(rows):
        if row.identity in known:
            here.append(known.pop(row.identity))
        elif len(new) < most:
            new.append(at)
            here.append(Published(row.identity, row.cursor, ended))
        else:
            left = True
            break
    floor, kept = place.floor, here
    for at in reversed(range(len(here))):
        if began - here[at].seen_at >= look_back:
            # nothing that began before this row was seen is still to come
            floor = here[at].cursor
            first = next(index for index, one in enumerate(here) if one.cursor == floor)
            kept = here[first:]
            break
    # what was not found now may have been asked of a copy that is behind, or lie behind those that are left
    absent = [one for one in known.values() if left or began - one.seen_at < look_back]
    return Advanced(Place(floor, (*kept, *absent)), tuple(new), left)
