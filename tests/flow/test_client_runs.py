"""What people do with runs, nodes and pools: run, wait, cancel, look, stop, resize; and what status says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from celery_sched.errors import InvalidValue, NotFound, RunRefused
from celery_sched.model import Node, NodeId, NodeKind, RunId, Trigger
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store import nodes
from celery_sched.store.tables import run as run_table
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = datetime(2026, 2, 2, 12, 0, tzinfo=UTC)
NOBODY = str(uuid.UUID(int=0))


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage at noon, on SQLite."""
    return make_stage(NOON)


@pytest.fixture
def each_stage(database_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage at noon, on each kind of database."""
    made = Stage(tmp_path, database_url, NOON)
    yield made
    made.close()


# -- run ---------------------------------------------------------------------------------------------


def test_a_run_by_hand(each_stage: Stage) -> None:
    """It is queued at once with its own arguments, beside the schedule, which it leaves alone."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 * * * *", args=[1], kwargs={"a": 1}, expires="5m")
    before = stage.client.get("job")
    run = stage.client.run("job", args=(7, "x"), kwargs={"b": None}, by="ada")
    assert ("queued", Trigger.MANUAL, NOON) == (run.status, run.trigger, run.scheduled_for)
    row = stage.scheduler.row(run.id)
    assert ([7, "x"], {"b": None}, NOON + 5 * MINUTE) == (row.args, row.kwargs, row.expires_at)
    after = stage.client.get("job")
    assert (before.next_run_at, None) == (after.next_run_at, after.last_scheduled_for)
    assert [("ada", "run", "job", {"run": run.id})] == stage.audit("run")
    assert [run.id] == [done.id for done in stage.work_off()]
    own = stage.scheduler.row(stage.client.run("job").id)
    assert (None, None) == (own.args, own.kwargs), "the job's own, read when it is claimed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"args": "abc"}, "args 'abc' is refused: a list"),
        ({"args": {"a": 1}}, "args {'a': 1} is refused"),
        ({"args": [float("nan")]}, "args[0] nan is refused"),
        ({"args": [object]}, "args[0]"),
        ({"kwargs": [1]}, "kwargs [1] is refused: a mapping"),
        ({"kwargs": {1: 2}}, "a key of kwargs 1 is refused"),
        ({"args": ["x" * 70_000]}, "at most 65536 bytes"),
    ],
)
def test_arguments_that_json_cannot_hold(stage: Stage, given: dict[str, Any], said: str) -> None:
    """They are refused, by name, before anything is written."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    before = stage.rows()
    with pytest.raises(InvalidValue) as refused:
        stage.client.run("job", **given)
    assert said in str(refused.value)
    assert before == stage.rows()


def test_overlap_holds_for_runs_by_hand(stage: Stage) -> None:
    """With `skip` a second one is refused with the run in its way, in whatever status that is."""
    stage.client.add("job", task="t", schedule="0 * * * *", overlap="skip")
    live = stage.client.run("job")
    for status in ("queued", "dispatched", "running"):
        assert status == stage.client.get_run(live.id).status
        before = stage.rows()
        with pytest.raises(
            RunRefused, match=rf"job 'job' was not run: overlap: run {live.id} is active"
        ) as no:
            stage.client.run("job")
        assert live.id == no.value.live_run
        assert before == stage.rows()
        if status == "queued":
            stage.scheduler.poll()
        elif status == "dispatched":
            stage.start(stage.key(live.id))
    stage.finish(stage.key(live.id))
    assert live.id != stage.client.run("job").id


@pytest.mark.parametrize(("overlap", "allowed"), [("concurrent", 5), ("queue", 3)])
def test_other_overlaps_allow_more(stage: Stage, overlap: str, allowed: int) -> None:
    """`concurrent` has no bound, `queue` takes one and `max_queued` more."""
    stage.client.add("job", task="t", schedule="0 * * * *", overlap=overlap, max_queued=2)
    for _ in range(allowed):
        stage.client.run("job")
    if overlap == "queue":
        with pytest.raises(RunRefused, match="queue_full: 3 runs of the job are active, max_queued is 2"):
            stage.client.run("job")
    assert allowed == len(stage.active())


def test_a_run_by_hand_counts_for_overlap(stage: Stage) -> None:
    """An occurrence that comes while a run by hand is active is skipped, with that run in the reason."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.clock.advance(30 * SECOND)
    run = stage.client.run("job")
    stage.poll_at(NOON + MINUTE)
    (skipped,) = (run for run in stage.scheduler.runs() if run.status == "skipped")
    assert (NOON + MINUTE, f"overlap: run {run.id} is active") == (skipped.scheduled_for, skipped.reason)


