"""The fields of a type's configuration: how each is written, read and documented."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from celery_sched import secrets
from celery_sched.durations import format_duration, parse_duration
from celery_sched.errors import InvalidValue
from celery_sched.rules import readers

C = TypeVar("C")


@dataclass(frozen=True)
class Form:
    """How a value is written: in words, for tables; and how it is read.

    ``read`` takes the value and its name for messages, returns it in the form that the type works with, and
    raises InvalidValue.
    """

    words: str
    read: Callable[[Any, str], Any]
    text: bool = False
    """A reference to a secret may stand for the whole value; what it stands for is read on the worker."""


def option(form: Form, doc: str, default: Any = MISSING, *, secret: bool = True) -> Any:
    """A field of a configuration dataclass.

    :param doc: one line, for ``sched jobtypes`` and docs/jobtypes.md.
    :param default: without one the field must be given. What is written, not what it is read to: ``"1m"``.
    :param secret: whether references to secrets are looked up in it.
    """
    metadata = {"form": form, "doc": doc, "default": default, "secret": secret}
    if default is MISSING:
        return dataclasses.field(metadata=metadata)
    read = None if default is None else form.read(default, "default")
    if isinstance(read, list | dict | set):
        return dataclasses.field(default_factory=lambda: type(read)(read), metadata=metadata)
    return dataclasses.field(default=read, metadata=metadata)


@dataclass(frozen=True)
class Field:
    """One field of a type, as people read of it."""

    name: str
    form: Form
    doc: str
    default: Any
    """As it is written; ``MISSING``: the field must be given."""
    secret: bool

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING


def fields_of(kind: type[Any]) -> tuple[Field, ...]:
    """The fields of a configuration dataclass, in its order."""
    return tuple(Field(name=one.name, **one.metadata) for one in dataclasses.fields(kind))


def read(kind: type[C], given: Mapping[str, Any], where: str, *, resolved: bool = False) -> C:
    """Make a configuration of what is written in ``kwargs``.

    :param where: what the message calls it: the type's name.
    :param resolved: references have been replaced; else they are checked for their form and left alone.
    :raises InvalidValue: naming the field, the value and what is allowed.
    """
    known = fields_of(kind)
    names = [field.name for field in known]
    for name in given:
        if name not in names:
            readers.refuse_unknown(name, names, f"{where}: field")
    values = {}
    for field in known:
        what, value = f"{where}: {field.name}", given.get(field.name)
        if value is None:
            if field.required:
                raise InvalidValue(what, None, f"it must be given: {field.form.words}")
            continue
        if not resolved:
            _check_references(field, value, what)
            if field.form.text and secrets.is_reference(value):
                values[field.name] = value
                continue
        values[field.name] = field.form.read(value, what)
    return kind(**values)


def _check_references(field: Field, value: Any, what: str) -> None:
    secrets.check(value, what)
    if not field.secret and secrets.refers(value):
        raise InvalidValue(what, value, "no secret is looked up in this field")


def _bounded_text(value: Any, what: str) -> str:
    return readers.a_text(value, what, readers.LARGEST_JSON)


def _filled_text(value: Any, what: str) -> str:
    text = _bounded_text(value, what)
    if not text.strip():
        raise InvalidValue(what, value, "a text that is not empty")
    return text


def texts(value: Any, what: str) -> tuple[str, ...]:
    """A list of texts; one text is a list of one."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, "a list of texts")
    return tuple(_bounded_text(part, f"{what}[{at}]") for at, part in enumerate(value))


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, "a mapping of names to values")
    return dict(readers.plain(value, what))


def text_mapping(value: Any, what: str) -> dict[str, str]:
    """A mapping of names to texts; numbers and truths are written as JSON writes them."""
    found = {}
    for key, part in _mapping(value, what).items():
        if isinstance(part, bool):
            part = "true" if part else "false"
        elif isinstance(part, int | float):
            part = str(part)
        found[key] = _bounded_text(part, f"{what}[{key!r}]")
    return found


def a_list(value: Any, what: str) -> list[Any]:
    """A list of any JSON values."""
    if not isinstance(value, list | tuple):
        raise InvalidValue(what, value, "a list")
    return list(readers.plain(value, what))


def one_of(kind: type[StrEnum]) -> Form:
    """One of the words of an enumeration."""
    return Form(" or ".join(f"`{member.value}`" for member in kind), readers.one_of(kind))


def count(low: int, high: int) -> Form:
    """A whole number within bounds."""
    return Form(f"whole number, {low} to {high}", readers.count(low, high))


def number(low: float, high: float) -> Form:
    """A number within bounds."""

    def read_number(value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidValue(what, value, f"a number from {low:g} to {high:g}")
        return float(value)

    return Form(f"number, {low:g} to {high:g}", read_number)


def duration(longest: str) -> Form:
    """A duration of at most ``longest``."""
    most = parse_duration(longest, "longest")

    def read_duration(value: Any, what: str) -> timedelta:
        found = parse_duration(value, what)
        if found > most:
            raise InvalidValue(what, value, f"at most {format_duration(most)}")
        return found

    return Form("duration", read_duration)


TEXT = Form("text", _bounded_text, text=True)
FILLED = Form("text", _filled_text, text=True)
NAME = Form("name", lambda value, what: readers.a_name(value, what, 255))
TRUTH = Form("true or false", readers.truth)
TEXTS = Form("list of texts", texts)
MAPPING = Form("mapping", _mapping)
TEXT_MAPPING = Form("mapping of texts", text_mapping)
LIST = Form("list", a_list)
ANY = Form("any JSON", readers.plain)
