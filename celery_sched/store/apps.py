"""Statements on the one row of an app: when schedulers last passed, when the sweep may work, totals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from celery_sched.store.engine import Tx
from celery_sched.store.tables import app

TOTALS = ("swept", "dispatched", "at_capacity", "lock_lost", "late_settlers")


@dataclass(frozen=True)
class Downtime:
    """A span in which no scheduler of an app passed."""

    down_from: datetime
    back_at: datetime

    def covers(self, at: datetime) -> bool:
        return self.down_from <= at <= self.back_at

    def __str__(self) -> str:
        down, back = (f"{at:%Y-%m-%d %H:%M:%S}" for at in (self.down_from, self.back_at))
        return f"no scheduler ran from {down} to {back} UTC"


def downtime_of(row: Any) -> Downtime | None:
    """The last such span in an app's row."""
    return None if row is None or row.down_from is None else Downtime(row.down_from, row.back_at)


def was_down(tx: Tx, now: datetime, name: str, since: datetime) -> None:
    """Note that no scheduler passed since then."""
    tx.execute(update(app).where(app.c.app == name).values(down_from=since, back_at=now))


def ensure(tx: Tx, name: str) -> None:
    """Create the app's row unless it is there."""
    if tx.execute(select(1).where(app.c.app == name)).first() is None:
        try:
            with tx.begin_nested():
                tx.execute(insert(app).values(app=name))
        except IntegrityError:
            return  # another process made it between the two statements


def get(tx: Tx, name: str) -> Row[Any] | None:
    return tx.execute(select(app).where(app.c.app == name)).first()


def lock(tx: Tx, name: str) -> None:
    """Lock the app's row until the transaction ends."""
    tx.execute(select(app.c.app).where(app.c.app == name).with_for_update())


def passed(tx: Tx, now: datetime, name: str) -> None:
    """Note that a scheduler made a pass."""
    tx.execute(update(app).where(app.c.app == name).values(last_pass_at=now))


def hold_sweep(tx: Tx, now: datetime, name: str, seen: datetime | None, until: datetime) -> bool:
    """Keep the sweep back until ``until``: a compare-and-set on what was seen."""
    same = app.c.sweep_not_before.is_(None) if seen is None else app.c.sweep_not_before == seen
    return (
        tx.execute(
            update(app).where(app.c.app == name, same).values(sweep_not_before=until, last_pass_at=now)
        ).rowcount
        == 1
    )


def sweep_waits(tx: Tx, now: datetime, name: str, lease: timedelta) -> bool:
    """Whether the sweep is held back, or nobody has passed for so long that it must be judged first."""
    row = get(tx, name)
    if row is None:
        return False
    held = row.sweep_not_before is not None and row.sweep_not_before > now
    return held or (row.last_pass_at is not None and now - row.last_pass_at > lease / 2)


def count(tx: Tx, name: str, **more: int) -> None:
    """Add to the app's totals."""
    values = {column: app.c[column] + number for column, number in more.items() if number}
    if values:
        tx.execute(update(app).where(app.c.app == name).values(**values))
