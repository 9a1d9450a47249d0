"""Jobs in code come into the database when a scheduler starts; what people changed by hand is theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state
from sqlalchemy import update

from celery_sched import decorators, runtime
from celery_sched.beat import Scheduler
from celery_sched.errors import InvalidValue
from celery_sched.model import Job, JobDefinition, JobStatus, Source
from celery_sched.rules.definition import checked
from celery_sched.steps.define import GONE, GONE_PAUSED, Synced, sync
from celery_sched.store import apps
from celery_sched.store.tables import job as job_table
from tests.flow.stage import Stage, somebody_waits
from tests.private_server import wait_until

MakeStage = Callable[..., Stage]
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
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


def defined(name: str = "job", **fields: Any) -> JobDefinition:
    """What code says of a job."""
    return checked(**{"name": name, "task": "t", "schedule": "0 * * * *", **fields})


def start(stage: Stage, *definitions: JobDefinition) -> Synced:
    """What a scheduler with these jobs in its code does when it starts."""
    return stage.database.run(lambda tx, now: sync(tx, now, stage.config, definitions))


def jobs(stage: Stage) -> dict[str, Job]:
    return {job.name: job for job in stage.client.list()}


RICH: dict[str, Any] = {
    "args": (1, 2.5, "ä"),
    "kwargs": {"b": [None, {"c": True}]},
    "options": {"priority": 0},
    "misfire_grace": "0.1s",
    "catchup_window": "12345678s",
    "max_runtime": 1234567.891,
}


def test_new_jobs_are_added(each_stage: Stage) -> None:
    """A job that is only in code is added, as code's, with its first instant."""
    assert Synced(added=("a", "b")) == start(each_stage, defined("a", **RICH), defined("b", enabled=False))
    found = jobs(each_stage)
    assert [Source.CODE, Source.CODE] == [job.source for job in found.values()]
    assert (JobStatus.ACTIVE, NOON + HOUR) == (found["a"].status, found["a"].next_run_at)
    assert (JobStatus.DISABLED, None) == (found["b"].status, found["b"].next_run_at)
    assert defined("a", **RICH) == found["a"].definition


def test_the_same_code_again_changes_nothing(each_stage: Stage) -> None:
    """A second start (AB5): no row is touched, no instant moves, no run is made, on any database."""
    stage = each_stage
    same = [defined("a", **RICH), defined("b", run_immediately=True), defined("c", schedule="every 1h")]
    start(stage, *same)
    stage.poll_at(NOON + HOUR)
    stage.work()
    before = stage.rows()
    stage.clock.advance(5 * MINUTE)
    assert Synced() == start(stage, *same)
    assert before == stage.rows()


def test_what_code_changed_is_updated(stage: Stage) -> None:
    """Only the changed fields are written; an edit never fires a job at once, figures and anchor stay."""
    start(stage, defined(schedule="every 1h"))
    stage.poll_at(NOON + HOUR)
    stage.work()
    stage.clock.now = NOON + HOUR + MINUTE
    anchor = stage.scheduler.job_row("job").anchor
    assert Synced(changed=("job",)) == start(stage, defined(schedule="every 30m", max_runtime="5m"))
    found = stage.client.get("job")
    assert ("every 30m", timedelta(minutes=5)) == (found.definition.schedule, found.definition.max_runtime)
    assert (NOON + 90 * MINUTE, 1, NOON + HOUR) == (
        found.next_run_at,
        found.run_count,
        found.last_scheduled_for,
    )
    assert anchor == stage.scheduler.job_row("job").anchor
    stage.scheduler.poll()
    assert [NOON + HOUR] == stage.occurrences("job")


def test_a_change_that_is_not_of_times_moves_no_instant(stage: Stage) -> None:
    """A job that is due keeps its due occurrence when code changes something else."""
    start(stage, defined())
    stage.clock.now = NOON + HOUR + SECOND
    start(stage, defined(priority=9))
    assert NOON + HOUR == stage.client.get("job").next_run_at
    stage.scheduler.poll()
    assert [NOON + HOUR] == stage.occurrences("job")


