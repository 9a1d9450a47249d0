"""What a job subscribes to (``on``): how it is read, the one form it has, and which events it wants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from celery_sched.durations import format_duration, parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.rules import readers
from celery_sched.rules.topics import matches, pattern

FORMS = 'a topic ("orders.new"), a pattern ("orders.*"), a list of them, or a mapping with "topics"'
FIELDS = ("topics", "mode", "where", "deliver", "debounce", "size", "within", "start")
MOST_TOPICS = 20
MOST_FIELDS = 20
LARGEST_BATCH = 1000
DEFAULT_SIZE, DEFAULT_WITHIN = 100, timedelta(seconds=5)
LARGEST_WHERE = 16 * 1024


class Mode(StrEnum):
    """Of several topics: each event by itself, or one event of every topic together."""

    ANY = "any"
    ALL = "all"


class Deliver(StrEnum):
    """Each event in a run of its own; of those that wait only the latest of its key; several in one run."""

    EACH = "each"
    LATEST = "latest"
    BATCH = "batch"


@dataclass(frozen=True)
class Subscription:
    """What a job subscribes to."""

    topics: tuple[str, ...]
    mode: Mode = Mode.ANY
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields of the payload (``total.currency``) and what each may be; all must match."""
    deliver: Deliver = Deliver.EACH
    debounce: timedelta | None = None
    """Nothing goes before it was quiet for so long."""
    size: int = DEFAULT_SIZE
    """Most events in one run of a batch."""
    within: timedelta | None = None
    """A batch that is not full, or what is never quiet, goes when its oldest event has waited this long."""
    replay: bool = False
    """Events from before the job subscribed are delivered too."""

    def wants(self, topic: str, payload: Any) -> bool:
        """Whether an event is for this job."""
        return self.place(topic) is not None and all(
            _is_one_of(_at(payload, path), allowed) for path, allowed in self.where.items()
        )

    def place(self, topic: str) -> int | None:
        """Which of the topics an event's is: the first that matches."""
        return next((at for at, wanted in enumerate(self.topics) if matches(wanted, topic)), None)


_MISSING = object()


def _at(payload: Any, path: str) -> Any:
    """The value at a path; a key that has a dot in it itself is found as well."""
    if not isinstance(payload, Mapping):
        return _MISSING
    if path in payload:
        return payload[path]
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        first = ".".join(parts[:length])
        if first in payload:
            found = _at(payload[first], ".".join(parts[length:]))
            if found is not _MISSING:
                return found
    return _MISSING


def _is_one_of(value: Any, allowed: Iterable[Any]) -> bool:
    """JSON's idea of equal: true is not 1."""
    return any(isinstance(value, bool) is isinstance(one, bool) and value == one for one in allowed)


# Reading


def read(value: Any, what: str = "on") -> Subscription:
    """A subscription from any of its forms.

    :raises InvalidValue: naming the field, the value and what is allowed.
    """
    if isinstance(value, str | list | tuple):
        return Subscription(_topics(value, what))
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, FORMS)
    for name in value:
        if name not in FIELDS:
            readers.refuse_unknown(str(name), FIELDS, f"{what}: field")
    if "topics" not in value:
        raise InvalidValue(what, dict(value), 'it must have "topics"')
    mode = readers.one_of(Mode)(value.get("mode", "any"), f"{what}.mode")
    debounce = readers.optional_duration(value.get("debounce"), f"{what}.debounce")
    usual = Deliver.EACH if debounce is None else Deliver.LATEST
    deliver = readers.one_of(Deliver)(value.get("deliver", usual.value), f"{what}.deliver")
    batch = deliver is Deliver.BATCH
    within = value.get("within")
    found = Subscription(
        topics=_topics(value["topics"], f"{what}.topics"),
        mode=mode,
        where=_where(value.get("where"), f"{what}.where"),
        deliver=deliver,
        debounce=debounce,
        size=readers.count(1, LARGEST_BATCH)(value.get("size", DEFAULT_SIZE), f"{what}.size"),
        within=(
            parse_duration(within, f"{what}.within")
            if within is not None
            else DEFAULT_WITHIN
            if batch
            else None
        ),
        replay=_start(value.get("start", "now"), f"{what}.start"),
    )
    _check(value, found, what)
    return found


def _topics(value: Any, what: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MOST_TOPICS:
        raise InvalidValue(what, value, f"1 to {MOST_TOPICS} topics or patterns")
    return tuple(dict.fromkeys(pattern(one, what) for one in values))


def _where(value: Any, what: str) -> dict[str, tuple[Any, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MOST_FIELDS:
        allowed = f'at most {MOST_FIELDS} fields of the payload, and what each may be: {{"country": "DE"}}'
        raise InvalidValue(what, value, allowed)
    found: dict[str, tuple[Any, ...]] = {}
    for path, wanted in value.items():
        name = readers.a_name(path, f"a field of {what}", 200)
        values = readers.plain(
            list(wanted) if isinstance(wanted, list | tuple) else [wanted], f"{what}.{path}"
        )
        if not values or any(isinstance(one, list | dict) for one in values):
            raise InvalidValue(
                f"{what}.{path}", wanted, "a text, number, true, false, null, or a list of them"
            )
        found[name] = tuple(values)
    if len(json.dumps(found)) > LARGEST_WHERE:
        raise InvalidValue(what, "of this size", f"at most {LARGEST_WHERE} bytes of JSON")
    return found


def _start(value: Any, what: str) -> bool:
    if value not in ("now", "beginning"):
        raise InvalidValue(what, value, "now, or beginning: events that were published before come too")
    return bool(value == "beginning")


def _check(given: Mapping[str, Any], found: Subscription, what: str) -> None:
    """What the fields say together."""
    batch = found.deliver is Deliver.BATCH
    if found.mode is Mode.ALL:
        if len(found.topics) < 2:
            raise InvalidValue(f"{what}.mode", "all", "for two topics or more")
        if batch or found.debounce is not None or found.within is not None:
            name = "deliver" if batch else "debounce" if found.debounce is not None else "within"
            allowed = "with mode all one event of every topic goes together, as soon as all are there"
            raise InvalidValue(f"{what}.{name}", given[name], allowed)
    if found.debounce is not None and found.deliver is Deliver.EACH:
        raise InvalidValue(f"{what}.debounce", given["debounce"], "with deliver latest, or batch")
    if "size" in given and not batch:
        raise InvalidValue(f"{what}.size", given["size"], "with deliver batch")
    if found.within is not None and not batch and found.debounce is None:
        raise InvalidValue(f"{what}.within", given["within"], "with deliver batch, or debounce")


def canonical(value: Any, what: str = "on") -> dict[str, Any] | None:
    """The one form in which a definition has it: a mapping with the topics, and what is not as usual."""
    return None if value is None else as_json(read(value, what))


def as_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription as it is stored; :func:`read` gives it back."""
    usual = Subscription(())
    form: dict[str, Any] = {"topics": list(subscription.topics)}
    if subscription.mode is not usual.mode:
        form["mode"] = subscription.mode.value
    if subscription.where:
        form["where"] = {
            path: list(allowed) if len(allowed) > 1 else allowed[0]
            for path, allowed in subscription.where.items()
        }
    if subscription.deliver is not usual.deliver:
        form["deliver"] = subscription.deliver.value
    if subscription.debounce is not None:
        form["debounce"] = format_duration(subscription.debounce)
    if subscription.deliver is Deliver.BATCH:
        form["size"] = subscription.size
    if subscription.within is not None:
        form["within"] = format_duration(subscription.within)
    if subscription.replay:
        form["start"] = "beginning"
    return form
