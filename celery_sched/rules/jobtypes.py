"""What a job type says about the arguments of its jobs: asked when a job is defined.

The types themselves (``celery_sched.jobtypes``) do things; what they know of definitions is registered here,
so that the one door of definitions can ask them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

PREFIX = "celery_sched."
"""A job whose task is ``celery_sched.<type>`` is of that type; its ``kwargs`` are its configuration."""

Check = Callable[[Sequence[Any], Mapping[str, Any]], None]
"""Takes the job's ``args`` and ``kwargs``; raises InvalidValue."""

_find: Callable[[str], Check | None] = lambda _task: None  # noqa: E731  (no types are loaded yet)


def use(find: Callable[[str], Check | None]) -> None:
    """From now on ``find`` says which check belongs to a task; ``None``: it is of no known type."""
    global _find
    _find = find


def check(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of a job whose task is a type's; those of any other are its own business.

    :raises InvalidValue: naming the type's field, the value and what is allowed.
    """
    found = _find(task) if task.startswith(PREFIX) else None
    if found is not None:
        found(args, kwargs)
