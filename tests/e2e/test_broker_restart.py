"""A broker that is restarted while a job is running."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_a_worker_outlives_redis_although_it_runs_a_job(site: Site) -> None:
    """The running job's message is not acknowledged yet when Redis goes: the worker goes on, one body."""
    site.scheduler()
    worker = site.worker("-c", "2")
    site.client.add("nap", task="jobs.sleep", args=[8], schedule="every 1h", run_immediately=True)
    site.wait(lambda: site.bodies("nap"), 30, "the job to be running")
    assert site.redis is not None
    site.redis.stop()
    site.wait(lambda: "Connection to broker lost" in worker.logs(), 30, "the worker to notice")
    site.redis.start()
    site.wait_for_runs("nap", "succeeded", 1, 30)
    # the same worker takes the next job
    site.client.add("next", task="jobs.fast", schedule="every 1h", run_immediately=True)
    site.wait_for_runs("next", "succeeded", 1, 30)
    site.wait_until_empty(30)
    assert ("running", 1) == (worker.container.status, len(site.bodies("nap")))
