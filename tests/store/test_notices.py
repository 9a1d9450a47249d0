"""What people want to be told is noted as it happens, told once, in few messages, and never sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from celery_sched.beat.deadlines import Watcher
from celery_sched.beat.notices import tell_all
from celery_sched.beat.prune import prune
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import NoticeKind, Notification, RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import tell
from celery_sched.store import notices
from celery_sched.store.tables import job as job_table
from celery_sched.store.tables import notification as table
from celery_sched.testing import holding
from tests.store.world import Bench, statements, together

FAILED = {"status": RunStatus.FAILED, "error": "Traceback\nValueError: no"}
TARGETS = {"ops": "json://127.0.0.1:1/hush", "boss": ["secret:BOSS"]}
Make = Callable[..., Bench]


@pytest.fixture
def shop(make_bench: Make) -> Bench:
    """A bench with two targets; `ops` is told of what is told by default."""
    return make_bench(notify_targets=TARGETS, notify={"to": ["ops"]})


def end(bench: Bench, name: str, status: RunStatus = RunStatus.FAILED, **policies: Any) -> RunId:
    """One run of a job, made where there is none, that ends so."""
    made = bench.job_row(name) is not None
    dispatch = bench.again(name) if made else bench.claimed(name, **policies)
    bench.start(dispatch.key)
    bench.finish(dispatch.key, status, error="Traceback\nValueError: no" if status != "succeeded" else None)
    return dispatch.key.id


def told(bench: Bench) -> list[Notification]:
    """The list, the oldest first."""
    return sorted(bench.client.notifications(limit=10_000), key=lambda one: one.id)


def kinds(bench: Bench) -> list[tuple[str, str | None, str]]:
    return [(one.kind.value, one.job, one.status.value) for one in told(bench)]


def messages(bench: Bench) -> list[Any]:
    """The rows of the runs that send, by when they are to go."""
    found = [bench.row(run.id) for run in bench.scheduler.runs() if run.job == notices.JOB]
    return sorted(found, key=lambda row: row.scheduled_for)


def pass_on(bench: Bench) -> list[Any]:
    """What the schedulers' thread does."""
    tell_all(bench.scheduler.runtime)
    return messages(bench)


def send(bench: Bench, status: RunStatus = RunStatus.SUCCEEDED, **outcome: Any) -> list[Any]:
    """Carry out the messages that may go now; the arguments of their task."""
    done = []
    for dispatch in bench.claim(pool=tell.POOL):
        bench.start(dispatch.key)
        bench.finish(dispatch.key, status, **outcome)
        done.append((dispatch.task, dispatch.kwargs))
    return done


def test_a_failure_is_told(shop: Bench) -> None:
    """From the end of the run to the message, whose run is an ordinary one in a pool of its own."""
    run_id = end(shop, "nightly")
    (one,) = told(shop)
    assert (NoticeKind.FAILURE, "nightly", run_id, "nightly failed", "new") == (
        *(one.kind, one.job, one.about_run, one.title),
        one.status,
    )
    assert "ValueError: no" in one.text and run_id in one.text
    (message,) = pass_on(shop)
    assert ("queued", "notify", "notifications", "celery_sched.notify") == (
        *(message.status, message.trigger_kind, message.pool),
        message.task,
    )
    assert {"ops": {"status": "sending", "run": message.id}} == told(shop)[0].targets
    assert [("celery_sched.notify", {"target": "ops", "notifications": [one.id]})] == send(shop)
    assert [("failure", "nightly", "sent")] == kinds(shop)
    assert {"notifications": 2} == {
        pool.name: pool.slots for pool in shop.client.pools() if pool.name == "notifications"
    }
    assert [] == [*shop.claim(pool="default")]


def test_an_end_that_nobody_wants_to_know_of_costs_no_statement(make_bench: Make) -> None:
    """A success costs as many statements as one of a job that wants nothing; neither is told."""
    bench = make_bench()
    wanted = bench.running("wanted")
    off = bench.running("off", notify="off")
    with statements(bench.database) as of_wanted:
        bench.finish(wanted.key)
    with statements(bench.database) as of_off:
        bench.finish(off.key)
    assert len(of_off) == len(of_wanted)
    assert [] == [text for text in [*of_off, *of_wanted] if "INTO sched_notification" in text]
    failing = bench.again("off")
    bench.start(failing.key)
    with statements(bench.database) as of_failing:
        bench.finish(failing.key, **FAILED)
    assert ([], []) == (
        [text for text in of_failing if "sched_notification" in text and "INTO" in text],
        told(bench),
    )


