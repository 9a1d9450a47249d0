"""Clocks that step, processes that are frozen: with a database that keeps true time, without any effect.

libfaketime is on this machine, so what runs under it is a local process, never a container.

Only the clock that tells the date is stepped: a step never moves the monotonic one. (libfaketime can, but the
system's timed waits then do not follow: no thread would wake before its time by the faked clock.)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from tests.e2e.accounted import SECOND, each_once, gaps_of, runs_of
from tests.e2e.launch import as_process
from tests.e2e.site import MakeSite, Site
from tests.e2e.wrong_clock import WrongClock, ahead

HOUR = 3600.0
PATIENCE = 30.0
LATE = 10.0
"""Seconds on a busy machine; an effect of a step of an hour would be an hour, or for ever."""
EVERY_SECOND = "* * * * * *"


def _more(site: Site, job: str, count: int) -> None:
    """Wait for ``count`` more runs that succeed; none is there before its time, by the database's clock."""
    before = len(site.client.runs(job, status="succeeded", limit=10_000))

    def seen() -> bool:
        runs = runs_of(site.runtime, job)
        now = site.now()
        assert all(run.scheduled_for <= now for run in runs), (now, runs[-1])
        return sum(run.status == "succeeded" for run in runs) >= before + count

    site.wait(seen, PATIENCE, f"{count} more runs of {job!r}")


def _lateness(site: Site, job: str) -> float:
    """The worst, in seconds, by the database's clock."""
    return max((run.queued_at - run.scheduled_for).total_seconds() for run in runs_of(site.runtime, job))


def test_a_scheduler_and_a_worker_whose_clock_steps(make_site: MakeSite, tmp_path: Path) -> None:
    """An hour ahead, right, ahead, an hour behind: the runs of an untouched scheduler beside it."""
    clock = WrongClock(tmp_path / "clock")
    clock.set(HOUR)
    stepped, untouched = make_site("postgres", start=as_process), make_site("postgres", start=as_process)
    stepped.scheduler(env=clock.env())
    stepped.worker("-c", "2", env=clock.env())
    untouched.scheduler()
    # `all`: a machine that is too busy for a second makes nothing missed
    for site in (stepped, untouched):
        site.client.add("tick", task="jobs.fast", schedule=EVERY_SECOND, overlap="concurrent", misfire="all")
    stepped.client.add("hourly", task="jobs.fast", schedule="every 1h")
    for offset in (0.0, HOUR, -HOUR):
        clock.set(offset)
        for node in stepped.nodes:
            stepped.wait(
                lambda n=node, by=offset: abs(ahead(n) - by) < HOUR / 2, PATIENCE, "the step to be seen"
            )
        _more(stepped, "tick", 3)
    stepped.stop_planning()
    untouched.stop_planning()
    stepped.wait_until_empty(PATIENCE)

    runs = runs_of(stepped.runtime, "tick")
    assert {"succeeded"} == {run.status for run in runs}
    assert sorted(run.id for run in runs) == sorted(body.run for body in stepped.bodies("tick"))
    each_once(stepped.runtime, "tick", SECOND)
    assert 0 <= min((run.queued_at - run.scheduled_for).total_seconds() for run in runs)
    assert _lateness(stepped, "tick") < LATE + _lateness(untouched, "tick")
    assert [] == stepped.runs("hourly"), "an hour has passed on its own clock only"
    ours, theirs = (
        [run.scheduled_for for run in runs_of(site.runtime, "tick")] for site in (stepped, untouched)
    )
    both = max(ours[0], theirs[0]), min(ours[-1], theirs[-1])
    assert _within(theirs, both) == _within(ours, both)
    assert len(_within(ours, both)) >= 8


def _within(instants: list[datetime], span: tuple[datetime, datetime]) -> list[datetime]:
    return [at for at in instants if span[0] <= at <= span[1]]


def test_a_frozen_scheduler_beside_a_right_one(make_site: MakeSite, tmp_path: Path) -> None:
    """Suspended, and an hour ahead when it wakes: the other one did it all, nothing comes twice."""
    clock = WrongClock(tmp_path / "clock")
    clock.set(0)
    site = make_site("postgres", start=as_process)
    frozen = site.scheduler(env=clock.env())
    site.scheduler()
    site.worker("-c", "2")
    # `all`: frozen within a transaction it keeps the job locked until the session's time-out
    site.client.add("tick", task="jobs.fast", schedule=EVERY_SECOND, overlap="concurrent", misfire="all")
    _more(site, "tick", 2)
    frozen.container.pause()
    clock.set(HOUR)
    _more(site, "tick", 4)
    woken = len(frozen.container.logs())
    frozen.container.unpause()
    _more(site, "tick", 3)
    assert "Waking up" in frozen.container.logs()[woken:], "it works again"
    site.stop_planning()
    site.wait_until_empty(PATIENCE)
    runs = runs_of(site.runtime, "tick")
    assert {"succeeded"} == {run.status for run in runs}
    each_once(site.runtime, "tick", SECOND)
    assert len(runs) == len(site.bodies("tick"))
    session = site.runtime.config.session_timeout.total_seconds()
    assert _lateness(site, "tick") < session + LATE


