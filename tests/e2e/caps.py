"""Measurements 4 and 5: a cap that is full."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.e2e.measurements import Figures
from tests.e2e.site import Site, seconds
from tests.reaper import gone

CAP = 5

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
    first = site.now() + seconds(5)
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
