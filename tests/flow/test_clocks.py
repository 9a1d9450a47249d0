"""Nodes whose own clocks are wrong: what is due, and what comes next, is the database's business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import libfaketime
import pytest
from celery import Celery

from celery_sched import runtime
from celery_sched.config import load
from celery_sched.testing import ManualScheduler
from celery_sched.transport import embedded_broker, ensure_folders

ROOT = Path(__file__).parents[2]
SECOND = timedelta(seconds=1)
WANTED = 6
"""Occurrences to be seen, one a second."""


def scheduler(url: str, folder: Path) -> ManualScheduler:
    """A scheduler that has the database's own clock."""
    ensure_folders(folder)
    app = Celery("proj", set_as_current=False)
    app.conf.update(embedded_broker(folder), sched_database_url=url, sched_home=str(folder))
    app.conf.sched_max_concurrent_jobs = 1000
    return ManualScheduler(app, runtime=runtime.make(load(app.conf, "proj", {})))


def poll_until_seen(url: str, folder: str) -> None:
    """Poll until there are enough occurrences; say what this process takes for now (run in a subprocess)."""
    polling = scheduler(url, Path(folder))
    print(json.dumps(time.time()), flush=True)
    deadline = time.monotonic() + 60
    while len(polling.runs("job")) < WANTED:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(polling.runs('job'))} occurrences")
        polling.poll()
    polling.close()


@pytest.mark.parametrize("offset", [-90, 90])
def test_a35_a_node_with_a_wrong_clock(postgresql_url: str, tmp_path: Path, offset: int) -> None:
    """A35: a scheduler that is 90 s slow or fast, beside a right one: each second one run, none lost."""
    polling = scheduler(postgresql_url, tmp_path)
    added = polling.client.add("job", task="t", schedule="every 1s", overlap="concurrent")
    code = "import sys; from tests.flow.test_clocks import poll_until_seen; poll_until_seen(*sys.argv[1:])"
    library = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    wrong = {"LD_PRELOAD": str(library), "FAKETIME": f"{offset:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code, postgresql_url, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, **wrong},
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        thinks = json.loads(other.stdout.readline())
        assert abs(thinks - time.time() - offset) < 30, "its clock is wrong"
        while other.poll() is None:
            polling.poll()
    assert 0 == other.returncode
    runs = polling.runs("job")
    assert added.next_run_at is not None
    assert [added.next_run_at + n * SECOND for n in range(len(runs))] == [run.scheduled_for for run in runs]
    late = [(run.queued_at - run.scheduled_for) / SECOND for run in runs]
    assert all(0 <= seconds < 30 for seconds in late), late
    assert abs((datetime.now(UTC) - runs[-1].scheduled_for) / SECOND) < 30, "the database's clock is right"
    polling.close()