def test_what_was_changed_by_hand_is_kept_and_reported(each_stage: Stage) -> None:
    """A field edited by hand stays, at each start it is reported; the others still follow the code."""
    stage = each_stage
    start(stage, defined(**RICH))
    stage.client.edit("job", schedule="5 * * * *", catchup_window="1d")
    assert ("schedule", "catchup_window") == stage.client.get("job").operator_fields
    kept = (("job", ("schedule", "catchup_window")),)
    assert Synced(kept=kept) == start(stage, defined(**RICH))
    changed = start(stage, defined(schedule="10 * * * *", **{**RICH, "priority": 7}))
    assert Synced(changed=("job",), kept=kept) == changed
    found = stage.client.get("job").definition
    assert ("5 * * * *", DAY, 7) == (found.schedule, found.catchup_window, found.priority)


def test_a_field_set_back_by_hand_follows_code_again(stage: Stage) -> None:
    """When hand and code agree again, whoever moved, nothing is reported and code leads."""
    start(stage, defined(priority=3), defined("other"))
    stage.client.edit("job", priority=9)
    stage.client.edit("other", task="u")
    start(stage, defined(priority=9), defined("other"))
    stage.client.edit("other", task="t")
    assert Synced() == start(stage, defined(priority=9), defined("other"))
    assert Synced(changed=("job", "other")) == start(stage, defined(priority=1), defined("other", task="v"))
    found = jobs(stage)
    assert (1, "v") == (found["job"].definition.priority, found["other"].definition.task)


def test_a_pause_by_hand_outlives_starts_and_changes(stage: Stage) -> None:
    """A paused job stays paused when code changes its schedule, with the reason that was given."""
    start(stage, defined())
    stage.client.pause("job", "too loud")
    start(stage, defined())
    start(stage, defined(schedule="* * * * *"))
    found = stage.client.get("job")
    assert (JobStatus.PAUSED, "too loud", None) == (found.status, found.status_reason, found.next_run_at)
    assert "* * * * *" == found.definition.schedule


def test_jobs_gone_from_code_are_disabled(each_stage: Stage) -> None:
    """Disabled with the reason, once; history and figures stay; what runs goes on."""
    stage = each_stage
    start(stage, defined(), defined("stays"))
    stage.poll_at(NOON + HOUR)
    assert Synced(disabled=("job",)) == start(stage, defined("stays"))
    found = stage.client.get("job")
    assert (JobStatus.DISABLED, GONE, None) == (found.status, found.status_reason, found.next_run_at)
    before = stage.rows()
    assert Synced() == start(stage, defined("stays"))
    assert before == stage.rows()
    assert ["job", "stays"] == sorted(run.job for run in stage.work()), "what was dispatched ends as usual"
    stage.poll_at(NOON + 2 * HOUR)
    assert ([NOON + HOUR], 1) == (stage.occurrences("job"), stage.client.get("job").run_count)


def test_a_job_that_comes_back_goes_on_from_now(stage: Stage) -> None:
    """Back in code it is active again, from the next occurrence on; the time it was gone is not missed."""
    start(stage, defined(misfire="all", run_immediately=True))
    stage.scheduler.poll()
    stage.work()
    start(stage)
    stage.clock.now = NOON + 5 * HOUR + MINUTE
    assert Synced(changed=("job",)) == start(stage, defined(misfire="all", run_immediately=True))
    found = stage.client.get("job")
    assert (JobStatus.ACTIVE, None, NOON + 6 * HOUR) == (found.status, found.status_reason, found.next_run_at)
    stage.scheduler.poll()
    assert [NOON] == stage.occurrences("job")


def test_switched_off_by_hand_it_stays_off_when_it_comes_back(stage: Stage) -> None:
    """A job disabled by hand, gone from code and back again, is still disabled."""
    start(stage, defined())
    stage.client.edit("job", enabled=False)
    start(stage)
    back = start(stage, defined())
    assert (("job", ("enabled",)),) == back.kept
    found = stage.client.get("job")
    assert (JobStatus.DISABLED, False, None) == (found.status, found.definition.enabled, found.next_run_at)


def test_paused_it_is_paused_when_it_comes_back(stage: Stage) -> None:
    """A release that lacked a paused job for a while does not resume it."""
    start(stage, defined())
    stage.client.pause("job", "too loud")
    start(stage)
    assert GONE_PAUSED == stage.client.get("job").status_reason
    start(stage, defined())
    found = stage.client.get("job")
    assert (JobStatus.PAUSED, None) == (found.status, found.next_run_at)


