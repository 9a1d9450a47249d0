"""`--type`, `--set` and `--unset`: what they make of a job's fields."""

from __future__ import annotations

from typing import Any

import click
import pytest

from celery_sched.cli.jobtypes import with_type
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import JobDefinition


def made(present: JobDefinition | None = None, **given: Any) -> dict[str, Any]:
    """The fields that the client gets."""
    fields = dict(given)
    with_type(fields, present)
    return fields


def test_a_new_job() -> None:
    """Values are JSON where they are JSON, texts else; a field that is a text takes it as it is."""
    sets = (
        "url=https://example.com/?a=b",
        "headers.X-Token=secret:TOKEN",
        "headers.X-Number=5",
        "expect=[200, 204]",
        "idempotency_key=false",
        "body=123",
    )
    expected = {
        "url": "https://example.com/?a=b",
        "headers": {"X-Token": "secret:TOKEN", "X-Number": 5},
        "expect": [200, 204],
        "idempotency_key": False,
        "body": "123",
    }
    assert {"task": "celery_sched.http", "kwargs": expected} == made(job_type="http", set_fields=sets)
    assert {"task": "shop.pay", "kwargs": {"a": {"b.c": 1}}} == made(task="shop.pay", set_fields=("a.b.c=1",))


PRESENT = JobDefinition(
    "j", "celery_sched.http", "every 1h", kwargs={"url": "http://a", "headers": {"X": "1"}}
)


def test_a_change() -> None:
    """What is not named stays; another type begins anew; nothing given changes nothing."""
    assert {} == made(PRESENT)
    changed = made(PRESENT, set_fields=("headers.Y=2",), unset_fields=("headers.X",))
    assert {"kwargs": {"url": "http://a", "headers": {"Y": 2}}} == changed
    assert {"X": "1"} == PRESENT.kwargs["headers"]
    assert {"task": "celery_sched.shell", "kwargs": {"command": ["ls"]}} == made(
        PRESENT, job_type="shell", set_fields=('command=["ls"]',)
    )


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"job_type": "htp"}, NotFound, "Did you mean 'http'?"),
        ({"job_type": "nothing of the kind"}, NotFound, "There are http, shell"),
        ({"job_type": "http", "task": "x"}, click.UsageError, "give one of them"),
        ({"set_fields": ("a=1",)}, click.UsageError, "give --type"),
        ({"job_type": "http", "set_fields": ("url",)}, InvalidValue, "FIELD=VALUE"),
        ({"job_type": "http", "set_fields": ("url=x", "url.a=1")}, InvalidValue, "which has no fields"),
        ({"job_type": "http", "unset_fields": ("url",)}, InvalidValue, "a field that is set; there are none"),
    ],
)
def test_what_is_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    """A type that there is none of, and what cannot be set, is named with what to do."""
    with pytest.raises(error) as caught:
        made(**given)
    assert said in str(caught.value)
