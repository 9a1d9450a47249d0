"""What a chat completion endpoint answers: whole or as a stream, and what its errors mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_sched.jobtypes.agent_errors import Failed, Next, error_of, failed, quoted

DONE = "[DONE]"


@dataclass(frozen=True)
class Usage:
    """Tokens, as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
        )

    @classmethod
    def read(cls, value: Any) -> Usage:
        """From an answer's ``usage``; what is missing or no number counts as zero."""
        given = value if isinstance(value, Mapping) else {}
        prompt, completion, total = (
            number if isinstance(number := given.get(name), int) and not isinstance(number, bool) else 0
            for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        )
        return cls(prompt, completion, total or prompt + completion)


@dataclass(frozen=True)
class Completion:
    """One answer of a model."""

    content: str
    finish_reason: str
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    """As the server names it."""
    tool_calls: tuple[Any, ...] = ()


def of_json(body: bytes) -> Completion:
    """A whole answer.

    :raises Failed: it is an error, or no answer of this protocol.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Failed(
            f"the answer is no JSON: {quoted(body.decode('utf-8', 'replace'))}", Next.AGAIN
        ) from error
    if (told := error_of(value)) is not None:
        raise failed(200, told, quoted(str(told)))
    choice = _choice(value)
    message = choice.get("message") if choice else None
    if not isinstance(message, Mapping):
        raise Failed(f"the answer has no choices[0].message: {quoted(body.decode())}", Next.AGAIN)
    return Completion(
        content=_text(message.get("content")),
        finish_reason=str((choice or {}).get("finish_reason") or "stop"),
        usage=Usage.read(value.get("usage")),
        model=value.get("model") if isinstance(value.get("model"), str) else None,
        tool_calls=tuple(message.get("tool_calls") or ()),
    )


def of_stream(lines: Iterable[str], unreachable: type[Exception]) -> Completion:
    """An answer that comes in pieces (server-sent events).

    It is whole when ``finish_reason`` or ``[DONE]`` has come; what breaks after that takes nothing from it.

    :raises Failed: it is an error, is no answer of this protocol, or ended half.
    :raises unreachable: what ``lines`` raised before the answer was whole.
    """
    parts: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    reason: str | None = None
    usage, model, done = Usage(), None, False
    try:
        for data in _events(lines):
            if data == DONE:
                done = True
                break
            value = _chunk(data)
            usage = Usage.read(value["usage"]) if value.get("usage") else usage
            model = value["model"] if isinstance(value.get("model"), str) else model
            choice = _choice(value) or {}
            delta = choice.get("delta")
            if isinstance(delta, Mapping):
                parts.append(_text(delta.get("content")))
                _merge(calls, delta.get("tool_calls"))
            reason = str(choice["finish_reason"]) if choice.get("finish_reason") else reason
    except unreachable:
        if reason is None:
            raise
    if reason is None and not done:
        raise Failed(f"the stream ended half, after {len(''.join(parts))} characters", Next.AGAIN)
    return Completion(
        "".join(parts), reason or "stop", usage, model, tuple(calls[at] for at in sorted(calls))
    )


def _events(lines: Iterable[str]) -> Iterable[str]:
    """The ``data`` of each server-sent event; comments and other fields mean nothing here."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data == [DONE]:
        yield DONE  # its empty line may be missing at the very end; any other event is whole only with it


def _chunk(data: str) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Failed(f"a piece of the stream is no JSON: {quoted(data)}", Next.AGAIN) from error
    if (told := error_of(value)) is not None:
        raise failed(200, told, data)
    if not isinstance(value, Mapping):
        raise Failed(f"a piece of the stream is no object: {quoted(data)}", Next.AGAIN)
    return value


def _merge(calls: dict[int, dict[str, Any]], pieces: Any) -> None:
    """Calls of tools come in pieces too: the text of a call's arguments grows."""
    for piece in pieces if isinstance(pieces, list) else ():
        if not isinstance(piece, Mapping):
            continue
        at = piece.get("index", len(calls))
        call = calls.setdefault(at if isinstance(at, int) else len(calls), {"function": {"arguments": ""}})
        function = piece.get("function")
        given = function if isinstance(function, Mapping) else {}
        call |= {name: value for name, value in piece.items() if name not in ("index", "function") and value}
        call["function"] |= {"name": given["name"]} if given.get("name") else {}
        call["function"]["arguments"] += _text(given.get("arguments"))


def _choice(value: Any) -> Mapping[str, Any] | None:
    choices = value.get("choices") if isinstance(value, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _text(content: Any) -> str:
    """The content of a message: a text, or a list of parts of which some have a text."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
