"""The machine's CPU, load, memory and disk: a sample every 5 s, a roll-up every hour, a purge every night."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from celery_sched import job
from tasks.home import home

METRICS = ("cpu", "load", "memory", "disk")  # per cent, but load: runnable processes, mean of one minute
KEEP_SAMPLES = timedelta(days=7)
HOUR = 3600

SCHEMA = """
CREATE TABLE IF NOT EXISTS sample (
    at REAL PRIMARY KEY, cpu REAL NOT NULL, load REAL NOT NULL, memory REAL NOT NULL, disk REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS hourly (
    hour INTEGER NOT NULL, metric TEXT NOT NULL, low REAL NOT NULL, mean REAL NOT NULL, high REAL NOT NULL,
    samples INTEGER NOT NULL, PRIMARY KEY (hour, metric)
);
"""


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The metrics' database, tables made where missing; committed at the end, rolled back on an error."""
    connection = sqlite3.connect(file, timeout=15)
    try:
        connection.executescript(SCHEMA)
        with connection:
            yield connection
    finally:
        connection.close()


def measure(root: str = "/") -> dict[str, float]:
    """The metrics now; takes a fifth of a second, over which the CPU is measured."""
    return {
        "cpu": psutil.cpu_percent(interval=0.2),
        "load": os.getloadavg()[0],
        "memory": psutil.virtual_memory().percent,
        "disk": psutil.disk_usage(root).percent,
    }


def record(db: sqlite3.Connection, now: datetime, values: dict[str, float]) -> None:
    """Keep one sample. Two of one instant are one: a run that is carried out again does no harm."""
    row = (now.timestamp(), *(values[metric] for metric in METRICS))
    db.execute("INSERT OR REPLACE INTO sample (at, cpu, load, memory, disk) VALUES (?, ?, ?, ?, ?)", row)


def summarise(db: sqlite3.Connection, now: datetime) -> int:
    """Lowest, mean and highest value of each hour that is over and has none yet; the number of new hours."""
    this_hour = int(now.timestamp()) // HOUR * HOUR
    new: set[int] = set()
    for metric in METRICS:  # column names of our own, no input
        rows = db.execute(
            f"SELECT CAST(at / {HOUR} AS INTEGER) * {HOUR} AS start, ?, MIN({metric}), AVG({metric}),"
            f" MAX({metric}), COUNT(*) FROM sample WHERE at < ?"
            " AND start NOT IN (SELECT hour FROM hourly WHERE metric = ?) GROUP BY start",
            (metric, this_hour, metric),
        ).fetchall()
        db.executemany("INSERT INTO hourly VALUES (?, ?, ?, ?, ?, ?)", rows)
        new.update(row[0] for row in rows)
    return len(new)


def forget(db: sqlite3.Connection, now: datetime, keep: timedelta = KEEP_SAMPLES) -> int:
    """Delete samples older than ``keep`` whose hour was rolled up; the number of deleted ones."""
    return db.execute(
        f"DELETE FROM sample WHERE at < ?"
        f" AND CAST(at / {HOUR} AS INTEGER) * {HOUR} IN (SELECT hour FROM hourly)",
        ((now - keep).timestamp(),),
    ).rowcount


@job("every 5s", name="sample-machine", description="CPU, load, memory and disk into a table")
def sample() -> dict[str, float]:
    """Measure, keep and return the metrics."""
    values = measure()
    with opened(home() / "metrics.sqlite3") as db:
        record(db, datetime.now(UTC), values)
    return values


@job("1 * * * *", name="roll-up-metrics", description="Lowest, mean and highest value of each hour")
def roll_up() -> dict[str, int]:
    """Summarise the hours that are over."""
    with opened(home() / "metrics.sqlite3") as db:
        return {"hours": summarise(db, datetime.now(UTC))}


@job("17 3 * * *", name="purge-metrics", description="Delete samples older than a week")
def purge() -> dict[str, int]:
    """Summarise what is left to summarise, then delete old samples."""
    now = datetime.now(UTC)
    with opened(home() / "metrics.sqlite3") as db:
        summarise(db, now)
        return {"deleted": forget(db, now)}