@pytest.mark.parametrize("off", ["pause", "disable", "over"])
def test_a_job_that_is_not_planned_can_be_run(stage: Stage, off: str) -> None:
    """Paused, disabled or with no occurrence left: by hand it runs."""
    schedule = "once 2026-02-02T11:00:00Z" if off == "over" else "0 * * * *"
    stage.client.add("job", task="t", schedule=schedule, enabled=off != "disable")
    if off == "pause":
        stage.client.pause("job")
    run = stage.client.run("job")
    assert [run.id] == [done.id for done in stage.work_off()]


# -- wait --------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_run(stage: Stage) -> None:
    """`wait` returns the finished run, whichever way it ended, and at once when it had ended before."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    run = stage.client.run("job")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(stage.client.wait(run.id, timeout=60)))
    waiting.start()
    stage.scheduler.poll()
    key = stage.key(run.id)
    stage.start(key)
    assert stage.finish(key, RunStatus.FAILED).settled
    waiting.join(30)
    assert ["failed"] == [run.status for run in found]
    assert found == [stage.client.wait(run.id, timeout=0)]


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_waiting_is_bounded(stage: Stage, timeout: float | timedelta) -> None:
    """After the time-out it says what the run is doing; the run goes on."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    run = stage.client.run("job")
    with pytest.raises(TimeoutError, match=rf"run {run.id} is still queued after 0(\.05)? s; it goes on"):
        stage.client.wait(run.id, timeout)
    assert "queued" == stage.client.get_run(run.id).status


@pytest.mark.parametrize("verb", ["wait", "cancel", "get_run"])
def test_an_unknown_run(stage: Stage, make_stage: MakeStage, verb: str) -> None:
    """No such run, or one of another app: said so, and nothing is written to it."""
    other = make_stage(NOON, app="other")
    other.client.add("job", task="t", schedule="0 * * * *")
    theirs = other.client.run("job")
    before = stage.rows()
    for run_id in (RunId(NOBODY), theirs.id):
        with pytest.raises(NotFound, match=rf"^there is no run '{run_id}'"):
            getattr(stage.client, verb)(run_id)
    assert before == stage.rows()


# -- cancel ------------------------------------------------------------------------------------------


