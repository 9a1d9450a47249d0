"""The conversation that an ``agent`` job opens with: texts, payload, placeholders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import options

ROLES = ("system", "developer", "user", "assistant", "tool")
_PLACE = re.compile(r"\{payload((?:\.[^{}.\s]+)*)\}")
_NEARLY = re.compile(r"\{payload[^{}]*\}")


def read_messages(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of messages, each with a role that there is and a content.

    :raises InvalidValue: naming the message.
    """
    found = options.a_list(value, what)
    for at, message in enumerate(found):
        name = f"{what}[{at}]"
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise InvalidValue(name, message, f"a mapping with a role ({', '.join(ROLES)}) and a content")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise InvalidValue(f"{name}.content", message.get("content"), "a text, or a list of parts")
    return found


def check_texts(*texts: str | None) -> None:
    """Check the form of the placeholders.

    :raises InvalidValue: one that begins like one and is none.
    """
    for text in texts:
        for found in _NEARLY.findall(text or ""):
            if not _PLACE.fullmatch(found):
                raise InvalidValue("agent: prompt", found, "{payload} or {payload.FIELD}, {payload.FIELD.0}")


def payload_of(given: Any, event: Any) -> Any:
    """What the work begins with: the job's own payload, else the event's, or a list of those of several."""
    if given is not None or event is None:
        return given
    if isinstance(event, list):
        return [payload_of(None, one) for one in event]
    return event.get("payload") if isinstance(event, Mapping) else event


def opening(
    system: str | None, messages: Sequence[Mapping[str, Any]], prompt: str | None, payload: Any
) -> list[dict[str, Any]]:
    """The messages of the first request.

    :raises InvalidValue: there is nothing to say, or a placeholder names what the payload does not have.
    """
    texts = [text for text in (system, prompt) if text]
    placed = any(_PLACE.search(text) for text in texts)
    first = None if placed or payload is None else _written(payload)
    asked = _filled(prompt, payload) if prompt else None
    if first is not None and asked and not messages:
        # one message, not two: some models refuse two of one role in a row
        first, asked = None, f"{first}\n\n{asked}"
    said = [
        *([{"role": "system", "content": _filled(system, payload)}] if system else []),
        *([{"role": "user", "content": first}] if first else []),
        *map(dict, messages),
        *([{"role": "user", "content": asked}] if asked else []),
    ]
    if not any(message["role"] == "user" for message in said):
        hint = "Give a prompt, messages or a payload; for a job with `on` the payload is the event's."
        raise InvalidValue("agent: the conversation", said, "at least one message of the user", hint)
    return said


def _filled(text: str, payload: Any) -> str:
    return _PLACE.sub(lambda found: _written(_within(payload, found[1])), text)


def _within(payload: Any, path: str) -> Any:
    value = payload
    for name in path.split(".")[1:]:
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            found = sorted(map(str, value)) if isinstance(value, Mapping) else _what_is(value)
            allowed = f"a field that the payload has; {name!r} was looked for in {found}"
            raise InvalidValue("agent: prompt", f"{{payload{path}}}", allowed)
    return value


def _what_is(value: Any) -> str:
    """``null``, ``a text``, ``a list``; numbers and truths as they are."""
    if isinstance(value, str | list):
        return "a text" if isinstance(value, str) else f"a list of {len(value)}"
    return json.dumps(value)


def _written(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
