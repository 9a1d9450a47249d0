"""What is published is handed out to the jobs that subscribe, and carried by runs; on every database."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.store.world import Bench


def carry_out(bench: Bench, status: RunStatus = RunStatus.SUCCEEDED, **outcome: Any) -> list[dict[str, Any]]:
    """Poll once, and carry out every message; the arguments that the bodies got, in order."""
    bench.scheduler.poll()
    seen = []
    for key in bench.messages():
        if bench.start(key).verdict is Verdict.YOURS:
            row = bench.row(key.id)
            seen.append(row.kwargs)
            assert bench.finish(key, status, **outcome).settled
    invariants.check(bench.database)
    return seen


def carried(bench: Bench, polls: int = 20) -> list[Any]:
    """The payloads of the events that are carried out until nothing is left to do, in order."""
    found = []
    for _ in range(polls):
        found += [kwargs["event"]["payload"] for kwargs in carry_out(bench)]
        bench.clock.advance(1)
    return found


def statuses(bench: Bench, job: str | None = None) -> Counter[str]:
    return Counter(one.status.value for one in bench.client.deliveries(job, limit=10_000))


def test_an_event_runs_the_jobs_that_subscribe(bench: Bench) -> None:
    """Each job that wants it runs once, told of it beside its own arguments; the others do not."""
    bench.client.add("all", task="t.ok", on="orders.*", kwargs={"a": 1})
    bench.client.add("new", task="t.ok", on=["orders.new", "bills.new"])
    bench.client.add("other", task="t.ok", on="orders")
    event_id = bench.client.publish("orders.new", {"order": 7}, key="7")
    bench.scheduler.poll()
    assert {"all": 1, "new": 1} == Counter(run.job for run in bench.scheduler.runs())
    keys = bench.messages()
    assert 2 == len(keys)
    told = {"id": event_id, "topic": "orders.new", "payload": {"order": 7}, "key": "7"}
    told["published_at"] = bench.clock.now.isoformat()
    rows = {row.job: row for row in (bench.row(key.id) for key in keys)}
    assert {"a": 1, "event": told} == rows["all"].kwargs
    assert {"event": told} == rows["new"].kwargs
    assert {"taken": 2} == statuses(bench)
    for key in keys:
        assert Verdict.YOURS == bench.start(key).verdict
        assert bench.finish(key).settled
    assert {"delivered": 2} == statuses(bench)
    assert [] == carried(bench, 3)
    invariants.check(bench.database)