def test_code_may_disable_a_job(stage: Stage) -> None:
    """`enabled=False` in code disables, `True` enables; enabled by hand against it, it stays so."""
    start(stage, defined())
    start(stage, defined(enabled=False))
    assert JobStatus.DISABLED == stage.client.get("job").status
    start(stage, defined(enabled=True))
    assert (JobStatus.ACTIVE, NOON + HOUR) == (
        stage.client.get("job").status,
        stage.client.get("job").next_run_at,
    )
    start(stage, defined(enabled=False))
    stage.client.resume("job")
    assert (("job", ("enabled",)),) == start(stage, defined(enabled=False)).kept
    assert JobStatus.ACTIVE == stage.client.get("job").status


def test_jobs_of_operators_are_left_alone(stage: Stage) -> None:
    """A job added by hand is never changed or disabled by code, also not by one of its name."""
    stage.client.add("mine", task="own", schedule="5 * * * *")
    before = stage.rows()["sched_job"]
    assert Synced(taken=("mine",)) == start(stage, defined("mine"))
    assert Synced() == start(stage)
    assert before == stage.rows()["sched_job"]


def test_other_apps_are_left_alone(stage: Stage, make_stage: MakeStage) -> None:
    """Two apps in one database: a start of one neither changes nor disables the jobs of the other."""
    other = make_stage(NOON, app="other")
    start(other, defined("theirs"), defined("both", task="theirs"))
    start(stage, defined("mine"), defined("both", task="mine"))
    before = jobs(other)
    assert Synced(disabled=("mine", "both")) == start(stage)
    assert before == jobs(other)
    assert {"theirs": JobStatus.ACTIVE, "both": JobStatus.ACTIVE} == {
        name: job.status for name, job in jobs(other).items()
    }
    other.clock.now = NOON + HOUR
    other.scheduler.poll()
    assert ["both", "theirs"] == sorted(run.job for run in other.scheduler.runs())
    stage.poll_at(NOON + HOUR)
    assert [] == stage.scheduler.runs()


def test_two_schedulers_start_in_the_same_moment(make_stage: MakeStage, postgresql_url: str) -> None:
    """The second waits for the first and then finds nothing left to do; neither fails."""
    stage = make_stage(NOON, database="postgresql")
    entered, go_on = threading.Event(), threading.Event()
    done: dict[str, Synced] = {}

    def first(tx: Any, now: datetime) -> Synced:
        synced = sync(tx, now, stage.config, [defined("a"), defined("b")])
        entered.set()
        assert go_on.wait(20)
        return synced

    def run(name: str, work: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: done.update({name: stage.database.run(work)}))
        thread.start()
        return thread

    stage.database.run(lambda tx, now: apps.ensure(tx, stage.config.app))
    threads = [run("first", first)]
    assert entered.wait(20)
    threads.append(run("second", lambda tx, now: sync(tx, now, stage.config, [defined("a"), defined("b")])))
    wait_until(lambda: somebody_waits(postgresql_url), 20, "the second to wait for the first")
    assert {} == done
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert {"first": Synced(added=("a", "b")), "second": Synced()} == done


# -- a real start ----------------------------------------------------------------------------------


def one() -> None:
    """A job in code."""


def two() -> None:
    """Another job in code."""


@pytest.fixture
def in_code(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes these functions, by the names of their jobs, the only jobs in code."""

    def register(**functions: Callable[[], None]) -> None:
        monkeypatch.setattr(decorators, "_registered", [])
        monkeypatch.setattr(_state, "_on_app_finalizers", set())
        for name, function in functions.items():
            decorators.job("0 * * * *", name=name)(function)

    return register


def started(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What Celery's scheduler says of the sync when it starts with the jobs that `@job` registered."""
    app = Celery("proj", set_as_current=False)
    app.conf.update(sched_database_url=stage.config.database_url, sched_home=str(stage.folder))
    app.conf.update(broker_url="memory://")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="celery_sched.beat"):
        scheduler = Scheduler(app)
        wait_until(
            lambda: all(thread.name != "sched-doctor" for thread in threading.enumerate()),
            30,
            "the doctor to have looked",
        )
        scheduler.close()
    runtime.of(app).close()
    app.close()
    return [record.message for record in caplog.records if record.message.startswith("job")]


