"""Places at which a test can make the code stop, fail or die. No-ops otherwise.

``failpoint("claim:committed")`` does nothing unless a test armed that name with :func:`arm`, or the
process was started with ``CELERY_SCHED_FAILPOINTS="claim:committed=kill"`` (actions: ``kill``, the
process ends with SIGKILL; ``raise``, :class:`FailpointReached` is raised). Several are separated by
commas; ``name=kill@3`` acts at the third time the place is reached.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


class FailpointReached(RuntimeError):
    """Raised at a place armed with ``raise``."""


def arm(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` whenever ``failpoint(name)`` is reached in this process."""
    _armed[name] = action


def disarm(name: str) -> None:
    """Make ``failpoint(name)`` a no-op again."""
    _armed.pop(name, None)


def failpoint(name: str) -> None:
    """Do what a test armed for ``name``; nothing in normal use."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise FailpointReached("a failpoint was reached")


def _counted(action: Callable[[], None], nth: int) -> Callable[[], None]:
    left = nth

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    return act


def _arm_from_environment(text: str) -> None:
    actions = {"kill": _kill, "raise": _raise}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"([^=@]+)=(kill|raise)(?:@([1-9][0-9]*))?", part)
        if found is None:
            raise ValueError(
                f"CELERY_SCHED_FAILPOINTS has {part!r}: write name=kill, name=raise or name=kill@3"
            )
        name, action, nth = found.groups()
        arm(name, _counted(actions[action], int(nth)) if nth else actions[action])


_arm_from_environment(os.environ.get("CELERY_SCHED_FAILPOINTS", ""))
