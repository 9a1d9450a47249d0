"""Statements on the audit: what was done by people, and what stale holders tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select

from celery_sched.store.engine import Tx
from celery_sched.store.tables import audit


def add(
    tx: Tx, now: datetime, app: str, actor: str, action: str, subject: str, detail: Mapping[str, Any]
) -> None:
    """Write one line."""
    tx.execute(
        insert(audit).values(
            app=app, at=now, actor=actor[:255], action=action, subject=subject[:255], detail=dict(detail)
        )
    )


def newest(tx: Tx, app: str, limit: int = 100) -> Sequence[Row[Any]]:
    return tx.execute(select(audit).where(audit.c.app == app).order_by(audit.c.id.desc()).limit(limit)).all()


def prune(tx: Tx, app: str, before: datetime, limit: int) -> int:
    """Delete some lines older than ``before``, the oldest first; return how many."""
    old = select(audit.c.id).where(audit.c.app == app, audit.c.at < before).order_by(audit.c.at).limit(limit)
    ids = list(tx.execute(old).scalars())
    return tx.execute(delete(audit).where(audit.c.id.in_(ids))).rowcount if ids else 0
