"""What settings and jobs say about notifications: which kinds, to which targets, how often, in what words."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from string import Formatter
from typing import Any

from celery_sched.durations import format_duration, parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.model import NoticeKind

SECRET = "secret:"
"""A target's URL may be ``secret:NAME``, which is looked up where it is sent."""
OFF = "off"
LISTED = (
    *(NoticeKind.FAILURE, NoticeKind.LOST, NoticeKind.RECOVERY),
    *(NoticeKind.DEADLINE, NoticeKind.PAUSED),
)
"""Kinds that are told where nothing says otherwise."""
SKIPS = 5
"""So many skipped occurrences in a row are too many, where nothing says otherwise."""
MOST_TARGETS = 50
FIELDS = (
    *("app", "kind", "job", "task", "description", "run", "trigger", "status", "reason", "error", "attempt"),
    *("worker", "scheduled_for", "started_at", "finished_at", "duration"),
)
"""What a template may name; what a notification does not have is empty."""
_FORM = re.compile(r"([<>^]?\d{1,3})?(\.\d{1,4})?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.DOTALL)
_RATE = re.compile(r"(\d{1,6}) */ *(s|m|h|d)")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


@dataclass(frozen=True)
class Wanted:
    """The kinds that are told, and the names of the targets they go to; without a target they are listed."""

    on: tuple[NoticeKind, ...] = LISTED
    to: tuple[str, ...] = ()
    skips: int = SKIPS
    """How many skipped occurrences in a row are too many."""


@dataclass(frozen=True)
class Rate:
    """At most ``count`` messages to one target within ``per``."""

    count: int
    per: timedelta


@dataclass(frozen=True)
class Template:
    """``str.format`` texts over :data:`FIELDS`; None: the words that come with this package."""

    title: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Policy:
    """What holds for jobs that say nothing, and the templates by what they are for."""

    default: Wanted = Wanted()
    templates: Mapping[str, Template] = field(default_factory=dict)


def wanted(value: Any, what: str) -> dict[str, Any] | None:
    """What a job says about its notifications, in its one form; what it leaves out is the settings'.

    None: all as the settings say. ``"off"`` or an empty list: nothing. A text or a list: names of targets.
    Or a mapping with ``on``, ``to`` and ``skips``.
    """
    if value is None:
        return None
    if (isinstance(value, str) and value == OFF) or (isinstance(value, list | tuple) and not value):
        return {"on": []}
    if isinstance(value, str | list | tuple):
        return {"to": _targets(value, what)}
    if not isinstance(value, Mapping):
        allowed = 'the names of targets, a mapping such as {"on": ["failure"], "to": ["ops"]}, or "off"'
        raise InvalidValue(what, value, allowed)
    found: dict[str, Any] = {}
    for key in value:
        if key not in ("on", "to", "skips"):
            raise InvalidValue(f"{what}: key", key, 'there are "on", "to" and "skips"')
    if "on" in value:
        found["on"] = _kinds(value["on"], f"{what}['on']")
    if "to" in value:
        found["to"] = _targets(value["to"], f"{what}['to']")
    if "skips" in value:
        found["skips"] = _whole(value["skips"], f"{what}['skips']", 1000)
    return found or None


def of(given: Mapping[str, Any] | None, default: Wanted) -> Wanted:
    """What a job wants (as :func:`wanted` gives it), filled up with what the settings say."""
    given = given or {}
    return Wanted(
        tuple(NoticeKind(kind) for kind in given["on"]) if "on" in given else default.on,
        tuple(given.get("to", default.to)),
        given.get("skips", default.skips),
    )


def read_wanted(value: Any, what: str) -> Wanted:
    """The setting ``sched_notify``: for jobs that say nothing."""
    return of(wanted(_json(value, what, bare=True), what), Wanted())


def read_targets(value: Any, what: str) -> dict[str, tuple[str, ...]]:
    """The setting ``sched_notify_targets``: name -> URLs. Errors never show a URL: it may hold a password."""
    value = _json(value, what, hidden=True)
    if not isinstance(value, Mapping):
        raise InvalidValue(what, type(value).__name__, "a mapping of names to Apprise URLs")
    found: dict[str, tuple[str, ...]] = {}
    for name, given in value.items():
        _name(name, f"{what}: the name")
        if name.lower() in (OFF, "none"):
            raise InvalidValue(f"{what}: the name", name, "another one: a job says so that it wants none")
        urls = [given] if isinstance(given, str) else given
        if not isinstance(urls, list | tuple) or not 1 <= len(urls) <= MOST_TARGETS:
            raise InvalidValue(what, f"of target {name!r}", "an Apprise URL, or a list of them")
        for url in urls:
            if not isinstance(url, str) or not (_URL.fullmatch(url) or _is_secret(url)):
                allowed = 'an Apprise URL such as "mailto://user:password@host?to=me@host", or "secret:NAME"'
                raise InvalidValue(what, f"of target {name!r}", allowed)
        found[name] = tuple(urls)
    return found


def read_rate(value: Any, what: str) -> Rate:
    """``"20/h"``: so many messages to one target in a second, minute, hour or day."""
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not int(found[1]):
        raise InvalidValue(what, value, 'how many in which time, such as "20/h" (s, m, h or d)')
    return Rate(int(found[1]), _UNITS[found[2]])


def read_pause(value: Any, what: str) -> timedelta:
    """A duration, zero too."""
    return parse_duration(value, what, allow_zero=True)


def read_templates(value: Any, what: str) -> dict[str, Template]:
    """The setting ``sched_notify_templates``: kind, task, job type or ``TYPE/KIND`` -> title and text.

    :raises InvalidValue: also for a field that there is none of, so that no notification fails for it later.
    """
    value = _json(value, what)
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, 'a mapping such as {"failure": "{job} failed: {reason}"}')
    found = {}
    for key, given in value.items():
        where = f"{what}[{key!r}]"
        _template_key(key, what)
        texts = {"text": given} if isinstance(given, str) else given
        if not isinstance(texts, Mapping) or not texts or set(texts) - {"title", "text"}:
            raise InvalidValue(where, given, 'a text, or a mapping with "title" and "text"')
        for name, text in texts.items():
            _check_template(text, f"{where}[{name!r}]")
        found[key] = Template(texts.get("title"), texts.get("text"))
    return found


