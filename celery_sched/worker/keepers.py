"""Which keeper serves an app in this process (children inherit it from their main process)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sched.worker.keeper import Keeper

_keepers: weakref.WeakKeyDictionary[Any, Keeper] = weakref.WeakKeyDictionary()


def of(app: Any) -> Keeper | None:
    """The keeper of an app's worker; ``None`` where the app is not ours or no worker runs here."""
    return _keepers.get(app)


def add(app: Any, keeper: Keeper) -> None:
    """From now on ``keeper`` serves the app."""
    _keepers[app] = keeper


def every() -> list[Keeper]:
    """All keepers of this process."""
    return list(_keepers.values())
