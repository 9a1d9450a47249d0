"""What people do to make things stop and go on: pause, resume, cancel, run by hand; pools; the status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_sched.client import control
from celery_sched.errors import AlreadyExists, InvalidValue, NotFound, RunRefused, SchedulerError
from celery_sched.model import RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOON = datetime(2026, 2, 2, 12, 0, tzinfo=UTC)


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


def hung(stage: Stage, name: str, **policies: Any) -> RunId:
    """A run of a new job, due each minute, that is being carried out."""
    stage.client.add(name, task="t", schedule="* * * * *", **policies)
    run = stage.client.run(name)
    stage.scheduler.poll()
    assert Verdict.YOURS == stage.start(stage.key(run.id)).verdict
    return run.id


def reasons(stage: Stage, *run_ids: RunId) -> list[tuple[str, str | None]]:
    found = [stage.client.get_run(run_id) for run_id in run_ids]
    return [(run.status, run.reason or run.stop_reason) for run in found]


# -- pause and resume --------------------------------------------------------------------------------


@pytest.mark.parametrize("running", ["keep", "cancel"])
def test_a_pause_keeps_or_cancels_what_is_under_way(each_stage: Stage, running: str) -> None:
    """`keep`: what runs and what waits goes on. `cancel`: what waits is over, what runs was asked to stop."""
    stage = each_stage
    run_id = hung(stage, "job", overlap="queue")
    stage.poll_at(NOON + MINUTE)
    (waiting,) = (run.id for run in stage.active() if run.id != run_id)
    paused = stage.client.pause("job", "maintenance", running=running, by="ada")
    assert ("paused", "maintenance") == (paused.status, paused.status_reason)
    if running == "keep":
        assert () == paused.stopped
        assert [("running", None), ("queued", None)] == reasons(stage, run_id, waiting)
        assert stage.finish(stage.key(run_id)).settled
        assert [waiting] == [run.id for run in stage.work_off()], "what waits is started while it is paused"
    else:
        said = "the job was paused: maintenance"
        assert {run_id, waiting} == set(paused.stopped)
        assert [("running", said), ("cancelled", f"stopped by ada: {said}")] == reasons(
            stage, run_id, waiting
        )
        assert {run_id: f"ada: {said}"} == stage.renew(stage.key(run_id)).stopped, "told at the next renewal"
        assert stage.finish(stage.key(run_id), RunStatus.CANCELLED).settled
        detail = {"reason": "maintenance", "running": "cancel", "stopped": 2}
        assert [("ada", "pause", "job", detail)] == stage.audit("pause")
    stage.poll_at(NOON + 5 * MINUTE)
    assert [] == stage.active()
    invariants.check(stage.database)


def test_a_paused_job_can_be_cleared_later(stage: Stage) -> None:
    """A second pause with `cancel` stops what the first one left."""
    run_id = hung(stage, "job")
    stage.client.pause("job", "first")
    again = stage.client.pause("job", "second", running="cancel")
    assert ((run_id,), "first") == (again.stopped, again.status_reason)
    assert "python" == stage.client.get_run(run_id).stop_requested_by


def test_a_pause_with_cancel_ends_backfills(stage: Stage) -> None:
    """Else they would make more runs; without `cancel` they go on, as somebody asked for them by hand."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.clock.advance(10 * MINUTE)
    asked = stage.client.backfill("job", NOON + MINUTE, NOON + 5 * MINUTE)
    stage.scheduler.poll()
    stage.client.pause("job")
    assert "running" == stage.client.get_backfill(asked.id).status
    stage.client.pause("job", running="cancel", by="ada")
    ended = stage.client.get_backfill(asked.id)
    assert ("cancelled", "stopped by ada: the job was paused") == (ended.status, ended.reason)
    stage.scheduler.poll()
    assert [] == stage.active()
    invariants.check(stage.database)


@pytest.mark.parametrize("value", ["stop", "", None, True])
def test_a_wrong_way_to_pause(stage: Stage, value: Any) -> None:
    """Anything but keep and cancel is refused before anything is written."""
    stage.client.add("job", task="t", schedule="* * * * *")
    before = stage.rows()
    with pytest.raises(InvalidValue, match=r"running .* is refused: keep or cancel"):
        stage.client.pause("job", running=value)
    with pytest.raises(InvalidValue, match=r"running .* is refused: keep or cancel"):
        stage.client.pause_all(running=value)
    assert before == stage.rows()