def contradictions(targets: Mapping[str, Any] | None, default: Wanted | None) -> list[str]:
    """What the settings say that cannot be together."""
    if targets is None or default is None:
        return []
    return [
        f"sched_notify goes to target {name!r}, which is not in sched_notify_targets: {known(targets)}."
        for name in default.to
        if name not in targets
    ]


def known(targets: Mapping[str, Any]) -> str:
    """The names of the targets there are, in words."""
    return f"there are {', '.join(sorted(targets))}" if targets else "it has none"


def shown_rate(rate: Rate) -> str:
    """``20 in 1h``."""
    return f"{rate.count} in {format_duration(rate.per)}"


def _is_secret(text: str) -> bool:
    return text.startswith(SECRET) and len(text) > len(SECRET)


def _json(value: Any, what: str, *, bare: bool = False, hidden: bool = False) -> Any:
    """A value; a text is JSON (an environment variable), or with ``bare`` also one that is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        if bare and not value.lstrip().startswith(("{", "[", '"')):
            return value
        shown = "of this text" if hidden else value
        raise InvalidValue(what, shown, f"JSON, which cannot be read: {error}") from None


def _kinds(value: Any, what: str) -> list[str]:
    names = [kind.value for kind in NoticeKind]
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        raise InvalidValue(what, value, f"a list of {', '.join(names)}")
    for one in values:
        if one not in names:
            near = difflib.get_close_matches(str(one), names, 1)
            hint = f"Did you mean {near[0]}?" if near else ""
            raise InvalidValue(what, one, f"one of {', '.join(names)}", hint)
    return [name for name in names if name in values]


def _targets(value: Any, what: str) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or len(values) > MOST_TARGETS:
        raise InvalidValue(what, value, f"a list of at most {MOST_TARGETS} names of targets")
    for one in values:
        if isinstance(one, str) and (_URL.fullmatch(one) or one.startswith(SECRET)):
            allowed = "the name of a target of sched_notify_targets: URLs stay out of the database"
            raise InvalidValue(what, "of a URL or a secret", allowed)
        _name(one, what)
    return list(dict.fromkeys(values))


def _name(value: Any, what: str) -> None:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= 100
        or not value.isprintable()
        or value != value.strip()
    ):
        raise InvalidValue(what, value, "a name of 1 to 100 printable characters, no blanks at the ends")


def _whole(value: Any, what: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidValue(what, value, f"a whole number from 1 to {most}")
    return value


def _template_key(key: Any, what: str) -> None:
    names = [kind.value for kind in NoticeKind]
    allowed = f"a kind ({', '.join(names)}), a task or job type, or TYPE/KIND"
    _name(key, f"{what}: the key")
    _, slash, kind = key.rpartition("/")
    near = difflib.get_close_matches(kind, names, 1)
    if kind not in names and (slash or (near and "." not in kind)):
        raise InvalidValue(f"{what}: the key", key, allowed, f"Did you mean {near[0]}?" if near else "")


def _check_template(text: Any, what: str) -> None:
    if not isinstance(text, str) or not text or len(text) > 10_000:
        raise InvalidValue(what, text, "a text of 1 to 10000 characters")
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidValue(what, text, "a template", f"It cannot be read: {error}.") from error
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"Did you mean {{{near[0]}}}?" if near else "Write {{ for a brace."
            raise InvalidValue(what, text, f"there is no {{{name}}}; there are {', '.join(FIELDS)}", hint)
        if conversion or not _FORM.fullmatch(form or ""):
            allowed = "fields as {name}, {name:20} (width) or {name:.200} (length)"
            raise InvalidValue(what, text, allowed)


def rendered(template: str, values: Mapping[str, str]) -> str:
    """A checked template with these values."""
    return template.format(**{name: values.get(name, "") for name in FIELDS})


def template_for(templates: Mapping[str, Template], task: str, kind: NoticeKind) -> Template:
    """What the task's template says, else its type's, else the kind's; title and text each on their own."""
    found = [templates[key] for key in _keys(task, kind) if key in templates]
    return Template(
        next((one.title for one in found if one.title is not None), None),
        next((one.text for one in found if one.text is not None), None),
    )


def _keys(task: str, kind: NoticeKind) -> Sequence[str]:
    of_type = task.removeprefix("celery_sched.")
    names = dict.fromkeys((task, of_type))
    return [key for name in names for key in (f"{name}/{kind}", name)] + [kind.value]
