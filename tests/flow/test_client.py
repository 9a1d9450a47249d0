"""What people do with jobs: add, edit, delete, pause, resume, look. What is refused has written nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app
from sqlalchemy import create_engine, delete, insert, select, update

from celery_sched import runtime
from celery_sched.client import client as proxy
from celery_sched.errors import AlreadyExists, InvalidValue, NotFound, SchedulerError
from celery_sched.model import (
    Backoff,
    DayMode,
    Dst,
    JobDefinition,
    JobStatus,
    Misfire,
    OnExcluded,
    Overlap,
    Source,
)
from celery_sched.store.tables import job as job_table
from tests.flow.stage import Stage, somebody_waits
from tests.private_server import wait_until

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = datetime(2026, 2, 2, 12, 0, tzinfo=UTC)
EVERYTHING: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "dst": "literal",
    "day_mode": "and",
    "start_at": datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "end_at": datetime(2999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "max_runs": 2_000_000_000,
    "jitter": 0.000001,
    "exclude": ["weekly:sat,sun", "dates:2026-12-24"],
    "on_excluded": "next_business_day",
    "args": [1, "ä", None],
    "kwargs": {"deep": [{"x": 1.5}]},
    "options": {"queue": "slow", "priority": 0, "headers": {"h": "1"}},
    "overlap": "queue",
    "max_queued": 7,
    "misfire": "all",
    "misfire_grace": "0.1s",
    "catchup_window": "12345678s",
    "expires": "1h",
    "max_runtime": 1234567.891,
    "time_limit": timedelta(days=36_525),
    "soft_time_limit": timedelta(days=36_524),
    "heartbeat_timeout": timedelta(microseconds=1),
    "retries": 1000,
    "backoff": "fixed",
    "retry_delay": timedelta(microseconds=3),
    "retry_max_delay": timedelta(days=1, microseconds=1),
    "retry_jitter": False,
    "retry_on": ["a.B"],
    "give_up_on": ["KeyError", "c.d.E"],
    "requeue": True,
    "pause_on_failure": 7,
    "priority": 9,
    "run_immediately": True,
    "description": "what\nfor",
}


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


# -- add ----------------------------------------------------------------------------------------------


def test_the_least_that_makes_a_job(stage: Stage) -> None:
    """Name, task and schedule are enough; the job waits for its first occurrence; an audit line says who."""
    added = stage.client.add("job", task="t", schedule="0 * * * *", by="ada")
    assert (
        JobDefinition("job", "t", "0 * * * *", args=[], exclude=[], retry_on=[], give_up_on=[])
        == added.definition
    )
    assert (JobStatus.ACTIVE, None, Source.OPERATOR) == (added.status, added.status_reason, added.source)
    assert (NOON + HOUR, None, 1) == (added.next_run_at, added.last_scheduled_for, added.version)
    assert added == stage.client.get("job") == stage.client.list()[0]
    ((actor, action, subject, detail),) = stage.audit()
    assert ("ada", "add", "job") == (actor, action, subject)
    assert ("0 * * * *", "skip", 31_536_000.0) == tuple(
        detail[name] for name in ("schedule", "overlap", "catchup_window")
    )


def test_every_field_is_kept_exactly(each_stage: Stage) -> None:
    """What was given comes back, durations to the microsecond, on each database."""
    stage = each_stage
    added = stage.client.add("job", task="t", schedule="every 1h", **EVERYTHING)
    expected = JobDefinition(
        "job",
        "t",
        "every 1h",
        **{
            **EVERYTHING,
            "dst": Dst.LITERAL,
            "day_mode": DayMode.AND,
            "jitter": timedelta(microseconds=1),
            "on_excluded": OnExcluded.NEXT_BUSINESS_DAY,
            "backoff": Backoff.FIXED,
            "overlap": Overlap.QUEUE,
            "misfire": Misfire.ALL,
            "misfire_grace": timedelta(milliseconds=100),
            "catchup_window": timedelta(seconds=12_345_678),
            "expires": HOUR,
            "max_runtime": timedelta(seconds=1_234_567, milliseconds=891),
        },
    )
    assert expected == added.definition == stage.client.get("job").definition
    assert NOON == added.next_run_at, "run_immediately"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": ""}, "the name of a job '' is refused"),
        ({"name": " job"}, "the name of a job ' job' is refused"),
        ({"task": ""}, "task '' is refused"),
        ({"schedule": "61 * * * *"}, "'61 * * * *'"),
        ({"schedule": "0 0 30 2 *"}, "it never occurs"),
        ({"schedule": "every -5m"}, "'every -5m'"),
        ({"timezone": "Europe/Berlim"}, "'Europe/Berlim'"),
        (
            {"overlap": "skipp"},
            "overlap 'skipp' is refused: one of skip, queue, queue_one, replace, concurrent. Did you",
        ),
        ({"misfire": "run"}, "misfire 'run' is refused: one of once, all, skip"),
        ({"max_runtime": -1}, "max_runtime -1 is refused: a duration is not negative"),
        ({"expires": float("nan")}, "expires nan is refused"),
        ({"priority": 10}, "priority 10 is refused: a whole number from 0 to 9"),
        ({"max_queued": True}, "max_queued True is refused"),
        ({"args": {"a": 1}}, "args {'a': 1} is refused"),
        ({"kwargs": {"x": object}}, "kwargs['x']"),
        ({"options": {"sched_token": 1}}, "sched_token"),
        ({"overlapp": "skip"}, "field 'overlapp' is refused: there is no such one"),
        ({"pool": "slwo"}, "pool 'slwo' is refused: one of the pools there are: default"),
    ],
)
def test_what_is_refused_is_named_and_not_written(stage: Stage, changed: dict[str, Any], said: str) -> None:
    """A wrong field stops `add` before anything is written, with the field, the value and what is allowed."""
    before = stage.rows()
    given: dict[str, Any] = {"name": "job", "task": "t", "schedule": "* * * * *", **changed}
    with pytest.raises(InvalidValue) as refused:
        stage.client.add(**given)
    assert said in str(refused.value)
    assert before == stage.rows()


def test_a_name_is_taken_once(stage: Stage, make_stage: MakeStage) -> None:
    """A second job of a name is refused and changes nothing; another app may have one of the same name."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    before = stage.rows()
    with pytest.raises(AlreadyExists, match=r"^job 'job' exists already\. Change it with edit"):
        stage.client.add("job", task="other", schedule="5 * * * *")
    assert before == stage.rows()
    other = make_stage(NOON, app="other")
    other.client.add("job", task="other", schedule="5 * * * *")
    assert ("t", "other") == tuple(s.client.get("job").definition.task for s in (stage, other))


