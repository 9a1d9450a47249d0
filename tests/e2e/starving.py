"""Measurement 10: hung jobs hold every slot; how long does a healthy one wait?"""

from __future__ import annotations

from typing import Any

from tests.e2e.measurements import Figures
from tests.e2e.site import Site

SLOTS = 3
KINDS = ("crashed", "silent", "beating")


def healthy_beside_hung(site: Site, kind: str) -> Figures:
    """The longest delay of a healthy job while others hold all slots and hang.

    ``crashed``: their worker is killed. ``silent``: they never say anything. ``beating``: they sent
    heartbeats and then hang.
    """
    scale = site.scale
    goal = scale.lease
    settings: dict[str, Any] = {"sched_max_runtime": 3600.0, "sched_heartbeat_timeout": goal}
    if kind == "silent":
        settings["sched_max_runtime"] = goal
    site.scheduler(sched_max_concurrent_jobs=SLOTS, **settings)
    worker = site.worker("-c", str(SLOTS), **settings)
    task, args = ("jobs.hang_after_beats", [3.0]) if kind == "beating" else ("jobs.hang", [])
    for number in range(SLOTS):
        site.client.add(
            f"hung-{number}", task=task, args=args, schedule="once 2000-01-01T00:00Z", run_immediately=True
        )
    site.wait(lambda: len(site.bodies()) == SLOTS, 60, "every slot to be held")
    began = min(body.at for body in site.bodies())
    if kind == "crashed":
        site.worker("-c", "1", **settings)
        worker.kill("SIGKILL")
        began = site.now()
    if kind == "beating":
        site.wait(lambda: len(site.bodies(what="silent")) == SLOTS, 60, "them to fall silent")
        began = min(body.at for body in site.bodies(what="silent"))
    site.client.add("healthy", task="jobs.fast", schedule="every 1h", run_immediately=True)
    limit = goal + 2 + scale.patience
    site.wait(lambda: site.bodies("healthy"), limit, "the healthy job to run")
    [healthy] = site.bodies("healthy")
    figures = {"goal (s)": goal, "delay (s)": round((healthy.at - began).total_seconds(), 2)}
    assert figures["delay (s)"] <= limit, figures
    site.stop_planning()
    site.wait_until_empty(limit)
    hung = [run for number in range(SLOTS) for run in site.runs(f"hung-{number}")]
    assert {"lost" if kind == "crashed" else "timed_out"} == {run.status for run in hung}
    [ran] = site.runs("healthy")
    first_end = min(run.finished_at for run in hung if run.finished_at is not None)
    assert ran.dispatched_at is not None and ran.dispatched_at >= first_end, "it had a slot of its own"
    return figures
