"""The nine measurements that the scheduler must pass, for any :class:`~tests.e2e.site.Scale`.

Each takes a site, asserts what must hold and returns the figures it measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_sched.model import Run
from tests.e2e.nodes import gone
from tests.e2e.site import Body, Site, seconds

Figures = dict[str, Any]
CAP = 5


# 1 ------------------------------------------------------------------------------------------------


def fast_beside_hung(site: Site) -> Figures:
    """A fast job alone, and beside one slow job and five that hang: as many runs, about as punctual."""
    scale = site.scale
    site.scheduler(sched_max_concurrent_jobs=20)
    site.worker("-c", "8")
    site.client.add("fast", task="jobs.fast", schedule=f"every {scale.every}s")
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
        allowed = max(3 * figures[f"{which} lateness alone"], scale.lateness_floor)
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
    site.client.add("pair", task="jobs.fast", schedule="every 2s", overlap="concurrent")
    site.let_pass(scale.window / 2)
    if kill:
        nodes[0].kill("SIGKILL")
    site.let_pass(scale.window / 2)
    site.stop_planning()
    runs = _all_succeed(site, "pair", scale.lease + 2 + scale.patience)
    worst = max(body.late for body in site.bodies("pair"))
    figures = {"runs": len(runs), "bodies": len(site.bodies("pair")), "worst lateness": worst}
    # the job's phase is the instant at which it was added
    assert abs(len(runs) - scale.window / 2) <= 1, figures
    _every(runs, timedelta(seconds=2))
    assert worst <= scale.lease + 2 + scale.lateness_floor, figures
    site.wait_until_empty(scale.lease + scale.patience)
    return figures


def _all_succeed(site: Site, job: str, timeout: float) -> list[Run]:
    """Wait until all runs of a job succeeded, in one body each; its runs."""
    site.wait(
        lambda: all(run.status == "succeeded" for run in site.runs(job)) and site.runs(job),
        timeout,
        f"every run of {job!r} to succeed",
    )
    runs = site.runs(job)
    assert sorted(run.id for run in runs) == sorted(body.run for body in site.bodies(job)), site.report()
    return runs


def _every(runs: Sequence[Run], period: timedelta) -> None:
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


# 4 ------------------------------------------------------------------------------------------------


def full_cap(site: Site) -> Figures:
    """Cap 5, 20 due jobs that sleep: five run, fifteen wait and run later, oldest first."""
    scale = site.scale
    names = _due_at_once(site, "jobs.sleep", 20, args=[scale.naps])
    site.worker("-c", "8")
    site.scheduler(sched_max_concurrent_jobs=CAP)
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, site.client.status().inflight)
        return len(site.bodies(what="end")) == 20

    site.wait(done, scale.naps * 4 + 20 + scale.patience, "all 20 jobs to have run")
    site.wait_until_empty(scale.lease + scale.patience)
    runs = [run for name in names for run in site.runs(name)]
    figures = {
        "most in flight": most,
        "most bodies at once": _most_at_once(site),
        "at capacity": site.client.status().at_capacity,
        "succeeded": sum(run.status == "succeeded" for run in runs),
    }
    assert {"most in flight": 5, "most bodies at once": 5, "at capacity": 15, "succeeded": 20} == figures
    dispatched = [run.dispatched_at for run in runs if run.dispatched_at is not None]
    assert 20 == len(dispatched)
    assert sorted(dispatched) == dispatched, "not oldest first"
    return figures


def _due_at_once(site: Site, task: str, count: int, **policies: Any) -> list[str]:
    """Jobs that are due, the first one longest, when this returns. Their names, oldest first."""
    first = site.now() + seconds(2)
    names = [f"due-{number:02}" for number in range(count)]
    for number, name in enumerate(names):
        at = first + timedelta(milliseconds=10 * number)
        site.client.add(name, task=task, schedule=f"once {at.isoformat()}", **policies)
    site.wait(lambda: site.client.status().due == count, 30, f"{count} jobs to be due")
    return names


def _most_at_once(site: Site) -> int:
    """The highest number of bodies that ran at the same time."""
    moments = [(body.at, 1) for body in site.bodies()] + [(body.at, -1) for body in site.bodies(what="end")]
    most = running = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


# 5 ------------------------------------------------------------------------------------------------


def hung_cap(site: Site) -> Figures:
    """A cap full of hung jobs: after ``sched_max_runtime`` they are gone with their children, others run."""
    scale = site.scale
    site.worker("-c", "5", sched_max_runtime=5)
    hung = _due_at_once(site, "jobs.hang", CAP)
    site.scheduler(sched_max_concurrent_jobs=CAP, sched_max_runtime=5)
    site.wait(lambda: len(site.bodies()) == CAP, 30, "the cap to be full of hung jobs")
    bodies = site.bodies()
    pids = [pid for body in bodies for pid in (body.pid, *body.children)]
    assert [False] * 3 * CAP == [gone(pid) for pid in pids]
    waiting = [f"waiting-{number}" for number in range(5)]
    for name in waiting:
        site.client.add(name, task="jobs.fast", schedule="every 1h", run_immediately=True)
    limit = 5 + 2 + scale.patience
    for name in hung:
        site.wait_for_runs(name, "timed_out", 1, limit)
    site.wait(
        lambda: all(gone(pid) for pid in pids), scale.patience, "hung processes and children to be gone"
    )
    for name in waiting:
        site.wait_for_runs(name, "succeeded", 1, scale.patience)
    site.wait_until_empty(scale.patience)
    ran = [run for name in hung for run in site.runs(name)]
    lasted = [(r.finished_at - r.started_at).total_seconds() for r in ran if r.finished_at and r.started_at]
    figures = {
        "timed out after (s)": max(lasted),
        "waiting jobs began after (s)": (
            max(body.at for name in waiting for body in site.bodies(name)) - min(body.at for body in bodies)
        ).total_seconds(),
    }
    assert 5 == len(lasted) and min(lasted) >= 5, figures
    assert max(lasted) <= limit, figures
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
    for number in range(4):
        site.client.add(f"fast-{number}", task="jobs.fast", schedule=f"every {scale.every}s")
    began: datetime = site.now()
    site.let_pass(scale.window / 2)
    site.stop_planning()
    names = [f"fast-{number}" for number in range(4)]
    for name in names:
        _all_succeed(site, name, scale.lateness_floor + scale.patience)
    bodies = [body for name in names for body in site.bodies(name)]
    figures = {"runs": len(bodies), "worst lateness": max(body.late for body in bodies)}
    wanted = 4 * scale.window / 2 / scale.every
    assert len(bodies) >= wanted - 4, (figures, began)
    assert figures["worst lateness"] <= max(scale.lateness_floor, scale.poll + 1), figures
    assert 5 == len([body for body in site.bodies() if body.job.startswith("hung")])
    assert "exited" != full.container.status
    return figures