def test_two_add_a_name_in_the_same_moment(make_stage: MakeStage, postgresql_url: str) -> None:
    """The one that comes second waits for the first and then says that the job exists."""
    stage = make_stage(NOON, database="postgresql")
    stage.client.add("job", task="t", schedule="0 * * * *")
    engine = create_engine(postgresql_url)
    errors: list[Exception] = []

    def add() -> None:
        try:
            stage.client.add("job", task="late", schedule="0 * * * *")
        except Exception as error:
            errors.append(error)

    with engine.connect() as first:
        row = dict(first.execute(select(job_table)).one()._mapping)
        first.execute(delete(job_table))
        first.commit()
        first.execute(insert(job_table).values({name: row[name] for name in row if name != "id"}))
        second = threading.Thread(target=add)
        second.start()
        wait_until(lambda: somebody_waits(postgresql_url), 20, "the second to wait for the first")
        first.commit()
    second.join(20)
    engine.dispose()
    assert ["job 'job' exists already. It was added in the same moment."] == [str(error) for error in errors]
    assert ["t"] == [job.definition.task for job in stage.client.list()]


# -- edit ---------------------------------------------------------------------------------------------


def test_an_edit_writes_what_it_names(each_stage: Stage) -> None:
    """Only the named fields change, the version grows by one, and the audit has the new values only."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 * * * *", **{**EVERYTHING, "run_immediately": False})
    before = stage.client.get("job")
    stage.clock.advance(SECOND)
    after = stage.client.edit("job", by="ada", max_runtime="2m", overlap="skip", priority=9)
    assert before.version + 1 == after.version
    assert (timedelta(minutes=2), Overlap.SKIP) == (after.definition.max_runtime, after.definition.overlap)
    same = (
        "args",
        "kwargs",
        "options",
        "misfire_grace",
        "catchup_window",
        "time_limit",
        "schedule",
        "priority",
    )
    for name in same:
        assert getattr(before.definition, name) == getattr(after.definition, name), name
    assert before.next_run_at == after.next_run_at
    assert [("ada", "edit", "job", {"max_runtime": 120.0, "overlap": "skip"})] == stage.audit("edit")


def test_an_edit_to_what_it_is_writes_nothing(each_stage: Stage) -> None:
    """The same values again, in another form too: no version, no audit line, no new instant."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 * * * *", **EVERYTHING)
    before = stage.rows()
    stage.clock.advance(SECOND)
    stage.client.edit(
        "job", schedule="0 * * * *", expires=3600, catchup_window="12345678", args=(1, "ä", None)
    )
    assert before == stage.rows()


