"""What an exclusion calendar is: spans of wall time in which a job is not due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

ONE_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Wall times start <= t < end of the job's zone, naive, and why they are excluded.

    ``exact``: both ends are single instants (an event at a place with its own clock), so that in an hour that
    comes twice ``fold`` tells the pass. Otherwise what counts is what the clocks show, in either pass.
    """

    start: datetime
    end: datetime
    reason: str
    exact: bool = False

    def holds(self, instant: datetime, zone: ZoneInfo) -> bool:
        """True if that aware instant lies in the span, ``zone`` being the one the span was asked for."""
        if self.exact:
            return self.instant(self.start, zone) <= instant < self.instant(self.end, zone)
        return self.start <= instant.astimezone(zone).replace(tzinfo=None) < self.end

    def instant(self, wall: datetime, zone: ZoneInfo) -> datetime:
        """The aware UTC instant of one end of an exact span."""
        return wall.replace(tzinfo=zone).astimezone(UTC)


class Calendar(Protocol):
    """Pure, and compared by identity: ``read_calendar`` gives the same object for the same term and zone."""

    @property
    def text(self) -> str:
        """The term people see: ``holidays:DE-BE``, or ``ics:`` and the name of the file it came from."""

    def spans(self, first: date, last: date) -> Sequence[Span]:
        """All spans that touch the days ``first`` to ``last``, both included."""

    def weekend(self) -> frozenset[int] | None:
        """Weekdays (0 = Monday) that are no business days by this calendar; None: it has no opinion."""


def touching(spans: Iterable[Span], first: date, last: date) -> list[Span]:
    """Those of the spans that touch the days ``first`` to ``last``, both included."""
    low, high = midnight(first), midnight(last) + ONE_DAY
    return [span for span in spans if span.start < high and span.end > low]


def midnight(day: date) -> datetime:
    """The naive start of a day."""
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - a wall time
