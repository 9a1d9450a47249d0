"""Jobs that subscribe to events, in code and in files: defined, brought into the database, and out again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state

from celery_sched import decorators
from celery_sched.context import Context, current
from celery_sched.decorators import definitions, job
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.job_files import read_jobs, shown
from celery_sched.model import JobDefinition
from celery_sched.rules.definition import checked
from celery_sched.steps.define import sync
from celery_sched.store import job_forms
from celery_sched.store.tables import subscription
from tests.flow.stage import Stage

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app; what a test registers is gone after it."""
    monkeypatch.setattr(decorators, "_registered", [])
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    made = Celery("proj", broker="memory://", set_as_current=False)
    yield made
    made.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage(NOON)


def test_a_function_that_subscribes(app: Celery) -> None:
    """``@job(on=...)`` needs no schedule, and may have one."""

    @job(on="orders.*", name="bill")
    def bill(event: dict[str, Any]) -> None: ...

    @job("@daily", on={"topics": "orders.*", "debounce": "5s"}, name="both", publishes="bills.done")
    def both(event: Any = None) -> None: ...

    bill_definition, both_definition = definitions(app)
    assert ("none", {"topics": ["orders.*"]}, 5, None) == (
        *(bill_definition.schedule, bill_definition.on, bill_definition.retries, bill_definition.publishes),
    )
    assert ("@daily", {"topics": ["orders.*"], "deliver": "latest", "debounce": "5s"}, "bills.done") == (
        *(both_definition.schedule, both_definition.on, both_definition.publishes),
    )


def test_what_is_refused_where_it_stands(app: Celery) -> None:
    """Neither schedule nor events, or events that cannot be read."""
    with pytest.raises(InvalidValue, match="the schedule of @job None"):
        job(name="nothing")
    with pytest.raises(InvalidValue, match="parts of letters"):

        @job(on="no topic", name="wrong")
        def wrong(event: Any) -> None: ...


def subscribed(stage: Stage) -> list[int]:
    rows = stage.database.read(lambda tx, now: tx.execute(subscription.select()).all())
    return [row.job_id for row in rows]


def test_a_sync_makes_and_keeps_the_subscription(stage: Stage) -> None:
    """With the job, when code gives it events, and until code takes them away; gone from code it stays."""

    def start(*definitions: JobDefinition) -> None:
        stage.database.run(lambda tx, now: sync(tx, now, stage.config, definitions))

    bare = checked(name="job", task="t", schedule="@daily")
    listening = checked(name="job", task="t", schedule="@daily", on="orders.*")
    start(bare)
    assert [] == subscribed(stage)
    start(listening)
    made = subscribed(stage)
    assert [stage.client.get("job").id] == made
    start(listening)
    start()
    assert ("disabled", made) == (stage.client.get("job").status.value, subscribed(stage))
    start(checked(name="job", task="t", schedule="@daily", on="bills.*"))
    assert made == subscribed(stage)
    assert {"topics": ["bills.*"]} == stage.client.get("job").definition.on
    start(bare)
    assert [] == subscribed(stage)


YAML = """
jobs:
  bill:
    task: shop.bill
    on: orders.*
  rebuild:
    task: shop.rebuild
    retries: 0
    on:
      topics: [orders.new, orders.old]
      mode: all
"""


def test_yaml_that_says_on(tmp_path: Path) -> None:
    """YAML reads a bare ``on:`` as true; what was meant is the field."""
    file = tmp_path / "jobs.yaml"
    file.write_text(YAML)
    bill, rebuild = read_jobs(file)
    assert ("none", {"topics": ["orders.*"]}, 5) == (bill.schedule, bill.on, bill.retries)
    assert ({"topics": ["orders.new", "orders.old"], "mode": "all"}, 0) == (rebuild.on, rebuild.retries)


@pytest.mark.parametrize("retries", [0, 5, 7])
def test_what_is_exported_is_read_as_it_was(tmp_path: Path, retries: int) -> None:
    """Retries too, whose usual number depends on whether the job subscribes."""
    made = checked(name="bill", task="shop.bill", on="orders.*", retries=retries)
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps({"jobs": [shown(made, job_forms.to_json(made))]}))
    assert [made] == read_jobs(file)


def test_who_lost_its_lease_publishes_nothing(stage: Stage) -> None:
    """A run that somebody else may be carrying out by now is refused, by either way to publish."""
    published: list[Any] = []
    lost = [True]
    ctx = Context(
        run_id="r",
        job="job",
        scheduled_for=NOON,
        attempt=1,
        fence=1,
        is_lost=lambda: lost[0],
        beat=lambda: None,
        log=logging.getLogger("test"),
        hops=2,
        publisher=lambda *args, **about: published.append((args, about)),
    )
    reset = current.set(ctx)
    try:
        for publish in (ctx.publish, stage.client.publish):
            with pytest.raises(SchedulerError, match="the lease of run r is gone"):
                publish("orders", 1)
        lost[0] = False
        ctx.publish("orders", 1, key="k")
        assert None is not stage.client.publish("orders", 2)
    finally:
        current.reset(reset)
    about = {"key": "k", "dedupe_key": None, "session": None, "hops": 3, "run_id": "r"}
    assert [(("orders", 1), about)] == published
    [event] = stage.client.events()
    assert (2, 3, "r") == (event.payload, event.hops, event.run_id)
