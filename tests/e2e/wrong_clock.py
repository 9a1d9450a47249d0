"""A clock of a process that is wrong, and that a test steps while the process runs (libfaketime)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import libfaketime  # type: ignore[import-untyped]

LIBRARY = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
STAMP = re.compile(r"^\[(\S+ \S+): \w+/MainProcess\]", re.M)


@dataclass(frozen=True)
class WrongClock:
    """What processes started with :meth:`env` take for now: the host's time plus what was last set."""

    file: Path

    def set(self, seconds: float) -> None:
        """Be so far ahead of the host's clock from now on."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+g}\n")
        new.replace(self.file)  # at once: a reader never finds half a line

    def env(self) -> Mapping[str, str]:
        """The environment of a process that has this clock."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            # seconds; without a cache each look at the clock would read the file
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def ahead(node: Any) -> float:
    """How many seconds a node's clock is ahead of ours, by the newest line of its log."""
    newest = STAMP.findall(node.logs())[-1]
    stamp = datetime.strptime(newest, "%Y-%m-%d %H:%M:%S,%f").astimezone()
    return (stamp - datetime.now(UTC)).total_seconds()
