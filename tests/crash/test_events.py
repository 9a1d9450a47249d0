"""Schedulers and publishers die around events; none is lost, none is carried twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import Bench

STEP = ("deliver:inserted", "replay:inserted", "deliver:committed", "gather:inserted", "gather:committed")
END = ("settle:moved", "ends:after")
JOBS = ("each", "late", "batch", "latest")


@pytest.fixture
def scene(bench: Bench) -> Bench:
    """Events in every state: handed out, being carried, dead, and some that nobody has looked at."""
    bench.client.add("each", task="t.ok", on="numbers", overlap="concurrent")
    bench.client.add("batch", task="t.ok", on={"topics": ["numbers"], "deliver": "batch", "size": 3})
    bench.client.add("latest", task="t.ok", on={"topics": ["numbers"], "deliver": "latest"})
    for number in range(4):
        bench.client.publish("numbers", number)
    bench.scheduler.poll()
    _work(bench)
    bench.client.add("late", task="t.ok", on={"topics": ["numbers"], "start": "beginning"})
    for number in range(4, 10):
        bench.client.publish("numbers", number)
    return bench


@pytest.fixture
def armed() -> Iterator[Callable[[str], list[str]]]:
    """Arms a failpoint of this process with an exception."""
    reached: list[str] = []

    def arm(name: str) -> list[str]:
        def act() -> None:
            reached.append(name)
            raise FailpointReached(name)

        failpoints.arm(name, act)
        return reached

    yield arm
    for name in (*STEP, *END):
        failpoints.disarm(name)


def _work(bench: Bench) -> Counter[tuple[str, Any]]:
    """Carry out every message; which payloads the jobs were told of."""
    seen: Counter[tuple[str, Any]] = Counter()
    for key in bench.messages():
        if bench.start(key).verdict is Verdict.YOURS:
            row = bench.row(key.id)
            for event in row.kwargs.get("events") or [row.kwargs["event"]]:
                seen[row.job, event["payload"]] += 1
            assert bench.finish(key).settled
    return seen


def _finish(bench: Bench) -> None:
    """Another scheduler goes on: each event was carried once to each job, coalesced ones apart."""
    second = bench.another()
    for _ in range(60):
        invariants.check(bench.database)
        second.poll()
        _work(bench)
        bench.clock.advance(2)
        left = {one.status.value for one in bench.client.deliveries(limit=1000)} & {"pending", "taken"}
        if not left and not bench.client.events(waiting=True):
            break
    carried: Counter[tuple[str, Any]] = Counter()
    for run in bench.scheduler.runs():
        assert "succeeded" == run.status
        row = bench.row(run.id)
        carried.update(
            (run.job, event["payload"]) for event in row.kwargs.get("events") or [row.kwargs["event"]]
        )
    latest = {number for (job, number), _ in carried.items() if job == "latest"}
    expected = {(job, number): 1 for job in ("each", "batch", "late") for number in range(10)}
    assert {**expected, **{("latest", number): 1 for number in latest}} == carried
    assert {3, 9} <= latest
    assert 40 == len(bench.client.deliveries(limit=1000))
    dropped = bench.client.deliveries("latest", status="dropped", limit=1000)
    assert 10 == len(latest) + len(dropped)


@pytest.mark.parametrize("name", STEP)
def test_the_step_fails(scene: Bench, name: str, armed: Callable[[str], list[str]]) -> None:
    """An exception at any point: what was not committed is not there, and another scheduler goes on."""
    reached = armed(name)
    failing = scene.another()
    failing.poll()
    assert [name] == reached[:1]
    failpoints.disarm(name)
    _finish(scene)


@pytest.mark.parametrize("name", STEP)
def test_a_scheduler_is_killed_in_the_step(scene: Bench, name: str) -> None:
    """SIGKILL at any point: another scheduler goes on."""
    poller = Poller(scene, failpoints=f"{name}=kill")
    try:
        poller.ready()
        poller.poll(2)
        assert -9 == poller.wait()
    finally:
        poller.end()
    _finish(scene)


@pytest.mark.parametrize("name", END)
def test_the_end_of_a_run_fails(bench: Bench, name: str, armed: Callable[[str], list[str]]) -> None:
    """Outcome, delivery and what the run publishes are one transaction: all, or nothing and then again."""
    bench.client.add("job", task="t.ok", on="numbers", publishes="results")
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    [key] = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    reached = armed(name)
    with pytest.raises(FailpointReached):
        bench.finish(key)
    assert [name] == reached
    failpoints.disarm(name)
    [one] = bench.client.deliveries()
    assert ("taken", "running", 1) == (one.status.value, bench.status(key.id), len(bench.client.events()))
    assert bench.finish(key, RunStatus.SUCCEEDED, result="7").settled
    [one] = bench.client.deliveries()
    [published, _] = bench.client.events()
    assert ("delivered", "results", 7) == (one.status.value, published.topic, published.payload["result"])
    assert not bench.finish(key).settled
    assert 2 == len(bench.client.events())
    invariants.check(bench.database)
