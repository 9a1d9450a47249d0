"""Names of topics, and the patterns that jobs subscribe to.

A topic's name has parts, separated by dots. In a pattern ``*`` stands for one part; as the last part it
stands for one or more: ``orders.*`` is ``orders.new`` and ``orders.new.eu``, but not ``orders``; ``*.failed``
is ``orders.failed``; ``*`` alone is every topic.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from celery_sched.errors import InvalidValue

LONGEST = 200
NAME = re.compile(r"[A-Za-z0-9_:-]+(\.[A-Za-z0-9_:-]+)*")
PATTERN = re.compile(r"(\*|[A-Za-z0-9_:-]+)(\.(\*|[A-Za-z0-9_:-]+))*")
LETTERS = 'letters, digits, "_", "-" and ":"'


def topic(value: Any, what: str = "topic") -> str:
    """A topic's name, checked.

    :raises InvalidValue: naming the value and what is allowed.
    """
    if isinstance(value, str) and len(value) <= LONGEST and NAME.fullmatch(value):
        return value
    allowed = f"parts of {LETTERS}, separated by dots, at most {LONGEST} characters: orders.new"
    hint = "A pattern is for those who subscribe." if isinstance(value, str) and "*" in value else ""
    raise InvalidValue(what, value, allowed, hint)


def optional_topic(value: Any, what: str) -> str | None:
    """The same, or nothing."""
    return None if value is None else topic(value, what)


def pattern(value: Any, what: str) -> str:
    """A topic's name or a pattern, checked.

    :raises InvalidValue: naming the value and what is allowed.
    """
    if isinstance(value, str) and len(value) <= LONGEST and PATTERN.fullmatch(value):
        return value
    allowed = f'a topic such as orders.new, or a pattern such as orders.*: parts of {LETTERS}, or a "*"'
    raise InvalidValue(what, value, allowed)


def matches(wanted: str, name: str) -> bool:
    """Whether a topic of that name is the one wanted, or one of those that a pattern stands for."""
    return wanted == name or ("*" in wanted and _regex(wanted).fullmatch(name) is not None)


@lru_cache(maxsize=10_000)
def _regex(wanted: str) -> re.Pattern[str]:
    *first, last = wanted.split(".")
    parts = [r"[^.]+" if part == "*" else re.escape(part) for part in first]
    return re.compile(r"\.".join([*parts, ".+" if last == "*" else re.escape(last)]), re.DOTALL)
