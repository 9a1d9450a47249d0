"""What a check found, and a bound in time for what may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warning", "error"]
PATIENCE = 10.0
"""Seconds that a broker or Redis has to answer."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``warning`` and ``error`` need attention; ``info`` cannot be checked."""

    level: Level
    subject: str
    message: str


def guarded(subject: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:  # whatever it is: the other checks are worth having
        return [Finding("warning", subject, f"could not be examined: {type(error).__name__}: {error}")]


def within(seconds: float, probe: Callable[[], str | None]) -> str | None:
    """What a probe found wrong; also when it does not come back, or fails."""
    found: list[str | None] = []

    def run() -> None:
        try:
            found.append(probe())
        except Exception as error:  # network libraries raise anything
            found.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, name="sched-doctor-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else f"no answer within {seconds:g} s"
