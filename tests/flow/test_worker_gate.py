"""The gate: every kind of task asks before its body runs, in every pool, and says how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from celery_sched.model import JobDefinition, Source, Token
from celery_sched.steps.define import create
from celery_sched.steps.publish import headers_of
from celery_sched.store import runs
from tests.flow.worker_world import World
from tests.private_server import wait_until

KINDS = (
    "plain",
    "shared",
    "own_call",
    "own_before_start",
    "own_on_failure",
    "bound",
    "autoretry",
    "retries",
)
ATTEMPTS = {"autoretry": 3, "retries": 2}
MakeWorld = Callable[..., World]


@pytest.mark.parametrize("setup", ["early", "late"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_every_kind_of_task_passes_the_gate_once(make_world: MakeWorld, pool: str, setup: str) -> None:
    """Each kind of task runs with a current claim and not with a stale one, whenever setup() was called."""
    world = make_world()
    world.worker("-P", pool, "-c", "2", setup=setup)
    good = {kind: world.run(kind, kind) for kind in KINDS}
    for kind in KINDS:
        stale = world.claim(kind, "stale")
        world.publish(replace(stale, key=replace(stale.key, token=Token("stale"))), mark=False)
    last = world.run("plain", "last")
    for kind, run_id in good.items():
        done = world.wait(run_id)
        assert ("succeeded", json.dumps(kind)) == (done.status, done.result)
        assert ATTEMPTS.get(kind, 1) == done.attempt
    world.wait(last)
    stale_log = "its claim is no longer current"
    wait_until(lambda: len(KINDS) == log_count(world, stale_log), 20, "the stale ones to be dropped")
    expected = sorted([*(kind for kind in KINDS for _ in range(ATTEMPTS.get(kind, 1))), "plain"])
    assert expected == sorted(world.marks())


def log_count(world: World, text: str) -> int:
    return sum(worker.text().count(text) for worker in world.workers)


def test_a_message_delivered_twice_runs_once(make_world: MakeWorld) -> None:
    """A second delivery of the same attempt, while it runs and after it ended, is dropped by the start."""
    world = make_world()
    world.worker("-c", "2")
    dispatch = world.claim("sleeps", 1)
    world.publish(dispatch)
    world.publish(dispatch, mark=False)
    assert "succeeded" == world.wait(dispatch.key.id).status
    world.publish(dispatch, mark=False)
    wait_until(lambda: 2 == log_count(world, "dropped:"), 20, "both duplicates to be dropped")
    assert ["sleeps"] == world.marks()
    assert 0 == world.late_settlers()


def test_a_message_one_attempt_ahead_waits(make_world: MakeWorld) -> None:
    """The message of a retry that overtakes its attempt's end is delivered again, not lost."""
    world = make_world()
    world.worker("-c", "2")
    dispatch = world.claim("bodies.until_file", "first", "enough")
    world.publish(dispatch)
    world.wait(dispatch.key.id, "running")
    ahead = replace(
        dispatch, key=replace(dispatch.key, attempt=2), args=(), task="tests.flow.worker_app.plain"
    )
    world.publish(ahead, mark=False)
    wait_until(lambda: log_count(world, "plain[" + dispatch.key.id + "] received") >= 2, 20, "a redelivery")
    (world.folder / "enough").touch()
    assert "succeeded" == world.wait(dispatch.key.id).status
    wait_until(lambda: 1 == log_count(world, "attempt 2, dropped:"), 20, "it to be dropped after the end")
    assert ["first:begin", "first:end"] == world.marks()


def test_other_messages_run_untouched(make_world: MakeWorld) -> None:
    """A task of the same app that no job published runs as ever."""
    world = make_world()
    world.worker("-c", "1")
    result = world.app.send_task("tests.flow.worker_app.plain", args=["free"])
    assert "free" == result.get(timeout=20)


def test_the_body_is_told_about_its_run(make_world: MakeWorld) -> None:
    """The context has run, job, attempt and fencing number."""
    world = make_world()
    world.worker("-c", "1")
    run_id = world.run("told", name="reporter")
    done = world.wait(run_id)
    expected = {"run": run_id, "job": "reporter", "attempt": 1, "fence": 1, "lost": False}
    assert expected == json.loads(done.result or "null"), done.error


@pytest.mark.parametrize(
    ("task", "status", "reason", "error"),
    [
        ("fails", "failed", None, "ValueError: as asked\nTraceback"),
        ("ignores", "succeeded", "ignored", None),
        ("rejects", "failed", "rejected", "the task rejected its message: Reject:"),
        ("plain", "failed", None, "TypeError"),
    ],
)
def test_outcomes(
    make_world: MakeWorld, task: str, status: str, reason: str | None, error: str | None
) -> None:
    """How a body ended is written: failure with traceback, Ignore, Reject, arguments that do not fit."""
    world = make_world()
    world.worker("-c", "1")
    done = world.wait(world.run(task, *([1, 2, 3] if task == "plain" else [])))
    assert (status, reason) == (done.status, done.reason)
    assert (error is None) == (done.error is None)
    assert (done.error or "").startswith(error or "")


@pytest.mark.parametrize("broker", ["files", "redis"])
@pytest.mark.parametrize(("how", "status"), [("reject", "failed"), ("ignore", "succeeded")])
def test_a_reason_that_cannot_be_sent_breaks_no_pool(
    make_world: MakeWorld, broker: str, how: str, status: str
) -> None:
    """Reject and Ignore with an exception that cannot be unpickled end one attempt, not the worker."""
    world = make_world(broker=broker, sched_lease=60)
    worker = world.worker("-c", "1")
    assert status == world.wait(world.run("gives_up", how)).status
    assert "succeeded" == world.wait(world.run("plain")).status
    assert "WorkerLostError" not in worker.text()
    assert worker.process.poll() is None