def test_what_happens_is_listed_without_any_setting(make_bench: Make) -> None:
    """Failures, lost runs and recoveries are in the list; nothing is sent, and no system job is made."""
    bench = make_bench()
    end(bench, "nightly")
    end(bench, "nightly", RunStatus.SUCCEEDED)
    end(bench, "nightly", RunStatus.SUCCEEDED)
    lost = bench.running("other")
    bench.clock.advance(100)
    bench.sweep()
    assert "lost" == bench.status(lost.key.id)
    assert [] == pass_on(bench)
    assert [
        ("failure", "nightly", "listed"),
        ("recovery", "nightly", "listed"),
        ("lost", "other", "listed"),
    ] == kinds(bench)
    assert [] == [job.name for job in bench.client.list(system=True) if job.name.startswith("sched:")]


def test_a_retry_is_no_end(shop: Bench) -> None:
    """A run that is tried again has not failed yet."""
    end(shop, "nightly", retries=1, retry_delay=1, retry_jitter=False)
    assert [] == told(shop)
    shop.clock.advance(1)
    (again,) = shop.claim()
    shop.start(again.key)
    shop.finish(again.key, **FAILED)
    assert [("failure", "nightly", "new")] == kinds(shop)


def test_each_job_says_what_it_wants(shop: Bench) -> None:
    """Kinds and targets of its own, or nothing; what it leaves out is as the settings say."""
    wants: dict[str, Any] = {
        "default": None,
        "off": "off",
        "boss": {"to": ["boss"]},
        "both": {"on": ["failure", "success"], "to": ["ops", "boss"]},
        "listed": {"to": []},
        "success": {"on": ["success"]},
    }
    for name, notify in wants.items():
        end(shop, name, notify=notify)
        end(shop, name, RunStatus.SUCCEEDED)
    found = {(one.job, one.kind.value): sorted(one.targets) for one in told(shop)}
    assert {
        ("default", "failure"): ["ops"],
        ("default", "recovery"): ["ops"],
        ("boss", "failure"): ["boss"],
        ("boss", "recovery"): ["boss"],
        ("both", "failure"): ["boss", "ops"],
        ("both", "success"): ["boss", "ops"],
        ("listed", "failure"): [],
        ("listed", "recovery"): [],
        ("success", "success"): ["ops"],
    } == found


def test_plain_sql_in_the_column_undoes_no_end(shop: Bench) -> None:
    """What cannot be read counts as nothing said: the run ends, and is told as the settings say."""
    running = shop.running("nightly")
    shop.set_job("nightly", notify={"on": 5, "to": "x" * 500})
    assert shop.finish(running.key, **FAILED).settled
    assert [("failure", "nightly", "new")] == kinds(shop)


def test_repeats_are_listed_and_not_sent(shop: Bench) -> None:
    """The second failure within ten minutes is a repeat, with the reason; after a recovery it is news."""
    for _ in range(3):
        end(shop, "nightly")
        shop.clock.advance(60)
        pass_on(shop)
    end(shop, "nightly", RunStatus.SUCCEEDED)
    pass_on(shop)
    end(shop, "nightly")
    pass_on(shop)
    assert ["sending", "suppressed", "suppressed", "sending", "sending"] == [one.status for one in told(shop)]
    assert "repeats what was told 1m before" in str(told(shop)[1].reason)
    assert (3, 3) == (len(shop.client.notifications(unseen=True)), shop.client.status().unseen_notifications)
    shop.clock.advance(600)
    end(shop, "nightly")
    pass_on(shop)
    assert "sending" == told(shop)[-1].status


