"""Concurrency keys: what a job's ``concurrency_key`` makes of a run's arguments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from celery_sched.errors import InvalidValue

LONGEST = 255
"""Characters of a key; of a longer one the end is replaced by a digest of the whole."""


def key_of(template: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The key of a run with these arguments; ``None``: its job has no ``concurrency_key``.

    Texts stand in it as they are, everything else as JSON, so ``7`` and ``"7"`` are one key. Spaces around it
    do not count (databases differ on them); what cannot be printed is written as JSON writes it.

    :raises InvalidValue: the template names an argument that is not there, or cannot be read.
    """
    if template is None:
        return None
    absent = missing(template, args, kwargs)
    if absent:
        allowed = f"over arguments that the run has: {_braced(absent)} is not among them"
        raise InvalidValue("concurrency_key", template, allowed, _known(args, kwargs))
    parts = []
    for text, name in _parts(template):
        parts.append(text)
        if name is not None:
            parts.append(_text(args[int(name)] if name.isdecimal() else kwargs[name]))
    key = "".join(parts).strip()
    if not key.isprintable():
        key = json.dumps(key)[1:-1]
    if len(key) > LONGEST:
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        key = f"{key[: LONGEST - len(digest) - 1]}#{digest}"
    return key


def missing(template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Names and places in a template that these arguments do not have.

    :raises InvalidValue: it cannot be read.
    """
    names = [name for _, name in _parts(template) if name is not None]
    there = [int(name) < len(args) if name.isdecimal() else name in kwargs for name in names]
    return [name for name, known in zip(names, there, strict=True) if not known]


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Texts, and the name in braces after each; a definition in the table may have been edited by SQL."""
    try:
        for text, name, _form, _conversion in Formatter().parse(template):
            if name is not None and not (name.isidentifier() or name.isdecimal()):
                raise ValueError(f"{{{name}}} is no name of an argument")
            yield text, name
    except ValueError as error:
        raise InvalidValue("concurrency_key", template, f"a template: {error}") from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _braced(names: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _known(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    there = [*kwargs, *(str(place) for place in range(len(args)))]
    return f"There are: {_braced(there)}." if there else "It has no arguments (see args and kwargs)."