def test_results_are_bounded_json(make_world: MakeWorld) -> None:
    """A long result is shortened to valid JSON below 64 KiB; one that Celery cannot store fails the run."""
    world = make_world()
    world.worker("-c", "1")
    long = world.wait(world.run("long_result"))
    odd = world.wait(world.run("odd_result"))
    assert ("succeeded", "failed") == (long.status, odd.status)
    assert "EncodeError" in (odd.error or "")
    text = json.loads(long.result or "null")
    assert text.startswith('"ééé') and text.endswith("shortened")
    assert len((long.result or "").encode()) <= 64 * 1024


def test_a_task_that_is_not_registered_settles_its_run(make_world: MakeWorld) -> None:
    """The run fails at once, says what is missing where, and frees its job."""
    world = make_world()
    worker = world.worker("-c", "1")
    dispatch = world.claim("nowhere.to.be.found")
    world.publish(dispatch)
    done = world.wait(dispatch.key.id)
    assert "failed" == done.status
    assert f"task 'nowhere.to.be.found' is not registered on worker {worker.name}" == done.error
    row = world.row(dispatch.key.id)
    assert (None, None) == (row.token, row.holds_job)


def test_celery_retry_keeps_the_claim_and_waits_for_its_eta(make_world: MakeWorld) -> None:
    """Between two attempts of Celery's own retry the run is dispatched, holds its lock, and has the eta."""
    world = make_world()
    world.worker("-c", "1")
    run_id = world.run("retries", "v", 3)
    world.wait(run_id, "running", "dispatched")
    wait_until(lambda: 2 == world.row(run_id).attempt, 20, "the retry to be written")
    row = world.row(run_id)
    assert ("dispatched", 1, ["v", 3]) == (row.status, row.retries, row.args)
    assert row.holds_job is not None
    assert row.eta is not None and row.lease_expires_at > row.eta
    done = world.wait(run_id)
    assert ("succeeded", 2) == (done.status, done.attempt)
    # Celery computed its own eta a few milliseconds before ours was written
    assert done.started_at is not None and done.started_at > row.eta - timedelta(seconds=0.5)


def test_an_embedded_scheduler_and_its_worker_make_runs(make_world: MakeWorld) -> None:
    """`worker -B`: one command plans, publishes and runs a job."""
    world = make_world()
    world.worker("-c", "1", "-B", "--scheduler", "celery_sched.beat:Scheduler")
    definition = JobDefinition("tick", "tests.flow.worker_app.plain", "every 1s")
    world.database.run(lambda tx, now: create(tx, now, world.config, definition, Source.OPERATOR))

    def succeeded() -> int:
        found = world.database.read(
            lambda tx, now: runs.newest(tx, "flow", job_name="tick", status="succeeded", limit=10)
        )
        return len(found)

    wait_until(lambda: succeeded() >= 2, 30, "two runs")
    assert 0 == world.late_settlers()


def test_children_that_are_replaced_are_behind_the_gate_too(make_world: MakeWorld) -> None:
    """With one task per child every run has a new process, and a hung one in such a child is killed."""
    world = make_world(broker="redis", database="postgresql", sched_max_runtime=3)
    world.worker("-c", "1", "--max-tasks-per-child", "1")
    for _ in range(3):
        assert "succeeded" == world.wait(world.run("plain")).status
    assert 3 == len(set(world.pids()))
    assert "timed_out" == world.wait(world.run("sleeps", 600)).status
    assert "succeeded" == world.wait(world.run("plain")).status


@pytest.mark.parametrize(
    ("content_type", "said"), [("application/json", "cannot decode"), ("application/x-other", "cannot read")]
)
def test_a_message_that_cannot_be_read_settles_its_run(
    make_world: MakeWorld, content_type: str, said: str
) -> None:
    """A body that is no JSON, or of a kind that is not accepted, fails the run and says so."""
    world = make_world()
    worker = world.worker("-c", "1")
    dispatch = world.claim("plain")
    headers = {"id": dispatch.key.id, "task": dispatch.task, "lang": "py", **headers_of(dispatch)}
    with world.app.producer_pool.acquire() as producer:
        producer.publish(
            b"{not json",
            content_type=content_type,
            content_encoding="utf-8",
            headers=headers,
            routing_key="celery",
            declare=[world.app.amqp.queues["celery"]],
        )
    done = world.wait(dispatch.key.id)
    assert "failed" == done.status
    assert (done.error or "").startswith(f"worker {worker.name} {said} its message")
    assert "succeeded" == world.wait(world.run("plain")).status


def test_a_retry_whose_arguments_cannot_be_stored_fails(make_world: MakeWorld) -> None:
    """Celery's own retry with arguments that are no JSON: the run fails and says why, and no attempt runs."""
    world = make_world(task_serializer="pickle", accept_content=["json", "pickle"])
    world.worker("-c", "1")
    done = world.wait(world.run("retries_with_a_set"))
    assert "failed" == done.status
    assert (done.error or "").startswith("the arguments of its retry are no JSON")
    wait_until(lambda: 1 == log_count(world, "attempt 2, dropped:"), 20, "the retry's message to be dropped")
    assert ["retries_with_a_set"] == world.marks()