def test_cancelling_a_running_run_is_a_request(each_stage: Stage) -> None:
    """Status, lock and slot stay until its worker, told at the next renewal, has killed and settled it."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="* * * * *", overlap="queue")
    run = stage.client.run("job")
    stage.scheduler.poll()
    key = stage.key(run.id)
    stage.start(key)
    asked = stage.client.cancel(run.id, by="ada", reason="wrong file")
    assert ("running", "ada", "wrong file") == (asked.status, asked.stop_requested_by, asked.stop_reason)
    assert (1, run.id) == (stage.client.status().inflight, stage.client.get("job").locked_by)
    stage.client.cancel(run.id, by="bob")
    assert "ada" == stage.client.get_run(run.id).stop_requested_by, "the first one to ask"
    assert ["ada", "bob"] == [line[0] for line in stage.audit("cancel")], "who asked, also in vain"
    stage.poll_at(NOON + MINUTE)
    assert ["running", "queued"] == [run.status for run in stage.scheduler.runs()], "nothing new starts"
    assert {run.id: "ada: wrong file"} == stage.renew(key).stopped
    assert stage.finish(key, RunStatus.CANCELLED).settled
    job = stage.client.get("job")
    assert (0, 0, "cancelled") == (job.run_count, job.failure_count, job.last_status)
    assert [NOON + MINUTE] == [run.scheduled_for for run in stage.work_off()]


def test_a_cancelled_run_without_its_worker_ends_with_its_lease(stage: Stage) -> None:
    """The worker is gone: the sweep settles the run as cancelled (never lost, never again) within a lease."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    run = stage.client.run("job")
    stage.scheduler.poll()
    stage.start(stage.key(run.id))
    stage.client.cancel(run.id, by="ada")
    for second in range(10, 71, 10):
        stage.poll_at(NOON + second * SECOND)
    found = stage.client.get_run(run.id)
    assert ("cancelled", "stopped by ada: no reason given") == (found.status, found.reason)
    assert 0 == stage.client.status().inflight
    assert 1 == len(stage.scheduler.runs())


