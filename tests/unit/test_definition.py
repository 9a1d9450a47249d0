"""Every field of a job is checked where it enters; a refusal names job, field, value and why."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.model import Backoff, DayMode, Dst, JobDefinition, Misfire, OnExcluded, Overlap
from celery_sched.rules.definition import checked
from celery_sched.rules.readers import plain

GOOD: dict[str, Any] = {"name": "nightly", "task": "app.tasks.nightly", "schedule": "30 2 * * *"}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def test_the_least() -> None:
    """Name, task and schedule are enough; the rest are the defaults of the model."""
    assert JobDefinition(**GOOD, args=[], exclude=[], retry_on=[], give_up_on=[]) == checked(**GOOD)


def test_every_field_has_one_form() -> None:
    """Texts become durations and policies, tuples lists; what is checked once is left as it is."""
    once = checked(
        **GOOD,
        timezone="Europe/Berlin",
        dst="literal",
        day_mode="and",
        start_at="2026-01-31T09:00",
        end_at=datetime(2026, 12, 31, 12, tzinfo=timezone(timedelta(hours=2))),
        max_runs=3,
        jitter="90s",
        exclude="weekly:sat,sun",
        on_excluded="next_business_day",
        args=(1, (2, "x")),
        kwargs={"deep": {"a": (None, True)}, "customer_id": 7},
        options={"queue": "slow", "priority": 3, "headers": {"tenant": "a"}},
        overlap="queue",
        max_queued=10,
        misfire="all",
        misfire_grace="5m",
        catchup_window=86400,
        expires="1h",
        max_runtime=timedelta(minutes=2),
        time_limit="PT5M",
        soft_time_limit="4m",
        heartbeat_timeout=30,
        retries=5,
        backoff="linear",
        retry_delay="1s",
        retry_max_delay=timedelta(minutes=1),
        retry_jitter=False,
        retry_on=(ConnectionError, "requests.exceptions.Timeout"),
        give_up_on="KeyError",
        requeue=True,
        pause_on_failure=3,
        exclusive=True,
        on_lost="shop.put_right",
        must_succeed_by=timedelta(hours=25),
        on=("orders.*", "bills.new"),
        publishes="reports.done",
        priority=9,
        pool="reports",
        weight=2,
        concurrency_key="customer:{customer_id}/{0}",
        key_limit=2,
        notify={"to": "ops", "on": ("lost", "failure", "lost")},
        run_immediately=True,
        enabled=False,
        description="first line\nsecond",
    )
    expected = JobDefinition(
        **GOOD,
        timezone="Europe/Berlin",
        dst=Dst.LITERAL,
        day_mode=DayMode.AND,
        start_at=datetime(2026, 1, 31, 8, tzinfo=UTC),
        end_at=datetime(2026, 12, 31, 10, tzinfo=UTC),
        max_runs=3,
        jitter=timedelta(seconds=90),
        exclude=["weekly:sat,sun"],
        on_excluded=OnExcluded.NEXT_BUSINESS_DAY,
        args=[1, [2, "x"]],
        kwargs={"deep": {"a": [None, True]}, "customer_id": 7},
        options={"queue": "slow", "priority": 3, "headers": {"tenant": "a"}},
        overlap=Overlap.QUEUE,
        max_queued=10,
        misfire=Misfire.ALL,
        misfire_grace=timedelta(minutes=5),
        catchup_window=timedelta(days=1),
        expires=timedelta(hours=1),
        max_runtime=timedelta(minutes=2),
        time_limit=timedelta(minutes=5),
        soft_time_limit=timedelta(minutes=4),
        heartbeat_timeout=timedelta(seconds=30),
        retries=5,
        backoff=Backoff.LINEAR,
        retry_delay=timedelta(seconds=1),
        retry_max_delay=timedelta(minutes=1),
        retry_jitter=False,
        retry_on=["ConnectionError", "requests.exceptions.Timeout"],
        give_up_on=["KeyError"],
        requeue=True,
        pause_on_failure=3,
        exclusive=True,
        on_lost="shop.put_right",
        must_succeed_by="1d1h",
        on={"topics": ["orders.*", "bills.new"]},
        publishes="reports.done",
        priority=9,
        pool="reports",
        weight=2,
        concurrency_key="customer:{customer_id}/{0}",
        key_limit=2,
        notify={"on": ["failure", "lost"], "to": ["ops"]},
        run_immediately=True,
        enabled=False,
        description="first line\nsecond",
    )
    assert expected == once
    assert once == checked(**vars(once))


REFUSED = [
    ({"schedule": "after 5m | @daily"}, "schedule", "after"),
    ({"schedule": []}, "schedule", "a schedule is"),
    ({"dst": "vixi"}, "dst", "Did you mean vixie"),
    ({"day_mode": "both"}, "day_mode", "one of or, and"),
    ({"start_at": "tomorrow"}, "start_at", "ISO 8601"),
    ({"start_at": 5}, "start_at", "ISO 8601"),
    ({"start_at": "2026-02-01", "end_at": "2026-01-31"}, "end_at", "not before start_at"),
    ({"max_runs": 0}, "max_runs", "from 1 to"),
    ({"max_runs": True}, "max_runs", "from 1 to"),
    ({"jitter": -1}, "jitter", "not negative"),
    ({"retries": -1}, "retries", "from 0 to 1000"),
    ({"backoff": "expo"}, "backoff", "one of fixed, linear, exponential"),
    ({"retries": 1, "retry_delay": "2h"}, "retry_delay", "at most retry_max_delay"),
    ({"retry_on": ["no good"]}, "retry_on", "the name of an exception"),
    ({"give_up_on": 5}, "give_up_on", "names of exceptions"),
    ({"requeue": 1}, "requeue", "true or false"),
    ({"pause_on_failure": 0}, "pause_on_failure", "from 1 to 1000"),
    ({"exclusive": True, "overlap": "concurrent"}, "overlap", "one run at a time"),
    ({"exclusive": "yes"}, "exclusive", "true or false"),
    ({"on_lost": ""}, "on_lost", "1 to 255 characters"),
    ({"must_succeed_by": "6 o'clock"}, "must_succeed_by", "a time of day"),
    ({"must_succeed_by": "24:00"}, "must_succeed_by", "a time of day"),
    ({"on": "orders new"}, "on", "parts of letters"),
    ({"on": "orders", "overlap": "replace"}, "overlap", "not with events"),
    ({"publishes": "orders.*"}, "publishes", "A pattern is for those who subscribe"),
    ({"weight": 0}, "weight", "from 1 to 1000"),
    ({"concurrency_key": "{a.b}"}, "concurrency_key", "a template"),
    ({"concurrency_key": "{a!r}"}, "concurrency_key", "a template"),
    ({"concurrency_key": "{"}, "concurrency_key", "cannot be read"),
    ({"key_limit": 0}, "key_limit", "from 1 to 1000"),
    ({"notify": 5}, "notify", "the names of targets"),
    ({"notify": {"on": ["failur"]}}, "notify['on']", "Did you mean failure"),
    ({"notify": {"to": ["mailto://u:hush@host"]}}, "notify['to']", "URLs stay out of the database"),
    ({"notify": "secret:OPS"}, "notify", "URLs stay out of the database"),
    ({"notify": {"at": 1}}, "notify: key 'at'", "on"),
    ({"notify": {"skips": 0}}, "notify['skips']", "from 1 to 1000"),
    ({"notify": [" ops"]}, "notify", "no blanks"),
    ({"soft_time_limit": 5, "time_limit": 5}, "soft_time_limit", "less than time_limit"),
    ({"exclude": 5}, "exclude", "a list of calendars"),
    ({"exclude": ["weekly:mon-sun"]}, "exclude", "exclude every occurrence"),
    ({"on_excluded": "run"}, "on_excluded", "one of skip, next_business_day"),
    (
        {"schedule": "* * * * *", "exclude": ["weekly:sat,sun"], "on_excluded": "next_business_day"},
        "on_excluded",
        "24 times a day",
    ),
    ({"name": ""}, "name of a job", "1 to 200"),
    ({"name": " x"}, "name of a job", "blanks"),
    ({"name": "a\nb"}, "name of a job", "control"),
    ({"name": "x" * 201}, "name of a job", "201"),
    ({"name": None}, "name of a job", "1 to 200"),
    ({"name": "a\ud800"}, "name of a job", "surrogate"),
    ({"task": ""}, "job 'nightly': task", "1 to 255"),
    ({"task": 7}, "job 'nightly': task", "1 to 255"),
    ({"schedule": "61 * * * *"}, "job 'nightly'", "61"),
    ({"schedule": None}, "job 'nightly': schedule", "cron expression"),
    ({"schedule": "* " * 501}, "job 'nightly': schedule", "1000"),
    ({"timezone": "Europe/Berlinn"}, "job 'nightly': time zone", "Europe/Berlin"),
    ({"args": "abc"}, "job 'nightly': args", "list"),
    ({"args": [float("nan")]}, "args[0]", "finite"),
    ({"args": [0, {"a": float("inf")}]}, "args[1]['a']", "finite"),
    ({"args": [object()]}, "args[0]", "JSON"),
    ({"args": [b"x"]}, "args[0]", "JSON"),
    ({"args": [10**301]}, "args[0]", "digits"),
    ({"args": CYCLE}, "args[0]", "within each other"),
    ({"args": ["x" * 70_000]}, "args", "65536"),
    ({"kwargs": [1]}, "kwargs", "mapping"),
    ({"kwargs": {1: 2}}, "a key of kwargs", "texts"),
    ({"kwargs": {"a": "\ud800"}}, "kwargs['a']", "surrogate"),
    ({"options": {"countdown": 5}}, "message option 'countdown'", "queue"),
    ({"options": {"queu": "x"}}, "message option 'queu'", "Did you mean queue?"),
    ({"options": {"queue": ""}}, "options['queue']", "1 to 255"),
    ({"options": {"priority": -1}}, "options['priority']", "0 to 255"),
    ({"options": {"headers": {"sched_run": "x"}}}, "sched_run", "scheduler's"),
    ({"options": {"headers": 5}}, "options['headers']", "mapping"),
    ({"overlap": "skipp"}, "job 'nightly': overlap 'skipp'", "Did you mean skip?"),
    ({"overlap": None}, "overlap", "one of skip, queue, queue_one, replace, concurrent"),
    ({"misfire": "never"}, "misfire 'never'", "one of once, all, skip"),
    ({"overlap": "replace", "misfire": "all"}, "misfire 'all'", "it is once or skip"),
    ({"max_queued": 0}, "max_queued 0", "1 to 100000"),
    ({"max_queued": True}, "max_queued", "1 to 100000"),
    ({"max_queued": 1.5}, "max_queued", "1 to 100000"),
    ({"misfire_grace": -1}, "misfire_grace -1", "negative"),
    ({"catchup_window": None}, "catchup_window", "duration"),
    ({"expires": 0}, "expires 0", "longer than zero"),
    ({"max_runtime": float("nan")}, "max_runtime nan", "duration"),
    ({"time_limit": True}, "time_limit True", "duration"),
    ({"priority": 10}, "priority 10", "0 to 9"),
    ({"priority": "5"}, "priority '5'", "0 to 9"),
    ({"pool": ""}, "pool ''", "1 to 100"),
    ({"run_immediately": 1}, "run_immediately 1", "true or false"),
    ({"enabled": "yes"}, "enabled 'yes'", "true or false"),
    ({"description": "a\x00b"}, "description", "control"),
    ({"description": "x" * 10_001}, "description", "10001"),
    ({"overlapp": "skip"}, "job 'nightly': field 'overlapp'", "Did you mean overlap?"),
]


def shown(value: Any) -> str:
    """A test's name, the same in every process: no addresses."""
    return re.sub(r" at 0x\w+", "", str(value))[:40]