def test_all_are_paused_and_resumed(each_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All active jobs, a few in a transaction; `resume_all` resumes these, not what was paused by itself."""
    stage = each_stage
    monkeypatch.setattr(control, "BATCH", 2)
    for number in range(5):
        stage.client.add(f"job-{number}", task="t", schedule="* * * * *", enabled=number != 3)
    stage.client.pause("job-0", "its own reason")
    done = stage.client.pause_all("deploy", by="ada")
    assert (("job-1", "job-2", "job-4"), ()) == (done.jobs, done.stopped)
    standing = {job.name: (job.status, job.status_reason) for job in stage.client.list()}
    everybody = ("paused", "all jobs paused by ada: deploy")
    assert {
        "job-0": ("paused", "its own reason"),
        "job-1": everybody,
        "job-2": everybody,
        "job-3": ("disabled", "disabled in its definition"),
        "job-4": everybody,
    } == standing
    stage.poll_at(NOON + MINUTE)
    assert [] == stage.active()
    stage.client.pause("job-4", "by itself now")
    assert ["job-1", "job-2"] == stage.client.resume_all(by="bob")
    assert [] == stage.client.resume_all()
    by_status = {job.name: str(job.status) for job in stage.client.list()}
    assert {"paused": 2, "active": 2, "disabled": 1} == {
        status: list(by_status.values()).count(status) for status in set(by_status.values())
    }
    stage.poll_at(NOON + 2 * MINUTE)
    assert ["job-1", "job-2"] == sorted(run.job for run in stage.active())
    invariants.check(stage.database)


def test_all_are_paused_with_what_runs(stage: Stage) -> None:
    """Runs of all jobs are stopped, also of those that are not planned; another app's are left alone."""
    ids = [hung(stage, name) for name in ("a", "b")]
    stage.client.pause("b")
    done = stage.client.pause_all("fire", running="cancel", by="ada")
    assert (("a",), set(ids)) == (done.jobs, {one.run_id for one in done.stopped})
    assert [("running", "all jobs were paused: fire")] * 2 == reasons(stage, *ids)
    assert ["ada", "ada"] == [actor for actor, *_ in stage.audit("cancel")]


# -- cancel ------------------------------------------------------------------------------------------


def test_several_runs_are_cancelled_at_once(each_stage: Stage) -> None:
    """All in one transaction: what waits ends, what runs is asked; a finished one stays as it is."""
    stage = each_stage
    running = hung(stage, "a")
    stage.client.add("b", task="t", schedule="0 * * * *", overlap="queue")
    waiting = [stage.client.run("b").id for _ in range(2)]
    stage.client.cancel(waiting[0])
    found = stage.client.cancel_runs([running, *waiting, running], by="ada", reason="enough")
    assert [running, *waiting] == [run.id for run in found]
    expected = [("running", "enough"), ("cancelled", "stopped by python: no reason given")]
    assert [*expected, ("cancelled", "stopped by ada: enough")] == reasons(stage, running, *waiting)
    assert {f"run:{running}", f"run:{waiting[1]}"} == {
        line[2] for line in stage.audit("cancel") if line[0] == "ada"
    }
    invariants.check(stage.database)


def test_an_unknown_run_among_several(stage: Stage, make_stage: MakeStage) -> None:
    """One id that is not there, or another app's: nothing is written, and it is named."""
    run_id = hung(stage, "a")
    other = make_stage(NOON, app="other")
    theirs = hung(other, "a")
    before = stage.rows()
    for wrong in (RunId("no-such-run"), theirs):
        with pytest.raises(NotFound, match=f"no run '{wrong}'"):
            stage.client.cancel_runs([run_id, wrong])
    assert before == stage.rows()


def test_all_runs_of_a_job_are_cancelled(stage: Stage) -> None:
    """What runs and what waits, with its backfills; other jobs' runs and the schedule go on."""
    run_id = hung(stage, "job", overlap="queue")
    beside = hung(stage, "beside", overlap="queue")
    waiting = stage.client.run("job").id
    found = stage.client.cancel_job("job", by="ada", reason="wrong file")
    assert {(run_id, "running"), (waiting, "cancelled")} == {(run.id, run.status) for run in found}
    assert None is stage.client.get_run(beside).stop_requested_at
    assert "active" == stage.client.get("job").status
    assert stage.finish(stage.key(run_id), RunStatus.CANCELLED).settled
    stage.poll_at(NOON + MINUTE)
    assert 1 == sum(run.job == "job" for run in stage.active())
    stage.client.add("idle", task="t", schedule="0 * * * *")
    assert [] == stage.client.cancel_job("idle")
    with pytest.raises(NotFound, match="no job 'jbo'"):
        stage.client.cancel_job("jbo")


# -- run by hand -------------------------------------------------------------------------------------


def test_a_run_by_hand_says_that_it_starts_at_once(stage: Stage) -> None:
    """Slot and lock are free: it waits for nothing and is claimed; also before a first scheduler ran."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    first = stage.client.run("job")
    assert (None, None, ()) == (first.waits, first.waits_for, first.replaces)
    assert [first.id] == [run.id for run in stage.work_off()]
    second = stage.client.run("job")
    assert (None, None) == (second.waits, second.waits_for)
    stage.scheduler.poll()
    assert "dispatched" == stage.client.get_run(second.id).status


def test_a_run_by_hand_says_which_run_it_waits_for(stage: Stage) -> None:
    """With `queue` the one that is carried out, or the first in turn; with `concurrent` none."""
    run_id = hung(stage, "job", overlap="queue")
    for _ in range(2):
        behind = stage.client.run("job")
        assert (f"behind run {run_id}, which is running", run_id) == (behind.waits, behind.waits_for)
    stage.client.add("idle", task="t", schedule="0 * * * *", overlap="queue")
    first = stage.client.run("idle")
    stage.clock.advance(SECOND)
    second = stage.client.run("idle")
    assert (f"behind run {first.id}, which is queued", first.id) == (second.waits, second.waits_for)
    stage.client.edit("job", overlap="concurrent")
    assert (None, None) == (stage.client.run("job").waits, stage.client.run("job").waits_for)


def test_a_run_by_hand_says_that_its_pool_is_full(stage: Stage) -> None:
    """The lock is free and no slot is: it says so, with numbers."""
    stage.client.create_pool("small", 1)
    hung(stage, "a", pool="small")
    for name, others in (("b", 0), ("c", 1)):
        stage.client.add(name, task="t", schedule="0 * * * *", pool="small")
        run = stage.client.run(name)
        assert None is run.waits_for
        assert f"for a slot of pool 'small' (1 of 1 taken, {others} other run(s) waiting)" == run.waits


def test_a_run_by_hand_is_refused_with_the_run_in_its_way(stage: Stage) -> None:
    """`skip` names the live run; `queue_one` the one that waits already."""
    run_id = hung(stage, "job", overlap="queue_one")
    waiting = stage.client.run("job")
    assert run_id == waiting.waits_for
    with pytest.raises(RunRefused, match=rf"queue_one: run {waiting.id} waits already") as refused:
        stage.client.run("job")
    assert run_id == refused.value.live_run


def test_a_run_by_hand_replaces(each_stage: Stage) -> None:
    """With `replace` what runs is asked to stop, what waits is cancelled; it says which, and waits."""
    stage = each_stage
    run_id = hung(stage, "job", overlap="replace")
    stage.poll_at(NOON + MINUTE)
    (waiting,) = (run.id for run in stage.active() if run.id != run_id)
    made = stage.client.run("job", by="ada")
    assert ({run_id, waiting}, run_id) == (set(made.replaces), made.waits_for)
    said = f"replaced by a run by hand (run {made.id})"
    # the occurrence asked first, and stays on record
    assert "the scheduler" == stage.client.get_run(run_id).stop_requested_by
    assert [("cancelled", f"stopped by ada: {said}")] == reasons(stage, waiting)
    (line,) = (line for line in stage.audit("run") if line[0] == "ada")
    assert (made.id, set(made.replaces)) == (line[3]["run"], set(line[3]["replaces"]))
    assert [made.id] == [run.id for run in stage.active() if run.status == "queued"]
    assert stage.finish(stage.key(run_id), RunStatus.CANCELLED).settled
    assert [made.id] == [run.id for run in stage.work_off()]
    invariants.check(stage.database)


# -- pools -------------------------------------------------------------------------------------------


def test_a_pool_is_made_used_and_deleted(each_stage: Stage) -> None:
    """A full pool delays its own jobs only; it is deleted when no job and no unfinished run is left in it."""
    stage = each_stage
    assert ("reports", 1) == (stage.client.create_pool("reports", 1, by="ada").name, 1)
    ids = [hung(stage, "a", pool="reports")]
    for name in ("b", "c"):
        stage.client.add(name, task="t", schedule="0 * * * *", pool="reports")
        ids.append(stage.client.run(name).id)
    stage.client.add("beside", task="t", schedule="0 * * * *")
    free = stage.client.run("beside").id
    stage.scheduler.poll()
    assert ["running", "queued", "queued"] == [stage.client.get_run(run_id).status for run_id in ids]
    assert "dispatched" == stage.client.get_run(free).status
    use = stage.client.get_pool("reports")
    assert ("reports", 1, 1, 2, ["a", "b", "c"]) == (
        use.name,
        use.slots,
        use.in_flight,
        use.waiting,
        use.jobs,
    )
    with pytest.raises(SchedulerError, match=r"pool 'reports' is used by 3 job\(s\) \(a, b, c\)"):
        stage.client.delete_pool("reports")
    for name in ("a", "b", "c"):
        stage.client.edit(name, pool="default")
    with pytest.raises(SchedulerError, match=r"pool 'reports' has 3 run\(s\) that are not finished"):
        stage.client.delete_pool("reports")
    assert stage.finish(stage.key(ids[0])).settled
    stage.client.cancel_runs(ids[1:])
    stage.client.delete_pool("reports", by="ada")
    assert ["default"] == [pool.name for pool in stage.client.pools()]
    assert ["create", "delete"] == [line[1] for line in stage.audit() if line[2] == "pool:reports"]
    with pytest.raises(InvalidValue, match="pool 'reports' is refused: one of the pools there are: default"):
        stage.client.edit("a", pool="reports")
    invariants.check(stage.database)


def test_wrong_pools(stage: Stage) -> None:
    """A name or a number that is not allowed, one that exists, `default`: refused, nothing is written."""
    stage.scheduler.poll()
    before = stage.rows()
    for name in ("", " x", "x" * 101, None, "a\nb"):
        with pytest.raises(InvalidValue, match="the name of a pool"):
            stage.client.create_pool(name, 1)  # type: ignore[arg-type]
    for slots in (-1, True, "3"):
        with pytest.raises(InvalidValue, match="slots"):
            stage.client.create_pool("x", slots)  # type: ignore[arg-type]
    with pytest.raises(AlreadyExists, match="pool 'default' exists already"):
        stage.client.create_pool("default", 1)
    with pytest.raises(InvalidValue, match="pool 'default' is refused: it cannot be deleted"):
        stage.client.delete_pool("default")
    for asked in (stage.client.get_pool, stage.client.delete_pool):
        with pytest.raises(NotFound, match="no pool 'defualt'"):
            asked("defualt")
    assert before == stage.rows()


# -- status ------------------------------------------------------------------------------------------


def test_status_names_a_job_that_failures_paused(stage: Stage) -> None:
    """Paused after its last failures: said with the reason, until it is resumed. By hand: no problem."""
    stage.client.add("job", task="t", schedule="* * * * *", pause_on_failure=2)
    stage.client.add("by hand", task="t", schedule="* * * * *", pause_on_failure=2)
    stage.client.pause("by hand")
    for minute in (1, 2):
        stage.poll_at(NOON + minute * MINUTE)
        key = stage.key(next(run.id for run in stage.active()))
        stage.start(key)
        assert stage.finish(key, RunStatus.FAILED).settled
    job = stage.client.get("job")
    assert ("paused", 2) == (job.status, job.failures_in_row)
    said = f"job 'job' is paused: {job.status_reason}"
    assert [said] == [problem for problem in stage.client.status().problems if "paused" in problem]
    stage.client.resume("job")
    assert [] == [problem for problem in stage.client.status().problems if "paused" in problem]
