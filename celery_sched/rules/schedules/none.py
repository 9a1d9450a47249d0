"""``none``: a job without times, which runs when an event comes, or when somebody runs it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

NONE = "none"


@dataclass(frozen=True, slots=True)
class NoTimes:
    """No occurrence, ever."""

    text: str = NONE
    kind: str = NONE

    def next_after(self, _instant: datetime) -> datetime | None:
        return None

    def latest_in(self, _after: datetime, _until: datetime) -> datetime | None:
        return None

    def count_in(self, _after: datetime, _until: datetime) -> int:
        return 0
