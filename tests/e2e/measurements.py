"""The measurements that the scheduler must pass, for any :class:`~tests.e2e.scale.Scale`: 1 to 3, and 9.

4 and 5 are in `caps`, 6 to 8 in `faults`. Each takes a site, asserts what must hold and returns the
figures it measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_sched.model import Run
from tests.e2e.site import Body, Site, seconds
from tests.reaper import gone

Figures = dict[str, Any]
EACH: dict[str, Any] = {"misfire": "all", "overlap": "queue"}
"""Each occurrence runs, however late: what is measured is when."""


# 1 ------------------------------------------------------------------------------------------------


def fast_beside_hung(site: Site) -> Figures:
    """A fast job alone, and beside one slow job and five that hang: as many runs, about as punctual."""
    scale = site.scale
    site.scheduler(sched_max_concurrent_jobs=20)
    site.worker("-c", "8")
    site.client.add("fast", task="jobs.fast", schedule=f"every {scale.every}s", **EACH)
    site.wait(lambda: site.bodies("fast"), 60, "the first run of the fast job")
    alone = _window(site, "fast")
    hung = [f"hung-{number}" for number in range(5)]
    again: dict[str, Any] = {"schedule": f"every {scale.every}s", "overlap": "skip", "run_immediately": True}
    for name in hung:
        site.client.add(name, task="jobs.hang", **again)
    site.client.add("slow", task="jobs.sleep", args=[scale.slow], **again)
    site.wait(
        lambda: all(site.bodies(name) for name in [*hung, "slow"]), 30, "the slow and hung jobs to be running"
    )
    beside = _window(site, "fast")
    figures = {
        "runs alone": len(alone),
        "runs beside": len(beside),
        "worst lateness alone": max(body.late for body in alone),
        "worst lateness beside": max(body.late for body in beside),
        "median lateness alone": statistics.median(body.late for body in alone),
        "median lateness beside": statistics.median(body.late for body in beside),
    }
    wanted = int(scale.window / scale.every)
    assert abs(len(alone) - wanted) <= 1, figures
    assert abs(len(beside) - len(alone)) <= 1, figures
    for which in ("worst", "median"):
        noise = scale.lateness_floor + (scale.hiccup if which == "worst" else 0)
        allowed = max(3 * figures[f"{which} lateness alone"], noise)
        assert figures[f"{which} lateness beside"] <= allowed, (which, figures)
    assert all(not gone(body.pid) for name in hung for body in site.bodies(name)), "a hung job ended"
    return figures


def _window(site: Site, job: str) -> list[Body]:
    """The bodies of a window's occurrences."""
    began = site.now()
    site.let_pass(site.scale.window)
    ended = began + seconds(site.scale.window)
    last = max((body.scheduled_for for body in site.bodies(job)), default=began)
    # what is due at the very end gets the time that it needs to start
    period = timedelta(seconds=site.scale.every)
    if last + period < ended:
        site.wait(
            lambda: max(body.scheduled_for for body in site.bodies(job)) + period >= ended,
            site.scale.lateness_floor + 5,
            f"the last run of {job!r} in the window",
        )
    return [body for body in site.bodies(job) if began <= body.scheduled_for < ended]


# 2 ------------------------------------------------------------------------------------------------


def two_schedulers(site: Site, *, kill: bool) -> Figures:
    """Two schedulers: no occurrence twice, none missing, also when one is killed half way."""
    scale = site.scale
    nodes = site.schedulers(2)
    site.worker("-c", "4")
    site.client.add("pair", task="jobs.fast", schedule="every 2s", misfire="all", overlap="concurrent")
    site.let_pass(scale.window / 2)
    if kill:
        nodes[0].kill("SIGKILL")
    site.let_pass(scale.window / 2)
    site.stop_planning()
    runs = all_succeed(site, "pair", scale.lease + 2 + scale.patience)
    worst = max(body.late for body in site.bodies("pair"))
    figures = {"runs": len(runs), "bodies": len(site.bodies("pair")), "worst lateness": worst}
    # the job's phase is the instant at which it was added
    assert abs(len(runs) - scale.window / 2) <= 1, figures
    each_once(runs, timedelta(seconds=2))
    assert worst <= scale.lease + 2 + scale.lateness_floor, figures
    site.wait_until_empty(scale.lease + scale.patience)
    return figures