def test_a_failure_of_everything_is_one_message(shop: Bench) -> None:
    """Five hundred jobs that fail together are one message, and one more for what comes later."""

    same = {"app": "bench", "task": "t", "description": "", "status": "active", "notify": None}

    def fail(first: int, last: int) -> None:
        rows = [SimpleNamespace(id=10_000 + n, name=f"job-{n}", **same) for n in range(first, last)]
        shop.database.run(
            lambda tx, now: [notices.note_job(tx, now, row, NoticeKind.PAUSED, "it was") for row in rows]
        )

    fail(0, 500)
    (message,) = pass_on(shop)
    assert 500 == len(message.kwargs["notifications"])
    assert 1 == len(send(shop))
    fail(500, 510)
    shop.clock.advance(1)
    first, second = pass_on(shop)
    assert (message.id, 10) == (first.id, len(second.kwargs["notifications"]))
    assert shop.clock() + timedelta(seconds=29) == second.ready_at
    fail(510, 700)
    assert [500, 200] == [len(row.kwargs["notifications"]) for row in pass_on(shop)]
    assert {"sent": 500, "sending": 200} == Counter(one.status.value for one in told(shop))
    shop.clock.advance(29)
    assert 1 == len(send(shop))
    assert {"sent"} == {one.status.value for one in told(shop)}
    assert 700 == len(told(shop))


