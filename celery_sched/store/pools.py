"""Statements on pools. The row is the truth about slots; the setting only creates it."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from celery_sched.model import Pool
from celery_sched.store.engine import Tx
from celery_sched.store.tables import pool

DEFAULT = "default"


def every(tx: Tx, app: str) -> dict[str, Pool]:
    """All pools of an app by name."""
    rows = tx.execute(select(pool).where(pool.c.app == app).order_by(pool.c.name))
    return {row.name: Pool(row.app, row.name, row.slots) for row in rows}


def lock(tx: Tx, app: str, names: Collection[str]) -> dict[str, int]:
    """Slots of these pools, their rows locked: whoever counts runs after this counts alone."""
    rows = tx.execute(
        select(pool.c.name, pool.c.slots)
        .where(pool.c.app == app, pool.c.name.in_(sorted(names)))
        .order_by(pool.c.name)
        .with_for_update()
    )
    return {row.name: row.slots for row in rows}


def ensure(tx: Tx, app: str, name: str, slots: int) -> bool:
    """Create the pool unless it is there; return whether it was not."""
    if tx.execute(select(1).where(pool.c.app == app, pool.c.name == name)).first() is not None:
        return False
    try:
        with tx.begin_nested():
            tx.execute(insert(pool).values(app=app, name=name, slots=slots))
    except IntegrityError:
        return False  # somebody made it between the two statements
    return True


def remove(tx: Tx, app: str, name: str) -> None:
    """Delete a pool (its row locked by the caller)."""
    tx.execute(delete(pool).where(pool.c.app == app, pool.c.name == name))


def resize(tx: Tx, app: str, name: str, slots: int) -> int | None:
    """Change a pool's slots; return what it had, or ``None`` when there is no such pool."""
    old = lock(tx, app, [name]).get(name)
    if old is not None:
        tx.execute(update(pool).where(pool.c.app == app, pool.c.name == name).values(slots=slots))
    return old