def all_succeed(site: Site, job: str, timeout: float) -> list[Run]:
    """Wait until all runs of a job succeeded, in one body each; its runs."""
    site.wait(
        lambda: all(run.status == "succeeded" for run in site.runs(job)) and site.runs(job),
        timeout,
        f"every run of {job!r} to succeed",
    )
    runs = site.runs(job)
    assert sorted(run.id for run in runs) == sorted(body.run for body in site.bodies(job)), site.report()
    return runs


def each_once(runs: Sequence[Run], period: timedelta) -> None:
    """No occurrence twice, none missing."""
    first = runs[0].scheduled_for
    expected = [first + period * number for number in range(len(runs))]
    assert expected == [run.scheduled_for for run in runs]


# 3 ------------------------------------------------------------------------------------------------


def killed_worker(site: Site) -> Figures:
    """``kill -9`` of a worker that runs one job and has received another: nothing stays behind."""
    scale = site.scale
    site.scheduler()
    # one child and room for messages behind it: what is received waits
    worker = site.worker("-c", "1", "--prefetch-multiplier=4")
    period = f"every {int(scale.lease / 2) or 1}s"
    site.client.add("running", task="jobs.hang_once", args=["running"], schedule=period, run_immediately=True)
    site.wait(lambda: site.bodies("running"), 30, "the first body to run")
    site.client.add("behind", task="jobs.fast", schedule=period, run_immediately=True)
    site.wait(
        lambda: any(run.received_at and run.status == "dispatched" for run in site.runs("behind")),
        30,
        "a message to be received behind the running one",
    )
    # later occurrences of both are skipped meanwhile
    [held] = [run for run in site.runs("running") if run.status == "running"]
    [waiting] = [run for run in site.runs("behind") if run.status == "dispatched"]
    worker.kill("SIGKILL")
    killed = site.now()
    site.worker("-c", "2")
    limit = scale.lease + 2 + scale.patience
    site.wait(lambda: site.client.get_run(held.id).status == "lost", limit, "the killed run to be lost")
    site.wait(
        lambda: site.client.get_run(waiting.id).status == "succeeded",
        limit,
        "what was received to run elsewhere",
    )
    lost, moved = site.client.get_run(held.id), site.client.get_run(waiting.id)
    assert lost.finished_at is not None and moved.started_at is not None
    site.wait_for_runs("running", "succeeded", 1, limit)
    site.wait_for_runs("behind", "succeeded", 2, limit)
    site.stop_planning()
    site.wait_until_empty(limit)
    assert [None, None] == [site.client.get(name).locked_by for name in ("running", "behind")]
    assert 1 == len([body for body in site.bodies("behind") if body.run == waiting.id])
    figures = {
        "lost after": (lost.finished_at - killed).total_seconds(),
        "ran elsewhere after": (moved.started_at - killed).total_seconds(),
    }
    assert max(figures.values()) <= limit, figures
    return figures


# 9 ------------------------------------------------------------------------------------------------


def idle_worker_beside(site: Site) -> Figures:
    """Five hung jobs fill one worker; beside it an idle one: nothing waits behind the hung ones."""
    scale = site.scale
    site.scheduler(sched_max_concurrent_jobs=20)
    full = site.worker("-c", "5")
    for number in range(5):
        name = f"hung-{number}"
        site.client.add(name, task="jobs.hang", schedule="every 1h", run_immediately=True)
    site.wait(lambda: len(site.bodies()) == 5, 30, "five hung jobs in the first worker")
    site.worker("-c", "2")
    names = [f"fast-{number}" for number in range(4)]
    for name in names:
        site.client.add(name, task="jobs.fast", schedule=f"every {scale.every}s", **EACH)
    for name in names:
        site.wait_for_runs(name, "succeeded", 1, 30)  # the first runs of a worker are slow
    began: datetime = site.now()
    site.let_pass(scale.window / 2)
    site.stop_planning()
    for name in names:
        all_succeed(site, name, scale.lateness_floor + scale.patience)
    bodies = [body for name in names for body in site.bodies(name) if body.scheduled_for >= began]
    figures = {"runs": len(bodies), "worst lateness": max(body.late for body in bodies)}
    wanted = 4 * scale.window / 2 / scale.every
    assert len(bodies) >= wanted - 4, (figures, began)
    assert figures["worst lateness"] <= max(scale.lateness_floor, scale.poll + 1) + scale.hiccup, figures
    assert 5 == len([body for body in site.bodies() if body.job.startswith("hung")])
    assert "exited" != full.container.status
    return figures