def test_a_full_message_is_followed_by_another(shop: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids in its arguments are bounded; what has no room goes with the next one."""
    monkeypatch.setattr(tell, "MOST", 2)
    for name in "abcde":
        end(shop, name)
    found = pass_on(shop)
    assert [2, 2, 1] == [len(row.kwargs["notifications"]) for row in found]
    assert [0.0, 30.0, 60.0] == [(row.ready_at - shop.clock()).total_seconds() for row in found]


def test_the_rate_holds_back_and_forgets_nothing(make_bench: Make) -> None:
    """Above the rate a message waits and takes along what comes meanwhile; another target is not held up."""
    bench = make_bench(
        notify_targets=TARGETS, notify={"to": ["ops"]}, notify_rate="2/h", notify_gather=0, notify_dedupe=0
    )
    for _ in range(2):
        end(bench, "nightly")
        pass_on(bench)
        assert 1 == len(send(bench))
        bench.clock.advance(60)
    for _ in range(3):
        end(bench, "nightly")
        pass_on(bench)
        assert [] == send(bench)
    end(bench, "other", notify="boss")
    pass_on(bench)
    assert ["boss"] == [kwargs["target"] for _, kwargs in send(bench)]
    bench.clock.advance(3600 - 121)
    assert [] == send(bench)
    bench.clock.advance(1)
    assert [3] == [len(kwargs["notifications"]) for _, kwargs in send(bench)]
    assert {"sent"} == {one.status.value for one in told(bench)}


def test_two_schedulers_at_once_send_once(shop: Bench) -> None:
    """Whoever comes second changes nothing: each notification is in exactly one message of its target."""
    other = shop.another()
    for round_ in range(4):
        for name in "abc":
            end(shop, f"{name}{round_}", notify={"to": ["ops", "boss"]})
        together(lambda: tell_all(shop.scheduler.runtime), lambda: tell_all(other.runtime))
        pass_on(shop)  # where each found the other at it
        assert 2 == len(send(shop))
        shop.clock.advance(60)
    for target in ("ops", "boss"):
        carried = [
            key
            for row in messages(shop)
            if row.kwargs["target"] == target
            for key in row.kwargs["notifications"]
        ]
        assert sorted(one.id for one in told(shop)) == sorted(carried)
    assert 8 == len(messages(shop))


def test_another_scheduler_is_at_it(shop: Bench) -> None:
    """While somebody holds the job of the messages, nobody waits and nothing is decided."""
    end(shop, "first")
    pass_on(shop)
    end(shop, "second")
    row = shop.job_row(notices.JOB)
    if shop.database.dialect.row_locks:
        with holding(shop.database, job_table, row.id):
            assert [tell.Told()] == tell_all(shop.scheduler.runtime)
        assert ["sending", "new"] == [one.status for one in told(shop)]
    (message,) = pass_on(shop)  # nothing has claimed it yet: it takes the second one too
    assert 2 == len(message.kwargs["notifications"])


def test_a_message_that_is_claimed_takes_no_more(shop: Bench) -> None:
    """Its worker has read what it carries: what comes later goes with the next one."""
    end(shop, "first")
    pass_on(shop)
    (dispatch,) = shop.claim(pool=tell.POOL)
    end(shop, "second")
    found = pass_on(shop)
    assert [1, 1] == [len(row.kwargs["notifications"]) for row in found]
    shop.start(dispatch.key)
    shop.finish(dispatch.key)
    assert ["sent", "sending"] == [one.status for one in told(shop)]


def test_a_message_that_cannot_be_sent(shop: Bench) -> None:
    """It is tried again for long; then what it carries is failed, and says why; `sched retry` sends it."""
    end(shop, "nightly", notify={"to": ["ops", "boss"]})
    ops, boss = sorted(pass_on(shop), key=lambda row: row.kwargs["target"], reverse=True)
    for dispatch in shop.claim(pool=tell.POOL):
        if dispatch.key.id == boss.id:
            shop.start(dispatch.key)
            shop.finish(dispatch.key)
        else:
            shop.start(dispatch.key)
            shop.finish(dispatch.key, **FAILED)
    assert {"ops": "sending", "boss": "sent"} == {k: v["status"] for k, v in told(shop)[0].targets.items()}
    assert "sending" == told(shop)[0].status
    for _ in range(tell.RETRIES):
        shop.clock.advance(tell.RETRY_MAX_DELAY)
        assert 1 == len(send(shop, RunStatus.FAILED, error="Traceback\nNotSent: the server is away"))
    (one,) = told(shop)
    assert ("failed", "ops: NotSent: the server is away") == (one.status, one.reason)
    assert any(
        "1 notification" in problem and "not be sent" in problem for problem in shop.client.status().problems
    )
    shop.client.retry(ops.id)
    assert 1 == len(send(shop))
    assert [("failure", "nightly", "sent")] == kinds(shop)  # and nobody is told of what sends
    assert [] == [one for one in told(shop) if one.job == notices.JOB]


def test_a_message_whose_worker_dies_is_sent_again(shop: Bench) -> None:
    """Sent or not, nobody knows: the run is lost, tried again as its next attempt, and says so itself."""
    end(shop, "nightly")
    pass_on(shop)
    (dispatch,) = shop.claim(pool=tell.POOL)
    shop.start(dispatch.key)
    shop.clock.advance(100)
    shop.sweep()
    assert ("sending", "queued", 2) == (
        *(told(shop)[0].status, shop.status(dispatch.key.id)),
        shop.row(dispatch.key.id).attempt,
    )
    shop.clock.advance(60)
    assert 1 == len(send(shop))
    assert [("failure", "nightly", "sent")] == kinds(shop)


def test_a_target_that_is_gone(make_bench: Make) -> None:
    """A name that nothing knows any more is recorded on the notification, the others are sent."""
    bench = make_bench(notify_targets={"ops": "json://127.0.0.1:1"})
    running = bench.running("nightly")
    bench.set_job("nightly", notify={"to": ["ops", "gone"]})
    bench.finish(running.key, **FAILED)
    (found,) = tell_all(bench.scheduler.runtime)
    assert ("gone",) == found.unknown
    send(bench)
    (one,) = told(bench)
    assert ("failed", "gone: it is not in sched_notify_targets: there are ops") == (one.status, one.reason)
    assert "sent" == one.targets["ops"]["status"]


def test_a_wrong_name_is_refused_where_a_job_is_defined(shop: Bench) -> None:
    """Where the settings have targets; where they have none, nobody can know."""
    with pytest.raises(InvalidValue, match="Did you mean 'ops'"):
        shop.job("nightly", notify=["opps"])
    shop.job("nightly", notify=["ops"])
    with pytest.raises(InvalidValue, match="there are boss, ops"):
        shop.client.edit("nightly", notify={"to": ["xyz"]})


def test_names_are_not_checked_without_targets(make_bench: Make) -> None:
    """A program that only adds jobs need not have the URLs."""
    assert {"to": ["opps"]} == make_bench().job("nightly", notify="opps").definition.notify


def test_a_job_that_pauses_itself(shop: Bench) -> None:
    """Both are told: that it failed, and that it is paused; a success after its resume is a recovery."""
    end(shop, "nightly", pause_on_failure=1)
    assert {("failure", "nightly", "new"), ("paused", "nightly", "new")} == set(kinds(shop))
    (paused,) = (one for one in told(shop) if one.kind is NoticeKind.PAUSED)
    assert "1 failed runs in a row (pause_on_failure)" in paused.text
    shop.client.resume("nightly")
    end(shop, "nightly", RunStatus.SUCCEEDED)
    assert ("recovery", "nightly", "new") in kinds(shop)


def test_a_deadline_that_passes(shop: Bench) -> None:
    """It is told once; the success that comes late is a recovery."""
    shop.job("nightly", must_succeed_by="2h")
    watcher = Watcher(shop.scheduler.runtime)
    shop.clock.advance(timedelta(hours=3))
    watcher.watch()
    watcher.watch()
    assert [("deadline", "nightly", "new")] == kinds(shop)
    assert "nightly has not succeeded in time" == told(shop)[0].title
    end(shop, "nightly", RunStatus.SUCCEEDED)
    assert [("deadline", "nightly", "new"), ("recovery", "nightly", "new")] == kinds(shop)


def test_skipped_too_often(shop: Bench) -> None:
    """The third skip in a row is told, once until a run has ended; then the next three are."""
    shop.job("busy", schedule="every 1m", notify={"on": ["skipped"], "skips": 3})
    shop.job("silent", schedule="every 1m")
    shop.plan()
    held = {dispatch.job: dispatch for dispatch in shop.claim()}
    for minute in range(1, 6):
        shop.clock.advance(60)
        shop.plan()
        assert (1 if minute >= 3 else 0) == len(told(shop))
    assert "3 occurrences in a row were skipped" in told(shop)[0].text
    shop.start(held["busy"].key)
    shop.clock.advance(1)
    shop.finish(held["busy"].key)
    shop.clock.advance(59)
    shop.plan()
    assert ["busy"] == [dispatch.job for dispatch in shop.claim()]
    for minute in range(1, 5):
        shop.clock.advance(60)
        shop.plan()
        assert (2 if minute >= 3 else 1) == len(told(shop)), minute
    assert {("skipped", "busy", "new")} == set(kinds(shop))


def test_runs_that_expire_are_skips_too(shop: Bench) -> None:
    """Skipped by the sweep, not by the plan: told as well."""
    shop.job("late", schedule="every 1m", expires=30, notify={"on": ["skipped"], "skips": 2})
    for _ in range(3):
        shop.plan()
        shop.clock.advance(31)
        shop.scheduler.poll()
        shop.clock.advance(29)
    assert ("skipped", "late", "new") in kinds(shop)


def test_templates_are_the_settings(make_bench: Make) -> None:
    """Of whatever process ends the run: all of the app's have the same settings."""
    bench = make_bench(
        notify_templates={"failure": {"title": "!! {job} {status}", "text": "{error} #{attempt}"}}
    )
    end(bench, "nightly")
    assert [("!! nightly failed", "Traceback\nValueError: no #1")] == [
        (one.title, one.text) for one in told(bench)
    ]


def test_seen(shop: Bench) -> None:
    """One, or all; an id that there is not is refused, and then nothing is changed."""
    for name in "abc":
        end(shop, name)
    first, second, _ = told(shop)
    assert 3 == shop.client.status().unseen_notifications
    with pytest.raises(NotFound, match="999"):
        shop.client.see_notifications([first.id, 999])
    assert 1 == shop.client.see_notifications([first.id])
    assert 0 == shop.client.see_notifications([first.id])
    assert [second.id, told(shop)[2].id] == sorted(one.id for one in shop.client.notifications(unseen=True))
    assert ["b"] == [one.job for one in shop.client.notifications(job="b", unseen=True)]
    assert 2 == shop.client.see_notifications()
    assert 0 == shop.client.status().unseen_notifications


def test_old_notifications_are_pruned(make_bench: Make) -> None:
    """By an age of their own."""
    bench = make_bench(keep_notifications="1d")
    end(bench, "old")
    bench.clock.advance(timedelta(hours=25))
    end(bench, "new")
    prune(bench.scheduler.runtime)
    assert ["new"] == [one.job for one in told(bench)]
    assert "old" in {run.job for run in bench.scheduler.runs()}


def test_no_url_in_the_database(shop: Bench) -> None:
    """Jobs, runs and notifications have the names of targets."""
    end(shop, "nightly")
    pass_on(shop)

    def everything(tx: Any, _now: Any) -> str:
        return repr([list(tx.execute(select(one))) for one in table.metadata.sorted_tables])

    assert "hush" not in shop.database.read(everything)