@pytest.mark.parametrize(("changed", "what", "allowed"), REFUSED, ids=shown)
def test_refused(changed: dict[str, Any], what: str, allowed: str) -> None:
    """A value that is not allowed is named with its field, and what is allowed is said."""
    with pytest.raises(InvalidValue) as caught:
        checked(**{**GOOD, **changed})
    assert (True, True) == (what in str(caught.value), allowed in str(caught.value)), caught.value


@pytest.mark.parametrize("field", ["name", "task", "schedule"])
def test_what_must_be_given(field: str) -> None:
    """Name, task and schedule have no default."""
    with pytest.raises(InvalidValue, match=field):
        checked(**{key: value for key, value in GOOD.items() if key != field})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*JobDefinition.__dataclass_fields__, "other"]), ANYTHING))
def test_nothing_else_is_raised(changed: dict[str, Any]) -> None:
    """Whatever stands in a field, it is accepted or refused with InvalidValue; accepted is stable."""
    try:
        definition = checked(**{**GOOD, **changed})
    except InvalidValue:
        return
    assert definition == checked(**vars(definition))


@given(ANYTHING)
def test_plain_is_what_json_gives_back(value: Any) -> None:
    """What is accepted as JSON comes back from JSON as it was stored."""
    import json

    try:
        stored = plain(value, "value")
    except InvalidValue:
        return
    assert stored == json.loads(json.dumps(stored, allow_nan=False, ensure_ascii=False))