def test_a_received_run_is_cancelled_at_once(stage: Stage) -> None:
    """Received, not started: settled in the same moment, and its start is refused."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    run = stage.client.run("job")
    stage.scheduler.poll()
    key = stage.key(run.id)
    stage.receive(key)
    assert "cancelled" == stage.client.cancel(run.id).status
    assert Verdict.DROP == stage.start(key).verdict
    assert (0, None) == (stage.client.status().inflight, stage.client.get("job").locked_by)


# -- look --------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first(stage: Stage) -> None:
    """By job, by status, with a limit; a job that is gone keeps its history; misspelt values are refused."""
    for name in ("a", "b"):
        stage.client.add(name, task="t", schedule="* * * * *")
    stage.poll_at(NOON + MINUTE)
    stage.work()
    stage.poll_at(NOON + 2 * MINUTE)
    listed = [(run.job, run.scheduled_for, run.status) for run in stage.client.runs()]
    second, first = NOON + 2 * MINUTE, NOON + MINUTE
    assert [(second, "dispatched")] * 2 + [(first, "succeeded")] * 2 == [run[1:] for run in listed]
    assert [second, first] == [run.scheduled_for for run in stage.client.runs("a")]
    assert ["b", "a"] == sorted((run.job for run in stage.client.runs(status="succeeded")), reverse=True)
    assert [second] == [run.scheduled_for for run in stage.client.runs("a", limit=1)]
    assert [] == stage.client.runs("a", status="failed")
    stage.work()
    stage.client.delete("a")
    assert 2 == len(stage.client.runs("a"))
    assert [] == stage.client.runs("a", status=RunStatus.LOST)
    with pytest.raises(NotFound, match="no job 'c'"):
        stage.client.runs("c", status="failed")
    with pytest.raises(InvalidValue, match=r"^status 'runing' is refused: .* Did you mean 'running'"):
        stage.client.runs(status="runing")
    for limit in (0, -1, True, 1.5):
        with pytest.raises(InvalidValue, match="limit"):
            stage.client.runs(limit=limit)  # type: ignore[arg-type]


def worker(stage: Stage, *, app: str = "proj", queues: tuple[str, ...] = ("celery",)) -> NodeId:
    """A worker that has just registered."""
    new = Node(
        NodeId(str(uuid.uuid4())),
        app,
        NodeKind.WORKER,
        "host",
        4711,
        "w@host",
        "1",
        NOON,
        NOON,
        {"queues": list(queues)},
        None,
    )
    stage.database.run(lambda tx, now: nodes.register(tx, now, new))
    return new.id


def test_status_of_an_empty_system(stage: Stage) -> None:
    """Before anything runs, it is not healthy and says what to start."""
    status = stage.client.status()
    assert not status.healthy
    assert ["no scheduler is alive", "no worker is alive"] == [line.split(":")[0] for line in status.problems]
    assert all("celery -A" in line for line in status.problems)
    assert (0, 0, 0, 0, 0.0) == (
        status.inflight,
        status.running,
        status.queued,
        status.due,
        status.oldest_due_seconds,
    )
    assert 1000 == status.max_concurrent_jobs


def test_status_counts(make_stage: MakeStage) -> None:
    """Figures of a system with a cap of 2: in flight, running, queued, due, and what found no slot."""
    stage = make_stage(NOON, sched_max_concurrent_jobs=2)
    for n in range(5):
        stage.client.add(f"job {n}", task="t", schedule="* * * * *")
    node = worker(stage)
    stage.poll_at(NOON + MINUTE)
    stage.start(stage.key(next(run.id for run in stage.active() if run.status == "dispatched")))
    stage.database.run(lambda tx, now: nodes.seen(tx, now, node))
    status = stage.client.status()
    assert (True, ()) == (status.healthy, tuple(status.problems))
    assert (2, 2, 1, 3) == (status.inflight, status.max_concurrent_jobs, status.running, status.queued)
    assert (2, 3, 0, 0) == (status.dispatched, status.at_capacity, status.swept, status.late_settlers)
    assert [(stage.scheduler.node_id, node)] == [
        (a.id, b.id) for a, b in zip(status.schedulers, status.workers, strict=True)
    ]
    stage.clock.advance(MINUTE + 2 * SECOND)
    late = stage.client.status()
    assert (5, 2.0) == (late.due, late.oldest_due_seconds)


def test_status_names_what_is_wrong(make_stage: MakeStage) -> None:
    """Late jobs, dead processes, an idle queue and a switched-off system are each named, and not healthy."""
    stage = make_stage(NOON)
    stage.client.add("job", task="t", schedule="* * * * *", options={"queue": "gpu"})
    stage.scheduler.poll()
    worker(stage)

    def said(start: str) -> bool:
        status = stage.client.status()
        return not status.healthy and any(line.startswith(start) for line in status.problems)

    assert said("job 'job' goes to queue 'gpu', which no worker consumes")
    assert not said("the oldest due job")
    stage.clock.advance(MINUTE + 11 * SECOND)
    assert said("the oldest due job has waited for 11 s")
    assert said("no scheduler is alive") and said("no worker is alive")
    off = make_stage(NOON, app="off", sched_enabled=False)
    off.client.add("job", task="t", schedule="* * * * *")
    off.poll_at(NOON + MINUTE)
    assert [] == off.scheduler.runs()
    assert any("sched_enabled is off" in line for line in off.client.status().problems)


def test_a_run_by_the_beginning_of_its_id(each_stage: Stage) -> None:
    """Four characters are enough while no other run of the app begins so; several are named."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 * * * *", overlap="concurrent")
    ids = [f"{text}{uuid.uuid4()}"[:36] for text in ("abcd-1", "abcd-2", "a_cd-3", "abce-4")]
    for run_id in ids:
        made = stage.client.run("job").id
        renamed = update(run_table).where(run_table.c.id == made).values(id=run_id)
        stage.database.run(lambda tx, now, renamed=renamed: tx.execute(renamed).rowcount)
    find = stage.client.find_run
    assert [ids[3], ids[0], ids[1], ids[1]] == [
        find(text).id for text in ("abce", "abcd-1", ids[1], f" {ids[1].upper()} ")
    ]
    with pytest.raises(InvalidValue, match="RUN 'abcd' is refused: several runs begin so") as several:
        find("abcd")
    assert [True, True, False] == [f"{run_id} (job, queued)" in str(several.value) for run_id in ids[:3]]
    for short in ("", "abc"):
        with pytest.raises(InvalidValue, match="at least 4 characters"):
            find(short)
    for unknown in ("abcf", "%%%%", "____", f"{ids[0]}0", "\\\\\\\\"):
        with pytest.raises(NotFound, match="there is no run"):
            find(unknown)
    url = stage.database.url.render_as_string(hide_password=False)
    other = Stage(stage.folder.parent, url, NOON, app="other")
    with pytest.raises(NotFound, match="there is no run 'abce'"):
        other.client.find_run("abce")
    other.close()