def test_a_real_start_syncs_and_says_what_it_did(
    stage: Stage, in_code: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """`celery beat` brings `@job` functions in at its start and logs what it added, kept, left, disabled."""
    in_code(a=one, b=two)
    assert ["jobs added from code: a, b"] == started(stage, caplog)
    stage.client.edit("a", schedule="5 * * * *", priority=8)
    stage.client.add("c", task="t", schedule="0 * * * *")
    in_code(a=one, c=two)
    assert [
        "jobs disabled from code: b",
        "job 'a' keeps what was changed by hand: schedule, priority",
        "job 'c' is in code, but a job of that name was added by hand: it is left alone",
    ] == started(stage, caplog)


def test_a_job_whose_zone_vanished_does_not_stop_the_scheduler(each_stage: Stage) -> None:
    """A zone that somebody chose has vanished; a deploy changes the times: that job is in error, no other."""
    stage = each_stage
    start(stage, defined(), defined("other"))
    lost = update(job_table).where(job_table.c.name == "job").values(timezone="Mars/Olympus")
    stage.database.run(lambda tx, now: tx.execute(lost))
    done = start(stage, defined(schedule="30 * * * *"), defined("other", schedule="30 * * * *"))
    assert (("job", "other"), (("job", ("timezone",)),)) == (done.changed, done.kept)
    found = jobs(stage)
    assert (JobStatus.ERROR, None) == (found["job"].status, found["job"].next_run_at)
    assert "Mars/Olympus" in (found["job"].status_reason or "")
    assert NOON + HOUR / 2 == found["other"].next_run_at
    stage.client.edit("job", timezone="UTC")
    assert (JobStatus.ACTIVE, NOON + HOUR / 2) == (jobs(stage)["job"].status, jobs(stage)["job"].next_run_at)


def test_a_rule_that_only_the_anchor_leaves_empty(make_stage: Callable[..., Stage]) -> None:
    """Each 24 hours from ten it is never nine: from code that job is in error; people are refused."""
    stage = make_stage(datetime(2026, 3, 2, 10, tzinfo=UTC))
    rule = "rrule:FREQ=HOURLY;INTERVAL=24;BYHOUR=9"
    wanted = [checked(name=name, task="t", schedule=text) for name, text in (("a", rule), ("b", "@daily"))]
    stage.database.run(lambda tx, now: sync(tx, now, stage.config, wanted))
    broken, other = stage.client.list()
    assert (JobStatus.ERROR, JobStatus.ACTIVE) == (broken.status, other.status)
    assert "it never occurs" in (broken.status_reason or "")
    stage.client.add("c", task="t", schedule="@daily")
    before = stage.rows()
    with pytest.raises(InvalidValue, match="never occurs"):
        stage.client.add("d", task="t", schedule=rule)
    with pytest.raises(InvalidValue, match="never occurs"):
        stage.client.edit("c", schedule=rule)
    assert before == stage.rows()


def test_what_was_changed_by_hand_is_given_back_to_code(make_stage: Callable[..., Stage]) -> None:
    """reset takes back one field or all; from then on a deploy changes them again, and only those of code."""
    stage = make_stage(datetime(2026, 3, 2, 10, tzinfo=UTC))
    code = checked(name="a", task="t", schedule="@daily", jitter="5m", start_at="2026-03-02")
    stage.database.run(lambda tx, now: sync(tx, now, stage.config, [code]))
    stage.client.edit("a", schedule="@hourly", jitter=None, start_at="2026-04-01", priority=9)
    assert {"schedule", "jitter", "start_at", "priority"} == set(stage.client.get("a").operator_fields)
    job = stage.client.reset("a", ["schedule"])
    assert ("@daily", None) == (job.definition.schedule, job.definition.jitter)
    job = stage.client.reset("a", by="ada")
    assert (code, ()) == (job.definition, job.operator_fields)
    assert ["ada", "reset", "a"] == list(stage.audit("reset")[-1][:3])
    before = stage.rows()
    with pytest.raises(InvalidValue, match="changed by hand: none"):
        stage.client.reset("a", ["schedule"])
    stage.client.reset("a")
    assert before == stage.rows()
    stage.client.add("b", task="t", schedule="@daily")
    with pytest.raises(InvalidValue, match="only what comes from code"):
        stage.client.reset("b")