def test_an_edit_leaves_lock_and_figures_alone(stage: Stage) -> None:
    """While a run holds the job's lock, an edit changes neither lock, mark, fence nor figures."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.poll_at(NOON + MINUTE)
    held = stage.scheduler.job_row("job")
    assert held.lock_token is not None
    stage.client.edit("job", schedule="*/2 * * * *", task="u")
    row = stage.scheduler.job_row("job")
    kept = ("lock_token", "locked_by", "locked_at", "fence", "last_scheduled_for", "run_count", "anchor")
    assert [getattr(held, name) for name in kept] == [getattr(row, name) for name in kept]
    assert 1 == len(stage.work())
    assert None is stage.client.get("job").locked_by


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "new"}, "a job keeps its name"),
        ({"schedule": "bad"}, "job 'job': schedule 'bad' is refused"),
        ({"task": "u", "priority": -1}, "priority -1 is refused"),
        ({"priorty": 1}, "Did you mean priority?"),
        ({"pool": "slow"}, "pool 'slow' is refused"),
        ({"task": None}, "task None is refused"),
    ],
)
def test_a_refused_edit_writes_nothing(stage: Stage, changes: dict[str, Any], said: str) -> None:
    """One wrong field among right ones stops the whole edit."""
    stage.client.add("job", task="t", schedule="0 * * * *")
    before = stage.rows()
    with pytest.raises(InvalidValue) as refused:
        stage.client.edit("job", **changes)
    assert said in str(refused.value)
    assert before == stage.rows()


def test_a_job_in_error_is_repaired_by_an_edit(stage: Stage) -> None:
    """A schedule broken by plain SQL stops that job only; status names it; an edit brings it back."""
    for name in ("broken", "whole"):
        stage.client.add(name, task="t", schedule="* * * * *")
    broken = update(job_table).where(job_table.c.name == "broken").values(schedule="99 * * * *")
    stage.database.run(lambda tx, now: tx.execute(broken))
    stage.poll_at(NOON + MINUTE)
    assert ["whole"] == [run.job for run in stage.scheduler.runs()]
    found = stage.client.get("broken")
    assert (JobStatus.ERROR, None) == (found.status, found.next_run_at)
    assert "99 * * * *" in (found.status_reason or "")
    assert any("'broken' is in error" in problem for problem in stage.client.status().problems)
    repaired = stage.client.edit("broken", schedule="*/2 * * * *")
    assert (JobStatus.ACTIVE, None) == (repaired.status, repaired.status_reason)
    stage.poll_at(NOON + 2 * MINUTE)
    assert [NOON + 2 * MINUTE] == stage.occurrences("broken")


# -- delete -------------------------------------------------------------------------------------------


def test_a_job_with_active_runs_is_not_deleted(each_stage: Stage) -> None:
    """Refused with the number and one of the runs while any is active; then it goes, its history stays."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="0 * * * *")
    run = stage.client.run("job")
    for status in ("queued", "dispatched", "running"):
        assert status == stage.client.get_run(run.id).status
        before = stage.rows()
        with pytest.raises(SchedulerError, match=rf"^job 'job' has 1 run\(s\) .* such as {run.id}: cancel"):
            stage.client.delete("job")
        assert before == stage.rows()
        if status == "queued":
            stage.scheduler.poll()
        elif status == "dispatched":
            stage.start(stage.key(run.id))
    assert stage.finish(stage.key(run.id)).settled
    stage.client.delete("job", by="ada")
    assert ([], ["succeeded"]) == (stage.client.list(), [run.status for run in stage.client.runs("job")])
    assert [("ada", "delete", "job", "t")] == [(*line[:3], line[3]["task"]) for line in stage.audit("delete")]
    stage.client.add("job", task="t", schedule="0 * * * *")
    assert 0 == stage.client.get("job").run_count, "a new one of that name starts anew"


@pytest.mark.parametrize("verb", ["get", "edit", "delete", "pause", "resume", "run", "runs"])
def test_an_unknown_job_is_named_with_the_nearest(stage: Stage, verb: str) -> None:
    """Every verb on a job that is not there: its name, the nearest one, and nothing written."""
    stage.client.add("report", task="t", schedule="0 * * * *")
    before = stage.rows()
    with pytest.raises(NotFound, match=r"^there is no job 'reprot'\. Did you mean 'report'\?$"):
        getattr(stage.client, verb)("reprot")
    assert before == stage.rows()


# -- list ---------------------------------------------------------------------------------------------


def test_jobs_are_listed_by_name_and_status(stage: Stage, make_stage: MakeStage) -> None:
    """All of the app's jobs by name, or those of one status; other apps' jobs are not seen."""
    for name in ("c", "a", "b"):
        stage.client.add(name, task="t", schedule="0 * * * *")
    stage.client.pause("b")
    make_stage(NOON, app="other").client.add("x", task="t", schedule="0 * * * *")
    assert ["a", "b", "c"] == [job.name for job in stage.client.list()]
    assert ["a", "c"] == [job.name for job in stage.client.list("active")]
    assert ["b"] == [job.name for job in stage.client.list(JobStatus.PAUSED)]
    assert [] == stage.client.list("error")
    with pytest.raises(
        InvalidValue, match=r"^status 'pasued' is refused: one of active, .*Did you mean 'paused'"
    ):
        stage.client.list("pasued")