# -- nodes and pools -----------------------------------------------------------------------------------


def test_nodes_are_asked_to_stop(stage: Stage, make_stage: MakeStage) -> None:
    """One, or all of the app; another app's node is not found and not stopped."""
    stage.scheduler.poll()
    mine = worker(stage)
    theirs = worker(stage, app="other")
    other = make_stage(NOON, app="other")

    def asked(of: Stage) -> set[NodeId]:
        return {node.id for node in of.client.nodes() if node.stop_requested_at is not None}

    before = stage.rows()
    for nobody in (NodeId(NOBODY), theirs):
        with pytest.raises(NotFound, match=rf"^there is no node '{nobody}'"):
            stage.client.stop_nodes(nobody)
    assert before == stage.rows()
    stage.client.stop_nodes(mine, by="ada")
    assert {mine} == asked(stage)
    assert [("ada", "stop", f"node:{mine}")] == [line[:3] for line in stage.audit("stop")]
    assert not stage.scheduler.poll().stop_requested
    stage.client.stop_nodes()
    assert {mine, stage.scheduler.node_id} == asked(stage)
    assert set() == asked(other)
    assert stage.scheduler.poll().stop_requested


def test_a_scheduler_that_was_asked_to_stop_plans_nothing(stage: Stage) -> None:
    """No plan and no claim after the request; another scheduler goes on."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.scheduler.poll()
    stage.client.stop_nodes(stage.scheduler.node_id)
    stage.poll_at(NOON + MINUTE)
    assert [] == stage.scheduler.runs()
    stage.new_scheduler().poll()
    assert ["dispatched"] == [run.status for run in stage.scheduler.runs()]


def test_a_pool_is_resized_while_it_is_used(make_stage: MakeStage) -> None:
    """The next poll uses the new number; smaller kills nothing; the audit has old and new."""
    stage = make_stage(NOON, sched_max_concurrent_jobs=1)
    stage.scheduler.poll()
    assert [("default", 1)] == [(pool.name, pool.slots) for pool in stage.client.pools()]
    for n in range(4):
        stage.client.add(f"job {n}", task="t", schedule="* * * * *")
    stage.poll_at(NOON + MINUTE)
    assert 1 == stage.client.status().inflight
    assert 3 == stage.client.resize_pool("default", 3, by="ada").slots
    stage.scheduler.poll()
    assert (3, 3) == (stage.client.status().inflight, stage.client.status().max_concurrent_jobs)
    stage.client.resize_pool("default", 0)
    stage.scheduler.poll()
    assert 3 == stage.client.status().inflight
    stage.work()
    stage.scheduler.poll()
    assert (0, 1) == (stage.client.status().inflight, stage.client.status().queued)
    lines = stage.audit("resize")
    assert [
        ("ada", "resize", "pool:default", {"old": 1, "new": 3}),
        ("python", "resize", "pool:default", {"old": 3, "new": 0}),
    ] == lines


@pytest.mark.parametrize("slots", [-1, 100_001, True, 2.5, "3", None])
def test_a_wrong_number_of_slots(stage: Stage, slots: Any) -> None:
    """Refused before anything is written, as is a pool that is not there."""
    stage.scheduler.poll()
    before = stage.rows()
    with pytest.raises(InvalidValue, match="slots"):
        stage.client.resize_pool("default", slots)
    with pytest.raises(NotFound, match=r"^there is no pool 'defualt'\. Did you mean 'default'\?"):
        stage.client.resize_pool("defualt", 3)
    assert before == stage.rows()
