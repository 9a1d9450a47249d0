"""`must_succeed_by` on real databases: who is overdue, when that is told, and when it is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_sched.beat.deadlines import Watcher
from celery_sched.beat.prune import prune
from celery_sched.model import RunId
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import audit, deadlines
from celery_sched.store.engine import Tx
from tests import invariants
from tests.store.world import APP, Bench, statements, together

NIGHTLY = {"schedule": "0 2 * * *", "must_succeed_by": "06:00"}


def at(hour: int, minute: int = 0, *, day: int = 3) -> datetime:
    """In the days after the bench's clock begins, on 2 March at noon."""
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


@pytest.fixture
def watcher(bench: Bench) -> Watcher:
    """One scheduler's, turned by hand."""
    return Watcher(bench.scheduler.runtime)


def _add(bench: Bench, **policies: Any) -> None:
    bench.client.add("job", task="t.ok", **{**NIGHTLY, **policies})


def _go(bench: Bench, when: datetime) -> None:
    assert when >= bench.clock.now
    bench.clock.now = when


def _run(bench: Bench, status: RunStatus = RunStatus.SUCCEEDED) -> RunId:
    """What waits is claimed and carried out; its id."""
    bench.plan()
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    assert bench.finish(dispatch.key, status).settled
    return dispatch.key.id


def _overdue(bench: Bench) -> datetime | None:
    return bench.client.get("job").overdue_since


def _acts(bench: Bench) -> list[str]:
    rows = bench.database.read(lambda tx, now: audit.newest(tx, APP))
    return [row.action for row in reversed(rows) if row.actor == deadlines.ACTOR]


def _problems(bench: Bench) -> list[str]:
    return [text for text in bench.client.status().problems if "overdue" in text]


def test_a_job_that_did_not_run_is_overdue(bench: Bench, watcher: Watcher) -> None:
    """Its deadline passes without a run: it is told once, shown until a run has succeeded, and then over."""
    _add(bench)
    _go(bench, at(6))
    assert ([], None) == (watcher.watch(), _overdue(bench))
    _go(bench, at(6, 1))
    (told,) = watcher.watch()
    assert "2026-03-03 02:00:00 UTC" in told and "2026-03-03 06:00:00 UTC" in told and "'job'" in told
    assert (at(6), ["overdue"], []) == (_overdue(bench), _acts(bench), watcher.watch())
    (problem,) = _problems(bench)
    assert "'job' is overdue" in problem and "06:00" in problem
    _run(bench)
    assert (None, ["overdue", "recovered"], []) == (_overdue(bench), _acts(bench), _problems(bench))
    assert [] == watcher.watch()
    assert bench.clock.now == bench.client.get("job").last_success_at
    invariants.check(bench.database)


def test_one_that_succeeded_in_time_is_not(bench: Bench, watcher: Watcher) -> None:
    """Its run succeeded; not the next day either, when a run by hand was earlier than its occurrence."""
    _add(bench)
    _go(bench, at(2))
    _run(bench)
    _go(bench, at(6, 1))
    assert [] == watcher.watch()
    _go(bench, at(1, day=4))
    bench.client.run("job")
    _run(bench)
    _go(bench, at(6, 1, day=4))
    (told,) = watcher.watch()
    assert "2026-03-04 02:00:00 UTC" in told


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.LOST])
def test_one_whose_run_failed_is(bench: Bench, watcher: Watcher, status: RunStatus) -> None:
    """A run that ended badly is no success; a later one by hand is."""
    _add(bench)
    _go(bench, at(2))
    _run(bench, status)
    assert bench.client.get("job").last_success_at is None
    _go(bench, at(6, 1))
    assert 1 == len(watcher.watch())
    bench.client.run("job")
    _run(bench)
    assert _overdue(bench) is None


def test_the_success_of_an_older_occurrence_is_not_what_is_waited_for(bench: Bench, watcher: Watcher) -> None:
    """Yesterday's run, caught up with today, does not end what is overdue, and nothing is told twice."""
    _add(bench, misfire="all", overlap="queue")
    _go(bench, at(6, 1, day=4))
    assert 1 == len(watcher.watch())
    bench.plan()
    done = []
    for _ in range(2):
        (dispatch,) = bench.claim()
        bench.start(dispatch.key)
        bench.finish(dispatch.key)
        done.append((dispatch.scheduled_for, _overdue(bench), watcher.watch()))
    assert [(at(2), at(6, day=4), []), (at(2, day=4), None, [])] == done


def test_a_late_success_of_yesterday_is_not_todays(bench: Bench, watcher: Watcher) -> None:
    """Yesterday's run ended well after today's occurrence had come: that one has not succeeded."""
    _add(bench, overlap="queue")
    _go(bench, at(2))
    bench.plan()
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    _go(bench, at(2, 30, day=4))
    assert bench.finish(dispatch.key).settled
    _go(bench, at(6, 1, day=4))
    (told,) = watcher.watch()
    assert "2026-03-04 02:00:00 UTC" in told


def test_an_age_counts_from_the_last_success(bench: Bench, watcher: Watcher) -> None:
    """No success for longer than that, of whatever run."""
    _add(bench, schedule="every 1h", must_succeed_by="25h")
    begin = bench.clock.advance(3600)
    _run(bench)
    bench.clock.advance(timedelta(hours=25))
    assert [] == watcher.watch()
    bench.clock.advance(1)
    assert (1, begin + timedelta(hours=25)) == (len(watcher.watch()), _overdue(bench))
    _run(bench)
    assert _overdue(bench) is None


