"""Concurrency keys: the same arguments make the same key on every database; what has none is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.definition import checked
from celery_sched.rules.keys import LONGEST, key_of

TABLE: list[tuple[str | None, list[Any], dict[str, Any], str | None]] = [
    (None, [1], {"a": 1}, None),
    ("everything", [], {}, "everything"),
    ("customer:{customer_id}", [], {"customer_id": 7}, "customer:7"),
    ("customer:{customer_id}", [], {"customer_id": "7"}, "customer:7"),
    ("{0}/{name}/{1}", ["a", 2], {"name": "b"}, "a/b/2"),
    ("{a}", [], {"a": None}, "null"),
    ("{a}", [], {"a": True}, "true"),
    ("{a}", [], {"a": {"y": [1, 2], "x": "é"}}, '{"x":"\\u00e9","y":[1,2]}'),
    ("{{{a}}}", [], {"a": 1}, "{1}"),
    ("{a}", [], {"a": " x "}, "x"),
    ("{a}", [], {"a": "Zoë"}, "Zoë"),
    ("{a}", [], {"a": "x\x00y"}, "x\\u0000y"),
    ("{a}", [], {"a": "\ud800"}, "\\ud800"),
    ("{a}", [], {"a": ""}, ""),
]


@pytest.mark.parametrize(("template", "args", "kwargs", "key"), TABLE)
def test_what_a_template_makes(
    template: str | None, args: list[Any], kwargs: dict[str, Any], key: str | None
) -> None:
    """Texts as they are, other values as JSON; nothing that a database cannot keep."""
    assert key == key_of(template, args, kwargs)


def test_a_long_key_is_cut() -> None:
    """Two long keys that differ at their end only stay two, and each fits into its column."""
    one, other = (key_of("k:{a}", [], {"a": "x" * 1000 + end}) or "" for end in "ab")
    assert (LONGEST, LONGEST, True) == (len(one), len(other), one != other)
    assert one.startswith("k:xxx")


@given(st.text(max_size=400))
def test_any_text_makes_a_key(text: str) -> None:
    """Of any text there is a key that every database keeps as it is: short, printable, no space around it."""
    key = key_of("{a}", [], {"a": text}) or ""
    assert (True, True, key) == (len(key) <= LONGEST, key.isprintable(), key.strip())
    key.encode()


REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("c:{customer_id}", [], {}, "{customer_id} is not among them. It has no arguments"),
    ("c:{customer_id}", [1], {"customer": 1}, "{customer_id} is not among them. There are: {customer}, {0}."),
    ("{1}", ["a"], {}, "{1} is not among them"),
    ("{", [], {}, "a template"),
    ("{a.b}", [], {"a": 1}, "a template"),
]


@pytest.mark.parametrize(("template", "args", "kwargs", "said"), REFUSED)
def test_what_has_no_key_is_refused(
    template: str, args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    """The error names what is not among the arguments, and what is."""
    with pytest.raises(InvalidValue) as raised:
        key_of(template, args, kwargs)
    assert said in str(raised.value)


def test_a_definition_whose_runs_would_have_no_key_is_refused() -> None:
    """A job with times runs with its own arguments; of one without, whoever runs it gives them."""
    given_: dict[str, Any] = {"name": "n", "task": "t", "concurrency_key": "c:{customer_id}"}
    with pytest.raises(InvalidValue, match=r"job 'n': concurrency_key .*\{customer_id\} is not among them"):
        checked(schedule="every 1h", **given_)
    assert "c:{customer_id}" == checked(schedule="none", **given_).concurrency_key
    assert 7 == checked(schedule="every 1h", kwargs={"customer_id": 7}, **given_).kwargs["customer_id"]
