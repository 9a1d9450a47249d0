"""`sched runs show` and `sched retry`, beside a scheduler and a worker."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.deployment import Deployment
from tests.private_server import wait_until

TASKS = '''
import pathlib
import time

from celery_sched import job


@job("0 0 1 1 *", name="third", retries=2, retry_delay="0.1s", retry_jitter=False, backoff="fixed")
def third():
    """Succeeds at its third attempt, and at every one after that."""
    tries = pathlib.Path("tries")
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
    if len(tries.read_text()) < 3:
        raise ConnectionError("not yet")
    return len(tries.read_text())


@job("0 0 1 1 *", name="sleeper")
def sleeper():
    time.sleep(600)
'''


def test_attempts_are_shown_and_runs_retried(tmp_path: Path) -> None:
    """A job that succeeds at last shows what it took; a finished run is run again, an active one is not."""
    deployment = Deployment(tmp_path, {"CELERY_SCHED_LEASE": "6s"})
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text(TASKS)
    assert 0 == deployment.sched("migrate").code
    with deployment.running("beat", "-l", "INFO") as beat, deployment.running("worker", "-l", "INFO"):
        wait_until(lambda: deployment.sched("status").code == 0, 60, "scheduler and worker to be up")

        done = deployment.sched("run", "third", "--wait", "--timeout", "60s", "--json")
        assert 0 == done.code, done.err + beat.text()
        run = done.json["id"]
        assert ("succeeded", 3, 3) == (done.json["status"], done.json["attempt"], done.json["result"])

        shown = deployment.sched("runs", "show", run, "--json").json
        assert (run, 3) == (shown["id"], shown["attempt"])
        tried = [(one["attempt"], one["status"], one["error"].splitlines()[0]) for one in shown["attempts"]]
        assert [(1, "failed", "ConnectionError: not yet"), (2, "failed", "ConnectionError: not yet")] == tried
        table = deployment.sched("runs", "show", run[:8])
        assert 0 == table.code
        lines = [line.split() for line in table.out.splitlines()]
        begun = [line[:2] for line in lines if len(line) > 1 and line[0] in "123"]
        assert [["1", "failed"], ["2", "failed"], ["3", "succeeded"]] == begun
        assert ["status", "succeeded"] in lines and "not yet" in table.out

        again = deployment.sched("retry", run[:8])
        assert (0, f"{run} queued: attempt 4 of third; before, it succeeded\n") == (again.code, again.out)
        wait_until(lambda: "succeeded" == _status(deployment, run), 30, "the fourth attempt")
        waited = deployment.sched("retry", run, "--wait", "--timeout", "60s", "--json")
        assert (0, 5, 5) == (waited.code, waited.json["attempt"], waited.json["result"])
        [job] = [one for one in deployment.sched("jobs", "--json").json if one["name"] == "third"]
        assert (1, 1, 0) == (job["run_count"], job["success_count"], job["failure_count"])

        live = deployment.sched("run", "sleeper", "--json").json["id"]
        wait_until(lambda: "running" == _status(deployment, live), 30, "the other job to start")
        for arguments, said in (
            (("retry", live), f"run {live} is running: it is not over yet (to stop it: sched cancel {live})"),
            (("retry", "nothing"), "there is no run 'nothing'"),
            (("runs", "show", "nothing"), "there is no run 'nothing'"),
            (("retry", run, "--timeout", "3s"), "--timeout goes with --wait"),
        ):
            refused = deployment.sched(*arguments)
            assert (2, "", True) == (refused.code, refused.out, said in refused.err), refused.err


def _status(deployment: Deployment, run: str) -> str:
    status: str = deployment.rows(f"SELECT status FROM sched_run WHERE id = '{run}'")[0][0]
    return status
