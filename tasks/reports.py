"""A daily report of what was installed and removed on this machine; failing that, of its processes."""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from celery_sched import job
from tasks.home import home

LOGS = Path("/var/log")
CHANGES = ("at", "action", "package", "before", "after")
PROCESSES = ("pid", "name", "user", "started", "memory_kib", "threads")
# 2026-01-31 10:00:00 upgrade base-files:amd64 12.4 12.5
DPKG = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (install|upgrade|remove|purge) (\S+) (\S+) (\S+)$")
# 2026-01-31T10:00:00+0000 SUBDEBUG Installed: bash-5.2.15-1.fc38.x86_64
DNF = re.compile(r"(\S+T\S+) SUBDEBUG (Installed|Upgrade|Erase|Reinstalled|Downgrade): (\S+)-([^-]+-[^-]+)$")
DNF_ACTIONS = {"Installed": "install", "Upgrade": "upgrade", "Erase": "remove"}


class Change(NamedTuple):
    """One package that changed; an empty version where there was none, or the log does not tell."""

    at: str  # as the log has it: the machine's local time
    action: str
    package: str
    before: str
    after: str


def parse(lines: Iterable[str]) -> Iterator[Change]:
    """The changes in a log of dpkg or dnf; other lines are passed over."""
    for line in lines:
        if found := DPKG.match(line.rstrip()):
            at, action, package, before, after = found.groups()
            if action in ("remove", "purge"):
                after = ""
            yield Change(at, action, package, before.replace("<none>", ""), after.replace("<none>", ""))
        elif found := DNF.match(line.rstrip()):
            at, action, package, version = found.groups()
            removed = action == "Erase"
            yield Change(
                at, DNF_ACTIONS.get(action, action.lower()), package,
                version if removed else "", "" if removed else version,
            )  # fmt: skip


def package_logs(folder: Path = LOGS) -> list[Path]:
    """The package logs of this machine, rotated ones too, oldest first."""
    found = [*folder.glob("dpkg.log*"), *folder.glob("dnf.rpm.log*")]
    return sorted((file for file in found if os.access(file, os.R_OK)), key=lambda file: file.stat().st_mtime)


def read(file: Path) -> Iterator[str]:
    """The lines of a log, compressed or not."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", errors="replace") as lines:
        yield from lines


def processes() -> Iterator[Sequence[object]]:
    """The machine's processes; those that end meanwhile are left out."""
    for process in psutil.process_iter(
        ["pid", "name", "username", "create_time", "memory_info", "num_threads"]
    ):
        facts = process.info
        memory = facts["memory_info"]
        started = datetime.fromtimestamp(facts["create_time"], UTC).isoformat(timespec="seconds")
        yield (
            facts["pid"], facts["name"], facts["username"], started,
            memory.rss // 1024 if memory else "", facts["num_threads"],
        )  # fmt: skip


def write(file: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Write a CSV file, whole or not at all; the number of rows below the header."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    count = 0
    try:
        with draft.open("w", newline="", encoding="utf-8") as target:
            writer = csv.writer(target)
            writer.writerow(header)
            for row in rows:
                writer.writerow(row)
                count += 1
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return count


def build(folder: Path, now: datetime, logs: Sequence[Path]) -> dict[str, object]:
    """Write the report of the day of ``now``; its file, source and number of rows."""
    day = now.date().isoformat()
    if logs:
        file = folder / f"packages-{day}.csv"
        rows = write(file, CHANGES, (change for log in logs for change in parse(read(log))))
        return {"file": str(file), "source": [str(log) for log in logs], "rows": rows}
    file = folder / f"processes-{day}.csv"
    return {"file": str(file), "source": "process list", "rows": write(file, PROCESSES, processes())}


@job("0 6 * * *", name="report-packages", description="What was installed and removed here, as CSV")
def report() -> dict[str, object]:
    """Today's report below `reports` in the embedded folder."""
    return build(home() / "reports", datetime.now(UTC), package_logs())