# -- pause and resume ---------------------------------------------------------------------------------


def test_pause_and_resume(each_stage: Stage) -> None:
    """Paused, nothing is planned; the reason is shown; what waits goes on; resumed, it goes on from now."""
    stage = each_stage
    stage.client.add("job", task="t", schedule="* * * * *")
    waiting = stage.client.run("job")
    paused = stage.client.pause("job", "too loud", by="ada")
    assert (JobStatus.PAUSED, "too loud", None) == (paused.status, paused.status_reason, paused.next_run_at)
    stage.poll_at(NOON + 5 * MINUTE)
    assert [waiting.id] == [run.id for run in stage.work()], "a run that exists goes on"
    resumed = stage.client.resume("job", by="bob")
    assert (JobStatus.ACTIVE, None, NOON + 6 * MINUTE) == (
        resumed.status,
        resumed.status_reason,
        resumed.next_run_at,
    )
    stage.poll_at(NOON + 6 * MINUTE)
    assert [NOON + 6 * MINUTE] == [run.scheduled_for for run in stage.active()]
    assert [
        ("ada", "pause", "job", {"reason": "too loud"}),
        ("bob", "resume", "job", {"was": "paused", "reason": "too loud"}),
    ] == stage.audit()[2:]


def test_pause_and_resume_again_change_nothing(stage: Stage) -> None:
    """A second pause keeps the first one's reason; a second resume is as empty."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.client.pause("job", "first")
    before = stage.rows()
    stage.client.pause("job", "second")
    assert before == stage.rows()
    stage.client.resume("job")
    before = stage.rows()
    stage.client.resume("job")
    assert before == stage.rows()


def test_an_edit_does_not_resume(stage: Stage) -> None:
    """A paused job that is edited stays paused, and goes on with the new schedule when it is resumed."""
    stage.client.add("job", task="t", schedule="* * * * *")
    stage.client.pause("job")
    edited = stage.client.edit("job", schedule="0 * * * *")
    assert (JobStatus.PAUSED, None) == (edited.status, edited.next_run_at)
    stage.poll_at(NOON + HOUR)
    assert [] == stage.scheduler.runs()
    assert NOON + 2 * HOUR == stage.client.resume("job").next_run_at


def test_a_disabled_job_is_enabled_by_edit_or_resume(stage: Stage) -> None:
    """`enabled=False` stops planning and says why; `resume` and `enabled=True` both switch it on."""
    added = stage.client.add("job", task="t", schedule="* * * * *", enabled=False)
    assert (JobStatus.DISABLED, None) == (added.status, added.next_run_at)
    assert added.status_reason
    stage.poll_at(NOON + MINUTE)
    assert [] == stage.scheduler.runs()
    resumed = stage.client.resume("job")
    assert (JobStatus.ACTIVE, True) == (resumed.status, resumed.definition.enabled)
    assert JobStatus.DISABLED == stage.client.edit("job", enabled=False).status
    assert NOON + 2 * MINUTE == stage.client.edit("job", enabled=True).next_run_at


# -- plans --------------------------------------------------------------------------------------------


def test_only_a_frequent_schedule_is_called_frequent(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """More often than every 10 s is warned of once; `run_immediately` just before one is not that."""
    stage.clock.now = NOON - 3 * SECOND
    stage.client.add("hourly", task="t", schedule="0 * * * *", run_immediately=True)
    stage.client.add("fast", task="t", schedule="every 2s", overlap="concurrent")
    stage.client.add("ten", task="t", schedule="every 10s")
    for _ in range(5):
        stage.scheduler.poll()
        stage.clock.advance(SECOND)
    warned = [record.message for record in caplog.records if "more often" in record.message]
    assert ["job 'fast' fires every 2 s: more often than every 10 s"] == warned
    assert [NOON - 3 * SECOND, NOON] == stage.occurrences("hourly")


def test_the_current_apps_client(tmp_path: Path) -> None:
    """`celery_sched.client` is the client of whichever app is current."""
    stages = [Stage(tmp_path, f"sqlite:///{tmp_path / name}.db", NOON, app=name) for name in ("one", "two")]
    before = current_app._get_current_object()
    try:
        for stage in stages:
            app = Celery(stage.config.app, set_as_current=False)
            app.conf.update(sched_database_url=stage.config.database_url, sched_home=str(tmp_path))
            app.set_current()
            proxy.add(f"of {stage.config.app}", task="t", schedule="0 * * * *")
            runtime.of(app).close()
            app.close()
        assert ["of one", "of two"] == [stage.client.list()[0].name for stage in stages]
    finally:
        before.set_current()
        for stage in stages:
            stage.close()