def test_a_lone_scheduler_that_is_frozen(make_site: MakeSite) -> None:
    """Nobody looked for seconds: the misfire policy decides on them when it wakes, once for each."""
    site = make_site("postgres", start=as_process)
    frozen = site.scheduler()
    site.worker("-c", "2")
    site.client.add("once", task="jobs.fast", schedule=EVERY_SECOND, overlap="concurrent")
    site.client.add("all", task="jobs.fast", schedule=EVERY_SECOND, overlap="concurrent", misfire="all")
    _more(site, "all", 2)
    frozen.container.pause()
    began = site.now()
    site.let_pass(4)
    ended = site.now()
    frozen.container.unpause()
    _more(site, "all", 6)
    site.stop_planning()
    site.wait_until_empty(PATIENCE)
    for job in ("once", "all"):
        each_once(site.runtime, job, SECOND)
    # at the edges: what was due just before it froze, and what came due while it woke
    slept = [run for run in runs_of(site.runtime, "once") if began <= run.scheduled_for <= ended - SECOND]
    assert len(slept) >= 2
    assert {"skipped"} == {run.status for run in slept}
    assert all((run.reason or "").startswith("missed") for run in slept)
    assert {"succeeded"} == {run.status for run in runs_of(site.runtime, "all")}


def test_the_clock_of_a_whole_host_that_keeps_its_jobs_in_sqlite(make_site: MakeSite, tmp_path: Path) -> None:
    """Back: nothing comes twice, and nothing is due again. Ahead by hours: the misfire policy decides."""
    clock = WrongClock(tmp_path / "clock")
    clock.set(0)
    site = make_site("embedded", start=as_process)
    scheduler = site.scheduler(env=clock.env())
    site.worker("-c", "2", env=clock.env())
    half_past = (site.now() + timedelta(minutes=30)).minute  # so that the newest one is not new
    every = {"task": "jobs.fast", "overlap": "concurrent"}
    site.client.add("once", schedule=EVERY_SECOND, **every)
    site.client.add("few", schedule="*/10 * * * *", misfire="all", **every)
    site.client.add("skip", schedule=f"{half_past} * * * *", misfire="skip", **every)

    def succeeded(job: str) -> int:
        return len(site.client.runs(job, status="succeeded", limit=10_000))

    site.wait(lambda: succeeded("once") >= 3, PATIENCE, "three runs")

    clock.set(-HOUR)
    site.wait(lambda: abs(ahead(scheduler.container) + HOUR) < HOUR / 2, PATIENCE, "the step to be seen")
    last = runs_of(site.runtime, "once")[-1].scheduled_for
    polls = scheduler.container.logs().count("Waking up")
    site.wait(
        lambda: scheduler.container.logs().count("Waking up") > polls + 5, PATIENCE, "polls, an hour slow"
    )
    assert last == runs_of(site.runtime, "once")[-1].scheduled_for, "what has run is not due again"

    clock.set(0)
    before = succeeded("once")
    site.wait(lambda: succeeded("once") >= before + 3, PATIENCE, "runs once the clock is right again")

    clock.set(3 * HOUR)
    before = succeeded("once")
    site.wait(lambda: succeeded("once") >= before + 3, PATIENCE, "runs after three hours that were not")
    site.wait(lambda: succeeded("few") >= 18, PATIENCE, "every run of the job that makes all good")
    for node in site.nodes:
        node.stop()

    every_second = each_once(site.runtime, "once", SECOND)
    (gap,) = [gap for gap in gaps_of(site.runtime, "once") if gap.count > HOUR]
    assert gap.reason.startswith("missed")
    runs = [run.scheduled_for for run in runs_of(site.runtime, "once") if run.status == "succeeded"]
    assert 3 * HOUR < len(every_second) < 3 * HOUR + 300
    assert len(runs) < 300, "one run for all that was late, not one for each"
    each_once(site.runtime, "few", timedelta(minutes=10))
    assert {"succeeded"} == {run.status for run in runs_of(site.runtime, "few")}
    (first, *_) = skipped = runs_of(site.runtime, "skip")
    assert 3 == len(each_once(site.runtime, "skip", timedelta(hours=1), first.scheduled_for))
    assert ["skipped"] * 3 == [run.status for run in skipped]
    for job in ("once", "few"):
        ran = [run.id for run in runs_of(site.runtime, job) if run.status == "succeeded"]
        assert sorted(ran) == sorted(body.run for body in site.bodies(job))