def test_a_paused_job_need_not_succeed(bench: Bench, watcher: Watcher) -> None:
    """Pausing ends it; once resumed, only what comes then counts, and an age begins anew."""
    _add(bench)
    _go(bench, at(6, 1))
    watcher.watch()
    bench.client.pause("job")
    assert (None, [], []) == (_overdue(bench), watcher.watch(), _problems(bench))
    _go(bench, at(3, day=4))
    bench.client.resume("job")
    _go(bench, at(6, 1, day=4))
    assert [] == watcher.watch()  # the occurrence at two came while it was paused
    _go(bench, at(6, 1, day=5))
    assert 1 == len(watcher.watch())
    bench.client.edit("job", must_succeed_by="1h")
    assert (None, []) == (_overdue(bench), watcher.watch())
    bench.client.pause("job")
    bench.clock.advance(timedelta(days=3))
    bench.client.resume("job")
    bench.clock.advance(3600)
    assert [] == watcher.watch()
    bench.clock.advance(1)
    assert 1 == len(watcher.watch())


def test_an_edit_of_its_times_asks_for_nothing_in_the_past(bench: Bench, watcher: Watcher) -> None:
    """An occurrence that the new schedule would have had before the edit was never planned."""
    _add(bench, schedule="0 5 * * *")
    _go(bench, at(4, 30))
    bench.client.edit("job", schedule="0 4 * * *")
    _go(bench, at(6, 1))
    assert [] == watcher.watch()
    _go(bench, at(6, 1, day=4))
    assert 1 == len(watcher.watch())


def test_a_success_that_is_carried_out_again_still_counts(bench: Bench, watcher: Watcher) -> None:
    """Somebody retries a run that had succeeded in time: that is no missed deadline."""
    _add(bench)
    _go(bench, at(2))
    run_id = _run(bench)
    bench.client.retry(run_id)
    _go(bench, at(6, 1))
    assert [] == watcher.watch()


def test_a_success_that_was_pruned_still_counts(bench: Bench) -> None:
    """Of a job that runs once a month the run may be gone; when it last succeeded is known."""
    _add(bench, schedule="0 2 3 * *")
    _go(bench, at(2))
    _run(bench)
    _go(bench, datetime(2026, 4, 3, 1, tzinfo=UTC))
    assert bench.clock.now - at(2) > bench.config.keep_runs
    assert 1 == prune(bench.scheduler.runtime)
    assert [] == Watcher(bench.scheduler.runtime).watch()


def test_two_schedulers_tell_it_once(bench: Bench) -> None:
    """Both see it, both ask; one of them says so."""
    _add(bench)
    _go(bench, at(6, 1))
    keep = bench.config.keep_runs

    def judge(tx: Tx, now: datetime) -> str | None:
        (suspect,) = deadlines.look(tx, now, APP, keep, {}).suspects or [None]
        return None if suspect is None else deadlines.judge(tx, now, suspect, keep)

    one, other = bench.session(), bench.session()
    told = together(lambda: one.run(judge), lambda: other.run(judge))
    assert 1 == len([text for text in told if text])
    assert ["overdue"] == _acts(bench)


def test_a_success_in_the_same_moment_wins(bench: Bench) -> None:
    """What looked missed and has succeeded by the time its job is locked is not told."""
    _add(bench)
    _go(bench, at(6, 1))
    keep = bench.config.keep_runs
    looked = bench.database.read(lambda tx, now: deadlines.look(tx, now, APP, keep, {}))
    _run(bench)
    (suspect,) = looked.suspects
    assert bench.database.run(lambda tx, now: deadlines.judge(tx, now, suspect, keep)) is None
    assert (None, []) == (_overdue(bench), _acts(bench))


def test_what_cannot_be_read_troubles_no_other(bench: Bench, watcher: Watcher) -> None:
    """A job whose zone is broken by plain SQL is left out, and the next one is watched all the same."""
    _add(bench)
    bench.client.add("a-broken", task="t.ok", **NIGHTLY)
    bench.set_job("a-broken", timezone="Mars/Olympus")
    _go(bench, at(6, 1))
    (told,) = watcher.watch()
    assert "'job'" in told
    bench.set_job("job", timezone="Mars/Olympus")  # and the end of its runs does not fail either
    _run_by_hand(bench)
    assert _overdue(bench) is None


def _run_by_hand(bench: Bench) -> None:
    bench.client.run("job")
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    assert bench.finish(dispatch.key).settled


def test_jobs_without_a_deadline_cost_one_statement(bench: Bench, watcher: Watcher) -> None:
    """A look at many jobs of which none has a deadline reads no runs; one that was met is not read again."""
    for number in range(5):
        bench.job(f"job-{number}")
    with statements(bench.database) as seen:
        watcher.watch()
    assert 0 == len([text for text in seen if "sched_run" in text])
    _add(bench)
    _go(bench, at(2))
    bench.client.run("job")
    (dispatch,) = bench.claim()
    bench.start(dispatch.key)
    bench.finish(dispatch.key)
    _go(bench, at(6, 1))
    counts = []
    for _ in range(2):
        with statements(bench.database) as seen:
            assert [] == watcher.watch()
        counts.append(len([text for text in seen if "sched_run" in text]))
    assert [1, 0] == counts
